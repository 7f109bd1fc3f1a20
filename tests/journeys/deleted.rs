//! A Job that is deleted: its slot stays held until its pods are gone, or have ended, and no longer.
use serde_json::{Value, json};
use testbed::{
    Bed, Job, LimitWatch, Namespace, Semaphore,
    proof::{
        End, Grant, all_is_decided, grant_of, has_no_session, holders_are, is_given_back,
        nothing_is_left, pods_end, queue_is, runs_in_a_slot, uid_of,
    },
};

#[tokio::test]
async fn while_it_waits() {
    let Scene { bed, team, db, .. } = &scene("deleted-waiting").await;
    let job = |name| team.job(name).semaphore("db").runs("1h");
    let a = job("a").create().await;
    runs_in_a_slot(bed, db, &a).await;
    let b = job("b").create().await;
    let c = job("c").create().await;
    queue_is(db, [&b, &c]).await;
    let uid = uid_of(&b).await;

    b.delete().await;
    queue_is(db, [&c]).await;
    has_no_session(bed, &uid).await;
    pods_end(team, &a, End::Succeeded).await;
    runs_in_a_slot(bed, db, &c).await;
    pods_end(team, &c, End::Succeeded).await;
    nothing_is_left(bed, team, db).await;
    assert!(b.pods().await.is_empty());
}

#[tokio::test]
async fn while_it_runs_in_the_background() {
    let scene = scene("deleted-background").await;
    let (a, b, of_a) = scene.one_runs_and_one_waits().await;
    a.delete().await;
    a.is_gone().await;
    scene.slot_is_kept(&of_a, &b).await;
    pods_end(&scene.team, &a, End::Failed).await;
    scene.slot_goes_to(&b, &a, &of_a).await;
}

#[tokio::test]
async fn while_it_runs_in_the_foreground() {
    let scene = scene("deleted-foreground").await;
    let (a, b, of_a) = scene.one_runs_and_one_waits().await;
    a.delete_in_foreground().await;
    scene.slot_is_kept(&of_a, &b).await;
    assert!(a.get().await.is_some(), "it stays until its pods are gone");
    pods_end(&scene.team, &a, End::Failed).await;
    a.is_gone().await;
    scene.slot_goes_to(&b, &a, &of_a).await;
}

#[tokio::test]
async fn while_it_runs_and_its_pods_become_orphans() {
    let scene = scene("deleted-orphans").await;
    let (a, b, of_a) = scene.one_runs_and_one_waits().await;
    a.delete_and_orphan_pods().await;
    a.is_gone().await;
    scene.slot_is_kept(&of_a, &b).await;
    // They continue to run, and nobody deletes them when they are done.
    pods_end(&scene.team, &a, End::Succeeded).await;
    scene.slot_goes_to(&b, &a, &of_a).await;
    assert_eq!(a.pods().await.len(), 1, "an orphan stays, ended");
}

#[tokio::test]
async fn while_it_runs_and_its_pods_are_removed_by_force() {
    let scene = scene("deleted-force").await;
    let (a, b, of_a) = scene.one_runs_and_one_waits().await;
    a.delete().await;
    a.is_gone().await;
    scene.slot_is_kept(&of_a, &b).await;
    a.force_delete_pods().await;
    scene.slot_goes_to(&b, &a, &of_a).await;
}

/// Kubernetes does not label the pods of such a Job with its uid.
#[tokio::test]
async fn while_it_runs_with_a_selector_of_its_own() {
    for (name, orphans) in [("background", false), ("orphans", true)] {
        let scene = scene(&format!("deleted-manual-{name}")).await;
        let (a, b, of_a) = scene
            .one_runs_and_one_waits_with(manual_selector("a"))
            .await;
        if orphans {
            a.delete_and_orphan_pods().await;
        } else {
            a.delete().await;
        }
        a.is_gone().await;
        scene.absence_of_pods_counts().await;
        scene.slot_is_kept(&of_a, &b).await;
        pods_end(&scene.team, &a, End::Succeeded).await;
        scene.slot_goes_to(&b, &a, &of_a).await;
    }
}

/// A selector by a label of the Job itself.
fn manual_selector(name: &str) -> Value {
    let labels = json!({ "batch.kubernetes.io/job-name": name });
    json!({ "spec": {
        "manualSelector": true,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels } },
    } })
}

/// A semaphore of one slot, and an observer of it.
struct Scene {
    bed: Bed,
    team: Namespace,
    db: Semaphore,
    observer: LimitWatch,
}

async fn scene(namespace: &str) -> Scene {
    let bed = Bed::shared().await;
    let team = bed.namespace(namespace).await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    Scene {
        bed,
        team,
        db,
        observer,
    }
}

impl Scene {
    /// The pods of the running Job take long to end.
    async fn one_runs_and_one_waits(&self) -> (Job, Job, Grant) {
        self.one_runs_and_one_waits_with(json!({})).await
    }

    /// The same with additions to the manifest of the running Job.
    async fn one_runs_and_one_waits_with(&self, more: Value) -> (Job, Job, Grant) {
        let job = |name| self.team.job(name).semaphore("db").runs("1h");
        let a = job("a").terminates_in("1h").with(more).create().await;
        let of_a = runs_in_a_slot(&self.bed, &self.db, &a).await;
        testbed::proof::pods_run(&a, 1).await;
        let b = job("b").create().await;
        queue_is(&self.db, [&b]).await;
        (a, b, of_a)
    }

    /// Waits until the absence of pods would count for a Job that runs by now: it counts for one that was started
    /// later, in another semaphore.
    async fn absence_of_pods_counts(&self) {
        let other = self.team.semaphore("other").limit(1).create().await;
        let later = self.team.job("later").semaphore("other").runs("1h");
        let later = later.create().await;
        runs_in_a_slot(&self.bed, &other, &later).await;
        later.delete().await;
        later.is_gone().await;
        later.force_delete_pods().await;
        later.has_event("SlotReleased").await;
    }

    async fn slot_is_kept(&self, by: &Grant, waits: &Job) {
        all_is_decided(&self.team, &self.db).await;
        holders_are(&self.bed, &self.db, [by]).await;
        waits.is_waiting().await;
        assert_eq!(grant_of(waits).await, None);
    }

    async fn slot_goes_to(&self, next: &Job, gone: &Job, of_gone: &Grant) {
        let Self {
            bed,
            team,
            db,
            observer,
        } = self;
        let grant = runs_in_a_slot(bed, db, next).await;
        holders_are(bed, db, [&grant]).await;
        is_given_back(bed, db, of_gone).await;
        gone.has_event("SlotReleased").await;
        pods_end(team, next, End::Succeeded).await;
        nothing_is_left(bed, team, db).await;
        assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
    }
}
