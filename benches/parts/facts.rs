//! What a pass knows of a semaphore whose slots are all taken and that has waiting workloads.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use consul_client::{Entry, Listing, SessionId, clock::Moment, id::IdSet};
use consul_semaphore::{
    AHEAD, Asked, Cluster, ContenderBody, Cooldowns, Defence, Evidence, Excluded, Identity,
    LimitPolicy, Memory, Mode, Observed, OnSlotLost, OwnContender, Prefix, Reading, Restrictions,
    SessionState, Settings, SlotId, Starts, Turns, Uid, WaitSettings, Workload, decide,
    lock::SEMAPHORE_FLAGS, plan::Stance,
};
use consul_semaphore_api::annotations;
use consul_semaphore_operator::controller::bench::{Queue, read};
use consul_semaphore_workload::Job;
use serde_json::{Value, json};

const NAMESPACE: &str = "batch";
const SEMAPHORE: &str = "db";

/// How many operations Consul accepts in a transaction.
const OPERATIONS: usize = 128;

/// The current time, for intervals.
const NOW: Moment = Moment::from_boot(Duration::from_secs(1000));

/// The current time, for windows: none of these semaphores has any.
const TIME: jiff::Timestamp = jiff::Timestamp::UNIX_EPOCH;

/// How a body lists the holders.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    /// As Consul's Go client does.
    Map,
    /// As the guide of Consul's documentation does.
    List,
}

/// What a pass knows.
pub(crate) struct Facts {
    settings: Settings,
    reading: Reading,
    evidence: Evidence,
    memory: Memory,
    ours: Vec<OwnContender>,
    sessions: BTreeMap<SlotId, SessionId>,
    queue: Queue,
    nothing: Nothing,
}

/// The parts that are empty.
#[derive(Default)]
struct Nothing {
    cooldowns: Cooldowns,
    starts: Starts,
    brief: BTreeSet<SessionId>,
    unused: IdSet<SessionId>,
    excluded: Excluded,
    stances: BTreeMap<Uid, Stance>,
    longest_cooldowns: BTreeMap<Uid, std::time::Duration>,
    requests: BTreeMap<Uid, Asked>,
}

impl Facts {
    /// This many workloads hold all slots, and this many wait.
    pub(crate) fn new(holders: u32, waiting: usize) -> Self {
        let settings = settings(holders);
        let queue = Queue::new(NAMESPACE, SEMAPHORE, settings.prefix.clone());
        for number in 0..holders {
            queue.put(&running(number));
        }
        for number in 0..waiting {
            queue.put(&waits(number));
        }
        let (bound, line) = queue.slice(holders, OPERATIONS);
        let ours: Vec<_> = bound
            .iter()
            .map(|workload| ours(&settings, workload))
            .collect();
        let reading = reading(&settings, &ours);
        let ahead = line.iter().take(AHEAD.min(count(holders)));
        let mut facts = Self {
            evidence: Evidence::default(),
            memory: Memory {
                turns: Turns::new(settings.fair),
                ..Memory::default()
            },
            sessions: ahead
                .map(|workload| {
                    let slot = SlotId {
                        workload: workload.uid.clone(),
                        ordinal: 0,
                    };
                    (slot, session(&workload.uid))
                })
                .collect(),
            settings,
            reading,
            ours,
            queue,
            nothing: Nothing::default(),
        };
        facts.memory.observe(&facts.reading, NOW, TIME);
        let running: Vec<_> = bound.iter().map(AsRef::as_ref).collect();
        let renewed = |_: &SessionId| {
            Some(SessionState::Renewed {
                sent: NOW,
                ttl: Duration::from_mins(2),
            })
        };
        facts.evidence.observe(
            NOW,
            &facts.settings,
            &running,
            Some(&facts.reading),
            &facts.ours,
            renewed,
        );
        facts
    }

    /// The workload that has held a slot for longest is complete.
    #[must_use]
    pub(crate) fn with_a_hand_over_due(mut self) -> Self {
        let complete = complete(0);
        self.queue.put(&complete);
        let workload = read(&complete).expect("a Job of ours");
        let ended = self.ours.iter_mut();
        let ended = ended.filter(|ours| ours.identity.uid == workload.uid);
        for ours in ended {
            ours.workload = Some(workload.clone());
        }
        let slice = self.slice();
        let plan = decide(&self.observed(&slice));
        let written = plan.transaction.as_ref();
        let written = written.map(|one| (one.releases.len(), one.grants.len()));
        assert_eq!(written, Some((1, 1)), "it hands over");
        self
    }

    /// The queue of the semaphore.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The workloads that a pass reads: those that were started, and the head of the queue.
    pub(crate) fn slice(&self) -> (Vec<Arc<Workload>>, Vec<Arc<Workload>>) {
        self.queue.slice(self.settings.limit, OPERATIONS)
    }

    /// Everything observed, with these workloads.
    pub(crate) fn observed<'a>(
        &'a self,
        (bound, line): &'a (Vec<Arc<Workload>>, Vec<Arc<Workload>>),
    ) -> Observed<'a> {
        Observed {
            now: NOW,
            time: jiff::Timestamp::UNIX_EPOCH,
            settings: &self.settings,
            applied: std::slice::from_ref(&self.settings.limit),
            defence: Defence::default(),
            fenced: true,
            reading: Some(&self.reading),
            memory: &self.memory,
            cooldowns: &self.nothing.cooldowns,
            starts: &self.nothing.starts,
            brief: &self.nothing.brief,
            evidence: &self.evidence,
            ours: &self.ours,
            bound,
            queue: line,
            sessions: &self.sessions,
            unused: &self.nothing.unused,
            excluded: &self.nothing.excluded,
            stances: &self.nothing.stances,
            longest_cooldowns: &self.nothing.longest_cooldowns,
            requests: &self.nothing.requests,
            closed: false,
            joint: None,
            operations: OPERATIONS,
        }
    }
}

/// The entry of `.lock` with this many holders, as many as the limit.
pub(crate) fn lock(holders: u32, shape: Shape) -> Entry {
    let sessions = (0..holders).map(|number| session(&Uid::from(uid("held", number).as_str())));
    let holders_there: Value = match shape {
        Shape::Map => sessions
            .map(|session| (session.to_string(), Value::Bool(true)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Shape::List => sessions.map(|session| session.to_string()).collect(),
    };
    let body = json!({ "Limit": holders, "Holders": holders_there });
    entry("semaphores/batch/db/.lock", None, body.to_string().into())
}

/// One of the waiting workloads, with a different priority than the others.
pub(crate) fn changed(number: usize) -> Job {
    let mut workload = waits(number);
    let annotations = workload.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::PRIORITY.into(), "5".into());
    workload.metadata.resource_version = Some("20".into());
    workload
}

fn settings(limit: u32) -> Settings {
    Settings {
        cluster: Cluster {
            name: "prod-eu".into(),
            id: "7d0d3b5c-3c4f-4a5b-9f58-1c1f2f0c1a11".into(),
        },
        namespace: NAMESPACE.into(),
        name: SEMAPHORE.into(),
        key: None,
        prefix: prefix(),
        mode: Mode::Semaphore,
        period: None,
        limit,
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
        wait: WaitSettings::default(),
    }
}

fn prefix() -> Prefix {
    "semaphores/batch/db".parse().expect("a prefix")
}

fn count(holders: u32) -> usize {
    usize::try_from(holders).expect("a count")
}

/// A uid as long as those of Kubernetes.
fn uid(kind: &str, number: impl std::fmt::Display) -> String {
    let kind = kind
        .bytes()
        .fold(0_u32, |kind, byte| kind << 8 | u32::from(byte));
    format!("{kind:08x}-0000-4000-8000-{number:0>12}")
}

/// The session for a workload.
fn session(workload: &Uid) -> SessionId {
    workload.as_ref().replace("-4000-", "-5000-").into()
}

fn ours(settings: &Settings, workload: &Arc<Workload>) -> OwnContender {
    OwnContender {
        session: session(&workload.uid),
        identity: Arc::new(Identity {
            cluster: settings.cluster.id.as_str().into(),
            namespace: settings.namespace.as_str().into(),
            semaphore: settings.name.as_str().into(),
            key: None,
            kind: consul_semaphore::KindName::default(),
            workload: workload.name.clone(),
            uid: workload.uid.clone(),
            ordinal: 0,
        }),
        workload: Some(workload.clone()),
        pods_gone: false,
    }
}

/// The prefix with a contender for each of these, all of them in `.lock`.
fn reading(settings: &Settings, ours: &[OwnContender]) -> Reading {
    let contender = |ours: &OwnContender| {
        let body = ContenderBody::new(
            &settings.cluster,
            &ours.identity,
            jiff::Timestamp::UNIX_EPOCH,
            false,
        );
        let body = serde_json::to_vec(&body).expect("JSON");
        let key = settings.prefix.contender_key(&ours.session);
        entry(&key, Some(&ours.session), body)
    };
    let mut entries: Vec<_> = ours.iter().map(contender).collect();
    entries.push(lock(settings.limit, Shape::Map));
    let listing = Listing {
        entries: entries.into(),
        index: 10,
        sent: NOW,
        reset: false,
    };
    Reading::new(settings.prefix.clone(), settings.mode, listing)
}

fn entry(key: &str, session: Option<&SessionId>, value: Vec<u8>) -> Entry {
    Entry {
        key: key.into(),
        value,
        flags: SEMAPHORE_FLAGS,
        session: session.cloned(),
        lock_index: 1,
        create_index: 5,
        modify_index: 10,
    }
}

/// A waiting workload, as the API server shows it.
pub(crate) fn waits(number: usize) -> Job {
    workload("waits", &number.to_string(), |_| {})
}

/// A workload that runs in a slot.
fn running(number: u32) -> Job {
    started(number, &[("Suspended", "False")])
}

/// The same workload when it is complete.
fn complete(number: u32) -> Job {
    started(number, &[("Complete", "True")])
}

fn started(number: u32, conditions: &[(&str, &str)]) -> Job {
    let conditions = conditions.iter();
    let conditions = conditions.map(|(type_, status)| json!({ "type": type_, "status": status }));
    let conditions = conditions.collect::<Value>();
    workload("held", &number.to_string(), |workload| {
        let uid = uid("held", number);
        let session = session(&Uid::from(uid.as_str()));
        workload["spec"]["suspend"] = json!(false);
        workload["metadata"]["annotations"][annotations::SESSION] = json!(session);
        workload["spec"]["template"]["metadata"]["annotations"] = json!({
            annotations::GRANTED_TO: uid,
            annotations::LOCK_KEY: prefix().contender_key(&session),
            annotations::SESSION: session,
        });
        workload["status"] = json!({
            "active": 1,
            "startTime": "2026-01-01T00:01:00Z",
            "conditions": conditions,
        });
    })
}

fn workload(kind: &str, number: &str, change: impl FnOnce(&mut Value)) -> Job {
    let mut workload = json!({
        "metadata": {
            "name": format!("{kind}-{number:0>6}"), "namespace": NAMESPACE, "uid": uid(kind, number),
            "resourceVersion": "10", "creationTimestamp": "2026-01-01T00:00:10Z",
            "annotations": { annotations::SEMAPHORE: SEMAPHORE },
        },
        "spec": { "suspend": true, "template": { "spec": {
            "restartPolicy": "Never", "containers": [{ "name": "work", "image": "none" }],
        } } },
        "status": { "conditions": [{
            "type": "Suspended", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z",
        }] },
    });
    change(&mut workload);
    serde_json::from_value(workload).expect("a Job")
}
