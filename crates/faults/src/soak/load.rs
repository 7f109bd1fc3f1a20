//! Jobs at a steady pace on semaphores of all kinds, and Consul's Go client on one of them.

use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use testbed::{Bed, LimitWatch, Namespace, SlotClient};
use tokio::time::interval;

use super::jobs::Jobs;

/// The time between two new Jobs.
const PACE: Duration = Duration::from_nanos(1_000_000_000 / 3);

/// How long a Job runs, in milliseconds.
const RUNS: std::ops::Range<u32> = 200..2000;

/// How many seconds after its end a Job is deleted.
const KEPT: u32 = 5;

/// While this many Jobs wait, no more are made, so that a slow bed can catch up.
const WAITING: usize = 60;

/// A semaphore of the load.
struct LoadSemaphore {
    name: &'static str,
    limit: u32,
    /// Empty if the semaphore is not keyed.
    keys: &'static [&'static str],
    /// The share of Jobs that ask for it, in tenths.
    share: usize,
}

/// The semaphore of which the Go client takes slots, too.
const SHARED: LoadSemaphore = LoadSemaphore {
    name: "shared",
    limit: 3,
    keys: &[],
    share: 3,
};

/// The semaphores. Each is full now and then, but never for long.
const SEMAPHORES: [LoadSemaphore; 4] = [
    SHARED,
    LoadSemaphore {
        name: "one",
        limit: 1,
        keys: &[],
        share: 1,
    },
    LoadSemaphore {
        name: "five",
        limit: 5,
        keys: &[],
        share: 4,
    },
    LoadSemaphore {
        name: "keyed",
        limit: 1,
        keys: &["north", "east", "south", "west"],
        share: 2,
    },
];

/// How long the Go client holds a slot, and how long it then leaves it to others.
const VISIT: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// The running load. It ends when this is dropped.
pub(super) struct Load {
    pub(super) jobs: Jobs,
    team: Namespace,
    observers: Vec<Observer>,
    go: SlotClient,
}

/// The watch of one prefix.
struct Observer {
    prefix: String,
    limit: usize,
    watch: LimitWatch,
}

/// What was seen of the load by its end.
pub(super) struct Seen {
    pub(super) peaks: Vec<Peak>,
    /// Errors that the observers and the Go client reported.
    pub(super) errors: Vec<String>,
}

/// The most holders and Jobs that were seen at once on one prefix.
pub(super) struct Peak {
    pub(super) prefix: String,
    pub(super) limit: usize,
    pub(super) holders: usize,
    /// Jobs that had pods.
    pub(super) jobs: usize,
}

impl Load {
    /// Makes the semaphores and their observers. Jobs come from [`Self::make_jobs`].
    pub(super) async fn start(bed: &Bed) -> Result<Self> {
        let team = bed.namespace("soak").await;
        let mut observers = Vec::new();
        for semaphore in &SEMAPHORES {
            let keyed = serde_json::json!({ "keyed": !semaphore.keys.is_empty() });
            let object = team.semaphore(semaphore.name).limit(semaphore.limit.into());
            let prefix = object.spec(keyed).try_create().await?.lock_prefix();
            for (prefix, limit) in semaphore.prefixes(&prefix) {
                let watch = bed.watch_limit(&prefix).await;
                observers.push(Observer {
                    prefix,
                    limit,
                    watch,
                });
            }
        }
        let shared = team.semaphore(SHARED.name).lock_prefix();
        let go = bed.go_semaphore("soak-go", &shared, SHARED.limit);
        let [hold, rest] = VISIT;
        Ok(Self {
            jobs: Jobs::follow(team.api()),
            go: go.hold(hold).rest(rest).times(0).try_start()?,
            observers,
            team,
        })
    }

    /// Makes Jobs without end, always the same ones in the same order.
    pub(super) async fn make_jobs(&self) -> Result<()> {
        let mut rng = Rng::with_seed(0);
        let mut pace = interval(PACE);
        for number in 0_usize.. {
            pace.tick().await;
            if self.jobs.waiting() < WAITING {
                self.make_job(number, &mut rng).await?;
            }
        }
        Ok(())
    }

    async fn make_job(&self, number: usize, rng: &mut Rng) -> Result<()> {
        let semaphore = LoadSemaphore::of(rng);
        let job = self.team.job(&format!("{}-{number}", semaphore.name));
        let runs = format!("{}ms", rng.u32(RUNS));
        let job = job.semaphore(semaphore.name).runs(&runs);
        let job = match rng.choice(semaphore.keys) {
            Some(key) => job.annotation("consul-semaphore.io/key", key),
            None => job,
        };
        job.ttl_after_finished(KEPT).try_create().await?;
        Ok(())
    }

    /// Ends the load, and returns what was seen.
    pub(super) async fn end(self) -> Result<Seen> {
        let mut errors = self.go.errors();
        self.go.try_stop().await?;
        for observer in &self.observers {
            let of = observer.watch.errors().into_iter();
            errors.extend(of.map(|error| format!("watching {}: {error}", observer.prefix)));
        }
        let peak = |observer: Observer| Peak {
            holders: observer.watch.peak_holders(),
            jobs: observer.watch.peak_jobs(),
            prefix: observer.prefix,
            limit: observer.limit,
        };
        Ok(Seen {
            peaks: self.observers.into_iter().map(peak).collect(),
            errors,
        })
    }
}

impl LoadSemaphore {
    /// A random semaphore, by its share.
    fn of(rng: &mut Rng) -> &'static Self {
        let shares = SEMAPHORES
            .iter()
            .flat_map(|semaphore| std::iter::repeat_n(semaphore, semaphore.share));
        rng.choice(shares.collect::<Vec<_>>()).unwrap_or(&SHARED)
    }

    /// The prefixes of its slots, with their limits. A pod only names its semaphore, so all keys together count as
    /// one more.
    fn prefixes(&self, prefix: &str) -> Vec<(String, usize)> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let keys = self.keys.iter();
        let keys = keys.map(|key| (format!("{prefix}/{key}"), limit));
        let all = (prefix.to_owned(), limit * self.keys.len().max(1));
        keys.chain([all]).collect()
    }
}
