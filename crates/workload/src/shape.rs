//! What an object looks like where a patch must know it: JSON Patches name elements of lists by their place, and add to
//! what is there or make it.

use std::sync::Arc;

use crate::row::Row;

/// What a patch must know of an object, at the version that it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Nothing.
    #[default]
    Plain,
    /// What the pod templates in its list of Jobs have.
    Templates(Box<[Template]>),
    /// What a row says of it.
    Listed(Box<Listing>),
    /// At which place in its list of scheduling gates ours is.
    Gate(usize),
    /// The workload is made of workloads of its own kind.
    Nested,
    /// The user shut the workload down while it was held, so the workload is to fail; its controller does nothing about
    /// the shutdown while the workload is held.
    ShutDown,
    /// The workload is suspended, and its status still has a start time, as before Kubernetes 1.36: its template can't
    /// be changed.
    Started,
    /// Which of its admission checks are ours, and what its sets of pods are called.
    Checks {
        /// The places of our entries.
        places: Box<[usize]>,
        /// The names of all its sets of pods.
        pod_sets: Box<[Arc<str>]>,
        /// Whether they were reset when it was evicted, and that is still to be answered.
        is_reset: bool,
    },
}

/// What the metadata of a pod template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// There is no pod template.
    Absent,
    /// There is none.
    Bare,
    /// It is there, with these parts.
    Has {
        /// Whether it has labels.
        labels: bool,
        /// Whether it has annotations.
        annotations: bool,
    },
}

/// What a patch must know of an object whose kind is a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The row by which it was read: another one may have come since.
    pub(crate) row: Arc<Row>,
    /// What the places of each path to metadata have.
    pub(crate) templates: Box<[Box<[Template]>]>,
    /// Set while it is held only to fail.
    pub(crate) failing: Option<Failing>,
    /// Whether it has failed, and may run again: then it is not to fail any more.
    pub(crate) again: bool,
}

/// What a status that is to say that a workload failed has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failing {
    /// Why it failed.
    pub(crate) reason: String,
    /// The place of the condition among its conditions.
    pub(crate) condition: Option<usize>,
    /// Whether it has conditions.
    pub(crate) conditions: bool,
}

impl Shape {
    fn listing(&self) -> Option<&Listing> {
        match self {
            Self::Listed(listing) => Some(listing),
            _ => None,
        }
    }

    /// Why it is held only to fail, once its pods are gone, if it is.
    pub fn fails_for(&self) -> Option<&str> {
        let failing = self.listing()?.failing.as_ref()?;
        Some(&failing.reason)
    }

    /// Whether it is held only to fail, once its pods are gone.
    pub fn is_to_fail(&self) -> bool {
        self.fails_for().is_some() || self.is_shut_down()
    }

    /// Whether its user shut it down while it was held.
    pub fn is_shut_down(&self) -> bool {
        matches!(self, Self::ShutDown)
    }

    /// Whether it has failed, bears the mark of that, and may run again.
    pub fn may_run_again(&self) -> bool {
        self.listing().is_some_and(|listing| listing.again)
    }

    /// Whether its status is to say no more that it was started, once its pods are gone.
    pub fn is_started(&self) -> bool {
        matches!(self, Self::Started)
    }

    /// Whether it was evicted, and is to be told once its pods are gone that it may wait again.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Checks { is_reset: true, .. })
    }
}
