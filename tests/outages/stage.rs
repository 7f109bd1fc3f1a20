//! The starting points of the stories of this program.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use serde_json::json;
use testbed::{
    Bed, Job, LimitWatch, Namespace, Operator, Semaphore, eventually, eventually_within,
    helpers::metric,
    proof::{Grant, running_pods, runs_in_a_slot},
    same,
};
use tokio::time::Instant;

/// The event of a Job whose slot is lost and that is suspended.
const SUSPENDED: &str = "suspended, first in the queue";

/// How long a condition may take during outages: backoff has grown by then.
pub(crate) const LONG: Duration = Duration::from_mins(3);

/// A semaphore of one slot and the Job that runs in it.
pub(crate) struct Held {
    pub(crate) db: Semaphore,
    pub(crate) job: Job,
    pub(crate) grant: Grant,
    pub(crate) pods: Vec<String>,
    pub(crate) observer: LimitWatch,
}

impl Held {
    /// The pods of its Job end within a second, so that nearly all of the TTL can pass without a renewal.
    pub(crate) async fn new(bed: &Bed, team: &Namespace, policy: &str, ttl: &str) -> Self {
        Self::with_grace(bed, team, policy, ttl, 1).await
    }

    /// The pods of its Job may take this many seconds to end.
    pub(crate) async fn with_grace(
        bed: &Bed,
        team: &Namespace,
        policy: &str,
        ttl: &str,
        grace: u32,
    ) -> Self {
        let name = format!("{policy}-{ttl}").to_lowercase();
        let db = team.semaphore(&name).limit(1).ttl(ttl);
        let spec = json!({ "onSlotLost": policy, "session": { "lockDelay": "0s" } });
        let db = db.spec(spec).create().await;
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        let job = team.job(&name).semaphore(&name).runs("1h");
        let job = job.grace(grace).create().await;
        let grant = Box::pin(runs_in_a_slot(bed, &db, &job)).await;
        Self {
            pods: running_pods(&job).await,
            db,
            job,
            grant,
            observer,
        }
    }

    /// Its Job has never been stopped, and still holds its slot.
    pub(crate) async fn goes_on(&self) {
        assert_eq!(running_pods(&self.job).await, self.pods, "it was stopped");
    }

    /// How often the event that its Job is suspended was emitted so far.
    pub(crate) async fn times_suspended(&self) -> i32 {
        times_emitted(&self.job, SUSPENDED).await
    }

    /// Waits until its Job is suspended once more, after `before` events, and all its pods are gone.
    pub(crate) async fn is_suspended(&self, before: i32) {
        eventually_within(LONG, "it is suspended", || async {
            let job = self.job.get().await.and_then(|job| job.spec);
            same(job.and_then(|spec| spec.suspend), Some(true))
        })
        .await;
        self.was_suspended(before).await;
        self.job.is_waiting().await;
    }

    /// Waits until its Job was suspended once more, after `before` events. If nothing prevents it, the Job may run
    /// again by then.
    pub(crate) async fn was_suspended(&self, before: i32) {
        is_emitted_again(&self.job, SUSPENDED, before).await;
    }

    /// Waits until its Job runs in a slot, stopped in between or not, and uses that state from now on.
    pub(crate) async fn runs_again(&mut self, bed: &Bed) {
        let (pods, session) = eventually_within(LONG, "it runs in a slot again", || async {
            let session = self.job.session().await.ok_or("no session")?;
            let holders = bed.consul().holders(&self.db.lock_prefix()).await;
            let pods = running_pods(&self.job).await;
            let runs = pods.len() == 1 && holders.contains(&session);
            runs.then_some((pods, session)).ok_or("it does not run")
        })
        .await;
        self.pods = pods;
        self.grant.session = session;
    }

    /// Waits for a condition of its semaphore for as long as backoff may take.
    pub(crate) async fn shows(&self, kind: &str, status: &str, reasons: &[&str]) {
        let what = format!("{} has {kind}={status} {reasons:?}", self.db.name());
        eventually_within(LONG, &what, || async {
            let condition = self.db.condition(kind).await;
            let is = condition["status"] == status
                && (reasons.is_empty()
                    || reasons.iter().any(|reason| condition["reason"] == *reason));
            is.then_some(()).ok_or(condition)
        })
        .await;
    }

    /// Nobody was ever above the limit, and no other Job has run in the slot.
    pub(crate) fn kept_the_limit(&self) {
        assert_eq!(self.observer.peak_holders(), 1);
        assert!(self.observer.peak_jobs() <= 1, "{:?}", self.observer.seen());
    }
}

/// How often this event of a lost slot was emitted on a Job so far: repetitions of one text are one event with a
/// count.
pub(crate) async fn times_emitted(job: &Job, text: &str) -> i32 {
    let events = job.events().await;
    let about = events.iter().filter(|event| says(event, text));
    about.map(times).sum()
}

/// Whether it is an event of a lost slot with this text.
pub(crate) fn says(event: &Event, text: &str) -> bool {
    let message = event.message.as_deref().unwrap_or_default();
    event.reason.as_deref() == Some("SlotLost") && message.contains(text)
}

/// How often an event was seen.
pub(crate) fn times(event: &Event) -> i32 {
    let series = event.series.as_ref();
    series.and_then(|series| series.count).unwrap_or(1)
}

/// Waits until this event of a lost slot was emitted on a Job more often than `before`.
pub(crate) async fn is_emitted_again(job: &Job, says: &str, before: i32) {
    eventually(&format!("it is told once more: {says}"), || async {
        let now = times_emitted(job, says).await;
        (now > before).then_some(()).ok_or(now)
    })
    .await;
}

/// Waits until the operator has made this many more calls of a kind with this result.
pub(crate) async fn calls(operator: &Operator, kind: &str, result: &str, more: f64) {
    let name = format!("consul_calls_total{{kind=\"{kind}\",result=\"{result}\"}}");
    let count = async || metric(&operator.get("/metrics").await, &name).unwrap_or_default();
    let before = count().await;
    let what = format!("{more} more of {name}");
    eventually_within(LONG, &what, || async {
        let now = count().await;
        (now >= before + more).then_some(()).ok_or(now)
    })
    .await;
}

/// How many calls to Consul a few semaphores and their sessions may have made since then, where each try counts. A
/// storm would be thousands, and also grows with time.
pub(crate) fn most_calls(at_least: usize, since: Instant) -> usize {
    let seconds = usize::try_from(since.elapsed().as_secs()).expect("minutes");
    at_least.max(25 * seconds)
}
