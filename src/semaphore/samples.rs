//! Small values for the tests of this room.

use std::time::Duration;

use super::{
    LimitPolicy, OnSlotLost,
    fate::Ours,
    identity::{Cluster, Identity},
    job::{Granted, Job, Standing, Uid},
    settings::Settings,
};
use crate::clock::Moment;

pub(super) const LOCK_KEY: &str = "p/.lock";

pub(super) fn job(
    name: &str,
    standing: Standing,
    granted: Option<&str>,
    reported: Option<&str>,
) -> Job {
    Job {
        name: name.into(),
        uid: Uid::from(name),
        version: "1".into(),
        seen: Moment::default(),
        wants: Some("db".into()),
        priority: 0,
        hold: false,
        since: 0,
        standing,
        grace: Duration::from_secs(30),
        was_suspended: true,
        granted: granted.map(|session| Granted {
            lock_key: LOCK_KEY.into(),
            session: session.into(),
        }),
        reported: reported.map(Into::into),
    }
}

pub(super) fn ours(session: &str, job: Option<Job>) -> Ours {
    Ours {
        session: session.into(),
        identity: Identity {
            cluster: "c".into(),
            namespace: "batch".into(),
            semaphore: "db".into(),
            job: "a".into(),
            uid: "a".into(),
        },
        job,
        pods_gone: false,
    }
}

pub(crate) fn settings(limit: u32) -> Settings {
    Settings {
        cluster: Cluster {
            name: "prod-eu".into(),
            id: "c".into(),
        },
        namespace: "batch".into(),
        name: "db".into(),
        prefix: "p".parse().unwrap(),
        limit,
        policy: LimitPolicy::Refuse,
        paused: false,
        terminating: false,
        on_slot_lost: OnSlotLost::Reacquire,
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(15),
    }
}
