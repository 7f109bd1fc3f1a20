//! How long pods may run without a slot, and which sentence of the design allows it.

use super::spans::{Outages, Spans};
use crate::record::{Part, Semaphore};

/// What a busy machine may add to any duration, in seconds.
const SLACK: f64 = 5.0;

/// How long any call to the API server may take (`controller::call::CALL_TIMEOUT`).
const CALL: f64 = 10.0;

/// The base of the operator's intervals for sessions without a TTL.
const UNTIMED: f64 = 300.0;

/// Why pods run without a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Consul or a person took the slot away.
    Lost,
    /// A person started the Job.
    ByHand,
}

/// An allowed gap.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// Its name.
    pub name: &'static str,
    /// The longest that it may last.
    pub bound: &'static str,
    /// The sentence of the contract that allows it.
    pub sentence: &'static str,
}

/// All gaps that are allowed. The time of an outage of the operator or of the API server does not count, nor does the
/// time until the next try: the operator can't do anything then. All other time counts, however often the operator is
/// restarted. Once the Job is suspended, Kubernetes gives its pods their grace period.
pub const GAPS: [Gap; 6] = [
    Gap {
        name: "lost, and Consul says so",
        bound: "an eighth of the TTL, at most 37.5 s, to ask for another slot and 5 s until the Job is suspended",
        sentence: "from the loss of a slot to the end of its pods' grace period",
    },
    Gap {
        name: "lost, and Consul can't be read",
        bound: "the TTL less the pods' grace period, or half of it if that is more, and 5 s until the Job is suspended",
        sentence: "the last good renewal was sent less than a TTL ago ... Suspending acts early enough for the pods to be gone by then",
    },
    Gap {
        name: "lost, with sessions that never expire",
        bound: "37.5 s to ask for another slot and 5 s until the Job is suspended; as long as Consul can't be read does not count",
        sentence: "With ttl None nothing is renewed and only Consul's word counts",
    },
    Gap {
        name: "lost, with Continue",
        bound: "none",
        sentence: "with Continue",
    },
    Gap {
        name: "made running by hand",
        bound: "5 s until the Job is suspended, whether or not Consul can be read",
        sentence: "for the moment before a Job made running without the admission policy is suspended",
    },
    Gap {
        name: "the operator or the API server is away",
        bound: "as long as it is",
        sentence: "while the operator or the API server is down for longer than the TTL",
    },
];

/// Compares gaps with what is allowed.
pub(super) struct Measure<'a> {
    semaphore: &'a Semaphore,
    /// When the operator can't write to Jobs.
    idle: Spans,
    /// When the operator can't read Consul.
    unread: Spans,
}

impl<'a> Measure<'a> {
    pub(super) fn new(semaphore: &'a Semaphore, outages: &Outages) -> Self {
        let idle =
            [Part::Operator, Part::Frozen, Part::Api].map(|part| outages.with_recovery(&part));
        let grants = Part::Grants(semaphore.prefix.clone());
        Self {
            semaphore,
            idle: idle.iter().fold(Spans::default(), |all, one| all.and(one)),
            unread: outages
                .with_recovery(&Part::Consul)
                .and(&outages.with_recovery(&grants)),
        }
    }

    /// The counted length of a gap and its bound, if it is too long.
    pub(super) fn excess(&self, why: Why, from: f64, to: f64, grace: f64) -> Option<(f64, f64)> {
        if why == Why::Lost && self.semaphore.goes_on {
            return None;
        }
        let unread = self.unread.touches(from, to);
        let mut length = self.idle.clear(from, to);
        let bound = match (why, self.semaphore.ttl) {
            (Why::ByHand, _) => 0.0,
            (Why::Lost, Some(ttl)) if unread => (ttl - grace).max(ttl / 2.0),
            (Why::Lost, Some(ttl)) => ttl.min(UNTIMED) / 8.0,
            (Why::Lost, None) => {
                length = self.idle.and(&self.unread).clear(from, to);
                UNTIMED / 8.0
            }
        };
        (length > bound + SLACK).then_some((length, bound + SLACK))
    }

    /// Whether a start this long after the loss of the slot can't have been sent before the loss. A PATCH may take a
    /// quarter of the TTL, and at most as long as any call.
    pub(super) fn started_too_late(&self, lost: f64, started: f64, api: &Spans) -> bool {
        let patch = CALL.min(self.semaphore.ttl.unwrap_or(UNTIMED) / 4.0);
        started - lost > patch + SLACK && !api.touches(lost, started)
    }
}
