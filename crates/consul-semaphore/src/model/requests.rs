//! What the API server is asked to do with a Job, and what it says.

use crate::plan::{GiveBack, Rename, Skip, Start, Stop, Suspend, Target};

/// What happens to a Job's pods when it is deleted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deletion {
    /// The Job goes at once, its pods when the garbage collector and their node get to it.
    Background,
    /// The Job goes after its pods.
    Foreground,
    /// The Job goes at once, and its pods run on.
    Orphan,
}

/// A PATCH, or a DELETE, that names the uid and the version that was decided on.
#[derive(Clone, Debug)]
pub(super) enum Patch {
    Start(Start),
    Suspend(Suspend),
    Stop(Stop),
    GiveBack(GiveBack),
    Rename(Rename),
    Skip(Skip),
}

impl Patch {
    pub(super) fn target(&self) -> &Target {
        match self {
            Self::Start(start) => &start.job,
            Self::Suspend(suspend) => &suspend.job,
            Self::Stop(stop) => &stop.job,
            Self::GiveBack(give_back) => &give_back.job,
            Self::Rename(rename) => &rename.job,
            Self::Skip(skip) => &skip.job,
        }
    }
}

/// What the API server says to a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// The Job is not there any more, or not at that version.
    Conflict,
    /// Refused for good.
    Refused,
}
