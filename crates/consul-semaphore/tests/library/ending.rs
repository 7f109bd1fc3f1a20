//! How a slot ends.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use consul_semaphore::Semaphore;
use tokio::time::{sleep, timeout};

use crate::stage::{PREFIX, Stage, slot_of, soon};

#[tokio::test]
async fn a_slot_is_held_until_it_is_dropped() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    let slot = slot_of(&semaphore).await;
    let holders = stage.consul.holders(PREFIX).await;
    assert_eq!(holders, [slot.session().to_string()].into());
    let contender = stage.consul.contenders(PREFIX).await.remove(0);
    let sequencer = slot.sequencer();
    assert_eq!(sequencer.lock_key, contender.key);
    assert_eq!(sequencer.lock_index, contender.lock_index);
    assert_eq!(slot.fencing_token(), contender.modify_index);
    drop(slot);
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn a_later_grant_has_a_greater_fencing_token() {
    let stage = Stage::new().await;
    // Two programs take turns, which know nothing of each other's tokens.
    let both = [stage.semaphore(1), stage.semaphore(1)];
    let mut tokens = Vec::new();
    for semaphore in both.iter().cycle().take(6) {
        let slot = slot_of(semaphore).await;
        let contender = stage.consul.contenders(PREFIX).await.remove(0);
        assert_eq!(slot.fencing_token(), contender.modify_index);
        tokens.push(slot.fencing_token());
        slot.release().await.unwrap();
    }
    assert!(
        tokens.is_sorted_by(|earlier, later| earlier < later),
        "{tokens:?}"
    );
}

#[tokio::test]
async fn a_released_slot_is_free_at_once_for_who_waits() {
    let stage = Stage::new().await;
    // Who took the released slot for that of a dead holder would wait longer than this test.
    let second = Duration::from_secs(1);
    let semaphore = stage.builder().limit(1).lock_delay(second * 60);
    let semaphore = semaphore.build().unwrap();
    let slot = slot_of(&semaphore).await;
    let first = slot.session().clone();
    let next = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.unwrap() }
    });
    stage.has_sessions(2).await;
    slot.release().await.unwrap();
    let held = stage.consul.holders(PREFIX).await;
    assert!(!held.contains(&first.to_string()), "{held:?}");
    let next = timeout(second * 30, next).await.unwrap().unwrap();
    assert_eq!(
        stage.consul.holders(PREFIX).await,
        [next.session().to_string()].into()
    );
    next.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn a_slot_cools_down_after_the_work() {
    let stage = Stage::new().await;
    // Long enough to ask for the slot meanwhile.
    let cooldown = Duration::from_secs(10);
    let semaphore = stage.builder().limit(1).cooldown(cooldown).build().unwrap();
    let slot = slot_of(&semaphore).await;
    drop(slot);
    assert!(soon(semaphore.try_acquire()).await.unwrap_err().is_taken());
    assert_eq!(stage.held().await, 1);
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
}

#[tokio::test]
async fn a_slot_cools_down_though_consul_is_away_when_the_work_ends() {
    let stage = Stage::new().await;
    let second = Duration::from_secs(1);
    let semaphore = stage.builder().limit(1).cooldown(second * 15);
    let slot = slot_of(&semaphore.build().unwrap()).await;
    stage.consul.pause().await;
    let released = tokio::spawn(slot.release());
    // Without a cooldown the release fails after ten seconds.
    sleep(second * 12).await;
    stage.consul.resume().await;
    assert_eq!(soon(released).await.unwrap(), Ok(()));
    stage.is_clean().await;
}

/// What it leaves would stay for two hours.
#[tokio::test]
async fn a_release_is_tried_for_longer_if_its_session_lives_long() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().limit(1).ttl(Duration::from_hours(1));
    let slot = slot_of(&semaphore.build().unwrap()).await;
    stage.consul.pause().await;
    let released = tokio::spawn(slot.release());
    // With the usual TTL the release fails after ten seconds.
    sleep(Duration::from_secs(12)).await;
    stage.consul.resume().await;
    assert_eq!(soon(released).await.unwrap(), Ok(()));
    stage.is_clean().await;
}

/// The task of a wait that was given up at once may not have begun.
#[tokio::test]
async fn a_wait_counts_from_the_call_on() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    assert!(poll_once(semaphore.acquire()).is_pending());
    assert!(poll_once(semaphore.all_released()).is_pending());
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
}

/// Polls a future once, and drops it.
fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Whoever awaits a slot need not be in the runtime that holds it.
#[test]
fn a_slot_ends_with_its_runtime() {
    let held = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let other = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let stage = held.block_on(Stage::new());
    let semaphore: Semaphore = held.block_on(async { stage.semaphore(1) });
    let slot = other.block_on(semaphore.acquire()).unwrap();
    assert!(!slot.is_lost());
    held.shutdown_timeout(Duration::from_secs(10));
    assert!(slot.is_lost());
    let lost = other.block_on(slot.lost());
    assert_eq!(lost.prefix.as_str(), PREFIX);
    let error = other.block_on(slot.release()).unwrap_err();
    assert!(error.to_string().contains("120s from now"), "{error}");
    let error = other.block_on(semaphore.acquire()).unwrap_err();
    assert!(error.to_string().contains("runtime"), "{error}");
}
