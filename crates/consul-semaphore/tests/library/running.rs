//! Work that runs in a slot from beginning to end.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use consul_semaphore::{Notice, RunError, Semaphore, plan::Suspended};
use parking_lot::Mutex;
use testbed::eventually;

use crate::stage::{PREFIX, Stage, slot_of, soon};

/// Work that says when its future is dropped.
struct Work(Arc<AtomicBool>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[tokio::test]
async fn work_returns_its_value_and_leaves_nothing() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    // The runtime may move the work to another thread.
    let ran = tokio::spawn({
        let semaphore = semaphore.clone();
        async move {
            let work = semaphore.run(async |slot| {
                tokio::task::yield_now().await;
                slot.session().to_string()
            });
            work.await
        }
    });
    soon(ran).await.unwrap().unwrap();
    stage.is_clean().await;
    let held = semaphore.run(async |slot| {
        assert_eq!(
            stage.consul.holders(PREFIX).await,
            [slot.session().to_string()].into()
        );
        assert!(soon(semaphore.try_acquire()).await.unwrap_err().is_taken());
    });
    soon(held).await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn work_that_gets_no_slot_does_not_begin() {
    let stage = Stage::new().await;
    let slot = slot_of(&stage.semaphore(2)).await;
    let other = stage.semaphore(3);
    let refused = soon(other.run(async |_slot| panic!("it begins"))).await;
    assert!(matches!(refused, Err(RunError::NoSlot(_))), "{refused:?}");
    slot.release().await.unwrap();
    stage.is_clean().await;
}

#[tokio::test]
async fn work_whose_slot_is_lost_ends_at_once() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    let ended = Arc::<AtomicBool>::default();
    let ran = semaphore.run(async |slot| {
        let _work = Work(ended.clone());
        stage.consul.destroy_session(slot.session().as_str()).await;
        pending::<()>().await;
    });
    let Err(RunError::Lost(lost)) = soon(ran).await else {
        panic!("the slot is lost");
    };
    assert_eq!(lost.why, Suspended::SlotLost);
    assert!(ended.load(SeqCst));
}

/// The work blocks the runtime's only thread, so nothing can end it.
#[tokio::test]
async fn work_that_ends_in_a_lost_slot_has_no_value() {
    let stage = Stage::new().await;
    let ttl = Duration::from_secs(10);
    let semaphore = stage.builder().limit(1).ttl(ttl).build().unwrap();
    let ran = soon(semaphore.run(async |_slot| std::thread::sleep(ttl))).await;
    let Err(RunError::Lost(lost)) = ran else {
        panic!("the slot is lost");
    };
    assert_eq!(lost.why, Suspended::Unproved);
}

#[tokio::test]
async fn work_whose_slot_can_not_be_released_has_its_value() {
    let stage = Stage::new().await;
    let notices = Arc::<Mutex<Vec<Notice>>>::default();
    let told = notices.clone();
    // A Consul that is only paused would carry out the release later.
    let (link, client) = stage.linked().await;
    let builder = Semaphore::builder(client, PREFIX).limit(1);
    let semaphore = builder.on_notice(move |notice| told.lock().push(notice));
    let semaphore = semaphore.build().unwrap();
    let ran = semaphore.run(async |_slot| {
        link.cut();
        7
    });
    assert_eq!(soon(ran).await, Ok(7));
    let last = notices.lock().last().cloned();
    assert!(matches!(last, Some(Notice::StillHeld(_))), "{last:?}");
    assert_eq!(stage.held().await, 1);
}

#[tokio::test]
async fn work_does_not_wait_for_the_cooldown_of_its_slot() {
    let stage = Stage::new().await;
    let cooldown = Duration::from_hours(1);
    let semaphore = stage.builder().limit(1).cooldown(cooldown).build().unwrap();
    assert_eq!(soon(semaphore.run(async |_slot| 7)).await, Ok(7));
    assert_eq!(stage.held().await, 1);
}

#[tokio::test]
async fn work_that_is_given_up_gives_its_slot_back() {
    let stage = Stage::new().await;
    let semaphore = stage.semaphore(1);
    let ended = Arc::<AtomicBool>::default();
    let work = semaphore.run(async |_slot| {
        let _work = Work(ended.clone());
        pending::<()>().await;
    });
    tokio::select! {
        _ = work => panic!("the work does not end"),
        _ = eventually("the work has a slot", async || {
            testbed::same(stage.held().await, 1)
        }) => {}
    }
    assert!(ended.load(SeqCst));
    soon(semaphore.all_released()).await;
    stage.is_clean().await;
}
