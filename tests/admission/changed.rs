//! Which changes of a Job are open to users and admins, and which only to the operator.

use k8s_openapi::api::batch::v1 as batch;
use serde_json::{Value, json};
use testbed::{
    Bed, Namespace, Semaphore,
    helpers::event_reasons,
    proof::{
        End, HOLD, PRIORITY, SEMAPHORE, SESSION, all_is_decided, gets_event, holders_are,
        nothing_is_left, pods_end, queue_is, runs_in_a_slot,
    },
};

use crate::stage::{
    HOLDS, Person, REPORTS, RUNS, SKIPS, STARTS, WAITS, WRITES, annotated, bed, is_refused, job,
    people, stranger, suspend, unsuspended,
};

const KEY: &str = "consul-semaphore.io/key";
const KUEUE: &str = "kueue.x-k8s.io/queue-name";
const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// A semaphore of one slot that a Job `holder` holds.
async fn taken(bed: &Bed, team: &Namespace) -> Semaphore {
    let db = team.semaphore("db").limit(1).create().await;
    let holder = team.job("holder").semaphore("db").runs("1h").create().await;
    runs_in_a_slot(bed, &db, &holder).await;
    db
}

fn suspended() -> Value {
    json!({ "spec": { "suspend": true } })
}

/// Both changes in one.
fn together(mut one: Value, other: &Value) -> Value {
    for (part, fields) in other.as_object().expect("an object") {
        for (name, value) in fields.as_object().expect("an object") {
            one[part][name] = value.clone();
        }
    }
    one
}

async fn present(team: &Namespace, name: &str) -> batch::Job {
    team.job(name).get().await.expect("it is there")
}

#[tokio::test]
async fn only_the_operator_starts_a_job_that_waits() {
    let bed = bed().await;
    let team = bed.namespace("starts").await;
    let db = taken(&bed, &team).await;
    let waits = team.job("waits").semaphore("db").runs("1h").create().await;
    // Behind by priority: both may have been created in the same second.
    let lies_behind = team.job("lies-behind").semaphore("db");
    let lies_behind = lies_behind.annotation(PRIORITY, "-1").create().await;
    queue_is(&db, [&waits, &lies_behind]).await;
    let people = people(&bed, &team).await;
    for (_, person) in &people {
        is_refused(person.change("waits", unsuspended()).await, STARTS);
        is_refused(person.would_change("waits", unsuspended()).await, STARTS);
        let unset = json!({ "spec": { "suspend": null } });
        is_refused(person.change("waits", unset).await, STARTS);
        let mut replaced = present(&team, "waits").await;
        replaced.spec.as_mut().expect("a spec").suspend = Some(false);
        is_refused(person.replace(replaced).await, STARTS);
        // Taking it out of the queue must be a separate change.
        let unnamed = annotated(SEMAPHORE, None);
        is_refused(
            person
                .change("waits", together(unnamed, &unsuspended()))
                .await,
            STARTS,
        );
        let queued = json!({ "metadata": { "labels": { KUEUE: "batch" } } });
        is_refused(
            person
                .change("waits", together(queued, &unsuspended()))
                .await,
            STARTS,
        );
        let held = annotated(HOLD, Some("true"));
        is_refused(
            person.change("waits", together(held, &unsuspended())).await,
            STARTS,
        );
    }
    let operator = Person::operator(&bed, &team).await;
    let started = operator.would_change("waits", unsuspended()).await;
    assert_eq!(
        suspend(&started.expect("it is the operator's")),
        Some(false)
    );

    // Everything else is up to its user.
    for (who, person) in &people {
        let allowed = async |change: Value| {
            let changed = person.change("waits", change.clone()).await;
            changed.unwrap_or_else(|refusal| panic!("{who}, {change}: {refusal}"));
        };
        allowed(suspended()).await;
        allowed(annotated(HOLD, Some("true"))).await;
        queue_is(&db, [&lies_behind]).await;
        allowed(annotated(HOLD, None)).await;
        allowed(annotated(PRIORITY, Some("-2"))).await;
        queue_is(&db, [&lies_behind, &waits]).await;
        allowed(annotated(PRIORITY, Some("1"))).await;
        queue_is(&db, [&waits, &lies_behind]).await;
        allowed(annotated(KEY, Some("k"))).await;
        allowed(annotated(KEY, None)).await;
        allowed(annotated(SEMAPHORE, Some("other"))).await;
        queue_is(&db, [&lies_behind]).await;
        allowed(annotated(SEMAPHORE, Some("db"))).await;
        queue_is(&db, [&waits, &lies_behind]).await;
        allowed(json!({ "metadata": { "labels": { "a": who.replace(' ', "-") }, "finalizers": ["example.com/a"] } })).await;
        allowed(json!({ "metadata": { "finalizers": null } })).await;
        allowed(json!({ "spec": { "parallelism": 2, "backoffLimit": 3 } })).await;
        allowed(json!({ "spec": { "parallelism": 1 } })).await;
    }

    // To run it without a slot, remove its request for one.
    let [(_, user), _] = &people;
    user.change("waits", annotated(SEMAPHORE, None))
        .await
        .expect("it leaves the line");
    user.change("waits", unsuspended())
        .await
        .expect("it is its user's");
    waits.is_running().await;
    all_is_decided(&team, &db).await;
    queue_is(&db, [&lies_behind]).await;
    waits.is_running().await;
    assert!(
        !event_reasons(&waits)
            .await
            .contains(&"RanWithoutSlot".to_owned())
    );
    for name in ["lies-behind", "holder"] {
        user.delete(name).await.expect("it is its user's");
    }
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn only_the_operator_changes_its_annotations() {
    let bed = bed().await;
    let team = bed.namespace("reports").await;
    let db = taken(&bed, &team).await;
    let holder = team.job("holder");
    let waits = team.job("waits").semaphore("db").create().await;
    let user = Person::user(&bed, &team).await;
    user.create(&stranger("stranger", Some(true)))
        .await
        .expect("a Job");
    for job in [&waits, &team.job("stranger")] {
        // Its pod template can be changed now.
        job.is_at_rest().await;
    }
    let admin = Person::admin(&bed, &team);
    let operator = Person::operator(&bed, &team).await;
    for name in REPORTS {
        let on_template = |place: &str| json!({ "spec": { "template": { "metadata": { place: { name: "x" } } } } });
        let places = [
            annotated(name, Some("x")),
            on_template("annotations"),
            on_template("labels"),
        ];
        for change in places {
            let refusal = format!("{WRITES}{name},");
            // A Job that does not ask for a slot yet could prepare itself for the head of the queue.
            for job in ["waits", "stranger"] {
                is_refused(user.change(job, change.clone()).await, &refusal);
                is_refused(admin.would_change(job, change.clone()).await, &refusal);
            }
            let written = operator.would_change("waits", change).await;
            written.expect("it is the operator's");
        }
        is_refused(
            user.change("waits", annotated(name, Some(""))).await,
            WRITES,
        );
    }
    let both = json!({ "metadata": { "annotations": { REPORTS[0]: "x", REPORTS[4]: "x" } } });
    let refusal = format!("{WRITES}{}, {}", REPORTS[0], REPORTS[4]);
    is_refused(user.change("waits", both).await, &refusal);

    // Existing ones stay.
    for person in [&user, &admin] {
        for value in [Some("another"), Some(""), None] {
            is_refused(
                person.change("holder", annotated(SESSION, value)).await,
                WRITES,
            );
        }
        let mut replaced = present(&team, "holder").await;
        let annotations = replaced.metadata.annotations.as_mut().expect("annotations");
        annotations.remove(SESSION);
        is_refused(
            person.replace(replaced).await,
            "kubectl replace removes what its file does not have",
        );
        let mut replaced = present(&team, "holder").await;
        let labels = replaced.metadata.labels.get_or_insert_default();
        labels.insert("a".to_owned(), "b".to_owned());
        person
            .replace(replaced)
            .await
            .expect("all of them are in it");
    }
    pods_end(&team, &holder, End::Succeeded).await;
    holder.is_complete().await;
    is_refused(
        user.change("holder", annotated(SESSION, None)).await,
        WRITES,
    );
    waits.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn a_job_that_holds_a_slot_stays_with_its_semaphore() {
    let bed = bed().await;
    let team = bed.namespace("holds").await;
    let db = team.semaphore("db").limit(1).create().await;
    let other = team.semaphore("other").limit(1).create().await;
    let holder = team
        .job("holder")
        .semaphore("db")
        .runs("1h")
        .terminates_in("1h");
    let holder = holder.create().await;
    let grant = runs_in_a_slot(&bed, &db, &holder).await;
    let people = people(&bed, &team).await;
    let changes = [
        annotated(SEMAPHORE, Some("other")),
        annotated(SEMAPHORE, None),
        annotated(KEY, Some("k")),
        json!({ "metadata": { "labels": { KUEUE: "batch" } } }),
    ];
    for (_, person) in &people {
        for change in &changes {
            is_refused(person.change("holder", change.clone()).await, HOLDS);
            // Its pods do not end at once.
            let at_once = together(change.clone(), &suspended());
            is_refused(person.change("holder", at_once).await, HOLDS);
        }
        person
            .change("holder", annotated(PRIORITY, Some("1")))
            .await
            .expect("it is its user's");
        person
            .change("holder", annotated(PRIORITY, None))
            .await
            .expect("it is its user's");
    }

    // As the message says: suspend it, wait until it is on hold, change the annotation, resume it.
    let [(_, user), (_, admin)] = &people;
    user.change("holder", suspended())
        .await
        .expect("it is its user's");
    holder
        .is("stopping", |job| {
            let status = job.status.as_ref();
            status.and_then(|status| status.terminating) == Some(1)
        })
        .await;
    holders_are(&bed, &db, [&grant]).await;
    for person in [user, admin] {
        is_refused(person.change("holder", changes[0].clone()).await, HOLDS);
        is_refused(person.change("holder", unsuspended()).await, STARTS);
        // The template can be changed now, but not this label: it finds the pods.
        for value in [Some("another"), None] {
            let label = json!({ "metadata": { "labels": { REPORTS[5]: value } } });
            let label = json!({ "spec": { "template": label } });
            is_refused(person.change("holder", label).await, WRITES);
        }
    }
    pods_end(&team, &holder, End::Failed).await;
    holder.is_on_hold().await;
    gets_event(&holder, "Normal", "PutOnHold", HOLD).await;
    user.change("holder", changes[0].clone())
        .await
        .expect("it holds no slot any more");
    user.change("holder", unsuspended())
        .await
        .expect("what is on hold is queued when somebody starts it");
    runs_in_a_slot(&bed, &other, &holder).await;
    nothing_is_left(&bed, &team, &db).await;

    // Once it has ended, nothing depends on it.
    pods_end(&team, &holder, End::Succeeded).await;
    holder.is_complete().await;
    for change in changes {
        user.would_change("holder", change)
            .await
            .expect("it has ended");
    }
    nothing_is_left(&bed, &team, &other).await;
}

#[tokio::test]
async fn a_job_that_runs_is_suspended_when_it_is_annotated() {
    let bed = bed().await;
    let team = bed.namespace("runs").await;
    let db = team.semaphore("db").limit(1).create().await;
    let [(_, user), (_, admin)] = people(&bed, &team).await;
    let unnamed = |name| stranger(name, None);
    user.create(&unnamed("stranger")).await.expect("a Job");
    let stranger = team.job("stranger");
    stranger.is_running().await;
    let named = annotated(SEMAPHORE, Some("db"));
    for person in [&user, &admin] {
        is_refused(person.change("stranger", named.clone()).await, RUNS);
    }
    stranger.is_running().await;
    assert_eq!(event_reasons(&stranger).await, Vec::<String>::new());
    let in_the_same_change = together(named, &suspended());
    user.change("stranger", in_the_same_change)
        .await
        .expect("as the message says");
    runs_in_a_slot(&bed, &db, &stranger).await;
    pods_end(&team, &stranger, End::Succeeded).await;
    stranger.is_complete().await;
    assert!(
        !event_reasons(&stranger)
            .await
            .contains(&"RanWithoutSlot".to_owned())
    );

    // Or earlier, in a separate change.
    user.create(&unnamed("another")).await.expect("a Job");
    let another = team.job("another");
    another.is_running().await;
    user.change("another", suspended())
        .await
        .expect("it is its user's");
    user.change("another", annotated(SEMAPHORE, Some("db")))
        .await
        .expect("it is suspended");
    is_refused(user.change("another", unsuspended()).await, STARTS);
    runs_in_a_slot(&bed, &db, &another).await;
    pods_end(&team, &another, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
}

/// A user who may change a Job but not delete it can't make the operator delete it.
#[tokio::test]
async fn on_contention_cannot_be_set_on_an_existing_job() {
    let bed = bed().await;
    let team = bed.namespace("made-to-wait").await;
    let db = taken(&bed, &team).await;
    let waits = team.job("waits").semaphore("db").create().await;
    queue_is(&db, [&waits]).await;
    let people = people(&bed, &team).await;
    let [(_, user), _] = &people;
    let asks_for_nothing = stranger("stranger", Some(true));
    user.create(&asks_for_nothing).await.expect("a Job");
    for (_, person) in &people {
        // Also values of later versions, and one that can't be read.
        for word in ["Skip", "Fail", "ReplaceWaiting", "ReplaceRunning", "skip"] {
            let change = annotated(ON_CONTENTION, Some(word));
            for job in ["waits", "stranger"] {
                is_refused(person.change(job, change.clone()).await, WAITS);
            }
            let asks =
                json!({ "metadata": { "annotations": { SEMAPHORE: "db", ON_CONTENTION: word } } });
            is_refused(person.change("stranger", asks).await, WAITS);
        }
        for word in [Some("Wait"), None] {
            let change = annotated(ON_CONTENTION, word);
            person.change("waits", change).await.expect("it waits");
        }
    }
    all_is_decided(&team, &db).await;
    queue_is(&db, [&waits]).await;

    // A Job that has ended is not checked.
    pods_end(&team, &team.job("holder"), End::Succeeded).await;
    waits.is_complete().await;
    let skip = annotated(ON_CONTENTION, Some("Skip"));
    let changed = user.change("waits", skip).await;
    changed.expect("it has ended");
    nothing_is_left(&bed, &team, &db).await;
}

#[tokio::test]
async fn a_skip_job_cannot_change_what_it_was_created_with() {
    let bed = bed().await;
    let team = bed.namespace("made-to-skip").await;
    let db = taken(&bed, &team).await;
    let later = team.semaphore("later").limit(1).paused(true).create().await;
    let skips = team.job("skips").semaphore("later");
    let skips = skips.annotation(ON_CONTENTION, "Skip").create().await;
    queue_is(&later, [&skips]).await;
    let people = people(&bed, &team).await;
    let [(_, user), _] = &people;
    let mut queued = job("queued", Some(true));
    queued["metadata"]["labels"] = json!({ KUEUE: "batch" });
    queued["metadata"]["annotations"][ON_CONTENTION] = "Skip".into();
    user.create(&queued).await.expect("a Job");
    for (_, person) in &people {
        for change in [
            annotated(SEMAPHORE, Some("db")),
            annotated(KEY, Some("k")),
            annotated(SCHEDULED, Some("2026-01-01T00:00:00Z")),
        ] {
            is_refused(person.change("skips", change).await, SKIPS);
        }
        let not_queued = json!({ "metadata": { "labels": { KUEUE: null } } });
        is_refused(person.change("queued", not_queued).await, SKIPS);
        let held = annotated(HOLD, Some("true"));
        person.change("skips", held).await.expect("it is held");
        let in_line = annotated(HOLD, None);
        person.change("skips", in_line).await.expect("it is not");
    }
    queue_is(&later, [&skips]).await;

    // The fix that the message suggests.
    let waits = json!({ "metadata": { "annotations": { SEMAPHORE: "db", ON_CONTENTION: null } } });
    user.change("skips", waits).await.expect("it waits");
    queue_is(&db, [&skips]).await;
    pods_end(&team, &team.job("holder"), End::Succeeded).await;
    skips.is_complete().await;
    nothing_is_left(&bed, &team, &db).await;
}
