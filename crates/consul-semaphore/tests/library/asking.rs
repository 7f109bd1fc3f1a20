//! Asking for a slot.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use consul_semaphore::{
    AcquireError, Notice, Semaphore,
    consul::{Client, Config},
};
use parking_lot::Mutex;
use serde_json::json;
use testbed::{Consul, eventually, eventually_within};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};

use crate::stage::{MOMENT, PREFIX, Stage, slot_of, soon};

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
                // However slow the machine is, two of them hold slots at once.
                eventually("another one holds a slot, too", async || {
                    testbed::same(most.load(SeqCst) >= 2, true)
                })
                .await;
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

/// Each has a client of its own, as if it were a program of its own.
#[tokio::test]
async fn more_programs_than_consul_takes_connections_are_all_served() {
    const CONNECTIONS: usize = 80;
    const PROGRAMS: usize = 90;
    /// So many take a while beside a busy machine.
    const LONG: Duration = Duration::from_mins(10);
    let limits = json!({ "limits": { "http_max_conns_per_client": CONNECTIONS } });
    let stage = Stage::with(Consul::builder().config(limits)).await;
    let program = || {
        // All of them share one thread. Beside a busy machine it may renew none of their sessions for a while, and no
        // slot may be lost to that.
        let ttl = Duration::from_hours(1);
        stage.builder().limit(3).ttl(ttl).build().unwrap()
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(slot_of(&program()).await);
    }
    let mut programs = JoinSet::new();
    for _ in 0..PROGRAMS {
        let semaphore = program();
        programs.spawn(async move { semaphore.acquire().await.unwrap().release().await });
    }
    // This needs connections, too.
    let all = PROGRAMS + held.len();
    eventually_within(LONG, "all contend", || async {
        testbed::same(stage.consul.contenders(PREFIX).await.len(), all)
    })
    .await;
    for slot in held {
        slot.release().await.unwrap();
    }
    let served = timeout(LONG, programs.join_all()).await.unwrap();
    for released in served {
        released.unwrap();
    }
    assert_eq!(stage.consul.list("shared").await, []);
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
    let holder = "no slot of shared/db is free: 1 of 1 held, by migrate on ci-7 (session ";
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
    // Long enough to read who holds the slot.
    let patience = Duration::from_secs(5);
    let refused = soon(semaphore.acquire_within(patience)).await.unwrap_err();
    assert!(refused.is_taken() && refused.waited == Some(patience));
    let said = refused.to_string();
    assert!(
        said.starts_with("not within 5s: no slot of shared/db is free: 1 of 1 held, by "),
        "{said}"
    );
    // It has left by the time that it is told.
    assert_eq!(stage.consul.contenders(PREFIX).await.len(), 1);
    assert_eq!(stage.consul.sessions().await.len(), 1);
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
    stage.has_sessions(2).await;
    waits.abort();
    stage.has_sessions(1).await;
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
    let (mut time, mut granted) = (Duration::ZERO, 0);
    // However slow the machine is, the last ones are dropped with their slot.
    while granted < 5 {
        let slot = timeout(time, semaphore.acquire()).await;
        granted += usize::from(slot.is_ok_and(|slot| slot.is_ok()));
        time += Duration::from_micros(500);
    }
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
    let _both = [slot_of(&semaphore).await, slot_of(&semaphore).await];
    assert!(soon(semaphore.try_acquire()).await.unwrap_err().is_taken());
}

/// Grants a slot to a call that nobody polls, and drops the call.
async fn drop_at_the_grant(stage: &Stage, semaphore: &Semaphore) {
    let mut call = Box::pin(semaphore.acquire());
    assert!(timeout(Duration::ZERO, &mut call).await.is_err());
    eventually("it is granted a slot", async || {
        testbed::same(stage.held().await, 1)
    })
    .await;
    drop(call);
}

#[tokio::test]
async fn a_slot_whose_call_is_dropped_at_the_grant_does_not_cool_down() {
    let stage = Stage::new().await;
    let cooldown = Duration::from_hours(1);
    let semaphore = stage.builder().limit(1).cooldown(cooldown);
    let semaphore = semaphore.build().unwrap();
    drop_at_the_grant(&stage, &semaphore).await;
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
    // One that is taken does.
    drop(slot_of(&semaphore).await);
    eventually("it cools down", async || {
        let contenders = stage.consul.contenders(PREFIX).await;
        let body = contenders.first().map(testbed::Entry::json);
        let cools = body.is_some_and(|body| !body["coolsUntil"].is_null());
        cools.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
}

#[tokio::test]
async fn a_slot_whose_call_is_dropped_at_the_grant_is_no_start_of_a_rate() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().rate(1, Duration::from_hours(12));
    let semaphore = semaphore.build().unwrap();
    drop_at_the_grant(&stage, &semaphore).await;
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
    let _start = slot_of(&semaphore).await;
    assert!(soon(semaphore.try_acquire()).await.unwrap_err().is_taken());
}

#[tokio::test]
async fn a_pending_slot_that_is_dropped_does_not_cool_down() {
    let stage = Stage::new().await;
    let cooldown = Duration::from_hours(1);
    let semaphore = stage.builder().limit(1).cooldown(cooldown);
    let semaphore = semaphore.build().unwrap();
    let pending = soon(semaphore.acquire_pending(None)).await.unwrap();
    assert!(soon(semaphore.try_acquire()).await.unwrap_err().is_taken());
    drop(pending);
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
}

/// Its caller may not look at the answer for long.
#[tokio::test]
async fn a_slot_that_is_lost_before_anybody_takes_it_is_replaced() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().limit(1).lock_delay(Duration::ZERO);
    let semaphore = semaphore.build().unwrap();
    let mut call = Box::pin(semaphore.acquire());
    assert!(timeout(Duration::ZERO, &mut call).await.is_err());
    eventually("it is granted a slot", async || {
        testbed::same(stage.held().await, 1)
    })
    .await;
    let first = stage.consul.holders(PREFIX).await;
    let first = first.first().unwrap();
    stage.consul.destroy_session(first).await;
    // Its task has noticed, and ended.
    soon(semaphore.all_released()).await;
    let slot = soon(call).await.unwrap();
    assert!(!slot.is_lost() && slot.session().as_str() != first);
    slot.release().await.unwrap();
    stage.becomes_clean().await;
}

#[tokio::test]
async fn nobody_is_told_to_wait_beside_a_free_slot() {
    let stage = Stage::new().await;
    let _first = slot_of(&stage.semaphore(2)).await;
    let told = Arc::<Mutex<Vec<Notice>>>::default();
    let semaphore = stage.builder().limit(2).on_notice({
        let told = told.clone();
        move |notice| told.lock().push(notice)
    });
    let _second = slot_of(&semaphore.build().unwrap()).await;
    let told = told.lock();
    let granted = |notice: &Notice| matches!(notice, Notice::Granted { waited: None, .. });
    assert!(told.iter().any(granted), "{told:?}");
    let waits = |notice: &Notice| matches!(notice, Notice::Waiting(_));
    assert!(!told.iter().any(waits), "{told:?}");
}

#[tokio::test]
async fn who_does_not_wait_waits_for_the_lock_delay_of_a_mutex() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().mutex().lock_delay(Duration::from_secs(2));
    let semaphore = semaphore.build().unwrap();
    let first = slot_of(&semaphore).await;
    // Others find it locked.
    assert!(soon(semaphore.try_acquire()).await.unwrap_err().is_taken());
    stage.consul.destroy_session(first.session().as_str()).await;
    let next = soon(semaphore.try_acquire()).await.unwrap();
    drop(first);
    next.release().await.unwrap();
    stage.becomes_clean().await;
}

#[tokio::test]
async fn who_is_refused_at_once_has_left_its_place() {
    let stage = Stage::new().await;
    let slot = slot_of(&stage.semaphore(2)).await;
    let other = stage.semaphore(3);
    soon(other.acquire()).await.unwrap_err();
    assert_eq!(stage.consul.contenders(PREFIX).await.len(), 1);
    assert_eq!(stage.consul.sessions().await.len(), 1);
    slot.release().await.unwrap();
}

/// A server that takes connections and says nothing.
#[tokio::test]
async fn who_gets_no_answer_is_not_told_that_others_hold_the_slots() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(Config {
        addresses: vec![mute.local_addr().unwrap().to_string().parse().unwrap()],
        ..Config::default()
    });
    let semaphore = Semaphore::builder(client.unwrap(), PREFIX).limit(1);
    let semaphore = semaphore.build().unwrap();
    let refused = soon(semaphore.acquire_within(MOMENT)).await.unwrap_err();
    assert!(
        matches!(refused.why, AcquireError::Unreachable(_)) && !refused.is_taken(),
        "{refused:?}"
    );
    let said = refused.to_string();
    assert!(said.contains("it has not answered yet"), "{said}");
    soon(semaphore.all_released()).await;
}

#[tokio::test]
async fn a_panic_of_who_is_told_what_happens_costs_no_slot() {
    let stage = Stage::new().await;
    let told = Arc::<AtomicUsize>::default();
    let semaphore = stage.builder().limit(1).on_notice({
        let told = told.clone();
        move |_| {
            told.fetch_add(1, SeqCst);
            panic!("it can't be told anything");
        }
    });
    let semaphore = semaphore.build().unwrap();
    let slot = slot_of(&stage.semaphore(1)).await;
    let waits = tokio::spawn(async move { semaphore.acquire().await });
    stage.has_sessions(2).await;
    slot.release().await.unwrap();
    let slot = soon(waits).await.unwrap().unwrap();
    assert!(told.load(SeqCst) > 0);
    slot.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn a_higher_priority_comes_first() {
    let stage = Stage::new().await;
    let low = stage.semaphore(1);
    let high = stage.builder().limit(1).priority(10).build().unwrap();
    let slot = slot_of(&low).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let (mut tasks, mut waiting) = (JoinSet::new(), 0);
    for (name, semaphore) in [("low", low), ("high", high)] {
        let order = order.clone();
        tasks.spawn(async move {
            let slot = semaphore.acquire().await.unwrap();
            order.lock().push(name);
            slot.release().await.unwrap();
        });
        // The second one comes later.
        waiting += 1;
        stage.has_sessions(1 + waiting).await;
    }
    // Who reads that the slot is free reads that both wait.
    stage.contend(3).await;
    slot.release().await.unwrap();
    soon(tasks.join_all()).await;
    assert_eq!(*order.lock(), ["high", "low"]);
}
