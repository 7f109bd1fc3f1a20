//! Bodies of `.lock` as other clients write them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn entry(value: &[u8], flags: u64) -> Entry {
    Entry {
        key: "p/.lock".into(),
        value: value.into(),
        flags,
        session: None,
        lock_index: 0,
        create_index: 1,
        modify_index: 7,
    }
}

fn read(entry: Option<&Entry>) -> Lock {
    Lock::read(Mode::Semaphore, entry)
}

fn body(value: &Value) -> LockBody {
    match read(Some(&entry(value.to_string().as_bytes(), 0))) {
        Lock::Semaphore { body, index: 7 } => body,
        other => panic!("{value} was read as {other:?}"),
    }
}

#[test]
fn both_shapes_are_read_and_kept() {
    for value in [
        json!({"Limit": 2, "Holders": {"a": true, "b": true}}),
        json!({"Limit": 2, "Holders": ["a", "b"]}),
    ] {
        let read = body(&value);
        assert_eq!(
            read.holders().map(AsRef::as_ref).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(
            serde_json::from_slice::<Value>(&read.encode()).unwrap(),
            value
        );
    }
}

#[test]
fn what_is_unknown_is_kept() {
    let value = json!({"Limit": 1, "Holders": {"a": {"since": 3}}, "Owner": ["x"]});
    assert_eq!(
        serde_json::from_slice::<Value>(&body(&value).encode()).unwrap(),
        value
    );
}

/// Numbers are kept as text: parsed, they would change.
#[test]
fn no_number_of_others_is_rounded() {
    let before = br#"{"Cost":0.1000000000000000055511151231257827,"Holders":{"a":18446744073709551617},"Limit":2,"Since":-99999999999999999999,"X":[1e999,{"y":1E+2}]}"#;
    let Lock::Semaphore { body, .. } = read(Some(&entry(before, 0))) else {
        panic!("unreadable");
    };
    assert_eq!(body.encode(), before);
    let mut draft = LockDraft::of(&body);
    assert!(draft.add("b".into()));
    draft.remove(&"b".into());
    assert_eq!(draft.encode(), before);
}

/// As much as Consul accepts in one value, nested as deep as possible.
#[test]
fn what_is_deep_or_large_is_kept_too() {
    let depth = 250_000;
    let deep = "[".repeat(depth) + &"]".repeat(depth);
    let body = format!(r#"{{"Holders":{{}},"Limit":1,"deep":{deep}}}"#);
    let Lock::Semaphore { body: before, .. } = read(Some(&entry(body.as_bytes(), 0))) else {
        panic!("unreadable");
    };
    assert_eq!(before.encode(), body.as_bytes());
    for other in [deep.clone(), format!(r#"{{"Limit":1,"Holders":{deep}}}"#)] {
        let after = read(Some(&entry(other.as_bytes(), 0)));
        assert!(matches!(after, Lock::Unreadable(_)), "{after:?}");
    }
}

#[test]
fn a_null_for_holders_is_an_empty_map() {
    let read = body(&json!({"Limit": 1, "Holders": null}));
    assert_eq!(read.encode(), LockBody::new(1, 0).encode());
}

#[test]
fn a_full_body_takes_nobody() {
    let mut body = LockBody::new(1, 0);
    let mut draft = LockDraft::fresh(1, 0);
    assert!(draft.add("a".into()));
    assert!(!draft.add("b".into()));
    draft.set_limit(2);
    assert!(draft.add("b".into()));
    draft.set_limit(1);
    assert!(!draft.add("c".into()));
    draft.remove(&"a".into());
    assert!(!draft.add("c".into()));
    body.apply(&draft.change());
    assert_eq!(body.holders().collect::<Vec<_>>(), [&"b".into()]);
}

#[test]
fn an_empty_value_is_a_new_semaphore() {
    assert_eq!(
        read(None),
        Lock::Absent {
            index: 0,
            flags: SEMAPHORE_FLAGS
        }
    );
    assert_eq!(
        read(Some(&entry(b"", 0))),
        Lock::Absent { index: 7, flags: 0 }
    );
}

#[test]
fn another_use_is_named() {
    let good = br#"{"Limit":1,"Holders":{}}"#;
    let locked = Entry {
        session: Some("s".into()),
        ..entry(good, SEMAPHORE_FLAGS)
    };
    for (entry, why) in [
        (locked, Unreadable::Mutex),
        (entry(b"", MUTEX_FLAGS), Unreadable::Mutex),
        (entry(good, 42), Unreadable::Flags(42)),
        (entry(b"\xff{", 0), Unreadable::NotJson),
        (
            entry(b"[]", 0),
            Unreadable::OtherShape("it is not an object"),
        ),
        (
            entry(br#"{"Limit":0,"Holders":{}}"#, 0),
            Unreadable::OtherShape("`Limit` is not a positive number"),
        ),
        (
            entry(br#"{"Limit":1,"Holders":[1]}"#, 0),
            Unreadable::OtherShape(NO_SESSION),
        ),
        // Pruning it would check a key that may exist for another reason.
        (
            entry(br#"{"Limit":1,"Holders":{"":true}}"#, 0),
            Unreadable::OtherShape(NO_SESSION),
        ),
        (
            entry(br#"{"Limit":1,"Holders":["b/.lock"]}"#, 0),
            Unreadable::OtherShape(NO_SESSION),
        ),
        (
            entry(br#"{"Limit":1,"Holders":[".lock"]}"#, 0),
            Unreadable::OtherShape(NO_SESSION),
        ),
        (
            entry("{\"Limit\":1,\"Holders\":{\"a\\nb\":true}}".as_bytes(), 0),
            Unreadable::OtherShape(NO_SESSION),
        ),
        (
            entry(
                format!(r#"{{"Limit":1,"Holders":["{}"]}}"#, "x".repeat(129)).as_bytes(),
                0,
            ),
            Unreadable::OtherShape(NO_SESSION),
        ),
        // Go clients merge both maps; others use the last one.
        (
            entry(
                br#"{"Limit":1,"Holders":{"a":true},"Holders":{"b":true}}"#,
                0,
            ),
            Unreadable::OtherShape(NAME_TWICE),
        ),
        (
            entry(br#"{"Limit":1,"Limit":9,"Holders":{}}"#, 0),
            Unreadable::OtherShape(NAME_TWICE),
        ),
        (
            entry(br#"{"Limit":1,"Holders":{"a":true,"\u0061":true}}"#, 0),
            Unreadable::OtherShape(NAME_TWICE),
        ),
        // Go clients treat these as the same name.
        (
            entry(br#"{"Limit":1,"Holders":{},"holders":{"a":true}}"#, 0),
            Unreadable::OtherShape(NAME_TWICE),
        ),
        (
            entry(
                "{\"Limit\":1,\"Holders\":{},\"Holder\u{17f}\":{\"a\":true}}".as_bytes(),
                0,
            ),
            Unreadable::OtherShape(NAME_TWICE),
        ),
        (
            entry(br#"{"Limit":4294967297,"Holders":{}}"#, 0),
            Unreadable::OtherShape("`Limit` is not a positive number"),
        ),
        (
            entry(br#"{"Limit":1,"Holders":"a"}"#, 0),
            Unreadable::OtherShape("`Holders` is neither a map nor a list"),
        ),
    ] {
        assert_eq!(read(Some(&entry)), Lock::Unreadable(why));
    }
}

proptest! {
    #[test]
    fn any_body_is_read_or_left_alone(value in hostile::bytes(), flags in prop_oneof![Just(0), Just(SEMAPHORE_FLAGS), any::<u64>()]) {
        let Lock::Semaphore { body, .. } = read(Some(&entry(&value, flags))) else {
            return Ok(());
        };
        for holder in body.holders() {
            prop_assert!(is_session(holder));
        }
        let again = read(Some(&entry(&body.encode(), flags)));
        prop_assert_eq!(again, Lock::Semaphore { body, index: 7 });
    }

    /// A change that a transaction made need not be parsed again: applying it gives the body that was written.
    #[test]
    fn what_is_changed_is_what_was_written(
        limit in 1..9u32,
        holders in prop::collection::btree_set("[a-f]", 0..9),
        other in hostile::json(),
        array: bool,
        changes in prop::collection::vec(("[a-f]", any::<bool>()), 0..6),
    ) {
        let listed: Vec<_> = holders.iter().chain(holders.iter().take(1)).collect();
        let named: serde_json::Map<_, _> = holders.iter().map(|h| (h.clone(), json!(true))).collect();
        let mut text = json!({"Limit": limit, "Holders": if array { json!(listed) } else { json!(named) }}).to_string();
        if !array {
            text = text.replace(r#""b":true"#, &format!(r#""b":{other}"#));
        }
        let Lock::Semaphore { mut body, .. } = read(Some(&entry(text.as_bytes(), 0))) else {
            return Err(TestCaseError::fail(text));
        };
        let mut draft = LockDraft::of(&body);
        draft.set_limit(limit + 1);
        for (session, comes) in changes {
            let session = SessionId::from(session);
            if comes {
                // No session is granted a slot that it already has.
                let _ = !draft.holds(&session) && draft.add(session);
            } else {
                draft.remove(&session);
                prop_assert!(!draft.holds(&session));
            }
        }
        let (written, held) = (draft.encode(), draft.held());
        let change = draft.change();
        body.apply(&change);
        prop_assert_eq!(body.held(), held);
        prop_assert_eq!(read(Some(&entry(&written, 0))), Lock::Semaphore { body, index: 7 });
    }

    /// Everything besides the limit and the holders is written as it was read.
    #[test]
    fn what_others_wrote_is_kept(limit in 1..9_u32, name in "[a-z]{1,8}", value in hostile::json()) {
        prop_assume!(!matches!(name.as_str(), "limit" | "holders"));
        let before = format!("{{\"Holders\":{{\"a\":{value}}},\"Limit\":{limit},\"{name}\":{value}}}");
        match read(Some(&entry(before.as_bytes(), 0))) {
            Lock::Semaphore { body, .. } => prop_assert_eq!(body.encode(), before.into_bytes()),
            other => prop_assert!(false, "{} was read as {:?}", before, other),
        }
    }

    #[test]
    fn what_is_read_is_written_back(limit in 1..9u32, holders in prop::collection::btree_set("[a-f0-9-]{1,8}", 0..9), array: bool) {
        let holders = if array { json!(holders) } else { holders.iter().map(|h| (h.clone(), json!(true))).collect() };
        let value = json!({"Limit": limit, "Holders": holders});
        prop_assert_eq!(serde_json::from_slice::<Value>(&body(&value).encode()).unwrap(), value);
    }
}

#[test]
fn a_mutex_is_held_by_whoever_has_locked_it() {
    let locked = |mut entry: Entry| {
        entry.session = Some("s".into());
        entry.lock_index = 3;
        entry
    };
    let freed = |mut entry: Entry| {
        entry.lock_index = 3;
        entry
    };
    let semaphore = br#"{"Limit":1,"Holders":{}}"#;
    let mutex = |holder: Option<&str>, flags| Lock::Mutex {
        holder: holder.map(Into::into),
        index: 7,
        flags,
    };
    let other_use = Lock::Unreadable;
    for (entry, expected) in [
        (
            locked(entry(b"any", MUTEX_FLAGS)),
            mutex(Some("s"), MUTEX_FLAGS),
        ),
        (freed(entry(b"any", MUTEX_FLAGS)), mutex(None, MUTEX_FLAGS)),
        (entry(b"", MUTEX_FLAGS), mutex(None, MUTEX_FLAGS)),
        // A plain ?acquire, with any value.
        (locked(entry(b"any", 0)), mutex(Some("s"), 0)),
        (locked(entry(semaphore, 0)), mutex(Some("s"), 0)),
        (freed(entry(b"any", 0)), mutex(None, 0)),
        (entry(b"", 0), mutex(None, 0)),
        (entry(b"data", 0), other_use(Unreadable::NeverLocked)),
        (entry(semaphore, 0), other_use(Unreadable::Semaphore)),
        (freed(entry(semaphore, 0)), other_use(Unreadable::Semaphore)),
        (
            entry(b"", SEMAPHORE_FLAGS),
            other_use(Unreadable::Semaphore),
        ),
        (locked(entry(b"", 42)), other_use(Unreadable::Flags(42))),
    ] {
        assert_eq!(Lock::read(Mode::Mutex, Some(&entry)), expected, "{entry:?}");
    }
    let none = Lock::Mutex {
        holder: None,
        index: 0,
        flags: MUTEX_FLAGS,
    };
    assert_eq!(Lock::read(Mode::Mutex, None), none);
}

#[test]
fn what_a_mutex_leaves_behind_is_known_by_its_flags_and_that_it_was_locked() {
    let mut left = entry(b"any", MUTEX_FLAGS);
    assert_eq!(read(Some(&left)), Lock::Unreadable(Unreadable::Mutex));
    left.lock_index = 1;
    let left_over = Lock::Unreadable(Unreadable::LeftOver { index: 7 });
    assert_eq!(read(Some(&left)), left_over);
    left.session = Some("s".into());
    assert_eq!(read(Some(&left)), Lock::Unreadable(Unreadable::Mutex));
}

#[test]
fn no_more_holders_are_read_than_any_semaphore_has() {
    let map = |count: usize| {
        let holders: Vec<_> = (0..count).map(|number| format!("\"{number}\":1")).collect();
        format!(r#"{{"Limit":1,"Holders":{{{}}}}}"#, holders.join(","))
    };
    let list = |count: usize| {
        let holders: Vec<_> = (0..count).map(|number| format!("\"{number}\"")).collect();
        format!(r#"{{"Limit":1,"Holders":[{}]}}"#, holders.join(","))
    };
    let shapes: [&dyn Fn(usize) -> String; 2] = [&map, &list];
    for shape in shapes {
        let lock = read(Some(&entry(shape(MOST_HOLDERS).as_bytes(), 0)));
        assert!(matches!(lock, Lock::Semaphore { body, .. } if body.held() == MOST_HOLDERS));
        let lock = read(Some(&entry(shape(MOST_HOLDERS + 1).as_bytes(), 0)));
        assert_eq!(
            lock,
            Lock::Unreadable(Unreadable::OtherShape(TOO_MANY_HOLDERS))
        );
    }
}
