//! The facts about an object that a patch depends on. A JSON Patch names an element of a list by its place, and it must
//! know whether a map exists, because it either adds to the map or makes it.

use std::sync::Arc;

use crate::row::Row;

/// The facts about an object that a patch depends on, for one version of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A patch needs to know nothing.
    #[default]
    Plain,
    /// The metadata of the pod template of each replicated Job, in the order of the list.
    Templates(Box<[Template]>),
    /// The facts that the row of the kind asks for.
    Listed(Box<RowFacts>),
    /// The place of the operator's gate in the Pod's list of scheduling gates.
    Gate(usize),
    /// The workload is made of workloads of its own kind.
    Nested,
    /// The user shut the workload down while it was held, so the operator makes it fail: the workload's controller does
    /// nothing about the shutdown while the workload is held.
    ShutDown,
    /// The workload is suspended, and its status still has a start time. This happens before Kubernetes 1.36. The
    /// template can't be changed until the start time is cleared.
    Started,
    /// The admission checks of a Kueue Workload that are the operator's, and the names of its sets of pods.
    Checks {
        /// The places of the operator's entries in the list of admission checks.
        places: Box<[usize]>,
        /// The names of all sets of pods.
        pod_sets: Box<[Arc<str>]>,
        /// Whether Kueue reset the entries when it evicted the Workload, and the operator has not answered that yet.
        is_reset: bool,
    },
}

/// The contents of the metadata of a pod template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// There is no pod template.
    Absent,
    /// The pod template has no metadata.
    Bare,
    /// The pod template has metadata.
    Has {
        /// Whether the metadata has labels.
        labels: bool,
        /// Whether the metadata has annotations.
        annotations: bool,
    },
}

/// The facts about an object whose kind is a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFacts {
    /// The row by which the object was read. The row may have been replaced since.
    pub(crate) row: Arc<Row>,
    /// The contents of each place that a path of the row finds, for each path to metadata.
    pub(crate) templates: Box<[Box<[Template]>]>,
    /// The parts of the status that say that the workload failed; set while the workload is held only to fail.
    pub(crate) failing: Option<Failing>,
    /// Whether the workload has failed and may run again. The mark that makes it fail must then go.
    pub(crate) again: bool,
}

/// The parts of a status that decide how a failure is written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failing {
    /// The reason why the workload fails.
    pub(crate) reason: String,
    /// The place of the condition for failures in the list of conditions, if the condition exists.
    pub(crate) condition: Option<usize>,
    /// Whether there is a list of conditions.
    pub(crate) conditions: bool,
}

impl Shape {
    fn row_facts(&self) -> Option<&RowFacts> {
        match self {
            Self::Listed(facts) => Some(facts),
            _ => None,
        }
    }

    /// Returns why the workload fails, if it is held only to fail once its pods are gone.
    pub fn fails_for(&self) -> Option<&str> {
        let failing = self.row_facts()?.failing.as_ref()?;
        Some(&failing.reason)
    }

    /// Whether the workload is held only to fail once its pods are gone.
    pub fn is_to_fail(&self) -> bool {
        self.fails_for().is_some() || self.is_shut_down()
    }

    /// Whether the user shut the workload down while it was held.
    pub fn is_shut_down(&self) -> bool {
        matches!(self, Self::ShutDown)
    }

    /// Whether the workload has failed, still has the mark that makes it fail, and may run again.
    pub fn may_run_again(&self) -> bool {
        self.row_facts().is_some_and(|facts| facts.again)
    }

    /// Whether the status has a start time that is to be cleared once the workload's pods are gone.
    pub fn is_started(&self) -> bool {
        matches!(self, Self::Started)
    }

    /// Whether Kueue evicted the Workload, and the operator has yet to write, once its pods are gone, that it may wait
    /// again.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Checks { is_reset: true, .. })
    }
}
