//! The kinds of faults, as data: the name of each, how often it occurs, what it hits, and how it is injected and
//! healed.
//!
//! A fault declares with [`ActiveFault::away`] what it takes down, so that the judge knows what could not be done in the
//! meantime. Everything else is expected to keep working.

mod connection;
mod consul;
mod copy;
mod deletions;
pub(crate) mod jobs;
mod kubernetes;
mod locks;
mod operator;

use std::{future::ready, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use futures::future::BoxFuture;
use testbed::until;
use tokio::time::sleep;

use self::connection::To;
use crate::{
    load::{Load, LoadSemaphore, SEMAPHORES},
    record::{Part, Phase, What},
    world::{PATIENCE, World},
};

/// How often a fault that finds nothing to hit tries again, and the pause between tries.
const TRIES: u32 = 12;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A kind of fault.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// How often it occurs, relative to others with the same reach.
    pub(crate) weight: usize,
    pub(crate) reach: Reach,
    /// Whether it takes long, for example an outage longer than the TTL. These are a fixed small share.
    pub(crate) rare: bool,
    run: for<'a> fn(&'a mut ActiveFault) -> BoxFuture<'a, Result<Hit>>,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// One semaphore, or a part of it.
    One,
    /// One semaphore that other programs use too.
    OneShared,
    /// Everything.
    All,
}

/// Whether there was something to hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    Yes,
    Nothing,
}

const fn kind(
    name: &'static str,
    weight: usize,
    reach: Reach,
    run: for<'a> fn(&'a mut ActiveFault) -> BoxFuture<'a, Result<Hit>>,
) -> Kind {
    Kind {
        name,
        weight,
        reach,
        rare: false,
        run,
    }
}

const fn rare(
    name: &'static str,
    run: for<'a> fn(&'a mut ActiveFault) -> BoxFuture<'a, Result<Hit>>,
) -> Kind {
    Kind {
        name,
        weight: 1,
        reach: Reach::All,
        rare: true,
        run,
    }
}

/// All kinds, but those that only some campaigns have.
pub(crate) static KINDS: [Kind; 66] = [
    kind("operator killed", 3, Reach::All, |s| {
        Box::pin(operator::killed(s, 0))
    }),
    kind("operator restarted", 2, Reach::All, |s| {
        Box::pin(operator::restarted(s))
    }),
    kind(
        "operator frozen for less than the TTL",
        2,
        Reach::All,
        |s| Box::pin(operator::frozen(s, 4)),
    ),
    rare("operator killed for two TTLs", |s| {
        Box::pin(operator::killed(s, 22))
    }),
    rare("operator restarted again and again without Consul", |s| {
        Box::pin(operator::restarted_without_consul(s, 45))
    }),
    rare("operator frozen for two TTLs", |s| {
        Box::pin(operator::frozen(s, 25))
    }),
    kind("second operator active", 1, Reach::All, |s| {
        Box::pin(operator::doubled(s))
    }),
    kind("operator's wall clock jumps", 1, Reach::All, |s| {
        Box::pin(operator::clock_jumps(s))
    }),
    kind("Consul's leader killed", 2, Reach::All, |s| {
        Box::pin(consul::leader_killed(s))
    }),
    kind("follower of Consul killed", 1, Reach::All, |s| {
        Box::pin(consul::follower_killed(s))
    }),
    kind("Consul's leader frozen", 1, Reach::All, |s| {
        Box::pin(consul::leader_frozen(s))
    }),
    kind("all of Consul killed", 1, Reach::All, |s| {
        Box::pin(consul::all_killed(s, 0))
    }),
    rare("all of Consul down for a TTL", |s| {
        Box::pin(consul::all_killed(s, 14))
    }),
    kind("Consul cut off", 1, Reach::All, |s| {
        Box::pin(connection::cut(s, To::Consul, 4))
    }),
    rare("Consul cut off for longer than the TTL", |s| {
        Box::pin(connection::cut(s, To::Consul, 22))
    }),
    kind("Consul slow", 1, Reach::All, |s| {
        Box::pin(connection::slow(s, To::Consul))
    }),
    kind("answers of transactions lost", 2, Reach::All, |s| {
        Box::pin(connection::answers_lost(s, To::Consul))
    }),
    kind("transactions late", 1, Reach::All, |s| {
        Box::pin(connection::late(s, To::Consul))
    }),
    kind(
        "Consul's commits late, renewals on time",
        1,
        Reach::All,
        |s| Box::pin(connection::commits_late(s, 5)),
    ),
    rare("Consul's commits late for longer than the TTL", |s| {
        Box::pin(connection::commits_late(s, 20))
    }),
    kind("datacenter hangs", 1, Reach::All, |s| {
        Box::pin(connection::datacenter_hangs(s, 4))
    }),
    rare("datacenter hangs for longer than the TTL", |s| {
        Box::pin(connection::datacenter_hangs(s, 22))
    }),
    kind("a long answer of Consul stalls", 1, Reach::All, |s| {
        Box::pin(connection::long_answer_stalls(s, 6))
    }),
    kind("Consul's certificates replaced", 1, Reach::All, |s| {
        Box::pin(connection::certificates_exchanged(s))
    }),
    kind("429 from Consul", 1, Reach::All, |s| {
        Box::pin(connection::refuses(s, To::Consul, 429))
    }),
    kind("500 from Consul", 1, Reach::All, |s| {
        Box::pin(connection::refuses(s, To::Consul, 500))
    }),
    rare("no leader in Consul for a minute", |s| {
        Box::pin(consul::leaderless(s, 60))
    }),
    rare("Consul's data lost", |s| Box::pin(consul::data_lost(s))),
    kind("token revoked", 2, Reach::All, |s| {
        Box::pin(consul::denied(s, 4))
    }),
    rare("token revoked for longer than the TTL", |s| {
        Box::pin(consul::denied(s, 15))
    }),
    kind("external node deregistered", 1, Reach::All, |s| {
        Box::pin(consul::node_deregistered(s))
    }),
    kind("API server killed", 2, Reach::All, |s| {
        Box::pin(kubernetes::killed(s, 0))
    }),
    rare("API server down for longer than the TTL", |s| {
        Box::pin(kubernetes::killed(s, 15))
    }),
    rare("API server down for a minute", |s| {
        Box::pin(kubernetes::killed(s, 60))
    }),
    kind("API server cut off", 1, Reach::All, |s| {
        Box::pin(connection::cut(s, To::Api, 4))
    }),
    rare("API server cut off for longer than the TTL", |s| {
        Box::pin(connection::cut(s, To::Api, 15))
    }),
    kind("API server slow", 1, Reach::All, |s| {
        Box::pin(connection::slow(s, To::Api))
    }),
    kind("answers of PATCHes lost", 2, Reach::All, |s| {
        Box::pin(connection::answers_lost(s, To::Api))
    }),
    kind("PATCHes late", 2, Reach::All, |s| {
        Box::pin(connection::late(s, To::Api))
    }),
    kind("429 from the API server", 1, Reach::All, |s| {
        Box::pin(connection::refuses(s, To::Api, 429))
    }),
    kind("500 from the API server", 1, Reach::All, |s| {
        Box::pin(connection::refuses(s, To::Api, 500))
    }),
    kind("conflict for every PATCH", 1, Reach::All, |s| {
        Box::pin(connection::conflicts(s))
    }),
    kind("LISTs of pods hang", 1, Reach::All, |s| {
        Box::pin(connection::pod_lists_hang(s, 6))
    }),
    rare("LISTs of pods hang for a minute", |s| {
        Box::pin(connection::pod_lists_hang(s, 60))
    }),
    rare("etcd restored from a backup", |s| {
        Box::pin(kubernetes::restored(s))
    }),
    rare("cluster copied", |s| Box::pin(copy::copied(s))),
    kind("etcd compacted", 1, Reach::All, |s| {
        Box::pin(kubernetes::compacted(s))
    }),
    kind("RBAC removed", 1, Reach::All, |s| {
        Box::pin(kubernetes::rbac(s))
    }),
    rare("CustomResourceDefinition deleted and recreated", |s| {
        Box::pin(deletions::definition(s))
    }),
    rare("namespace with running Jobs deleted", |s| {
        Box::pin(deletions::namespace(s))
    }),
    kind("session destroyed", 3, Reach::One, |s| {
        Box::pin(locks::session_destroyed(s))
    }),
    kind("contender deleted", 2, Reach::One, |s| {
        Box::pin(locks::contender_deleted(s))
    }),
    kind("contender released", 2, Reach::One, |s| {
        Box::pin(locks::contender_released(s))
    }),
    kind("session removed from .lock", 3, Reach::One, |s| {
        Box::pin(locks::holder_removed(s))
    }),
    kind(".lock deleted", 2, Reach::One, |s| {
        Box::pin(locks::deleted(s))
    }),
    kind(".lock overwritten with garbage", 1, Reach::One, |s| {
        Box::pin(locks::garbage(s))
    }),
    kind("limit in .lock changed", 1, Reach::One, |s| {
        Box::pin(locks::limit_changed(s))
    }),
    kind(".lock replaced by a mutex", 1, Reach::One, |s| {
        Box::pin(locks::mutex(s))
    }),
    kind("consul lock killed", 2, Reach::OneShared, |s| {
        Box::pin(ready(locks::foreigner_killed(s)))
    }),
    kind("Job deleted", 3, Reach::One, |s| Box::pin(jobs::deleted(s))),
    kind("Job suspended", 2, Reach::One, |s| {
        Box::pin(jobs::suspended(s))
    }),
    kind("Jobs updated constantly", 2, Reach::One, |s| {
        Box::pin(jobs::touched(s))
    }),
    kind("pods that end slowly", 2, Reach::One, |s| {
        Box::pin(jobs::lingers(s))
    }),
    kind("semaphore paused", 1, Reach::One, |s| {
        Box::pin(jobs::paused(s))
    }),
    kind("limit of the semaphore changed", 2, Reach::One, |s| {
        Box::pin(jobs::limit_changed(s))
    }),
    kind("semaphore deleted and recreated", 1, Reach::One, |s| {
        Box::pin(jobs::remade(s))
    }),
];

/// More kinds, for a campaign of Jobs alone: no admission policy keeps anybody from starting them.
pub(crate) static OF_JOBS: [Kind; 1] = [kind("Job unsuspended by hand", 2, Reach::One, |s| {
    Box::pin(jobs::unsuspended(s))
})];

/// More kinds, for a campaign with other workloads than Jobs.
pub(crate) static OF_WORKLOADS: [Kind; 2] = [
    kind("controllers of workloads killed", 2, Reach::All, |s| {
        Box::pin(kubernetes::controllers_killed(s))
    }),
    kind("PipelineRun cancelled", 2, Reach::One, |s| {
        Box::pin(jobs::cancelled(s))
    }),
];

/// A fault of the plan.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// Its place in the plan.
    pub(crate) id: usize,
    pub(crate) kind: &'static Kind,
    /// The semaphore that it hits; none if it hits all.
    pub(crate) semaphore: Option<usize>,
    /// The seed of its random choices.
    pub(crate) seed: u64,
}

/// A fault while it is active.
pub(crate) struct ActiveFault {
    pub(crate) world: Arc<World>,
    pub(crate) load: Arc<Load>,
    pub(crate) planned: Planned,
    pub(crate) rng: Rng,
    begun: bool,
}

impl ActiveFault {
    pub(crate) fn new(world: &Arc<World>, load: &Arc<Load>, planned: &Planned) -> Self {
        Self {
            world: world.clone(),
            load: load.clone(),
            rng: Rng::with_seed(planned.seed),
            planned: planned.clone(),
            begun: false,
        }
    }

    /// Injects the fault and heals it. An error means that the campaign can't continue: a server does not come back.
    pub(crate) async fn run(&mut self) -> Result<()> {
        let mut hit = (self.planned.kind.run)(self).await;
        for _ in 0..TRIES {
            if self.begun || matches!(hit, Ok(Hit::Yes)) {
                break;
            }
            sleep(TRY_AGAIN).await;
            hit = (self.planned.kind.run)(self).await;
        }
        let (phase, note) = match &hit {
            Ok(Hit::Yes) => (Phase::Ends, String::new()),
            Ok(Hit::Nothing) => (Phase::Misses, String::new()),
            Err(error) if self.begun => (Phase::Ends, format!("{error:#}")),
            // Another fault took away what it needs.
            Err(error) => (Phase::Misses, format!("{error:#}")),
        };
        self.tell(phase, note);
        match hit {
            // A problem of one semaphore or Job shows at the end.
            Err(error) if self.begun && self.planned.kind.reach == Reach::All => {
                Err(error.context(self.planned.kind.name))
            }
            _ => Ok(()),
        }
    }

    /// Records that the fault is active from now on.
    fn begins(&mut self, note: impl Into<String>) {
        self.begun = true;
        self.tell(Phase::Begins, note.into());
    }

    fn tell(&self, phase: Phase, note: String) {
        self.world.timeline.push(What::Fault {
            id: self.planned.id,
            kind: self.planned.kind.name.to_owned(),
            prefix: self.planned.semaphore.map(|at| SEMAPHORES[at].prefix()),
            phase,
            note,
        });
    }

    fn semaphore(&self) -> Result<&'static LoadSemaphore> {
        match self.planned.semaphore {
            Some(at) => Ok(&SEMAPHORES[at]),
            None => bail!("a fault of one semaphore without one"),
        }
    }

    /// Marks a part as down until the returned guard is dropped.
    fn away(&self, part: Part) -> Away {
        let away = Away {
            world: self.world.clone(),
            part,
        };
        away.tell(true);
        away
    }

    /// Waits for about `seconds`.
    async fn lasts(&mut self, seconds: u64) {
        let millis = self.rng.u64(seconds * 800..=seconds * 1200);
        sleep(Duration::from_millis(millis)).await;
    }
}

struct Away {
    world: Arc<World>,
    part: Part,
}

impl Away {
    fn tell(&self, away: bool) {
        self.world.timeline.push(What::Outage {
            part: self.part.clone(),
            away,
        });
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.tell(false);
    }
}

/// Heals something, with as many tries as needed: another fault may get in the way for a while.
async fn until_done<F>(what: &str, mut heal: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    let look = || {
        let healed = heal();
        async { healed.await?.then_some(()).context("not yet") }
    };
    until(what, PATIENCE, look).await
}
