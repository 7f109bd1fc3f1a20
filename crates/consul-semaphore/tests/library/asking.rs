//! Asking for a slot.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::stage::{MOMENT, Stage, slot_of, soon};

#[tokio::test]
async fn eight_tasks_keep_to_a_limit_of_three() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(3);
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (semaphore, now, most) = (semaphore.clone(), now.clone(), most.clone());
        tasks.spawn(async move {
            for _ in 0..3 {
                let slot = semaphore.acquire().await.unwrap();
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                now.fetch_sub(1, SeqCst);
                slot.release().await.unwrap();
            }
        });
    }
    let held = async {
        loop {
            let held = stage.held().await;
            assert!(held <= 3, "{held}");
        }
    };
    tokio::select! {
        ended = soon(tasks.join_all()) => assert_eq!(ended.len(), 8),
        () = held => {}
    }
    assert!((2..=3).contains(&most.load(SeqCst)), "{most:?}");
    stage.is_clean().await;
}

#[tokio::test]
async fn who_does_not_wait_is_told_who_holds_the_slot_and_leaves_nothing() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().limit(1).host("ci-7").program("migrate");
    let semaphore = semaphore.build().unwrap();
    let slot = soon(semaphore.try_acquire()).await.unwrap();
    let refused = soon(semaphore.try_acquire()).await.unwrap_err();
    assert!(refused.is_taken());
    let said = refused.to_string();
    let holder = "no slot of shared/db is free: 1 of 1 held, by ci-7 migrate (session ";
    assert!(said.starts_with(holder), "{said}");
    assert_eq!(stage.consul.sessions().await.len(), 1);
    slot.release().await.unwrap();
    soon(semaphore.try_acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn who_waits_no_longer_than_it_wants_leaves_its_place_in_the_queue() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    let slot = slot_of(&semaphore).await;
    let refused = soon(semaphore.acquire_within(MOMENT)).await.unwrap_err();
    assert!(refused.is_taken() && refused.waited == Some(MOMENT));
    let said = refused.to_string();
    assert!(
        said.starts_with("not within 500ms: no slot of shared/db is free: 1 of 1 held, by "),
        "{said}"
    );
    stage.contend(1).await;
    drop(slot);
    let patient = Duration::from_mins(2);
    let slot = soon(semaphore.acquire_within(patient)).await.unwrap();
    slot.release().await.unwrap();
    stage.becomes_clean().await;
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    let slot = slot_of(&semaphore).await;
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.map(drop) }
    });
    // Its session is made ahead.
    testbed::eventually("it has a session", async || {
        testbed::same(stage.consul.sessions().await.len(), 2)
    })
    .await;
    waits.abort();
    testbed::eventually("it has none", async || {
        testbed::same(stage.consul.sessions().await.len(), 1)
    })
    .await;
    stage.contend(1).await;
    slot.release().await.unwrap();
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
}

/// Whenever it is dropped: before it has asked, while its session is made, while its slot is granted.
#[tokio::test]
async fn calls_that_are_dropped_at_any_time_leave_nothing() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(2);
    for round in 0..60 {
        let time = Duration::from_micros(round * 500);
        let slot = tokio::time::timeout(time, semaphore.acquire()).await;
        drop(slot);
    }
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
    let both = [slot_of(&semaphore).await, slot_of(&semaphore).await];
    assert_ne!(both[0].session(), both[1].session());
}

#[tokio::test]
async fn a_higher_priority_comes_first() {
    let stage = Stage::new().await;
    let low = stage.semaphore(1);
    let high = stage.builder().limit(1).priority(10).build().unwrap();
    let slot = slot_of(&low).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for (name, semaphore) in [("low", low), ("high", high)] {
        let order = order.clone();
        tasks.spawn(async move {
            let slot = semaphore.acquire().await.unwrap();
            order.lock().push(name);
            slot.release().await.unwrap();
        });
        // The second one comes later.
        let waiting = stage.consul.sessions().await.len();
        testbed::eventually("it waits", async || {
            stage.consul.sessions().await.len() > waiting.min(1)
        })
        .await;
    }
    // The second one has read that the first one waits, and the first one that it does.
    stage.contend(3).await;
    tokio::time::sleep(MOMENT).await;
    slot.release().await.unwrap();
    soon(tasks.join_all()).await;
    assert_eq!(*order.lock(), ["high", "low"]);
}
