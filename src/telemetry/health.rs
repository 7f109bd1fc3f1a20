//! Records which parts of the operator are ready.
use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _, sync::Arc};

use tokio::sync::watch;

/// The reason that a part gives before its first report.
const STARTING: &str = "not synced yet";

/// The state that a part reports.
#[derive(Debug)]
enum PartState {
    Ready,
    /// The part is ready, and has a remark.
    ReadyAnd(Cow<'static, str>),
    /// The part is not ready, for this reason.
    Not(Cow<'static, str>),
}

/// The readiness that `/readyz` shows: the operator is ready when every named part is. Clones share one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<watch::Sender<Parts>>);

/// The report of each part, with a number that distinguishes the part from an earlier one of the same name.
type Parts = BTreeMap<Cow<'static, str>, (Arc<()>, PartState)>;

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Creates a state without parts, which is not ready.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Parts::new())))
    }

    /// Adds a part that has to be ready, and is not ready yet. It replaces an earlier part of the same name.
    pub fn part(&self, name: impl Into<Cow<'static, str>>) -> Part {
        let part = Part {
            name: name.into(),
            itself: Arc::default(),
            health: self.clone(),
        };
        self.0.send_modify(|parts| {
            let starting = PartState::Not(STARTING.into());
            parts.insert(part.name.clone(), (part.itself.clone(), starting));
        });
        part
    }

    /// Returns whether there are parts and all of them are ready.
    pub fn is_ready(&self) -> bool {
        self.obstacles().is_empty()
    }

    /// Returns one line for each part that is not ready, sorted by name: `jobs: not synced yet`. Empty when ready.
    pub fn obstacles(&self) -> String {
        let parts = self.0.borrow();
        if parts.is_empty() {
            return format!("operator: {STARTING}\n");
        }
        let mut lines = String::new();
        for (name, (_, state)) in parts.iter() {
            if let PartState::Not(why) = state {
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{name}: {why}");
            }
        }
        lines
    }

    /// Returns one line for each part that is ready and has a remark.
    pub fn remarks(&self) -> String {
        let mut lines = String::new();
        for (name, (_, state)) in self.0.borrow().iter() {
            if let PartState::ReadyAnd(remark) = state {
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{name}: {remark}");
            }
        }
        lines
    }
}

/// One part of the operator that has to be ready, until it is dropped.
#[derive(Debug)]
pub struct Part {
    name: Cow<'static, str>,
    itself: Arc<()>,
    health: Health,
}

impl Part {
    /// Reports that the part works.
    pub fn ready(&self) {
        self.set(PartState::Ready);
    }

    /// Reports that the part works, with this remark (one line, for people).
    pub fn ready_and(&self, remark: impl Into<Cow<'static, str>>) {
        self.set(PartState::ReadyAnd(remark.into()));
    }

    /// Reports that the part does not work, for this reason (one line, for people).
    pub fn not_ready(&self, why: impl Into<Cow<'static, str>>) {
        self.set(PartState::Not(why.into()));
    }

    fn set(&self, state: PartState) {
        self.health.0.send_modify(|parts| {
            if let Some(part) = parts.get_mut(&self.name)
                && self.is(part)
            {
                part.1 = state;
            }
        });
    }

    /// Returns whether the entry is this part's own, which no other part has replaced.
    fn is(&self, (part, _): &(Arc<()>, PartState)) -> bool {
        Arc::ptr_eq(part, &self.itself)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.health.0.send_modify(|parts| {
            if parts.get(&self.name).is_some_and(|part| self.is(part)) {
                parts.remove(&self.name);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_is_not_ready() {
        assert!(!Health::new().is_ready());
        assert_eq!(Health::new().obstacles(), "operator: not synced yet\n");
    }

    #[test]
    fn it_is_ready_when_every_part_is() {
        let health = Health::new();
        let (jobs, semaphores) = (health.part("jobs"), health.part("consulsemaphores"));
        semaphores.ready();
        assert!(!health.is_ready());
        assert_eq!(health.obstacles(), "jobs: not synced yet\n");
        jobs.ready();
        assert!(health.is_ready());
        assert_eq!(health.obstacles(), "");
    }

    #[test]
    fn a_part_can_stop_being_ready() {
        let health = Health::new();
        let jobs = health.part("jobs");
        jobs.ready();
        jobs.not_ready("the watch was refused");
        assert!(!health.is_ready());
        assert_eq!(health.obstacles(), "jobs: the watch was refused\n");
    }

    #[test]
    fn a_remark_is_reported_beside_readiness() {
        let health = Health::new();
        let (election, jobs) = (health.part("leader election"), health.part("jobs"));
        election.ready_and("a leads, b stands by");
        assert_eq!(health.obstacles(), "jobs: not synced yet\n");
        assert_eq!(health.remarks(), "leader election: a leads, b stands by\n");
        jobs.ready();
        assert!(health.is_ready());
    }

    #[test]
    fn a_part_that_is_gone_need_not_be_ready() {
        let health = Health::new();
        let (election, jobs) = (health.part("leader election"), health.part("jobs"));
        election.ready();
        drop(jobs);
        assert!(health.is_ready());
    }

    #[test]
    fn one_that_begins_again_outlives_the_one_before() {
        let health = Health::new();
        let before = health.part("jobs");
        before.ready();
        let again = health.part("jobs");
        before.ready();
        drop(before);
        assert_eq!(health.obstacles(), "jobs: not synced yet\n");
        again.ready();
        assert!(health.is_ready());
    }
}
