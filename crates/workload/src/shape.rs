//! What an object looks like where a patch must know it: JSON Patches name elements of lists by their place, and add to
//! what is there or make it.

use std::sync::Arc;

/// What a patch must know of an object, at the version that it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Nothing.
    #[default]
    Plain,
    /// What the pod templates in its list of Jobs have.
    Templates(Box<[Template]>),
    /// At which place in its list of scheduling gates ours is.
    Gate(usize),
    /// It is made of workloads of its own kind.
    Nested,
    /// Which of its admission checks are ours, and what its sets of pods are called.
    Checks {
        /// The places of our entries.
        places: Box<[usize]>,
        /// The names of all its sets of pods.
        pod_sets: Box<[Arc<str>]>,
    },
}

/// What the metadata of a pod template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
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
