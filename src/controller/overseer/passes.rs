//! Whether a branch has begun a pass since it gave account: one that has is not closed for what it
//! said before.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// The passes of one branch, counted; clones share the count.
#[derive(Clone, Default)]
pub(super) struct Passes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// How many have begun.
    begun: u64,
    closed: bool,
}

impl Passes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Begins a pass; its number, or `None` if there is to be none any more.
    pub(super) fn begin(&self) -> Option<u64> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.begun += 1;
        Some(state.begun)
    }

    /// Lets no pass begin any more if none has begun since this one and `may_close` agrees; says
    /// whether it is so. So no account is on its way from a branch that is closed.
    pub(super) fn close_after(&self, pass: u64, may_close: impl FnOnce() -> bool) -> bool {
        let mut state = self.state();
        state.closed = state.closed || (state.begun == pass && may_close());
        state.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_before_another_pass_began_closes_nothing() {
        let passes = Passes::default();
        let first = passes.begin().unwrap();
        let second = passes.clone().begin().unwrap();
        assert!(!passes.close_after(first, || unreachable!("it is at work")));
        assert!(!passes.close_after(second, || false), "it has Jobs");
        let third = passes.begin().unwrap();
        assert!(passes.close_after(third, || true));
        assert_eq!(passes.begin(), None);
    }
}
