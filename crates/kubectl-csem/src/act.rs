//! The commands that change something: an annotation of a workload, a field of a semaphore, a session in Consul.

pub(crate) mod annotate;
pub(crate) mod pause;
pub(crate) mod release;
