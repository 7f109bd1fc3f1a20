//! Reports an election: to `/readyz`, the metric and the log.

use parking_lot::Mutex;

use crate::telemetry::{Metrics, Part, Telemetry};

/// The state of this replica in the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The state is not known yet.
    Unknown,
    /// This replica leads.
    Leading,
    /// This replica stands by.
    Standby {
        /// Name of the leader, if known.
        leader: Option<String>,
    },
}

/// Reports the state of this replica, which is ready as soon as the state is known.
pub(super) struct Board<F> {
    identity: String,
    part: Part,
    metrics: Metrics,
    on: F,
    reported: Mutex<ReportedLeadership>,
}

struct ReportedLeadership {
    standing: Standing,
    /// Last reported reason why the leader is unknown.
    trouble: Option<String>,
}

impl<F: Fn(&Standing)> Board<F> {
    pub(super) fn new(identity: String, telemetry: &Telemetry, on: F) -> Self {
        telemetry.metrics.set_leader(false);
        Self {
            identity,
            part: telemetry.health.part("leader election"),
            metrics: telemetry.metrics.clone(),
            on,
            reported: Mutex::new(ReportedLeadership {
                standing: Standing::Unknown,
                trouble: None,
            }),
        }
    }

    /// Reports that this replica leads without an election.
    pub(super) fn works_alone(&self) {
        self.metrics.set_leader(true);
        self.part.ready_and("off");
        (self.on)(&Standing::Leading);
    }

    /// Reports that this replica leads from now on.
    pub(super) fn leads(&self) {
        tracing::info!(identity = %self.identity, "this replica leads");
        self.set(Standing::Leading);
    }

    /// Reports that this replica does not lead any more.
    pub(super) fn lost(&self, why: &str) {
        tracing::warn!(identity = %self.identity, why, "this replica is no longer the leader, and stands by");
        self.set(Standing::Standby { leader: None });
    }

    /// Reports that this replica ends.
    pub(super) fn ends(&self) {
        self.metrics.set_leader(false);
    }

    /// Reports that this replica stands by, and who the leader is, if there is one.
    pub(super) fn follows(&self, leader: Option<&str>) {
        let standing = Standing::Standby {
            leader: leader.map(str::to_owned),
        };
        let mut reported = self.reported.lock();
        reported.trouble = None;
        let known = reported.standing == standing;
        drop(reported);
        if known {
            return;
        }
        if let Some(leader) = leader {
            tracing::info!(identity = %self.identity, leader, "another replica leads, and this one stands by");
        }
        self.set(standing);
    }

    /// Reports that the leader is unknown, or that this replica can't take part.
    pub(super) fn trouble(&self, why: String) {
        let mut reported = self.reported.lock();
        if reported.trouble.as_ref() == Some(&why) {
            return;
        }
        tracing::warn!(identity = %self.identity, why, "the leader election fails, trying again");
        match reported.standing {
            Standing::Unknown => self.part.not_ready(why.clone()),
            _ => self
                .part
                .ready_and(format!("can't find out who leads: {why}")),
        }
        reported.trouble = Some(why);
    }

    fn set(&self, standing: Standing) {
        let leads = standing == Standing::Leading;
        self.metrics.set_leader(leads);
        self.part.ready_and(match &standing {
            Standing::Leading => format!("{} (this replica) leads", self.identity),
            Standing::Standby {
                leader: Some(leader),
            } => format!("{leader} leads, {} (this replica) stands by", self.identity),
            _ => format!(
                "no replica leads, {} (this replica) stands by",
                self.identity
            ),
        });
        (self.on)(&standing);
        let mut reported = self.reported.lock();
        reported.standing = standing;
        reported.trouble = None;
    }
}
