//! The commands that change something: an annotation of a Job, a field of a semaphore, a session in Consul.

pub(crate) mod job;
pub(crate) mod pause;
pub(crate) mod release;
