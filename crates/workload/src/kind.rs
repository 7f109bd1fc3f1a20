//! The kinds of workloads. What is known of a kind is one row of a table, and each row is a file:
//!
//! | kind | file |
//! |---|---|
//! | `batch/v1` Job | `kind/job.rs` |

pub(crate) mod job;

use consul_semaphore::KindName;
use kube_core::ApiResource;

/// A kind of workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `batch/v1` Job.
    Job,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 1] = [Self::Job];

    /// The kind of this name.
    pub fn named(name: &KindName) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == *name)
    }

    /// Its name, as in sessions, contenders, events and logs.
    pub fn name(&self) -> KindName {
        self.resource().kind.as_str().into()
    }

    /// Where the API server has it.
    pub fn resource(&self) -> ApiResource {
        match self {
            Self::Job => job::resource(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(&kind.name()), Some(kind));
        }
        assert_eq!(Kind::named(&"Other".into()), None);
    }
}
