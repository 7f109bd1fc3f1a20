//! What is stored in Consul, byte by byte.
//!
//! Builds of different age share a prefix during every upgrade, and permanently where two clusters are upgraded
//! independently. Consul's Go client, `consul lock` and scripts read the same keys. So a literal here is a contract
//! with programs that can't be changed together with this one. Add only what all of them skip, and only where it is
//! used: what is written today must stay as it is.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use consul_client::{Entry, Listing, Op, SessionId, clock::Moment, id::IdSet};
use consul_semaphore::{
    Cluster, ContenderBody, Cooldowns, Defence, Evidence, Excluded, Identity, LimitPolicy, Lock,
    Memory, Mode, Observed, OnContention, OnSlotLost, OwnContender, Phase, Reading, Restrictions,
    Settings, SlotId, SlotRequest, Starts, Workload, decide, plan::Target,
};

/// The session that our waits and grants are made with.
const OURS: &str = "4f5b0d1e-6a3c-4d88-9f0e-2b7c1a90d3e5";

/// The session of another program.
const THEIRS: &str = "c2a9e6f4-0b1d-4e37-8a55-91d3f7b6c024";

/// A contender of a Job that was granted a slot.
const HOLDS: &str = r#"{"cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11","kind":"Job","namespace":"batch","name":"migrate-42","uid":"0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48","semaphore":"db","time":"2026-03-01T12:00:00.25Z","slotIndex":0}"#;

/// The same, of a semaphore with a cooldown.
const HOLDS_AND_WILL_COOL: &str = r#"{"cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11","kind":"Job","namespace":"batch","name":"migrate-42","uid":"0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48","semaphore":"db","time":"2026-03-01T12:00:00.25Z","slotIndex":0,"cooldown":60}"#;

/// The same, when the Job is done.
const COOLS: &str = r#"{"cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11","kind":"Job","namespace":"batch","name":"migrate-42","uid":"0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48","semaphore":"db","time":"2026-03-01T12:00:00.25Z","slotIndex":0,"cooldown":60,"coolsUntil":"2026-03-01T12:01:00.25Z"}"#;

/// A contender of a Job whose session never expires.
const HOLDS_FOR_EVER: &str = r#"{"cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11","kind":"Job","namespace":"batch","name":"migrate-42","uid":"0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48","semaphore":"db","time":"2026-03-01T12:00:00.25Z","slotIndex":0,"endless":true}"#;

/// A contender of a Job that waits.
const WAITS: &str = r#"{"cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11","kind":"Job","namespace":"batch","name":"migrate-42","uid":"0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48","semaphore":"db","time":"2026-03-01T12:00:00.25Z","waiting":{"priority":5,"since":"2026-03-01T11:59:00Z"}}"#;

/// The same, of a Job that lost its slot.
const WAITS_AGAIN: &str = r#"{"cluster":"prod-eu","clusterId":"7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11","kind":"Job","namespace":"batch","name":"migrate-42","uid":"0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48","semaphore":"db","time":"2026-03-01T12:00:00.25Z","waiting":{"priority":5,"since":"2026-03-01T11:59:00Z","lost":true}}"#;

/// A contender of a command under `exec`.
const PROCESS_HOLDS: &str = r#"{"cluster":"ci-7","clusterId":"ci-7","kind":"Process","namespace":"-","name":"pg_dump","uid":"4711-0badcafe","semaphore":"-","time":"2026-03-01T12:00:00.25Z","slotIndex":0}"#;

/// The present.
const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

/// What a pass knows.
struct Facts {
    settings: Settings,
    entries: Vec<Entry>,
    workload: Workload,
    /// The session that was made for the workload, if it waits.
    session: Option<SessionId>,
    /// The workload's contender, if it has one.
    ours: Vec<OwnContender>,
}

impl Facts {
    /// A Job waits at a prefix that nobody has used, and has its session.
    fn new() -> Self {
        Self {
            settings: settings(),
            entries: Vec::new(),
            workload: workload(),
            session: Some(OURS.into()),
            ours: Vec::new(),
        }
    }

    /// A command waits as under `exec`.
    fn of_a_process() -> Self {
        Self {
            settings: process_settings(),
            workload: Workload {
                name: "pg_dump".into(),
                uid: "4711-0badcafe".into(),
                requests: vec![SlotRequest::one("-", None)],
                ..workload()
            },
            ..Self::new()
        }
    }

    /// `.lock` has this value, written with these flags.
    fn lock(mut self, flags: u64, session: Option<&str>, value: &str) -> Self {
        let key = self.settings.prefix.lock_key();
        self.entries.push(entry(&key, flags, session, value));
        self
    }

    /// The contender of a session.
    fn contender(mut self, session: &str, value: &str) -> Self {
        let key = format!("semaphores/batch/db/{session}");
        let flags = 0xe0f6_9a2b_aa41_4de0;
        self.entries.push(entry(&key, flags, Some(session), value));
        self
    }

    /// The workload holds a slot, and is done.
    fn done(mut self) -> Self {
        self.session = None;
        self.workload.phase = Phase::Finished { at_rest: true };
        self.ours.push(OwnContender {
            session: OURS.into(),
            identity: Arc::new(self.settings.identity(&Target::from(&self.workload), 0)),
            workload: Some(Arc::new(self.workload.clone())),
            pods_gone: true,
        });
        self
    }

    fn reading(&self) -> Reading {
        let listing = Listing {
            entries: self.entries.clone().into(),
            index: 20,
            sent: NOW,
            reset: false,
        };
        Reading::new(self.settings.prefix.clone(), self.settings.mode, listing)
    }

    /// The operations that a pass writes to Consul.
    fn writes(&self) -> Vec<String> {
        let reading = self.reading();
        let workload = [Arc::new(self.workload.clone())];
        let slot = SlotId {
            workload: self.workload.uid.clone(),
            ordinal: 0,
        };
        let ended = self.workload.has_ended();
        let session = self.session.iter();
        let mut cooldowns = Cooldowns::default();
        cooldowns.observe(&reading, &self.ours, NOW, time());
        let plan = decide(&Observed {
            now: NOW,
            time: time(),
            settings: &self.settings,
            applied: std::slice::from_ref(&self.settings.limit),
            defence: Defence::default(),
            fenced: true,
            reading: Some(&reading),
            memory: &Memory::default(),
            cooldowns: &cooldowns,
            starts: &Starts::default(),
            brief: &BTreeSet::new(),
            evidence: &Evidence::default(),
            ours: &self.ours,
            bound: &[],
            queue: if ended { &[] } else { &workload },
            sessions: &session
                .map(|id| (slot.clone(), id.clone()))
                .collect::<BTreeMap<_, _>>(),
            unused: &IdSet::default(),
            excluded: &Excluded::default(),
            stances: &BTreeMap::new(),
            longest_cooldowns: &BTreeMap::new(),
            requests: &BTreeMap::new(),
            closed: false,
            joint: None,
            operations: 64,
        });
        let transaction = plan.transaction.expect("it writes something");
        transaction.operations.iter().map(shown).collect()
    }
}

fn shown(operation: &Op) -> String {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).expect("UTF-8");
    match operation {
        Op::Lock {
            key,
            value,
            flags,
            session,
        } => format!("lock {key} {flags:#x} {session} {}", text(value)),
        Op::Unlock {
            key,
            value,
            flags,
            session,
        } => format!("unlock {key} {flags:#x} {session} {}", text(value)),
        Op::Cas {
            key,
            value,
            flags,
            index,
        } => format!("cas {key} {flags:#x} {index} {}", text(value)),
        Op::Delete { key } => format!("delete {key}"),
        Op::CheckIndex { key, index } => format!("check-index {key} {index}"),
        Op::CheckNotExists { key } => format!("check-not-exists {key}"),
        other => panic!("{other:?}"),
    }
}

fn time() -> jiff::Timestamp {
    "2026-03-01T12:00:00.25Z".parse().expect("a time")
}

fn entry(key: &str, flags: u64, session: Option<&str>, value: &str) -> Entry {
    Entry {
        key: key.to_owned(),
        value: value.into(),
        flags,
        session: session.map(Into::into),
        lock_index: u64::from(session.is_some()),
        create_index: 5,
        modify_index: 9,
    }
}

fn settings() -> Settings {
    Settings {
        cluster: Cluster {
            name: "prod-eu".into(),
            id: "7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11".into(),
        },
        namespace: "batch".into(),
        name: "db".into(),
        key: None,
        prefix: "semaphores/batch/db".parse().expect("a prefix"),
        mode: Mode::Semaphore,
        period: None,
        limit: 2,
        slot_names: Vec::new(),
        restrictions: Restrictions::default(),
        policy: LimitPolicy::Refuse,
        paused: false,
        fair: Some(Duration::from_secs(2)),
        pass_over: Duration::from_mins(1),
        terminating: false,
        on_slot_lost: OnSlotLost::Reacquire,
        ttl: Some(Duration::from_mins(2)),
        lock_delay: Duration::from_secs(15),
        cooldown: Duration::ZERO,
        transient: false,
        wait: consul_semaphore::WaitSettings::default(),
    }
}

fn mutex_settings() -> Settings {
    Settings {
        mode: Mode::Mutex,
        period: None,
        limit: 1,
        ..settings()
    }
}

/// The settings of `exec`: the host takes the place of the cluster.
fn process_settings() -> Settings {
    Settings {
        cluster: Cluster {
            name: "ci-7".into(),
            id: "ci-7".into(),
        },
        namespace: "-".into(),
        name: "-".into(),
        transient: true,
        ..settings()
    }
}

/// A Job that waits.
fn workload() -> Workload {
    Workload {
        kind: consul_semaphore::KindName::default(),
        name: "migrate-42".into(),
        uid: "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48".into(),
        version: "1".into(),
        seen: Moment::default(),
        requests: vec![SlotRequest::one("db", None)],
        on_contention: OnContention::Wait,
        cron_job: None,
        priority: 5,
        hold: false,
        since: 1_772_366_340,
        phase: Phase::Idle,
        grace: Duration::from_secs(30),
        was_suspended: true,
        traits: consul_semaphore::Traits::default(),
        granted: None,
        reported: Vec::new(),
        wait: consul_semaphore::Wait::default(),
    }
}

fn read(body: &str) -> ContenderBody {
    ContenderBody::read(body.as_bytes()).expect("a body of ours")
}

/// Operators of other clusters use this body to tell our contenders from foreign ones, and to put our Jobs into the
/// order. People and tools use it to see who holds a slot.
#[test]
fn the_contender_of_a_job() {
    let lock = format!(r#"{{"Holders":{{"{OURS}":true}},"Limit":2}}"#);
    assert_eq!(
        Facts::new().writes(),
        [
            format!("lock semaphores/batch/db/{OURS} 0xe0f69a2baa414de0 {OURS} {HOLDS}"),
            format!("cas semaphores/batch/db/.lock 0xe0f69a2baa414de0 0 {lock}"),
        ]
    );
    let body = read(HOLDS);
    assert_eq!(body.holder().to_string(), "prod-eu batch/migrate-42");
    assert_eq!(body.cluster_id, "7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11");
    assert_eq!(body.uid, "0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48");
    assert_eq!((body.kind.as_str(), body.semaphore.as_str()), ("Job", "db"));
    assert_eq!(body.time, time());
    assert_eq!(
        (body.endless, body.cooldown, body.cools_until),
        (false, 0, None)
    );
    assert_eq!(body.place(), None, "it does not wait");
    assert_eq!((body.slot_index, body.slot_name), (Some(0), None));
    let before = HOLDS.replace(r#","slotIndex":0"#, "");
    assert_eq!(read(&before).slot_index, None, "of an earlier build");
}

/// Only the path has the key: the body is that of any Job, for readers that do not know about keys.
#[test]
fn the_contender_of_a_job_of_a_keyed_semaphore() {
    let key = "customer-7".parse().expect("a key");
    let mut facts = Facts::new();
    facts.settings = settings().of_key(&key);
    facts.workload.requests[0].key = Some(key);
    let lock = format!(r#"{{"Holders":{{"{OURS}":true}},"Limit":2}}"#);
    let prefix = "semaphores/batch/db/customer-7";
    assert_eq!(
        facts.writes(),
        [
            format!("lock {prefix}/{OURS} 0xe0f69a2baa414de0 {OURS} {HOLDS}"),
            format!("cas {prefix}/.lock 0xe0f69a2baa414de0 0 {lock}"),
        ]
    );
}

/// An operator shows a command by its host: it recognizes it by `Process`, and by `-` where a Job has a namespace.
#[test]
fn the_contender_of_a_process() {
    let lock = format!(r#"{{"Holders":{{"{OURS}":true}},"Limit":2}}"#);
    assert_eq!(
        Facts::of_a_process().writes(),
        [
            format!("lock semaphores/batch/db/{OURS} 0xe0f69a2baa414de0 {OURS} {PROCESS_HOLDS}"),
            format!("cas semaphores/batch/db/.lock 0xe0f69a2baa414de0 0 {lock}"),
        ]
    );
    let body = read(PROCESS_HOLDS);
    assert_eq!(
        (body.kind.as_str(), &*body.holder().to_string()),
        ("Process", "ci-7 pg_dump")
    );
}

/// Other waiting contenders rely on this claim: a build that does not find it takes the Job for a program without a
/// known place, and the fair order is lost.
#[test]
fn the_contender_of_a_job_that_waits() {
    let lock = format!(r#"{{"Limit":1,"Holders":{{"{THEIRS}":true}}}}"#);
    let taken = || {
        let mut facts = Facts::new()
            .lock(0xe0f6_9a2b_aa41_4de0, None, &lock)
            .contender(THEIRS, "");
        facts.settings.limit = 1;
        facts
    };
    let expected = |body: &str| {
        [
            format!("check-not-exists semaphores/batch/db/{OURS}"),
            "check-index semaphores/batch/db/.lock 9".to_owned(),
            format!("lock semaphores/batch/db/{OURS} 0xe0f69a2baa414de0 {OURS} {body}"),
        ]
    };
    let waits = taken();
    assert_eq!(waits.writes(), expected(WAITS));
    assert_eq!(read(WAITS).place(), Some(waits.workload.place()));

    let mut lost = taken();
    let contender = format!("semaphores/batch/db/{THEIRS}");
    lost.workload.granted = Some(consul_semaphore::Granted::by(&contender, THEIRS));
    assert_eq!(lost.writes(), expected(WAITS_AGAIN));
    assert_eq!(read(WAITS_AGAIN).place(), Some(lost.workload.place()));
    assert!(lost.workload.place() < waits.workload.place());
}

/// Others show until when a slot cools, and a restarted operator keeps the slot until then. It would release the slot
/// at once if the body had another form.
#[test]
fn the_contender_of_a_slot_that_cools() {
    let mut granted = Facts::new();
    granted.settings.cooldown = Duration::from_mins(1);
    let contender = format!("lock semaphores/batch/db/{OURS} 0xe0f69a2baa414de0 {OURS}");
    assert_eq!(
        granted.writes()[0],
        format!("{contender} {HOLDS_AND_WILL_COOL}")
    );

    let lock = format!(r#"{{"Holders":{{"{OURS}":true}},"Limit":2}}"#);
    let done = Facts::new()
        .lock(0xe0f6_9a2b_aa41_4de0, None, &lock)
        .contender(OURS, HOLDS_AND_WILL_COOL)
        .done();
    assert_eq!(
        done.writes(),
        [
            format!("check-index semaphores/batch/db/{OURS} 9"),
            format!("{contender} {COOLS}"),
        ]
    );
    let body = read(COOLS);
    assert_eq!(body.cooldown(), Duration::from_mins(1));
    assert_eq!(body.cools_until, Some(time() + Duration::from_mins(1)));
}

/// Others show that only a person can end it.
#[test]
fn the_contender_of_a_job_whose_session_never_expires() {
    let mut facts = Facts::new();
    facts.settings.ttl = None;
    let contender = format!("lock semaphores/batch/db/{OURS} 0xe0f69a2baa414de0 {OURS}");
    assert_eq!(facts.writes()[0], format!("{contender} {HOLDS_FOR_EVER}"));
    assert!(read(HOLDS_FOR_EVER).endless);
}

/// A later build may add to a body: this one ignores the addition.
#[test]
fn a_body_that_says_more_is_read() {
    let more = HOLDS.replace(r#","time""#, r#","slots":2,"of":{"x":[1]},"time""#);
    assert_eq!(read(&more), read(HOLDS));
}

/// After a restart or an upgrade an operator recognizes its own contenders by the names of their sessions. Otherwise
/// their slots would be foreign: never released, and its running Jobs suspended because they have no slot.
#[test]
fn names_of_sessions() {
    let job = Target::from(&workload());
    let process = Target::from(&Facts::of_a_process().workload);
    let key = "customer-7".parse().expect("a key");
    for (identity, name) in [
        (
            settings().identity(&job, 0),
            "consul-semaphore-operator/7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11/batch/db/migrate-42/0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
        ),
        (
            settings().of_key(&key).identity(&job, 0),
            "consul-semaphore-operator/7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11/batch/db:customer-7/migrate-42/0b9d7c52-9c1f-4a70-8c7e-5d2f6e1a3b48",
        ),
        (
            process_settings().identity(&process, 0),
            "consul-semaphore-operator/ci-7/-/-/pg_dump/4711-0badcafe",
        ),
    ] {
        assert_eq!(identity.session_name(), name);
        assert_eq!(Identity::parse(name), Some(identity));
    }
    // The session of a leader election is no contender's.
    assert_eq!(
        Identity::parse("consul-semaphore-operator leader operator-0"),
        None
    );
}

/// Every client of the prefix counts holders by this body, and writes it only with flags that it knows. Go reads the
/// fields in any order; fields that another program has added stay unchanged.
#[test]
fn the_body_of_lock() {
    let holds = |flags, value: &str| {
        let facts = Facts::new().lock(flags, None, value).contender(THEIRS, "");
        facts.writes().pop().expect("the last operation")
    };
    let go = format!(r#"{{"Limit":2,"Holders":{{"{THEIRS}":true}}}}"#);
    assert_eq!(
        holds(0xe0f6_9a2b_aa41_4de0, &go),
        format!(
            r#"cas semaphores/batch/db/.lock 0xe0f69a2baa414de0 9 {{"Holders":{{"{OURS}":true,"{THEIRS}":true}},"Limit":2}}"#
        )
    );
    // As in the guide "Distributed semaphore".
    let guide = format!(r#"{{"Limit": 2, "Holders": ["{THEIRS}"]}}"#);
    assert_eq!(
        holds(0, &guide),
        format!(
            r#"cas semaphores/batch/db/.lock 0x0 9 {{"Holders":["{THEIRS}","{OURS}"],"Limit":2}}"#
        )
    );
    let more = format!(
        r#"{{"Limit":2,"Holders":{{"{THEIRS}":1}},"Owner":"dba","At":1.50,"of":{{"b":1,"a":[]}}}}"#
    );
    assert_eq!(
        holds(0xe0f6_9a2b_aa41_4de0, &more),
        format!(
            r#"cas semaphores/batch/db/.lock 0xe0f69a2baa414de0 9 {{"At":1.50,"Holders":{{"{OURS}":true,"{THEIRS}":1}},"Limit":2,"Owner":"dba","of":{{"b":1,"a":[]}}}}"#
        )
    );
    // What Go's client writes when the last holder has left, and what it writes for a map that it never made.
    for empty in [
        r#"{"Limit":2,"Holders":{}}"#,
        r#"{"Limit":2,"Holders":null}"#,
    ] {
        let facts = Facts::new().lock(0xe0f6_9a2b_aa41_4de0, None, empty);
        let Lock::Semaphore { body, .. } = facts.reading().lock().clone() else {
            panic!("{empty} is a semaphore's");
        };
        assert_eq!((body.limit(), body.held()), (2, 0));
        assert_eq!(body.encode(), br#"{"Holders":{},"Limit":2}"#);
    }
}

/// A release takes the holder out, and leaves the rest of the body as it is.
#[test]
fn the_body_of_lock_after_a_release() {
    let lock = format!(r#"{{"Holders":{{"{OURS}":true,"{THEIRS}":true}},"Limit":2}}"#);
    let facts = Facts::new()
        .lock(0xe0f6_9a2b_aa41_4de0, None, &lock)
        .contender(OURS, HOLDS)
        .contender(THEIRS, "")
        .done();
    let left = format!(r#"{{"Holders":{{"{THEIRS}":true}},"Limit":2}}"#);
    assert_eq!(
        facts.writes(),
        [
            format!("cas semaphores/batch/db/.lock 0xe0f69a2baa414de0 9 {left}"),
            format!("delete semaphores/batch/db/{OURS}"),
        ]
    );
}

/// `consul lock -n 1` and `api.Lock` know their mutex by these flags, and take anything else for a semaphore's.
#[test]
fn a_mutex() {
    let mut free = Facts::new();
    free.settings = mutex_settings();
    assert_eq!(
        free.writes(),
        [
            "check-not-exists semaphores/batch/db/.lock".to_owned(),
            format!("lock semaphores/batch/db/.lock 0x2ddccbc058a50c18 {OURS} {HOLDS}"),
        ]
    );
    let mut done = Facts::new()
        .lock(0x2ddc_cbc0_58a5_0c18, Some(OURS), HOLDS)
        .done();
    done.settings = mutex_settings();
    assert_eq!(
        done.writes(),
        [
            format!("unlock semaphores/batch/db/.lock 0x2ddccbc058a50c18 {OURS} "),
            "delete semaphores/batch/db/.lock".to_owned(),
        ]
    );
    // The lock of another build is not foreign.
    let reading = done.reading();
    assert!(reading.holds(&OURS.into()));
    let holder = read(HOLDS).holder();
    assert_eq!(holder.to_string(), "prod-eu batch/migrate-42");
}
