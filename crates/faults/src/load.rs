//! The load: a steady stream of Jobs on several semaphores, and other programs on some of them.
//!
//! Jobs come in waves, so that each semaphore is full and has a queue, and now and then has free slots for others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use testbed::{Process, Recipe};
use tokio::time::{sleep, timeout};

use crate::{
    observer::prefix_of,
    record::{ForeignState, Job, JobState, Semaphore, What, WorkloadKind},
    workloads::api,
    world::{CALL, NAMESPACE, World, access},
};

/// A semaphore of the load.
pub(crate) struct LoadSemaphore {
    pub(crate) name: &'static str,
    pub(crate) limit: u64,
    policy: &'static str,
    /// In seconds; none for sessions that never expire.
    ttl: Option<u32>,
    lock_delay: u32,
    /// How many `consul lock`s compete for a slot of it, again and again.
    foreigners: usize,
    /// Whether it names its datacenter, so that the proxy treats its calls as forwarded.
    forwarded: bool,
    /// In seconds, if it is a rate. Its policy and TTL have no effect then.
    period: Option<u32>,
}

/// The semaphores. Their limits, policies and lock-delays differ.
pub(crate) const SEMAPHORES: [LoadSemaphore; 8] = [
    LoadSemaphore {
        name: "one",
        limit: 1,
        policy: "Reacquire",
        ttl: TTL,
        lock_delay: 1,
        foreigners: 0,
        forwarded: false,
        period: None,
    },
    LoadSemaphore {
        name: "two-shared",
        limit: 2,
        policy: "Reacquire",
        ttl: TTL,
        lock_delay: 1,
        foreigners: 1,
        forwarded: false,
        period: None,
    },
    LoadSemaphore {
        name: "three-strict",
        limit: 3,
        policy: "Suspend",
        ttl: TTL,
        lock_delay: 0,
        foreigners: 0,
        forwarded: true,
        period: None,
    },
    LoadSemaphore {
        name: "three-shared",
        limit: 3,
        policy: "Reacquire",
        ttl: TTL,
        lock_delay: 2,
        foreigners: 2,
        forwarded: false,
        period: None,
    },
    LoadSemaphore {
        name: "two-lenient",
        limit: 2,
        policy: "Continue",
        ttl: TTL,
        lock_delay: 1,
        foreigners: 0,
        forwarded: false,
        period: None,
    },
    LoadSemaphore {
        name: "two-endless",
        limit: 2,
        policy: "Reacquire",
        ttl: None,
        lock_delay: 1,
        foreigners: 0,
        forwarded: false,
        period: None,
    },
    LoadSemaphore {
        name: "rate-of-two",
        limit: 2,
        policy: "Reacquire",
        ttl: TTL,
        lock_delay: 1,
        foreigners: 0,
        forwarded: false,
        period: Some(10),
    },
    // After a restart of the operator each slot is held for 30 s more than its stamp says. So at a period of less than a
    // minute, stamps of half a period would not show.
    LoadSemaphore {
        name: "rate-of-six",
        limit: 6,
        policy: "Continue",
        ttl: TTL,
        lock_delay: 1,
        foreigners: 0,
        forwarded: false,
        period: Some(70),
    },
];

/// A semaphore that is created and deleted together with its own namespace.
pub(crate) const PASSING: LoadSemaphore = LoadSemaphore {
    name: "passing",
    limit: 2,
    policy: "Reacquire",
    ttl: TTL,
    lock_delay: 1,
    foreigners: 0,
    forwarded: false,
    period: None,
};

/// The shortest TTL that Consul allows, so that faults are over soon.
const TTL: Option<u32> = Some(10);

impl LoadSemaphore {
    pub(crate) fn prefix(&self) -> String {
        prefix_of(NAMESPACE, self.name)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.foreigners > 0
    }

    pub(crate) fn is_forwarded(&self) -> bool {
        self.forwarded
    }

    /// How many Jobs are made at once. All those of a rate must have their turn in a few periods.
    fn wave(&self) -> u64 {
        match self.period {
            Some(_) => self.limit / 2 + 1,
            None => self.limit + 2,
        }
    }

    pub(crate) fn record(&self, namespace: &str) -> Semaphore {
        Semaphore {
            prefix: prefix_of(namespace, self.name),
            limit: self.limit,
            ttl: self.ttl.map(f64::from),
            lock_delay: f64::from(self.lock_delay),
            goes_on: self.policy == "Continue",
            period: self.period.map(f64::from),
        }
    }

    pub(crate) async fn create(&self, world: &World, namespace: &str) -> Result<()> {
        let ttl = self.ttl.map_or("None".to_owned(), |ttl| format!("{ttl}s"));
        let mut object = json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": self.name, "namespace": namespace },
            "spec": {
                "limit": self.limit,
                "onSlotLost": self.policy,
                "session": { "ttl": ttl, "lockDelay": format!("{}s", self.lock_delay) },
            },
        });
        if self.forwarded {
            object["spec"]["consul"] = json!({ "datacenter": "dc1" });
        }
        if let Some(period) = self.period {
            object["spec"]["mode"] = "Rate".into();
            object["spec"]["period"] = format!("{period}s").into();
        }
        let create = semaphores(&world.kubernetes.client, namespace);
        let params = PostParams::default();
        let object = serde_json::from_value(object)?;
        timeout(CALL, create.create(&params, &object)).await??;
        Ok(())
    }
}

/// The API of `ConsulSemaphores`.
pub(crate) fn semaphores(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("consul-semaphore.io", "v1alpha1", "ConsulSemaphore");
    let resource = ApiResource::from_gvk_with_plural(&kind, "consulsemaphores");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// The state that the load shares with the faults.
#[derive(Default)]
pub(crate) struct Load {
    over: AtomicBool,
    next: AtomicUsize,
    foreigners: Mutex<BTreeMap<usize, Foreigner>>,
}

/// A running `consul lock`.
#[derive(Clone)]
pub(crate) struct Foreigner {
    pub(crate) prefix: String,
    pub(crate) holds: bool,
    pub(crate) server: Arc<Process>,
}

impl Load {
    /// Ends the load: existing Jobs and programs finish, and no new ones are made.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The `consul lock`s that hold a slot of a semaphore.
    pub(crate) fn holding(&self, prefix: &str) -> Vec<Foreigner> {
        let foreigners = self.foreigners.lock();
        let holding = foreigners
            .values()
            .filter(|one| one.prefix == prefix && one.holds);
        holding.cloned().collect()
    }

    fn note(&self, id: usize, foreigner: Option<Foreigner>) {
        let mut foreigners = self.foreigners.lock();
        match foreigner {
            Some(foreigner) => foreigners.insert(id, foreigner),
            None => foreigners.remove(&id),
        };
    }

    /// A number that is unique in this campaign.
    pub(crate) fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// Starts the load. Its tasks end on their own when the load is over.
pub(crate) fn start(
    world: &Arc<World>,
    load: &Arc<Load>,
    seed: u64,
) -> Vec<tokio::task::JoinHandle<()>> {
    let rng = Rng::with_seed(seed ^ 0x77_69_64_65);
    let mut tasks = vec![
        tokio::spawn(wide(world.clone(), load.clone(), rng)),
        tokio::spawn(tidy(world.clone(), load.clone())),
    ];
    for (number, semaphore) in SEMAPHORES.iter().enumerate() {
        let rng = Rng::with_seed(seed ^ (number as u64 + 1));
        tasks.push(tokio::spawn(waves(
            world.clone(),
            load.clone(),
            semaphore,
            rng,
        )));
        for foreigner in 0..semaphore.foreigners {
            let name = format!("foreign-{}-{foreigner}", semaphore.name);
            let rng = Rng::with_seed(seed ^ ((number * 10 + foreigner) as u64) << 8);
            tasks.push(tokio::spawn(visits(
                world.clone(),
                load.clone(),
                semaphore,
                name,
                rng,
            )));
        }
    }
    tasks
}

/// How many Jobs that ask for several slots are unfinished at most.
const WIDE: usize = 3;

/// Makes Jobs that ask for one or two slots of one to three semaphores. All of these must be in one datacenter.
async fn wide(world: Arc<World>, load: Arc<Load>, mut rng: Rng) {
    while !load.is_over() {
        let unfinished = world.timeline.look(|view| {
            let jobs = view.jobs.values();
            let over = [JobState::Finished, JobState::Held];
            jobs.filter(|job| job.name.starts_with("wide-") && !over.contains(&job.state))
                .count()
        });
        if unfinished < WIDE {
            let (life, request) = (Life::random(&mut rng, &world), request(&mut rng));
            let _refused = create_job(&world, &load, NAMESPACE, &request, &life).await;
        }
        sleep(Duration::from_millis(rng.u64(500..1500))).await;
    }
}

/// How often finished workloads are looked for.
const TIDY: Duration = Duration::from_secs(10);

/// Deletes `PipelineRuns` some time after they have finished. Other kinds do so by themselves.
async fn tidy(world: Arc<World>, load: Arc<Load>) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    while !load.is_over() {
        let finished: Vec<Job> = world.timeline.look(|view| {
            let jobs = view.jobs.values();
            jobs.filter(|job| job.kind == WorkloadKind::PipelineRun)
                .filter(|job| job.state == JobState::Finished)
                .cloned()
                .collect()
        });
        for job in finished.iter().filter(|job| seen.contains(&job.uid)) {
            // It is tried again.
            let _failed = delete_job(&world, job, &DeleteParams::background()).await;
        }
        seen = finished.into_iter().map(|job| job.uid).collect();
        sleep(TIDY).await;
    }
}

/// A list of semaphores with their slots, as in the annotation.
fn request(rng: &mut Rng) -> String {
    let places = SEMAPHORES.iter().filter(|semaphore| !semaphore.forwarded);
    let mut places: Vec<_> = places.collect();
    rng.shuffle(&mut places);
    let parts = places.iter().take(rng.usize(1..=3)).map(|semaphore| {
        let slots = rng.u64(1..=2).min(semaphore.limit);
        format!("{}:{slots}", semaphore.name)
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Makes more Jobs than there are slots, whenever few or none of the last ones are left.
async fn waves(world: Arc<World>, load: Arc<Load>, semaphore: &LoadSemaphore, mut rng: Rng) {
    let prefix = semaphore.prefix();
    while !load.is_over() {
        let unfinished = world.timeline.look(|view| {
            let jobs = view.jobs.values();
            // A Job that a fault left on hold does not count.
            let over = [JobState::Finished, JobState::Held];
            jobs.filter(|job| job.prefix == prefix && job.asks.is_empty())
                .filter(|job| !over.contains(&job.state))
                .count()
        });
        if unfinished <= rng.usize(0..4) {
            for _ in 0..semaphore.wave() {
                // A Job that can't be created does not matter.
                let life = Life::random(&mut rng, &world);
                let _refused = create_job(&world, &load, NAMESPACE, semaphore.name, &life).await;
            }
        }
        sleep(Duration::from_millis(rng.u64(500..1500))).await;
    }
}

/// The course of a workload's life.
#[derive(Clone, Copy)]
pub(crate) struct Life {
    pub(crate) kind: WorkloadKind,
    pub(crate) runs_ms: u32,
    pub(crate) terminates_ms: u32,
    pub(crate) fails: bool,
    pub(crate) pods: u32,
    /// An annotation by which it may end before it was granted a slot, or for a newer Job.
    pub(crate) ends_by: Option<(&'static str, &'static str)>,
    /// Whether the template of a `JobSet`'s first Job has the annotation, too. What the `JobSet` makes waits for nothing.
    pub(crate) child_asks: bool,
}

/// How the wait of a Job may end, if not by a grant.
const ENDS: [(&str, &str); 5] = [
    ("consul-semaphore.io/wait-timeout", "3s"),
    ("consul-semaphore.io/wait-timeout", "15s"),
    ("consul-semaphore.io/on-contention", "Fail"),
    ("consul-semaphore.io/on-contention", "ReplaceWaiting"),
    ("consul-semaphore.io/on-contention", "ReplaceRunning"),
];

impl Life {
    fn random(rng: &mut Rng, world: &World) -> Self {
        Self {
            kind: world.some_kind(rng),
            runs_ms: rng.u32(1_000..6_000),
            terminates_ms: rng.u32(0..1_500),
            fails: rng.u32(0..10) == 0,
            pods: if rng.u32(0..5) == 0 { 2 } else { 1 },
            // One of three.
            ends_by: ENDS.get(rng.usize(0..ENDS.len() * 3)).copied(),
            child_asks: rng.u32(0..3) == 0,
        }
    }
}

/// Creates a workload, and returns its name.
pub(crate) async fn create_job(
    world: &World,
    load: &Load,
    namespace: &str,
    semaphore: &str,
    life: &Life,
) -> Result<String> {
    let several = semaphore.contains(':');
    let stem = if several { "wide" } else { semaphore };
    let name = format!("{stem}-{}", load.number());
    let object = serde_json::from_value(life.kind.describe(&name, semaphore, life))?;
    let (api, params) = (api(world, life.kind, namespace), PostParams::default());
    timeout(CALL, api.create(&params, &object)).await??;
    Ok(name)
}

/// Takes a slot with the real `consul lock`, holds it for a while, and starts over.
async fn visits(
    world: Arc<World>,
    load: Arc<Load>,
    semaphore: &'static LoadSemaphore,
    name: String,
    mut rng: Rng,
) {
    while !load.is_over() {
        // It may end early, because the limit has changed or Consul is down. Then it just tries again.
        let _ended = visit(&world, &load, semaphore, &name, &mut rng).await;
        sleep(Duration::from_millis(rng.u64(500..3000))).await;
    }
}

async fn visit(
    world: &World,
    load: &Load,
    semaphore: &LoadSemaphore,
    name: &str,
    rng: &mut Rng,
) -> Result<()> {
    let id = load.number();
    let prefix = semaphore.prefix();
    let sign = world.folder().join(format!("{name}.holds"));
    let _none = tokio::fs::remove_file(&sign).await;
    let child = format!("touch {}; exec sleep {}", sign.display(), rng.u32(1..4));
    let recipe = Recipe::new(name, testbed::server("consul")?)
        .args([
            "lock",
            "-n",
            &semaphore.limit.to_string(),
            "-name",
            "campaign",
            &prefix,
            &child,
        ])
        .env("CONSUL_HTTP_ADDR", world.consul.doors.foreign.url())
        .env("CONSUL_HTTP_TOKEN", access::FOREIGN.secret);
    let server = Process::idle(world.bed.shared_folder(), recipe);
    server.start_again().context("consul lock")?;
    let mut foreigner = Foreigner {
        prefix: prefix.clone(),
        holds: false,
        server: Arc::new(server),
    };
    let tell = |state| {
        world.timeline.push(What::Foreign {
            prefix: prefix.clone(),
            id,
            state,
        });
    };
    tell(ForeignState::Waits);
    load.note(id, Some(foreigner.clone()));
    while foreigner.server.is_running() {
        if !foreigner.holds && tokio::fs::try_exists(&sign).await.unwrap_or_default() {
            foreigner.holds = true;
            tell(ForeignState::Holds);
            load.note(id, Some(foreigner.clone()));
        }
        if load.is_over() && !foreigner.holds {
            foreigner.server.signal("INT")?;
        }
        sleep(Duration::from_millis(100)).await;
    }
    load.note(id, None);
    tell(ForeignState::Ended);
    Ok(())
}

/// Deletes a workload.
pub(crate) async fn delete_job(world: &World, job: &Job, params: &DeleteParams) -> Result<()> {
    let api = api(world, job.kind, NAMESPACE);
    timeout(CALL, api.delete(&job.name, params)).await??;
    Ok(())
}

/// Changes a workload by a merge patch, and returns its new version.
pub(crate) async fn patch_job(world: &World, job: &Job, patch: Value) -> Result<u64> {
    let params = PatchParams::default();
    let (api, patch) = (api(world, job.kind, NAMESPACE), Patch::Merge(patch));
    let job = timeout(CALL, api.patch(&job.name, &params, &patch)).await??;
    let version = job.metadata.resource_version.unwrap_or_default();
    Ok(version.parse()?)
}
