//! A slot that is lost while its work runs.

use std::time::Duration;

use consul_semaphore::{ReleaseError, Semaphore, plan::Suspended};
use tokio::{runtime::Builder, time::timeout};

use crate::stage::{PREFIX, Stage, slot_of, soon};

#[tokio::test]
async fn a_slot_whose_session_is_destroyed_is_lost_and_not_released_twice() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().limit(1).lock_delay(Duration::ZERO);
    let semaphore = semaphore.build().unwrap();
    let slot = slot_of(&semaphore).await;
    assert!(!slot.is_lost());
    stage.consul.destroy_session(slot.session().as_str()).await;
    let lost = soon(slot.lost()).await;
    assert_eq!(lost.why, Suspended::SlotLost);
    assert_eq!(lost.to_string(), "the slot of shared/db is lost");
    assert!(slot.is_lost());
    // Others have the slot by the time that it is dropped, and keep it.
    let next = slot_of(&semaphore).await;
    assert!(next.fencing_token() > slot.fencing_token());
    let released = slot.release().await;
    assert_eq!(released, Err(ReleaseError::Lost(lost)));
    assert_eq!(
        stage.consul.holders(PREFIX).await,
        [next.session().to_string()].into()
    );
    assert!(!next.is_lost());
    next.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn one_of_several_slots_is_lost_for_all_of_them() {
    let stage = Stage::new().await;
    let semaphore = stage
        .builder()
        .limit(1)
        .and("shared/licenses")
        .limit(3)
        .slots(2)
        .lock_delay(Duration::ZERO);
    let semaphore = semaphore.build().unwrap();
    let slot = slot_of(&semaphore).await;
    let last = slot.sequencers().pop().unwrap();
    stage.consul.destroy_session(last.session.as_str()).await;
    assert_eq!(soon(slot.lost()).await.prefix.as_str(), "shared/licenses");
    // The others are held until the work has ended.
    assert_eq!(stage.held().await, 1);
    let released = slot.release().await.unwrap_err().to_string();
    assert!(
        released.starts_with("the slot of shared/licenses is lost: other clients may"),
        "{released}"
    );
    assert_eq!(stage.held().await, 0);
    assert!(stage.consul.sessions().await.is_empty());
    // What is left of the dead session is removed by the next one, after the lock-delay.
    slot_of(&semaphore).await.release().await.unwrap();
    stage.is_clean().await;
}

/// Consul ends a session that was not renewed for a TTL: the next holder comes after the slot is known to be lost.
#[tokio::test]
async fn who_is_cut_off_knows_that_its_slot_is_lost_before_another_has_it() {
    let stage = Stage::new().await;
    let (link, cut_off) = stage.linked().await;
    let ttl = Duration::from_secs(10);
    let with = |client| {
        let builder = Semaphore::builder(client, PREFIX).limit(1);
        let builder = builder.ttl(ttl).lock_delay(Duration::ZERO);
        builder.build().unwrap()
    };
    let slot = slot_of(&with(cut_off)).await;
    let next = with(stage.client());
    let waits = tokio::spawn(async move { next.acquire().await.unwrap() });
    stage.has_sessions(2).await;
    link.cut();
    let lost = soon(slot.lost()).await;
    assert_eq!(lost.why, Suspended::Unproved);
    // In Consul it is still held.
    assert!(!waits.is_finished());
    assert_eq!(
        stage.consul.holders(PREFIX).await,
        [slot.session().to_string()].into()
    );
    soon(waits).await.unwrap().release().await.unwrap();
    assert!(slot.is_lost());
}

/// The runtime has one thread, which the work blocks: no session is renewed, and nothing is read.
#[tokio::test]
async fn who_blocks_the_runtime_knows_that_its_slot_is_lost() {
    let stage = Stage::new().await;
    let ttl = Duration::from_secs(10);
    let semaphore = stage.builder().limit(1).ttl(ttl).build().unwrap();
    let slot = slot_of(&semaphore).await;
    assert!(!slot.is_lost());
    std::thread::sleep(ttl);
    // The clock says it: no other task has run, and Consul was not asked.
    let lost = timeout(Duration::ZERO, slot.lost()).await.unwrap();
    assert_eq!(lost.why, Suspended::Unproved);
    assert!(slot.is_lost());
    assert_eq!(slot.release().await, Err(ReleaseError::Lost(lost)));
}

/// The slot's runtime is not polled while another program gets the slot.
#[test]
fn a_release_says_that_another_had_the_slot_though_nothing_was_read_meanwhile() {
    let [runtime, blocked] = [(); 2].map(|()| {
        let mut one = Builder::new_current_thread();
        one.enable_all().build().unwrap()
    });
    let _guard = runtime.enter();
    let stage = runtime.block_on(Stage::new());
    let semaphore = || stage.builder().limit(1).lock_delay(Duration::ZERO);
    let slot = blocked.block_on(async {
        let semaphore = semaphore().build().unwrap();
        slot_of(&semaphore).await
    });
    let next = runtime.block_on(async {
        stage.consul.destroy_session(slot.session().as_str()).await;
        let semaphore = semaphore().build().unwrap();
        slot_of(&semaphore).await
    });
    assert!(!slot.is_lost(), "the clock does not say it yet");
    let released = blocked.block_on(slot.release());
    assert!(
        matches!(released, Err(ReleaseError::Lost(_))),
        "{released:?}"
    );
    assert_eq!(runtime.block_on(next.release()), Ok(()));
}

/// Whoever waits removes the dead holder while its program gives the slot back.
#[tokio::test]
async fn a_release_beside_a_prune_takes_nothing_from_the_next_holder() {
    let stage = Stage::new().await;
    let semaphore = stage.builder().limit(1).lock_delay(Duration::ZERO);
    let semaphore = semaphore.build().unwrap();
    for _ in 0..5 {
        let slot = slot_of(&semaphore).await;
        let next = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.unwrap() }
        });
        stage.has_sessions(2).await;
        stage.consul.destroy_session(slot.session().as_str()).await;
        let (released, next) = tokio::join!(slot.release(), soon(next));
        // Whichever is first.
        assert!(
            matches!(released, Ok(()) | Err(ReleaseError::Lost(_))),
            "{released:?}"
        );
        let next = next.unwrap();
        assert!(!next.is_lost());
        assert_eq!(
            stage.consul.holders(PREFIX).await,
            [next.session().to_string()].into()
        );
        next.release().await.unwrap();
    }
    stage.is_clean().await;
}
