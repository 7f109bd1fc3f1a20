//! A slot that is lost while its work runs.

use std::time::Duration;

use consul_semaphore::{Semaphore, plan::Suspended};
use testbed::Link;

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
    slot.release().await.unwrap();
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
    slot.release().await.unwrap();
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
    let address = stage.consul.address().trim_start_matches("http://");
    let link = Link::start(address.to_owned()).await.unwrap();
    let cut_off = stage.client_with(|config| {
        config.addresses = vec![link.address().parse().unwrap()];
    });
    let ttl = Duration::from_secs(10);
    let with = |client| {
        let builder = Semaphore::builder(client, PREFIX).limit(1);
        let builder = builder.ttl(ttl).lock_delay(Duration::ZERO);
        builder.build().unwrap()
    };
    let slot = slot_of(&with(cut_off)).await;
    let next = with(stage.client());
    link.cut();
    let lost = tokio::select! {
        biased;
        lost = soon(slot.lost()) => lost,
        _ = next.acquire() => panic!("another one has the slot"),
    };
    assert_eq!(lost.why, Suspended::Unproved);
    slot_of(&next).await.release().await.unwrap();
}
