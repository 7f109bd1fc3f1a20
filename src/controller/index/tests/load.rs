//! How many workloads are looked at because of what one tenant writes: only its own that are concerned. Everybody waits
//! for the lock of the index meanwhile.

use super::*;

/// Number of workloads that use each of several semaphores.
const EACH: usize = 200;

/// Maximum number of looks at one workload when it gets its place again.
const LOOKS: usize = 4;

fn asks(name: &str, semaphore: &str, slots: u32) -> TrackedWorkload {
    tracked(name, |tracked| {
        let request = &mut workload(tracked).requests[0];
        (request.semaphore, request.slots) = (semaphore.into(), slots.try_into().unwrap());
    })
}

/// `db` has 3 slots. `EACH` workloads wait for one of them, and three ask for more than there are. As many others ask
/// for slots of another semaphore, of one that does not exist, and in another namespace.
fn crowded() -> Index {
    let index = with_db();
    add(&index, "other", "other", false);
    for number in 0..EACH {
        put(&index, asks(&format!("db-{number}"), "db", 1));
        put(&index, asks(&format!("other-{number}"), "other", 1));
        put(&index, asks(&format!("missing-{number}"), "missing", 1));
        let mut elsewhere = asks(&format!("elsewhere-{number}"), "db", 1);
        elsewhere.namespace = "elsewhere".into();
        put(&index, elsewhere);
    }
    for slots in [4, 5, 9] {
        put(&index, asks(&format!("asks-{slots}"), "db", slots));
    }
    index.state().workloads.take_looks();
    index
}

/// Changes what `db` offers. Returns how many looks that costs.
fn change(index: &Index, change: impl FnOnce(&mut Offer)) -> usize {
    let mut changed = offer("db", false);
    change(&mut changed);
    index.state().workloads.take_looks();
    block_on(index.update_semaphore(&reference("db"), changed));
    index.state().workloads.take_looks()
}

#[test]
fn a_changed_limit_concerns_only_those_that_ask_for_more_than_the_smaller_one() {
    let index = crowded();
    let looks = change(&index, |offer| offer.limit = 5);
    assert!((1..=3 * LOOKS).contains(&looks), "{looks}");
    assert_eq!(index.all_waiting(&queue("db")).len(), EACH + 2);
    let looks = change(&index, |offer| offer.limit = 8);
    assert!((1..=LOOKS).contains(&looks), "the note of one: {looks}");
    change(&index, |offer| offer.limit = 9);
    assert_eq!(change(&index, |offer| offer.limit = 50), 0);
    assert_eq!(change(&index, |offer| offer.limit = 9), 0);
    assert_eq!(index.all_waiting(&queue("db")).len(), EACH + 3);
}

#[test]
fn a_changed_semaphore_concerns_only_those_that_use_it() {
    let index = crowded();
    let own = 1..=(EACH + 3) * LOOKS;
    let an_hour = Some(Duration::from_hours(1));
    let looks = change(&index, |offer| offer.wait_timeout = an_hour);
    assert!(own.contains(&looks), "{looks}");
    assert!(index.any_deadline(&reference("db")));
    index.state().workloads.take_looks();
    block_on(index.remove_semaphore(&reference("db")));
    let looks = index.state().workloads.take_looks();
    assert!(own.contains(&looks), "{looks}");
    add(&index, "db", "db", false);
    let looks = index.state().workloads.take_looks();
    assert!(own.contains(&looks), "{looks}");
    assert_eq!(index.all_waiting(&queue("db")).len(), EACH);
}

/// The tasks that handle these workloads are told which have changed, and go through none of the others.
#[test]
fn one_that_changes_is_the_only_one_that_is_taken() {
    let index = crowded();
    let is_unclaimed = |uid: &Uid| index.unclaimed(uid).is_some();
    assert_eq!(
        index
            .take_unclaimed()
            .iter()
            .filter(|uid| is_unclaimed(uid))
            .count(),
        2 * EACH + 3
    );
    let running = |name: &str, version: &str| {
        let mut running = asks(name, "other", 1);
        workload(&mut running).phase = Phase::Running;
        workload(&mut running).version = version.into();
        running
    };
    for number in 0..EACH {
        put(&index, running(&format!("runs-{number}"), "11"));
    }
    assert_eq!(index.take_ungranted().len(), EACH);
    index.take_unclaimed();
    index.state().workloads.take_looks();

    let mut missing = asks("missing-7", "missing", 2);
    workload(&mut missing).version = "11".into();
    put(&index, missing);
    assert_eq!(index.take_unclaimed(), ["missing-7".into()].into());
    index.remove(&"missing-7".into());
    assert_eq!(index.take_unclaimed(), ["missing-7".into()].into());
    put(&index, running("runs-new", "11"));
    assert_eq!(index.take_ungranted(), ["runs-new".into()].into());
    assert!(index.take_unclaimed().is_empty() && index.take_ungranted().is_empty());
    let looks = index.state().workloads.take_looks();
    assert!((1..=3 * LOOKS).contains(&looks), "{looks}");
}

#[test]
fn others_have_their_turn_while_many_get_their_places_again() {
    let index = with_db();
    let many = 5 * ARRANGED_AT_ONCE;
    for number in 0..many {
        put(&index, asks(&format!("{number:04}"), "db", 2));
    }
    let (db, reference) = (queue("db"), reference("db"));
    let smaller = Offer {
        limit: 1,
        ..offer("db", false)
    };
    let mut update = Box::pin(index.update_semaphore(&reference, smaller));
    assert!(update.as_mut().now_or_never().is_none());
    let left = index.all_waiting(&db).len();
    assert!(0 < left && left < many, "{left}");
    // Meanwhile one that still has its place changes, and one is gone.
    let (changed, gone) = (
        &index.all_waiting(&db)[0].name,
        &index.all_waiting(&db)[1].uid,
    );
    let mut later = asks(changed, "db", 1);
    workload(&mut later).version = "11".into();
    put(&index, later);
    index.remove(gone);
    block_on(update);
    assert_eq!(names(&index.all_waiting(&db)), [&**changed]);
    assert_eq!(unclaimed(&index).len(), many - 2);
}
