use super::*;
use crate::controller::overseer::report::Shown;
use consul_semaphore::engine::Conclusion;

/// The account of a key whose slots of limit 1 have been held since these indexes.
fn account(key: &str, holders: &[u64], ready: (bool, Reason)) -> Account {
    let holder = |since: &u64| {
        let status = HolderStatus {
            session: format!("{key}-{since}"),
            key: Some(key.to_owned()),
            holder: None,
            since: None,
            cools_until: None,
            never_expires: false,
        };
        (Some(*since), status)
    };
    let (is_ready, reason) = ready;
    Account {
        key: Some(key.parse().unwrap()),
        pass: 1,
        spec: SPEC,
        heard: 0,
        conclusion: Conclusion {
            settled: Some(1),
            nothing_held: holders.is_empty(),
            ..Conclusion::default()
        },
        moved: None,
        shown: Shown {
            limit: Some(1),
            held: holders.len(),
            held_here: holders.len(),
            holders: holders.iter().map(holder).collect(),
        },
        in_line: InLine {
            waiting: 1,
            starting: Vec::new(),
        },
        awaits_others: false,
        fencing_token: None,
        findings: vec![Finding::new(ConditionType::Ready, is_ready, reason, "why")],
        obstacle: None,
        left: None,
        wait: Duration::from_secs(24),
    }
}

const SPEC: SpecOf = SpecOf {
    generation: Some(1),
    limit: 1,
};
const WELL: (bool, Reason) = (true, Reason::Reconciled);
const STOPPED: (bool, Reason) = (false, Reason::LimitConflict);

#[test]
fn an_account_replaces_the_one_before_of_its_key() {
    let mut sums = Sums::default();
    sums.put(account("a", &[5, 7], WELL));
    sums.put(account("b", &[6], WELL));
    let sessions = |sums: &Sums| -> Vec<String> {
        let holders = sums.holders().into_iter();
        holders.map(|holder| holder.session).collect()
    };
    assert_eq!(sessions(&sums), ["a-5", "b-6", "a-7"]);
    assert_eq!((sums.held, sums.waiting, sums.in_use()), (3, 2, 2));
    assert!(sums.all_settled(SPEC, 2) && !sums.all_settled(SPEC, 3));
    assert!(sums.anything_held());

    sums.put(account("a", &[], WELL));
    assert_eq!(sessions(&sums), ["b-6"]);
    sums.remove(&Some("b".parse().unwrap()));
    assert_eq!(
        (sums.held, sums.held_here, sums.waiting, sums.len()),
        (0, 0, 1, 1)
    );
    assert!(!sums.anything_held());
    sums.remove(&Some("a".parse().unwrap()));
    assert_eq!(
        (sums.limit(), sums.wait(), sums.found.len()),
        (None, None, 0)
    );
}

#[test]
fn who_is_being_started_is_known_until_its_key_says_otherwise() {
    let mut sums = Sums::default();
    let starting = |key, uids: &[&str]| Account {
        in_line: InLine {
            waiting: 0,
            starting: uids.iter().map(|uid| Uid::from(*uid)).collect(),
        },
        ..account(key, &[], WELL)
    };
    sums.put(starting("a", &["x", "y"]));
    sums.put(starting("b", &["z"]));
    assert_eq!(sums.starting.len(), 3);
    sums.put(starting("a", &["y"]));
    sums.remove(&Some("b".parse().unwrap()));
    assert_eq!(sums.starting, BTreeSet::from(["y".into()]));
}

#[test]
fn what_was_said_under_an_earlier_spec_counts_as_no_later_one() {
    let mut sums = Sums::default();
    assert_eq!(sums.oldest_spec(), None);
    let at = |generation, limit| SpecOf {
        generation: Some(generation),
        limit,
    };
    let mut put = |key, spec| {
        let account = account(key, &[1], WELL);
        sums.put(Account { spec, ..account });
        (sums.oldest_spec(), sums.all_settled(at(3, 1), 2))
    };
    put("a", at(1, 1));
    assert_eq!(put("b", at(1, 1)), (Some(at(1, 1)), false));
    // The limit was 2 for a while: what `b` has written since is not known.
    assert_eq!(put("a", at(3, 1)), (Some(at(1, 1)), false));
    assert_eq!(put("b", at(3, 1)), (Some(at(3, 1)), true));
    sums.remove(&Some("a".parse().unwrap()));
    sums.remove(&Some("b".parse().unwrap()));
    assert_eq!(sums.oldest_spec(), None);
}

#[test]
fn what_stops_one_key_stops_no_other() {
    let mut sums = Sums::default();
    for key in ["a", "c", "d"] {
        sums.put(account(key, &[1], WELL));
    }
    assert_eq!(sums.ready().message, "slots are granted and released");
    sums.put(account("b", &[1], STOPPED));
    sums.put(account("c", &[1], STOPPED));
    let ready = sums.ready();
    assert_eq!(
        (ready.status, ready.reason),
        (ConditionStatus::True, Reason::LimitConflict)
    );
    let expected = "slots are granted and released, but not those of key b and 1 more: why";
    assert_eq!(ready.message, expected);

    for key in ["a", "d"] {
        sums.put(account(key, &[1], STOPPED));
    }
    let ready = sums.ready();
    assert_eq!(ready.status, ConditionStatus::False);
    assert_eq!(ready.message, "key a and 3 more: why");
}

#[test]
fn a_slot_is_idle_that_somebody_of_its_own_key_waits_for() {
    let mut sums = Sums::default();
    sums.put(account("full", &[5], WELL));
    assert_eq!(sums.idle, 0);
    let free = |limit, waiting| {
        let mut account = account("free", &[], WELL);
        account.shown.limit = limit;
        account.in_line.waiting = waiting;
        account
    };
    for (limit, waiting, idle) in [
        (Some(1), 1, 1),
        (Some(7), 2, 2),
        (Some(2), 7, 2),
        (None, 7, 0),
    ] {
        sums.put(free(limit, waiting));
        assert_eq!(sums.idle, idle, "{limit:?}, {waiting} wait");
    }
}
