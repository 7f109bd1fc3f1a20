//! Jobs that use one slot one after another, whoever leads.

use kube::ResourceExt;
use testbed::{Bed, Job, LimitWatch, Namespace, Semaphore};

/// One Job runs, and the next one waits.
pub(crate) struct Load {
    team: Namespace,
    pub(crate) db: Semaphore,
    observer: LimitWatch,
    running: Job,
    waiting: Job,
    made: usize,
}

/// What a Job keeps if it is not stopped: its session, and its pods.
type Hold = (Option<String>, Vec<String>);

impl Load {
    pub(crate) async fn start(bed: &Bed, ttl: &str) -> Self {
        let team = bed.namespace("load").await;
        let db = team.semaphore("db").limit(1).ttl(ttl).create().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        let running = job(&team, 0).await;
        running.is_running().await;
        let waiting = job(&team, 1).await;
        waiting.has_event("SlotWaiting").await;
        Self {
            team,
            db,
            observer,
            running,
            waiting,
            made: 2,
        }
    }

    /// The session and pods of the running Job.
    pub(crate) async fn hold(&self) -> Hold {
        let pods = self.running.pods().await;
        let pods = pods.iter().map(ResourceExt::name_any).collect();
        (self.running.session().await, pods)
    }

    /// The running Job is done, the waiting one gets its slot, and another one is created.
    pub(crate) async fn goes_on(&mut self) {
        self.running.finish().await;
        self.waiting.is_running().await;
        self.running.has_event("SlotReleased").await;
        let next = job(&self.team, self.made).await;
        next.has_event("SlotWaiting").await;
        self.made += 1;
        self.running = std::mem::replace(&mut self.waiting, next);
    }

    /// The limit was kept, and no Job had a second slot.
    pub(crate) async fn was_kept(self) {
        self.waiting.is_waiting().await;
        let seen = self.observer.seen();
        assert_eq!(self.observer.errors(), Vec::<String>::new());
        assert_eq!((seen.peak_holders, seen.peak_jobs), (1, 1), "{seen:?}");
        assert_eq!(seen.all_holders.len(), self.made - 1, "{seen:?}");
        assert_eq!(seen.all_jobs.len(), self.made - 1, "{seen:?}");
    }
}

async fn job(team: &Namespace, number: usize) -> Job {
    let job = team.job(&format!("job-{number}")).semaphore("db");
    job.runs("1h").grace(1).create().await
}
