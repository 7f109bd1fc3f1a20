//! The Jobs that ask for more than one slot.

use std::collections::BTreeMap;

use crate::record::{Record, What};

/// What each Job that asks for more than one slot asks for: how many slots, by prefix. Other Jobs ask for one slot at
/// the prefix of their own records.
#[derive(Default)]
pub(super) struct Requests(BTreeMap<String, BTreeMap<String, usize>>);

impl Requests {
    pub(super) fn of(bed: &[Record]) -> Self {
        let jobs = bed.iter().filter_map(|record| match &record.what {
            What::Job(job) if !job.asks.is_empty() => Some((job.uid.clone(), job.asks.clone())),
            _ => None,
        });
        Self(jobs.collect())
    }

    /// The request of a Job, if it is for more than one slot.
    pub(super) fn of_job(&self, uid: &str) -> Option<&BTreeMap<String, usize>> {
        self.0.get(uid)
    }

    /// The prefixes at which a Job asks for slots; `own` is that of its record.
    pub(super) fn prefixes<'a>(&'a self, uid: &str, own: &'a str) -> Vec<&'a str> {
        match self.0.get(uid) {
            Some(asks) => asks.keys().map(String::as_str).collect(),
            None => vec![own],
        }
    }

    /// Whether a Job asks for slots at this prefix.
    pub(super) fn is_at(&self, uid: &str, own: &str, prefix: &str) -> bool {
        match self.0.get(uid) {
            Some(asks) => asks.contains_key(prefix),
            None => own == prefix,
        }
    }

    /// How many slots a Job asks for at a prefix.
    pub(super) fn slots(&self, uid: &str, prefix: &str) -> usize {
        let asks = self.0.get(uid);
        asks.and_then(|asks| asks.get(prefix)).copied().unwrap_or(1)
    }
}
