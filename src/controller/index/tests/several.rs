//! Workloads that ask for slots of several semaphores.

use super::*;
use consul_semaphore::{
    Reserved,
    windows::{WindowSpec, Windows},
};

fn waiting(index: &Index, name: &str) -> Vec<String> {
    let waiting = index.slice(&queue(name), 9).waiting;
    names(&waiting).into_iter().map(ToOwned::to_owned).collect()
}

#[test]
fn one_that_asks_for_several_is_in_all_their_queues_or_in_none() {
    let index = with_db();
    let asks = tracked("a", |tracked| {
        let requests = ["db", "licenses"].map(|name| SlotRequest::one(name, None));
        workload(tracked).requests = requests.to_vec();
    });
    put(&index, asks);
    assert_eq!(waiting(&index, "db"), [""; 0], "one is missing");
    assert_eq!(names_of(&unclaimed(&index)), ["a"]);
    add(&index, "licenses", "licenses", false);
    for name in ["db", "licenses"] {
        assert_eq!(waiting(&index, name), ["a"], "{name}");
    }
    assert_eq!(names_of(&unclaimed(&index)), [""; 0]);
    let marked = index.take_marked();
    assert!(marked.contains(&queue("db")) && marked.contains(&queue("licenses")));
    index.remove(&"a".into());
    assert_eq!(waiting(&index, "licenses"), [""; 0]);
}

/// A workload that asks for these.
fn asks(requests: &[SlotRequest]) -> TrackedWorkload {
    tracked("a", |tracked| {
        workload(tracked).requests = requests.to_vec();
    })
}

fn of_key(name: &str, key: &str) -> SlotRequest {
    SlotRequest::one(name, Some(key.parse().unwrap()))
}

fn obstacle(index: &Index, requests: &[SlotRequest]) -> Option<Obstacle> {
    match index.state().why_unclaimed(&asks(requests))? {
        Unclaimed::Obstacle(obstacle) => Some(obstacle),
        Unclaimed::Missing(_) => panic!("all are there"),
    }
}

#[test]
fn the_missing_semaphores_among_several_are_named() {
    let index = with_db();
    let requests = ["db", "x", "y"].map(|name| SlotRequest::one(name, None));
    let missing = Unclaimed::Missing(vec!["x".into(), "y".into()]);
    assert_eq!(index.state().why_unclaimed(&asks(&requests)), Some(missing));
}

#[test]
fn what_can_never_be_granted_together_is_in_no_queue() {
    let index = with_db();
    add(&index, "twin", "db", false);
    add(&index, "keyed", "k", true);
    add(&index, "plain", "k/a", false);
    add_others(&index, "theirs", "theirs", false);
    let elsewhere = Offer {
        consul: Some(ConsulSpec {
            datacenter: Some("dc2".to_owned()),
            ..ConsulSpec::default()
        }),
        ..offer("elsewhere", false)
    };
    block_on(index.add_semaphore(&reference("elsewhere"), elsewhere, Manager::ThisOperator));
    let one = |name: &str| SlotRequest::one(name, None);
    for (requests, expected) in [
        (
            [one("db"), one("twin")],
            Some(Obstacle::SameLockKey("db".into(), "twin".into())),
        ),
        (
            [of_key("keyed", "a"), one("plain")],
            Some(Obstacle::SameLockKey(
                "keyed (key a)".into(),
                "plain".into(),
            )),
        ),
        ([of_key("keyed", "b"), one("plain")], None),
        ([of_key("keyed", "a"), of_key("keyed", "b")], None),
        (
            [one("db"), one("elsewhere")],
            Some(Obstacle::Apart("db".into(), "elsewhere".into())),
        ),
        (
            [one("db"), one("theirs")],
            Some(Obstacle::TwoOperators("db".into(), "theirs".into())),
        ),
        (
            [one("db"), one("keyed")],
            Some(Obstacle::NoKey("keyed".into())),
        ),
    ] {
        assert_eq!(obstacle(&index, &requests), expected, "{requests:?}");
    }
}

#[test]
fn one_that_asks_for_more_than_there_is_waits_in_no_queue_until_there_is_more() {
    let index = with_db();
    let four = SlotRequest {
        slots: 4.try_into().unwrap(),
        ..SlotRequest::one("db", None)
    };
    let unsatisfiable = Obstacle::Unsatisfiable {
        semaphore: "db".into(),
        slots: 4,
        most: 3,
    };
    let requests = [four];
    assert_eq!(obstacle(&index, &requests), Some(unsatisfiable));
    put(&index, asks(&requests));
    assert_eq!(waiting(&index, "db"), [""; 0]);
    let more = Offer {
        limit: 4,
        ..offer("db", false)
    };
    block_on(index.update_semaphore(&reference("db"), more));
    assert_eq!(waiting(&index, "db"), ["a"]);
    block_on(index.update_semaphore(&reference("db"), offer("db", false)));
    assert_eq!(waiting(&index, "db"), [""; 0]);
    assert_eq!(names_of(&unclaimed(&index)), ["a"]);
}

#[test]
fn what_is_reserved_for_others_and_what_no_window_has_can_never_be_had() {
    let index = with_db();
    let asked = |slots: u32| {
        let request = SlotRequest {
            slots: slots.try_into().unwrap(),
            ..SlotRequest::one("db", None)
        };
        obstacle(&index, &[request]).is_some()
    };
    let restrict = |reserved: u32, limit: u32| {
        let window = WindowSpec {
            schedule: "0 22 * * *".into(),
            duration: Duration::from_hours(1),
            time_zone: None,
            limit: Some(limit),
        };
        let restrictions = Restrictions {
            windows: Windows::new(vec![window], jiff::Timestamp::UNIX_EPOCH),
            reserved: Some(Reserved {
                slots: reserved,
                min_priority: 1,
            }),
        };
        let offer = Offer {
            restrictions,
            ..offer("db", false)
        };
        block_on(index.update_semaphore(&reference("db"), offer));
    };
    restrict(1, 3);
    assert_eq!((asked(2), asked(3)), (false, true));
    restrict(1, 2);
    assert_eq!((asked(1), asked(2)), (false, true));
}
