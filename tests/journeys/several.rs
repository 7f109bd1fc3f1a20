//! Jobs that ask for several slots: of several semaphores, and of one.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testbed::{
    Bed, Job, Namespace, Semaphore, eventually, helpers::warning, proof::nothing_is_left, same,
};

/// A slot as the template records it.
#[derive(Debug)]
pub(crate) struct Slot {
    key: String,
    pub(crate) session: String,
    pub(crate) token: u64,
}

/// The slots in the template of a running Job.
pub(crate) async fn slots_of(job: &Job) -> Vec<Slot> {
    let object = job.get().await.expect("the Job");
    let template = object.spec.expect("its spec").template;
    let annotations = template
        .metadata
        .expect("its metadata")
        .annotations
        .expect("annotations");
    let slots: Value =
        serde_json::from_str(&annotations["consul-semaphore.io/slots"]).expect("JSON");
    let text = |slot: &Value, name: &str| slot[name].as_str().expect("a text").to_owned();
    let slots = slots.as_array().expect("a list").iter();
    let slots: Vec<Slot> = slots
        .map(|slot| Slot {
            key: text(slot, "lockKey"),
            session: text(slot, "session"),
            token: slot["fencingToken"].as_u64().expect("a number"),
        })
        .collect();
    let first = slots.first().expect("a slot");
    assert_eq!(annotations["consul-semaphore.io/session"], first.session);
    assert_eq!(annotations["consul-semaphore.io/lock-key"], first.key);
    slots
}

/// Waits until a Job runs in so many slots of each of these semaphores, all granted at once.
pub(crate) async fn runs_in<const N: usize>(
    bed: &Bed,
    job: &Job,
    expected: [(&Semaphore, usize); N],
) -> Vec<Slot> {
    job.is_running().await;
    let slots = slots_of(job).await;
    let mut rest = &slots[..];
    for (semaphore, count) in expected {
        let (here, others) = rest.split_at(count);
        rest = others;
        let holders = bed.consul().holders(&semaphore.lock_prefix()).await;
        for slot in here {
            let contender = format!("{}/{}", semaphore.lock_prefix(), slot.session);
            assert_eq!(slot.key, contender);
            assert!(holders.contains(&slot.session), "{holders:?}");
            let entry = bed.consul().kv(&contender).await.expect("a contender");
            assert_eq!(
                (entry.modify_index, entry.session.as_ref()),
                (slot.token, Some(&slot.session))
            );
        }
    }
    assert!(rest.is_empty(), "{rest:?}");
    let tokens: BTreeSet<u64> = slots.iter().map(|slot| slot.token).collect();
    assert_eq!(tokens.len(), 1, "one transaction: {slots:?}");
    slots
}

pub(crate) async fn holders_are(bed: &Bed, semaphore: &Semaphore, count: usize) {
    let what = format!("{count} hold {}", semaphore.name());
    eventually(&what, || async {
        same(
            bed.consul().holders(&semaphore.lock_prefix()).await.len(),
            count,
        )
    })
    .await;
}

async fn two(team: &Namespace) -> (Semaphore, Semaphore) {
    let db = team.semaphore("db").limit(1).create().await;
    let licenses = team.semaphore("licenses").limit(3).create().await;
    (db, licenses)
}

/// A Job that asks for the slot of db and for two licenses.
async fn asks_for_both(team: &Namespace) -> Job {
    let job = team.job("a").semaphore("db, licenses:2");
    job.runs("1h").create().await
}

#[tokio::test]
async fn all_slots_are_granted_at_once_and_released_when_the_job_is_done() {
    let bed = Bed::shared().await;
    let team = bed.namespace("several").await;
    let (db, licenses) = two(&team).await;
    let tasks = team
        .semaphore("tasks")
        .spec(json!({ "keyed": true }))
        .create()
        .await;
    let job = team
        .job("a")
        .semaphore("db, licenses:2, tasks/customer-42")
        .runs("1h")
        .create()
        .await;
    job.is_running().await;
    let slots = slots_of(&job).await;
    assert_eq!(slots.len(), 4);
    let last = &slots[3].key;
    assert!(
        last.starts_with(&format!("{}/customer-42/", tasks.lock_prefix())),
        "{last}"
    );
    let note = job.has_event("SlotGranted").await;
    assert!(note.contains("db, licenses:2, tasks/customer-42"), "{note}");

    // It is told how many are missing.
    let large = team.job("large").semaphore("licenses:2").create().await;
    let note = large.has_event("SlotWaiting").await;
    let missing = "licenses: 2 of 3 slots are held, and it asks for 2: 1 more must become free";
    assert!(note.contains(missing), "{note}");
    large.delete().await;

    // The next one waits for db alone, and holds no licence meanwhile.
    let next = team
        .job("b")
        .semaphore("db,licenses")
        .runs("1h")
        .create()
        .await;
    let note = next.has_event("SlotWaiting").await;
    assert!(
        note.contains("slots of ConsulSemaphores db, licenses"),
        "{note}"
    );
    assert!(note.contains("db: 1 of 1 slots are held"), "{note}");
    licenses.shows(json!({ "held": 2, "waiting": 1 })).await;
    job.finish().await;
    job.is_complete().await;
    runs_in(&bed, &next, [(&db, 1), (&licenses, 1)]).await;
    next.finish().await;
    next.is_complete().await;
    for semaphore in [&db, &licenses] {
        nothing_is_left(&bed, &team, semaphore).await;
    }
}

#[tokio::test]
async fn jobs_behind_use_what_is_free_while_a_semaphore_is_paused() {
    let bed = Bed::shared().await;
    let team = bed.namespace("several-paused").await;
    let (db, licenses) = two(&team).await;
    licenses.pause().await;
    licenses.has_condition("Ready", "True", "Paused").await;
    let both = team
        .job("both")
        .semaphore("db,licenses")
        .runs("1h")
        .create()
        .await;
    let note = both.has_event("SlotWaiting").await;
    assert!(
        note.contains("licenses: ") && note.contains("paused"),
        "{note}"
    );
    let small = team.job("small").semaphore("db").create().await;
    small.is_complete().await;
    both.is_waiting().await;
    let queued = json!({
        "asksFor": "db, licenses", "lacks": "licenses", "reason": "OthersStopped",
        "message": "it waits for licenses; another of its semaphores grants no slots, and workloads behind it start meanwhile",
    });
    db.shows(json!({ "queue": [queued] })).await;
    licenses.resume().await;
    runs_in(&bed, &both, [(&db, 1), (&licenses, 1)]).await;
}

#[tokio::test]
async fn what_can_never_be_granted_says_so_and_heals() {
    let bed = Bed::shared().await;
    let team = bed.namespace("several-never").await;
    let (db, licenses) = two(&team).await;
    let prefix = json!({ "prefix": db.lock_prefix() });
    team.semaphore("twin").spec(prefix).create().await;
    let elsewhere = json!({ "consul": { "datacenter": "elsewhere" } });
    team.semaphore("elsewhere").spec(elsewhere).create().await;
    let mut jobs = Vec::new();
    for (name, asks, reason, words) in [
        (
            "too-many",
            "licenses:4",
            "Unsatisfiable",
            "4 slots of licenses, but can have at most 3",
        ),
        (
            "twins",
            "db, twin",
            "Malformed",
            "the same semaphore in Consul",
        ),
        (
            "apart",
            "db, elsewhere",
            "Unsatisfiable",
            "differ in spec.consul",
        ),
        ("key", "db/a", "Malformed", "db is not keyed"),
        ("twice", "db, db", "Malformed", "names db twice"),
        ("none", "db:0", "Malformed", "1 to 50 slots"),
        (
            "missing",
            "db, nobody",
            "NoSemaphore",
            "no ConsulSemaphore nobody",
        ),
    ] {
        let job = team.job(name).semaphore(asks).create().await;
        let note = warning(&job, reason).await;
        assert!(note.contains(words), "{note}");
        jobs.push(job);
    }
    // Nobody else is in the way.
    let good = team.job("good").semaphore("db,licenses:3").create().await;
    good.is_complete().await;
    for job in &jobs {
        job.is_waiting().await;
    }
    licenses.set_limit(4).await;
    jobs[0].is_complete().await;
    team.semaphore("nobody").create().await;
    jobs[6].is_complete().await;
}

#[tokio::test]
async fn one_slot_that_is_lost_is_had_again_or_all_are_given_back() {
    let bed = Bed::shared().await;
    let team = bed.namespace("several-lost").await;
    let (db, licenses) = two(&team).await;
    let job = asks_for_both(&team).await;
    let slots = runs_in(&bed, &job, [(&db, 1), (&licenses, 2)]).await;
    // There are other licences: it has one again, and runs on.
    bed.consul().destroy_session(&slots[2].session).await;
    let note = warning(&job, "SlotLost").await;
    assert!(note.contains("has a slot again"), "{note}");
    let others: BTreeSet<String> = slots[..2].iter().map(|slot| slot.session.clone()).collect();
    eventually("its annotation names the new session", || async {
        let named: BTreeSet<String> = job
            .session()
            .await
            .unwrap_or_default()
            .split(',')
            .map(ToOwned::to_owned)
            .collect();
        same(
            named.is_superset(&others) && !named.contains(&slots[2].session) && named.len() == 3,
            true,
        )
    })
    .await;
    job.is_running().await;

    // Somebody takes the only slot of db: the Job is suspended, and gives its licences back.
    let other = bed
        .consul()
        .usurp(&db.lock_prefix(), 1, &slots[0].session)
        .await;
    job.is_waiting().await;
    holders_are(&bed, &licenses, 0).await;
    holders_are(&bed, &db, 1).await;
    bed.consul().give_back(&db.lock_prefix(), &other).await;
    runs_in(&bed, &job, [(&db, 1), (&licenses, 2)]).await;
}

#[tokio::test]
async fn a_restart_keeps_all_slots() {
    let bed = Bed::start().await;
    let team = bed.namespace("several-restart").await;
    let (db, licenses) = two(&team).await;
    let job = asks_for_both(&team).await;
    let before = runs_in(&bed, &job, [(&db, 1), (&licenses, 2)]).await;
    let next = team
        .job("b")
        .semaphore("licenses:2")
        .runs("1h")
        .create()
        .await;
    next.has_event("SlotWaiting").await;
    bed.operator().kill().await;
    bed.operator().start().await;
    licenses.is_ready().await;
    let after = runs_in(&bed, &job, [(&db, 1), (&licenses, 2)]).await;
    let sessions = |slots: &[Slot]| {
        slots
            .iter()
            .map(|slot| slot.session.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(sessions(&before), sessions(&after));
    next.is_waiting().await;
    job.finish().await;
    runs_in(&bed, &next, [(&licenses, 2)]).await;
}
