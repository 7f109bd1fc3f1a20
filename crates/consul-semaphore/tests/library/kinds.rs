//! Several semaphores at once, mutexes, rates.

use std::time::Duration;

use consul_semaphore::{Mutex, Rate};
use testbed::eventually;

use crate::stage::{MOMENT, PREFIX, Stage, slot_of, soon};

const LICENSES: &str = "shared/licenses";

#[tokio::test]
async fn slots_of_several_semaphores_are_granted_together_or_not_at_all() {
    let stage = Stage::new().await;
    let both = stage.builder().limit(1).and(LICENSES).limit(3).slots(2);
    let both = both.build().unwrap();
    let db = stage.semaphore(1);
    let slot = slot_of(&db).await;
    let refused = soon(both.try_acquire()).await.unwrap_err();
    assert!(refused.is_taken());
    let said = refused.to_string();
    assert!(said.starts_with("no slot of shared/db is free"), "{said}");
    assert!(!said.contains(LICENSES), "{said}");
    let waits = tokio::spawn(async move { both.acquire().await.unwrap() });
    tokio::time::sleep(MOMENT).await;
    assert_eq!(stage.consul.holders(LICENSES).await.len(), 0);
    slot.release().await.unwrap();
    let slot = soon(waits).await.unwrap();
    assert_eq!(stage.held().await, 1);
    assert_eq!(stage.consul.holders(LICENSES).await.len(), 2);
    let sequencers = slot.sequencers();
    assert_eq!(sequencers.len(), 3);
    assert_eq!(sequencers[0], slot.sequencer());
    assert!(sequencers[0].lock_key.starts_with(PREFIX));
    let indices = sequencers.iter().map(|it| it.slot_index);
    assert_eq!(indices.collect::<Vec<_>>(), [Some(0), Some(0), Some(1)]);
    let tokens = sequencers.iter().map(|it| it.fencing_token);
    assert!(
        tokens
            .into_iter()
            .all(|token| token == slot.fencing_token())
    );
    slot.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn a_mutex_has_one_slot_and_locks_the_lock_key() {
    let stage = Stage::new().await;
    let mutex = stage.builder().mutex().build().unwrap();
    let slot = slot_of(&mutex).await;
    assert_eq!(slot.sequencer().lock_key, format!("{PREFIX}/.lock"));
    assert_eq!(slot.index(), Some(0));
    let lock = stage.consul.kv(&slot.sequencer().lock_key).await.unwrap();
    assert_eq!(lock.session.as_deref(), Some(slot.session().as_str()));
    assert!(soon(mutex.try_acquire()).await.unwrap_err().is_taken());
    let next = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    let first = slot.fencing_token();
    slot.release().await.unwrap();
    let next = soon(next).await.unwrap();
    assert!(next.fencing_token() > first);
    next.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn a_mutex_by_its_own_name_is_the_same_lock() {
    let stage = Stage::new().await;
    let mutex = Mutex::builder(stage.client(), PREFIX).build().unwrap();
    let slot = soon(mutex.lock()).await.unwrap();
    let other = stage.builder().mutex().build().unwrap();
    assert!(soon(other.try_acquire()).await.unwrap_err().is_taken());
    assert!(soon(mutex.try_lock()).await.unwrap_err().is_taken());
    slot.release().await.unwrap();
    assert_eq!(soon(mutex.run(async |_lock| 7)).await, Ok(7));
    stage.is_clean().await;
}

#[tokio::test]
async fn no_more_than_the_limit_start_in_a_period_however_soon_they_end() {
    let stage = Stage::new().await;
    // Long enough for two starts, and to ask for a third.
    let period = Duration::from_secs(15);
    let rate = stage.builder().rate(2, period).build().unwrap();
    let starts = Rate::builder(stage.client(), PREFIX, 2, period);
    let starts = starts.build().unwrap();
    drop(slot_of(&rate).await);
    soon(starts.start()).await.unwrap();
    assert!(soon(starts.try_start()).await.unwrap_err().is_taken());
    assert!(soon(rate.try_acquire()).await.unwrap_err().is_taken());
    assert_eq!(stage.held().await, 2);
    slot_of(&rate).await.release().await.unwrap();
    soon(rate.all_released()).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn reserved_slots_are_for_high_priorities() {
    let stage = Stage::new().await;
    let low = stage.builder().limit(2).reserve(1, 10).build().unwrap();
    let high = stage.builder().limit(2).reserve(1, 10).priority(10);
    let high = high.build().unwrap();
    let first = slot_of(&low).await;
    let refused = soon(low.try_acquire()).await.unwrap_err();
    assert!(refused.is_taken());
    let said = refused.to_string();
    assert!(
        said.contains("reserved for priority 10 and above"),
        "{said}"
    );
    let second = slot_of(&high).await;
    drop((first, second));
    eventually("both are free", async || stage.held().await == 0).await;
}
