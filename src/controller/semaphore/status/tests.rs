use super::*;
use crate::controller::semaphore::Holds;
use consul_semaphore::{
    ContenderName, Reserved,
    windows::{WindowSpec, Windows},
};

/// The status of a key of limit 1, with holders since these indexes.
fn status(key: &str, holders: &[u64], ready: (bool, Reason)) -> KeyStatus {
    let holder = |since: &u64| {
        let status = HolderStatus {
            session: format!("{key}-{since}"),
            key: Some(key.to_owned()),
            holder: ContenderName::default(),
            slot_index: None,
            slot_name: None,
            since: None,
            cools_until: None,
            not_started: None,
            never_expires: false,
        };
        (Some(*since), status)
    };
    let (is_ready, reason) = ready;
    KeyStatus {
        spec: SpecOf {
            generation: Some(1),
            limit: 1,
        },
        shown: ShownReading {
            limit: Some(1),
            held: holders.len(),
            held_here: holders.len(),
            holders: holders.iter().map(holder).collect(),
            elsewhere: Vec::new(),
        },
        queued: Queued {
            waiting: 1,
            starting: Vec::new(),
        },
        open: true,
        in_force: u32::MAX,
        several: Several::default(),
        awaits_others: false,
        findings: vec![Finding::new(ConditionType::Ready, is_ready, reason, "why")],
        wait: Duration::from_secs(24),
    }
}

fn put(keys: &mut StatusByKey, key: &str, status: KeyStatus) {
    keys.put(Some(key.parse().unwrap()), status);
}

/// Keys with these statuses.
fn keys(of: Vec<(&str, KeyStatus)>) -> StatusByKey {
    let mut keys = StatusByKey::default();
    for (key, status) in of {
        put(&mut keys, key, status);
    }
    keys
}

const WELL: (bool, Reason) = (true, Reason::Reconciled);
const STOPPED: (bool, Reason) = (false, Reason::LimitConflict);

#[test]
fn a_status_replaces_the_one_before_of_its_key() {
    let mut keys = keys(vec![
        ("a", status("a", &[5, 7], WELL)),
        ("b", status("b", &[6], WELL)),
    ]);
    let sessions = |keys: &StatusByKey| -> Vec<String> {
        let holders = keys.holders().into_iter();
        holders.map(|holder| holder.session).collect()
    };
    assert_eq!(sessions(&keys), ["a-5", "b-6", "a-7"]);
    let totals = keys.totals();
    assert_eq!((totals.held, totals.waiting, totals.in_use), (3, 2, 2));
    assert_eq!((totals.limit, totals.held_here), (Some(1), 3));

    put(&mut keys, "a", status("a", &[], WELL));
    assert_eq!(sessions(&keys), ["b-6"]);
    keys.remove(&Some("b".parse().unwrap()));
    let totals = keys.totals();
    assert_eq!((totals.held, totals.waiting, keys.len()), (0, 1, 1));
    keys.remove(&Some("a".parse().unwrap()));
    let totals = keys.totals();
    assert_eq!((totals.limit, totals.wait, totals.spec), (None, None, None));
}

#[test]
fn there_is_a_limit_where_all_keys_have_the_same() {
    let mut other = status("b", &[], WELL);
    other.shown.limit = Some(2);
    let mut unknown = status("c", &[], WELL);
    unknown.shown.limit = None;
    let mut keys = keys(vec![("a", status("a", &[], WELL)), ("c", unknown)]);
    assert_eq!(keys.totals().limit, Some(1));
    put(&mut keys, "b", other);
    assert_eq!(keys.totals().limit, None);
}

#[test]
fn what_was_seen_under_an_earlier_spec_counts_as_no_later_one() {
    let of = |generation| KeyStatus {
        spec: SpecOf {
            generation: Some(generation),
            limit: 1,
        },
        ..status("any", &[1], WELL)
    };
    let mut keys = keys(vec![("a", of(3)), ("b", of(1))]);
    let oldest = |keys: &StatusByKey| keys.totals().spec.and_then(|spec| spec.generation);
    assert_eq!(oldest(&keys), Some(1));
    put(&mut keys, "b", of(3));
    assert_eq!(oldest(&keys), Some(3));
}

#[test]
fn what_stops_one_key_stops_no_other() {
    let mut keys = StatusByKey::default();
    let ready = |keys: &StatusByKey| Together::new(&keys.0).ready();
    for key in ["a", "c", "d"] {
        put(&mut keys, key, status(key, &[1], WELL));
    }
    assert_eq!(ready(&keys).message, "slots are granted and released");
    put(&mut keys, "b", status("b", &[1], STOPPED));
    put(&mut keys, "c", status("c", &[1], STOPPED));
    let some = ready(&keys);
    assert_eq!(
        (some.status, some.reason),
        (ConditionStatus::True, Reason::LimitConflict)
    );
    let expected = "slots are granted and released, except the slots of key b and 1 more: why";
    assert_eq!(some.message, expected);

    for key in ["a", "d"] {
        put(&mut keys, key, status(key, &[1], STOPPED));
    }
    let all = ready(&keys);
    assert_eq!(all.status, ConditionStatus::False);
    assert_eq!(all.message, "key a and 3 more: why");
}

#[test]
fn a_slot_is_idle_that_somebody_of_its_own_key_waits_for() {
    let mut keys = keys(vec![("full", status("full", &[5], WELL))]);
    assert_eq!(keys.totals().idle, 0);
    for (limit, waiting, idle) in [
        (Some(1), 1, 1),
        (Some(7), 2, 2),
        (Some(2), 7, 2),
        (None, 7, 0),
    ] {
        let mut free = status("free", &[], WELL);
        free.shown.limit = limit;
        free.queued.waiting = waiting;
        put(&mut keys, "free", free);
        assert_eq!(keys.totals().idle, idle, "{limit:?}, {waiting} wait");
    }
}

#[test]
fn slots_that_are_kept_or_can_not_be_used_yet_are_not_idle() {
    let mut free = status("free", &[], WELL);
    free.shown.limit = Some(4);
    free.queued.waiting = 3;
    let of = |waiting, kept| {
        let mut free = status("free", &[], WELL);
        free.shown.limit = Some(4);
        free.queued.waiting = 3;
        free.several = Several { waiting, kept };
        keys(vec![("free", free)]).totals().idle
    };
    assert_eq!([of(0, 0), of(1, 0), of(1, 3), of(3, 4)], [3, 2, 1, 0]);
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Times at which workloads of these priorities, which ask for a slot each, are likely to start, as expected at noon:
/// two slots of a limit of two are held since half past eleven and a quarter to twelve, as a rule for an hour.
fn expected(restrictions: &Restrictions, held: usize, priorities: &[i32]) -> Vec<String> {
    let mut reported = StatusSources::default();
    let mut holds = Holds::default();
    for _ in 0..9 {
        holds.note(time("2026-06-01T00:00:00Z"), time("2026-06-01T01:00:00Z"));
    }
    reported.holds.insert(None, holds);
    let since = ["2026-06-01T11:30:00Z", "2026-06-01T11:45:00Z"];
    let indexes: Vec<u64> = (0..held).map(|index| index as u64).collect();
    let mut status = status("", &indexes, WELL);
    status.shown.limit = Some(2);
    for ((_, holder), since) in status.shown.holders.iter_mut().zip(since) {
        holder.since = Some(Time(time(since)));
    }
    reported.keys.put(None, status);
    let (mut ahead, now) = (Ahead::default(), time("2026-06-01T12:00:00Z"));
    let expected = priorities.iter().map(|priority| {
        let asks = Asks {
            slots: 1,
            priority: *priority,
        };
        let expected = reported.expected(&None, &mut ahead, asks, restrictions, now);
        expected.map_or("-".to_owned(), |expected| {
            expected.strftime("%d %H:%M").to_string()
        })
    });
    expected.collect()
}

/// A window of two hours.
fn window(schedule: &str, limit: Option<u32>) -> Restrictions {
    let window = WindowSpec {
        schedule: schedule.into(),
        duration: Duration::from_hours(2),
        time_zone: None,
        limit,
    };
    Restrictions {
        windows: Windows::new(vec![window], time("2026-01-01T00:00:00Z")),
        reserved: None,
    }
}

#[test]
fn a_start_is_expected_when_a_slot_is_likely_to_be_free() {
    let any = Restrictions::default();
    let four = expected(&any, 2, &[0; 4]);
    assert_eq!(four, ["01 12:30", "01 12:45", "01 13:30", "01 13:45"]);
    // The first starts at once, and the second when a slot is free.
    assert_eq!(expected(&any, 1, &[0; 2]), ["-", "01 12:30"]);
}

#[test]
fn no_start_is_expected_outside_the_windows() {
    // It closes at 13:00. The next one has room for both slots, and what comes then is not known.
    let closes = window("0 11 * * *", None);
    let four = expected(&closes, 2, &[0; 5]);
    assert_eq!(four, ["01 12:30", "01 12:45", "02 11:00", "02 11:00", "-"]);
    let of_one = window("0 11 * * *", Some(1));
    assert_eq!(expected(&of_one, 2, &[0; 3]), ["01 12:45", "02 11:00", "-"]);
    // It opens at 13:00, whether slots are free or held.
    let opens = window("0 13 * * *", None);
    assert_eq!(expected(&opens, 0, &[0; 3]), ["01 13:00", "01 13:00", "-"]);
    assert_eq!(
        expected(&opens, 2, &[0; 3]),
        ["01 13:00", "01 13:00", "01 13:30"]
    );
}

#[test]
fn a_start_in_a_reserved_slot_is_expected_only_of_urgent_workloads() {
    let reserved = Restrictions {
        reserved: Some(Reserved {
            slots: 1,
            min_priority: 10,
        }),
        ..Restrictions::default()
    };
    assert_eq!(expected(&reserved, 1, &[10]), ["-"], "at once");
    assert_eq!(expected(&reserved, 1, &[0]), ["01 12:30"]);
}

#[test]
fn a_list_of_slots_is_cut_where_it_is_too_long() {
    let request = |name: &str| SlotRequest::one(name, None);
    let long = "n".repeat(250);
    assert_eq!(brief(&[request("db"), request("b")]), "db, b");
    let cut = brief(&[request("db"), request(&long), request(&long)]);
    assert_eq!(cut, format!("db, {long}, …"));
}
