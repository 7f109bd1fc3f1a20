//! Requests to the API server about a workload, and its answers.

use crate::plan::{End, Fail, GiveBack, RecordWait, Rename, Skip, Start, Stop, Suspend, Target};

/// What happens to a workload's pods when it is deleted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deletion {
    /// The workload is deleted at once, and its pods when the garbage collector and their node get to it.
    Background,
    /// The workload is deleted after its pods.
    Foreground,
    /// The workload is deleted at once, and its pods keep running.
    Orphan,
}

/// A PATCH or a DELETE, with the uid and the version that it was decided on.
#[derive(Clone, Debug)]
pub(super) enum Patch {
    Start(Start),
    Suspend(Suspend),
    Stop(Stop),
    GiveBack(GiveBack),
    Rename(Rename),
    RecordWait(RecordWait),
    Skip(Skip),
    Fail(Fail),
    End(End),
}

impl Patch {
    pub(super) fn target(&self) -> &Target {
        match self {
            Self::Start(start) => &start.workload,
            Self::Suspend(suspend) => &suspend.workload,
            Self::Stop(stop) => &stop.workload,
            Self::GiveBack(give_back) => &give_back.workload,
            Self::Rename(rename) => &rename.workload,
            Self::RecordWait(record) => &record.workload,
            Self::Skip(skip) => &skip.workload,
            Self::Fail(fail) => &fail.workload,
            Self::End(end) => &end.workload,
        }
    }
}

/// The API server's answer to a PATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    /// The workload does not exist any more, or not at that version.
    Conflict,
    /// Refused for good.
    Refused,
}
