//! Makes small values for the tests of this crate.

use std::{sync::Arc, time::Duration};

use super::{
    LimitPolicy, Mode, OnSlotLost,
    fate::OwnContender,
    holder::{self, Request, SessionSettings},
    identity::{Cluster, ContenderBody, Identity},
    lock::SEMAPHORE_FLAGS,
    settings::{Restrictions, Settings, WaitSettings},
    turns::WINDOW,
    workload::{Granted, KindName, Phase, SlotRequest, Traits, Uid, Workload},
};
use crate::{OnContention, Reading, Wait};
use consul_client::{Entry, Listing, clock::Moment};

pub(super) const LOCK_KEY: &str = "p/.lock";

/// Returns a key of a semaphore, as Consul has it, locked by this session.
pub(super) fn entry(key: &str, session: Option<&str>, value: &str) -> Entry {
    Entry {
        key: key.into(),
        value: value.into(),
        flags: SEMAPHORE_FLAGS,
        session: session.map(Into::into),
        lock_index: 1,
        create_index: 3,
        modify_index: 5,
    }
}

/// Returns the settings of a program that asks for these slots.
pub(super) fn program(request: Request) -> holder::HolderSettings {
    holder::HolderSettings {
        request,
        priority: 0,
        fair: true,
        wait: true,
        must_exist: false,
        kind: holder::HolderKind::Program,
        host: "ci-7".to_owned(),
        program: "migrate".to_owned(),
        session: SessionSettings {
            node: None,
            ttl: Duration::from_mins(1),
            lock_delay: Duration::ZERO,
        },
        cooldown: Duration::ZERO,
        on_slot_lost: OnSlotLost::Suspend,
        grace: Duration::from_secs(10),
    }
}

pub(super) fn workload(
    name: &str,
    phase: Phase,
    granted: Option<&str>,
    reported: Option<&str>,
) -> Workload {
    Workload {
        kind: KindName::default(),
        name: name.into(),
        uid: Uid::from(name),
        version: "1".into(),
        seen: Moment::default(),
        requests: vec![SlotRequest::one("db", None)],
        on_contention: OnContention::Wait,
        cron_job: None,
        priority: 0,
        hold: false,
        since: 0,
        phase,
        grace: Duration::from_secs(30),
        was_suspended: true,
        traits: Traits::default(),
        granted: granted.map(|session| Granted::by(LOCK_KEY, session)),
        reported: reported.map(Into::into).into_iter().collect(),
        wait: Wait::default(),
    }
}

/// Returns a wall-clock time, this many seconds after a fixed moment.
pub(super) fn time(seconds: u64) -> jiff::Timestamp {
    let since = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(1_000_000 + since).unwrap_or(jiff::Timestamp::MAX)
}

pub(super) fn ours(session: &str, workload: Option<Workload>) -> OwnContender {
    OwnContender {
        session: session.into(),
        identity: Arc::new(Identity {
            cluster: "c".into(),
            namespace: "batch".into(),
            semaphore: "db".into(),
            key: None,
            kind: KindName::default(),
            workload: workload
                .as_ref()
                .map_or("a".into(), |workload| workload.name.clone()),
            uid: workload
                .as_ref()
                .map_or("a".into(), |workload| workload.uid.clone()),
            ordinal: 0,
        }),
        workload: workload.map(Arc::new),
        pods_gone: false,
    }
}

pub(super) fn settings(limit: u32) -> Settings {
    Settings {
        cluster: Cluster {
            name: "prod-eu".into(),
            id: "c".into(),
        },
        namespace: "batch".into(),
        name: "db".into(),
        key: None,
        prefix: "p".parse().unwrap(),
        mode: Mode::Semaphore,
        period: None,
        limit,
        slot_names: Vec::new(),
        restrictions: Restrictions::default(),
        policy: LimitPolicy::Refuse,
        paused: false,
        fair: Some(WINDOW),
        pass_over: Duration::from_mins(1),
        terminating: false,
        on_slot_lost: OnSlotLost::Reacquire,
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(15),
        cooldown: Duration::ZERO,
        transient: false,
        wait: WaitSettings::default(),
    }
}

/// Returns the prefix `p` of a semaphore with these keys.
pub(super) fn reading(entries: Vec<Entry>) -> Reading {
    let listing = Listing {
        entries: entries.into(),
        index: 9,
        sent: Moment::default(),
        reset: false,
    };
    Reading::new("p".parse().unwrap(), Mode::Semaphore, listing)
}

/// The body of the contender of a holder with this session.
pub(super) fn contender_body(session: &str) -> ContenderBody {
    let identity = ours(session, None).identity;
    ContenderBody::new(&settings(1).cluster, &identity, time(0), false)
}
