//! Turns the facts that were read into lines of the report, without IO: the same facts give the same lines.

pub(super) mod consul;
pub(super) mod definition;
pub(super) mod kubernetes;
mod queue;
pub(super) mod semaphore;

use consul_client::SessionId;
use consul_semaphore::{Reading, plan::Taker};

/// The way to see whether the operator works.
const ALIVE: &str = "check that the operator runs, and read its log: kubectl get pods -A -l \
                                app.kubernetes.io/name=consul-semaphore-operator";

/// Returns the owner of a session, as far as its contender names one.
fn holder(reading: &Reading, session: &SessionId) -> String {
    Taker::new(session, reading.contender(session)).describe()
}

/// Returns a list of names for people, at most one line long.
fn named<T: ToString>(names: impl ExactSizeIterator<Item = T>) -> String {
    const MAX_NAMES: usize = 5;
    let more = names.len().saturating_sub(MAX_NAMES);
    let first: Vec<String> = names.take(MAX_NAMES).map(|name| name.to_string()).collect();
    let listed = first.join(", ");
    match more {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_many_names_some_are_reported() {
        assert_eq!(super::named(["a", "b"].iter()), "a, b");
        assert_eq!(super::named([""; 0].iter()), "");
        let many = (0..7).collect::<Vec<_>>();
        assert_eq!(super::named(many.iter()), "0, 1, 2, 3, 4 and 2 more");
    }
}
