//! Which parts of the operator are ready.
use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _, sync::Arc};

use tokio::sync::watch;

/// What a part has to say for itself before it is ready.
const STARTING: &str = "not synced yet";

/// Why a part is not ready; nothing when it is.
type Obstacle = Option<Cow<'static, str>>;

/// What `/readyz` answers: ready when every named part is. Clones share one state.
#[derive(Clone, Debug)]
pub struct Health(Arc<watch::Sender<BTreeMap<&'static str, Obstacle>>>);

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// No part is known yet, so it is not ready.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }

    /// Adds a part that has to be ready, and is not yet. Asked again for one name, it starts again.
    pub fn part(&self, name: &'static str) -> Part {
        let part = Part {
            name,
            health: self.clone(),
        };
        part.not_ready(STARTING);
        part
    }

    /// Whether there are parts and all of them are ready.
    pub fn is_ready(&self) -> bool {
        self.obstacles().is_empty()
    }

    /// One line for each part that is not ready, in the order of their names: `jobs: not synced yet`. Empty when ready.
    pub fn obstacles(&self) -> String {
        let parts = self.0.borrow();
        if parts.is_empty() {
            return format!("operator: {STARTING}\n");
        }
        let mut lines = String::new();
        for (name, obstacle) in parts.iter() {
            if let Some(why) = obstacle {
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{name}: {why}");
            }
        }
        lines
    }
}

/// One part of the operator that has to be ready.
#[derive(Clone, Debug)]
pub struct Part {
    name: &'static str,
    health: Health,
}

impl Part {
    /// It works now.
    pub fn ready(&self) {
        self.set(None);
    }

    /// It does not work now, for this reason (one line, for a person).
    pub fn not_ready(&self, why: impl Into<Cow<'static, str>>) {
        self.set(Some(why.into()));
    }

    fn set(&self, obstacle: Obstacle) {
        self.health.0.send_modify(|parts| {
            parts.insert(self.name, obstacle);
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
}
