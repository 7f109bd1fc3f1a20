//! Who holds slots, who waits, and how many slots are free.

use consul_semaphore::Usage;

use crate::stage::{Stage, slot_of, soon};

const LICENSES: &str = "shared/licenses";

#[tokio::test]
async fn holders_waiters_and_free_slots_are_seen_at_each_prefix() {
    let stage = Stage::new().await;
    let both = stage.builder().limit(1).and(LICENSES).limit(3).slots(2);
    let both = both.host("ci-7").program("migrate").build().unwrap();
    let unused = soon(both.usage()).await.unwrap();
    assert!(unused.iter().all(Usage::is_unused));
    assert!(unused.iter().all(|usage| usage.free().is_none()));

    let slot = slot_of(&both).await;
    let _waits = tokio::spawn({
        let db = stage.builder().limit(1).priority(7).build().unwrap();
        async move { db.acquire().await }
    });
    stage.contend(2).await;
    let usage = soon(both.usage()).await.unwrap();
    let [db, licenses] = usage.as_slice() else {
        panic!("{usage:?}");
    };
    assert_eq!(licenses.summary.prefix.as_str(), LICENSES);
    assert_eq!((db.free(), licenses.free()), (Some(0), Some(1)));
    let [holder] = db.holders.as_slice() else {
        panic!("{db:?}");
    };
    assert_eq!(holder.contender.session, *slot.session());
    assert_eq!(holder.contender.to_string(), "Program migrate on ci-7");
    assert_eq!(holder.fencing_token, Some(slot.fencing_token()));
    assert_eq!(db.waiters[0].priority, Some(7));
}
