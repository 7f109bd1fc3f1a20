//! Names the annotations and labels on a Job and its pod template, and reads what the user's annotations ask for.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use consul_semaphore::{
    InvalidKey, Key, MOST_SEMAPHORES, MOST_SLOTS, OnContention, SlotRequest, WaitTimeout,
};

/// On a Job, by its user: the `ConsulSemaphore` in the Job's namespace whose slot the Job needs; or up to 8
/// `ConsulSemaphores`, separated by commas, as `name[/key][:slots]`. The Job starts when it has all of these slots.
pub const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
/// On a Job, by its user: a whole number, default 0. Jobs with a higher priority get slots first.
pub const PRIORITY: &str = "consul-semaphore.io/priority";
/// On a Job, by its user: `"true"` keeps the Job out of the queue. The operator sets it if a user suspends the running
/// Job.
pub const HOLD: &str = "consul-semaphore.io/hold";
/// On a Job, by its user: the key of a keyed `ConsulSemaphore`, if the annotation `semaphore` names none: 1 to 63
/// letters, digits, `.`, `_` and `-`, not only dots, and not `.lock`.
pub const KEY: &str = "consul-semaphore.io/key";
/// On a Job, by its user: what happens if the Job can't have its slots at once. `Wait`, the default. `Skip`: the
/// operator deletes the Job if all slots are held when it is created, or if it is too late. `Fail`: the same, but the
/// Job fails. `ReplaceWaiting`: of the waiting Jobs with this policy or `ReplaceRunning` that ask for the same slots,
/// the newest Job waits, and the older Jobs fail. `ReplaceRunning`: the same, and the operator also ends running Jobs.
pub const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";
/// On a Job, by its user: how long the Job may wait before it fails: whole hours, minutes and seconds from 1s to 720h,
/// such as `30m`. The default is the semaphore's `spec.waitTimeout`.
pub const WAIT_TIMEOUT: &str = "consul-semaphore.io/wait-timeout";
/// On a Job, by the operator: why it makes the Job fail: `Contended`, `WaitTimedOut`, `QueueFull`, `Superseded`
/// or `Replaced` (and, of a row, its uid).
pub const FAILED: &str = "consul-semaphore.io/failed";
/// On a Job, by the operator: the time since which its wait counts for `wait-timeout`, if nothing else records that
/// time, or `OnHold`. The annotation exists if the Job was ever on hold, or has given its slots back before it was
/// started.
pub const WAITS_SINCE: &str = "consul-semaphore.io/waits-since";
/// On a Job and on its pod template, by the operator: the id of the Consul session that holds the slot, or held it.
pub const SESSION: &str = "consul-semaphore.io/session";
/// On the pod template, by the operator: the `Key` of Consul's sequencer, which the session has locked. In mode
/// Semaphore it is the contender key, in mode Mutex the lock key.
pub const LOCK_KEY: &str = "consul-semaphore.io/lock-key";
/// On the pod template, by the operator: the `LockIndex` of Consul's sequencer. It does not order grants, because it
/// starts again when the key is deleted.
pub const LOCK_INDEX: &str = "consul-semaphore.io/lock-index";
/// On the pod template, by the operator: the raft index of the grant. Later grants have greater tokens, in every
/// cluster.
pub const FENCING_TOKEN: &str = "consul-semaphore.io/fencing-token";
/// On the pod template, by the operator: the number of the slot among all slots of the semaphore, from 0, which no other
/// holder has meanwhile. The slots of a rate have none.
pub const SLOT_INDEX: &str = "consul-semaphore.io/slot-index";
/// On the pod template, by the operator: the name that `spec.slotNames` has for this slot index.
pub const SLOT_NAME: &str = "consul-semaphore.io/slot-name";
/// On the pod template, by the operator: all slots of a Job that has more than one, as JSON: a list of objects with
/// `lockKey`, `session`, `lockIndex`, `fencingToken`, `slotIndex` and `slotName`, in the order in which the Job asks for them. The annotations
/// for one slot then describe the first of them.
pub const SLOTS: &str = "consul-semaphore.io/slots";
/// On the pod template, by the operator: the uid of the Job that got the slot.
pub const GRANTED_TO: &str = "consul-semaphore.io/granted-to";

/// A label on the pod template, by the operator: the uid of the Job that got the slot. The operator finds the Job's
/// pods by it, even after the Job is deleted.
pub const HOLDER_LABEL: &str = "consul-semaphore.io/holder";

/// A label on a workload of another kind than Job, by its user: it must be `"true"`, because otherwise the operator
/// does not see the workload.
pub const WAITS_LABEL: &str = "consul-semaphore.io/waits";

/// The names that users write on a Job: every name whose comment says so.
pub const OF_USERS: [&str; 6] = [SEMAPHORE, PRIORITY, HOLD, KEY, ON_CONTENTION, WAIT_TIMEOUT];

/// The names that the operator writes on a Job or on its pod template: every name whose comment says so. A copy of a
/// Job may have them.
pub const OF_THE_OPERATOR: [&str; 11] = [
    FAILED,
    WAITS_SINCE,
    SESSION,
    LOCK_KEY,
    LOCK_INDEX,
    FENCING_TOKEN,
    SLOT_INDEX,
    SLOT_NAME,
    SLOTS,
    GRANTED_TO,
    HOLDER_LABEL,
];

/// The finalizer on a `ConsulSemaphore`.
pub const FINALIZER: &str = "consul-semaphore.io/finalizer";

/// The request that a Job's annotations make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnnotatedRequest {
    /// Slots that the Job asks for, of at least one semaphore, each with the key that follows the semaphore's name.
    /// No combination of semaphore and key is listed twice.
    pub slots: Vec<SlotRequest>,
    /// Priority of the Job, 0 without the annotation. Jobs with a higher priority are granted first.
    pub priority: i32,
    /// Whether the Job stays out of the queue.
    pub hold: bool,
    /// Key of the semaphore, if the `ConsulSemaphore` is keyed. An invalid key does not matter if the
    /// `ConsulSemaphore` is not keyed.
    pub key: Option<Result<Key, AnnotationError>>,
    /// Policy for the Job if it can't have its slots at once.
    pub on_contention: OnContention,
    /// Longest time that the Job may wait; `None` if the Job does not set one.
    pub wait_timeout: Option<Duration>,
}

/// A reason why a Job's annotations can't be followed. Each message says what to do, for an event on the Job, and
/// quotes only the beginning of the value, because an annotation may be longer than an event's note.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AnnotationError {
    /// [`SEMAPHORE`] is set, without a value.
    #[error(
        "annotation {SEMAPHORE} is empty: set it to the name of a ConsulSemaphore in the Job's namespace, or remove it"
    )]
    Empty,
    /// A part of [`SEMAPHORE`] is not `name[/key][:slots]`.
    #[error(
        "annotation {SEMAPHORE} is {0:?}: write it as name[/key][:slots], with commas between several, such as \
         \"db, licenses:2, tasks/customer-42\""
    )]
    List(String),
    /// A key in [`SEMAPHORE`] can't name a semaphore.
    #[error("annotation {SEMAPHORE} has the key {0:?}: {InvalidKey}")]
    KeyInList(String),
    /// A number of slots in [`SEMAPHORE`] is out of range, or they are too many together.
    #[error("annotation {SEMAPHORE} is {0:?}: ask for 1 to {MOST_SLOTS} slots in all")]
    Slots(String),
    /// [`SEMAPHORE`] names too many semaphores.
    #[error("annotation {SEMAPHORE} is {0:?}: name at most {MOST_SEMAPHORES} semaphores")]
    TooMany(String),
    /// [`SEMAPHORE`] names a semaphore twice.
    #[error("annotation {SEMAPHORE} names {0} twice: name it once, as {0}:2 for two slots")]
    Twice(String),
    /// [`SEMAPHORE`] can't be the name of an object.
    #[error(
        "annotation {SEMAPHORE} is {0:?}, which can't be the name of a ConsulSemaphore: use lower case letters, digits, '-' \
         and '.', with a letter or digit at both ends, at most 253 in all, without a namespace, because a Job uses \
         the ConsulSemaphores of its own namespace"
    )]
    Name(String),
    /// [`PRIORITY`] is not a 32-bit integer.
    #[error("annotation {PRIORITY} is {0:?}: set it to a whole number from {min} to {max}, in quotes", min = i32::MIN, max = i32::MAX)]
    Priority(String),
    /// [`HOLD`] is neither `true` nor `false`.
    #[error("annotation {HOLD} is {0:?}: set it to \"true\" or \"false\", or remove it")]
    Hold(String),
    /// [`KEY`] can't name a semaphore.
    #[error("annotation {KEY} is {0:?}: {InvalidKey}")]
    Key(String),
    /// [`ON_CONTENTION`] is an unknown word.
    #[error(
        "annotation {ON_CONTENTION} is {0:?}: set it to \"Wait\" or remove it; for \"Skip\", \"Fail\", \
         \"ReplaceWaiting\" or \"ReplaceRunning\" create a new Job"
    )]
    OnContention(String),
    /// [`WAIT_TIMEOUT`] is not a length of time, or is too short or too long.
    #[error(
        "annotation {WAIT_TIMEOUT} is {0:?}: set it to whole hours, minutes and seconds from 1s to 720h, such as \"30m\" or \
         \"1h30m\", or remove it"
    )]
    WaitTimeout(String),
}

/// Returns what a Job's annotations ask for; `None` without [`SEMAPHORE`], because the operator ignores such a Job.
pub fn parse(
    annotations: &BTreeMap<String, String>,
) -> Option<Result<AnnotatedRequest, AnnotationError>> {
    let semaphore = annotations.get(SEMAPHORE)?;
    Some(parse_request(semaphore, annotations))
}

/// Returns the slots that a Job's annotation [`SEMAPHORE`] asks for, even if another annotation can't be followed.
pub fn slots(annotations: &BTreeMap<String, String>) -> Vec<SlotRequest> {
    let text = annotations.get(SEMAPHORE);
    let slots = text.and_then(|text| parse_slots(text).ok());
    slots.unwrap_or_default()
}

fn parse_request(
    semaphore: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<AnnotatedRequest, AnnotationError> {
    Ok(AnnotatedRequest {
        slots: parse_slots(semaphore)?,
        priority: annotations
            .get(PRIORITY)
            .map_or(Ok(0), |text| parse_priority(text))?,
        hold: annotations
            .get(HOLD)
            .map_or(Ok(false), |text| parse_hold(text))?,
        key: annotations.get(KEY).map(|text| parse_key(text)),
        on_contention: annotations
            .get(ON_CONTENTION)
            .map_or(Ok(OnContention::Wait), |text| parse_on_contention(text))?,
        wait_timeout: annotations
            .get(WAIT_TIMEOUT)
            .map(|text| parse_wait_timeout(text))
            .transpose()?,
    })
}

fn parse_slots(text: &str) -> Result<Vec<SlotRequest>, AnnotationError> {
    if text.trim().is_empty() {
        return Err(AnnotationError::Empty);
    }
    if text.split(',').nth(MOST_SEMAPHORES).is_some() {
        return Err(AnnotationError::TooMany(beginning(text)));
    }
    let parts = text
        .split(',')
        .map(|part| parse_asked(part.trim_matches(' '), text));
    let asked: Vec<SlotRequest> = parts.collect::<Result<_, _>>()?;
    let all: u32 = asked.iter().map(|asked| asked.slots.get()).sum();
    if all > MOST_SLOTS {
        return Err(AnnotationError::Slots(beginning(text)));
    }
    for (place, one) in asked.iter().enumerate() {
        let mut before = asked.iter().take(place);
        if before.any(|other| other.semaphore == one.semaphore && other.key == one.key) {
            return Err(AnnotationError::Twice(one.place()));
        }
    }
    Ok(asked)
}

/// Characters that people write between names, or before a number of slots, where `,` and `:` are meant.
const WRONG_SEPARATORS: [char; 7] = ['=', ';', '|', '*', '@', '+', ' '];

/// Reads `name[/key][:slots]`, a part of `text`.
fn parse_asked(part: &str, text: &str) -> Result<SlotRequest, AnnotationError> {
    if part.is_empty() {
        return Err(AnnotationError::List(beginning(text)));
    }
    let (semaphore, slots) = match part.split_once(':') {
        Some((semaphore, slots)) => (semaphore, Some(slots)),
        None => (part, None),
    };
    let (semaphore, key) = match semaphore.split_once('/') {
        Some((semaphore, key)) => (semaphore, Some(key)),
        None => (semaphore, None),
    };
    if semaphore.is_empty() || semaphore.contains(WRONG_SEPARATORS) {
        return Err(AnnotationError::List(beginning(text)));
    }
    if !is_object_name(semaphore) {
        return Err(AnnotationError::Name(beginning(semaphore)));
    }
    let key = key.map(|key| {
        key.parse()
            .map_err(|_| AnnotationError::KeyInList(beginning(key)))
    });
    let most = MOST_SLOTS.to_string().len();
    let count = |slots: &str| {
        let digits = slots.len() <= most && slots.bytes().all(|byte| byte.is_ascii_digit());
        let slots: Option<NonZeroU32> = slots.parse().ok().filter(|_| digits);
        slots.filter(|slots| slots.get() <= MOST_SLOTS)
    };
    let slots = match slots {
        Some(slots) => count(slots).ok_or_else(|| AnnotationError::Slots(beginning(text)))?,
        None => NonZeroU32::MIN,
    };
    Ok(SlotRequest {
        semaphore: semaphore.into(),
        key: key.transpose()?,
        slots,
    })
}

fn parse_priority(text: &str) -> Result<i32, AnnotationError> {
    text.parse()
        .map_err(|_| AnnotationError::Priority(beginning(text)))
}

fn parse_hold(text: &str) -> Result<bool, AnnotationError> {
    text.parse()
        .map_err(|_| AnnotationError::Hold(beginning(text)))
}

fn parse_key(text: &str) -> Result<Key, AnnotationError> {
    text.parse()
        .map_err(|_| AnnotationError::Key(beginning(text)))
}

fn parse_on_contention(text: &str) -> Result<OnContention, AnnotationError> {
    match text {
        "Wait" => Ok(OnContention::Wait),
        "Skip" => Ok(OnContention::Skip),
        "Fail" => Ok(OnContention::Fail),
        "ReplaceWaiting" => Ok(OnContention::ReplaceWaiting),
        "ReplaceRunning" => Ok(OnContention::ReplaceRunning),
        _ => Err(AnnotationError::OnContention(beginning(text))),
    }
}

fn parse_wait_timeout(text: &str) -> Result<Duration, AnnotationError> {
    // This is the length that the schema allows in the spec.
    const LONGEST_TEXT: usize = 32;
    let timeout: WaitTimeout = Some(text)
        .filter(|text| text.len() <= LONGEST_TEXT)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| AnnotationError::WaitTimeout(beginning(text)))?;
    Ok(timeout.get())
}

/// Returns the part of a value that an error quotes.
fn beginning(text: &str) -> String {
    const LONGEST_QUOTE: usize = 64;
    match text.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether the name is a DNS-1123 subdomain, as the names of most Kubernetes objects are.
pub fn is_object_name(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any value is read, or refused with a note that fits into an event.
        #[test]
        fn any_annotations_are_read_or_refused(
            annotations in prop::collection::btree_map(prop::sample::select(known()), hostile::text(), 0..7),
        ) {
            let annotations = annotations.into_iter().map(|(name, value)| (name.to_owned(), value));
            match parse(&annotations.collect()) {
                None => {}
                Some(Ok(request)) => {
                    prop_assert!(request.slots.iter().all(|asked| is_object_name(&asked.semaphore)));
                    let slots: u32 = request.slots.iter().map(|asked| asked.slots.get()).sum();
                    prop_assert!((1..=MOST_SLOTS).contains(&slots));
                }
                Some(Err(error)) => {
                    let note = error.to_string();
                    prop_assert!(note.len() < 1000, "{}", note);
                    prop_assert!(!note.chars().any(char::is_control), "{}", note);
                }
            }
        }
    }

    /// All names of this module that may be on a Job.
    fn known() -> Vec<&'static str> {
        OF_USERS.into_iter().chain(OF_THE_OPERATOR).collect()
    }

    #[test]
    fn every_name_is_in_a_list() {
        let source = include_str!("annotations.rs");
        let declared = source.lines().filter_map(|line| {
            let (_, name) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
            name.strip_suffix("\";")
        });
        // A label of users, and no annotation.
        let others = [FINALIZER, WAITS_LABEL];
        let declared: Vec<_> = declared.filter(|name| !others.contains(name)).collect();
        assert!(declared.len() > 5, "{declared:?}");
        let missing = declared.iter().filter(|name| !known().contains(name));
        assert_eq!(
            missing.collect::<Vec<_>>(),
            [""; 0].each_ref(),
            "add it to OF_USERS or to OF_THE_OPERATOR"
        );
    }

    fn parse_of<const N: usize>(
        annotations: [(&str, &str); N],
    ) -> Option<Result<AnnotatedRequest, AnnotationError>> {
        let owned = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        parse(&BTreeMap::from(owned))
    }

    fn error_of<const N: usize>(annotations: [(&str, &str); N]) -> AnnotationError {
        match parse_of(annotations).expect("the Job is annotated") {
            Ok(request) => request
                .key
                .and_then(Result::err)
                .expect("a key that can't be"),
            Err(error) => error,
        }
    }

    fn asked(semaphore: &str, key: Option<&str>, slots: u32) -> SlotRequest {
        SlotRequest {
            semaphore: semaphore.into(),
            key: key.map(|key| key.parse().unwrap()),
            slots: slots.try_into().unwrap(),
        }
    }

    fn asked_in(text: &str) -> Vec<SlotRequest> {
        parse_of([(SEMAPHORE, text)]).unwrap().unwrap().slots
    }

    #[test]
    fn a_list_names_semaphores_keys_and_slots() {
        let expected = [
            asked("db", None, 1),
            asked("licenses", None, 2),
            asked("tasks", Some("customer-42"), 1),
            asked("tasks", Some("a.b"), 3),
        ];
        let text = "db, licenses:2,tasks/customer-42 ,  tasks/a.b:3";
        assert_eq!(asked_in(text), expected);
        assert_eq!(asked_in("db:50"), [asked("db", None, 50)]);
        assert_eq!(asked_in("db:25,x:25").len(), 2);
        assert_eq!(asked_in("a,b,c,d,e,f,g,h").len(), 8);
    }

    #[test]
    fn a_bad_list_is_refused_with_what_is_allowed() {
        use AnnotationError as E;
        let long = format!("a:{}", "1".repeat(99_999));
        let own = ToOwned::to_owned;
        for (text, expected) in [
            ("a,", E::List(own("a,"))),
            (",", E::List(own(","))),
            ("a,,b", E::List(own("a,,b"))),
            ("a b", E::List(own("a b"))),
            ("a=2", E::List(own("a=2"))),
            ("a; b", E::List(own("a; b"))),
            ("a,B", E::Name(own("B"))),
            (":2", E::List(own(":2"))),
            ("a/", E::KeyInList(own(""))),
            ("a/b/c", E::KeyInList(own("b/c"))),
            ("a/.lock", E::KeyInList(own(".lock"))),
            ("a:0", E::Slots(own("a:0"))),
            ("a:51", E::Slots(own("a:51"))),
            ("a:-1", E::Slots(own("a:-1"))),
            ("a:+1", E::Slots(own("a:+1"))),
            ("a:", E::Slots(own("a:"))),
            ("a:1:1", E::Slots(own("a:1:1"))),
            ("a:26,b:25", E::Slots(own("a:26,b:25"))),
            (&long, E::Slots(format!("a:{}...", "1".repeat(62)))),
            ("a,b,c,d,e,f,g,h,i", E::TooMany(own("a,b,c,d,e,f,g,h,i"))),
            ("db, db:2", E::Twice(own("db"))),
            ("t/x, db, t/x", E::Twice(own("t/x"))),
        ] {
            assert_eq!(error_of([(SEMAPHORE, text)]), expected, "{text}");
        }
    }

    #[test]
    fn a_job_without_the_semaphore_annotation_is_not_ours() {
        assert_eq!(parse_of([]), None);
        assert_eq!(
            parse_of([(PRIORITY, "high"), (HOLD, "maybe"), (SESSION, "s")]),
            None
        );
    }

    #[test]
    fn the_semaphore_alone_is_enough() {
        let request = AnnotatedRequest {
            slots: vec![asked("db-migrations", None, 1)],
            priority: 0,
            hold: false,
            key: None,
            on_contention: OnContention::Wait,
            wait_timeout: None,
        };
        assert_eq!(parse_of([(SEMAPHORE, "db-migrations")]), Some(Ok(request)));
    }

    #[test]
    fn all_else_that_is_asked_for_is_read() {
        let parsed = parse_of([
            (SEMAPHORE, "a.b"),
            (PRIORITY, "-10"),
            (HOLD, "true"),
            (KEY, "customer-42"),
            (ON_CONTENTION, "Skip"),
            (WAIT_TIMEOUT, "1h30m"),
        ]);
        let request = AnnotatedRequest {
            slots: vec![asked("a.b", None, 1)],
            priority: -10,
            hold: true,
            key: Some(Ok("customer-42".parse().unwrap())),
            on_contention: OnContention::Skip,
            wait_timeout: Some(Duration::from_mins(90)),
        };
        assert_eq!(parsed, Some(Ok(request)));
        let parsed = parse_of([
            (SEMAPHORE, "a"),
            (PRIORITY, "2147483647"),
            (HOLD, "false"),
            (ON_CONTENTION, "Wait"),
        ]);
        let request = AnnotatedRequest {
            slots: vec![asked("a", None, 1)],
            priority: i32::MAX,
            hold: false,
            key: None,
            on_contention: OnContention::Wait,
            wait_timeout: None,
        };
        assert_eq!(parsed, Some(Ok(request)));
    }

    #[test]
    fn a_key_that_cannot_be_is_known_as_such() {
        for key in ["", "a/b", "..", ".lock", "a b", "\u{202e}k"] {
            let error = error_of([(SEMAPHORE, "a"), (KEY, key)]);
            assert_eq!(error, AnnotationError::Key(key.to_owned()));
        }
    }

    #[test]
    fn a_word_that_cannot_be_is_refused() {
        for (word, policy) in [
            ("Fail", OnContention::Fail),
            ("ReplaceWaiting", OnContention::ReplaceWaiting),
            ("ReplaceRunning", OnContention::ReplaceRunning),
        ] {
            let parsed = parse_of([(SEMAPHORE, "a"), (ON_CONTENTION, word)]);
            assert_eq!(parsed.unwrap().unwrap().on_contention, policy);
        }
        for word in ["", "skip", "fail", "Never"] {
            let error = error_of([(SEMAPHORE, "a"), (ON_CONTENTION, word)]);
            assert_eq!(error, AnnotationError::OnContention(word.to_owned()));
        }
    }

    #[test]
    fn a_wait_timeout_is_from_a_second_to_thirty_days() {
        let timeout = |text| parse_of([(SEMAPHORE, "a"), (WAIT_TIMEOUT, text)]).unwrap();
        for (text, seconds) in [("1s", 1), ("30m", 1800), ("720h", 2_592_000)] {
            let timeout = timeout(text).unwrap().wait_timeout;
            assert_eq!(timeout, Some(Duration::from_secs(seconds)), "{text}");
        }
        let long = format!("{}s", "0".repeat(40));
        for text in ["", "0s", "720h1s", "30", "1d", "1.5h", "-1s", " 1s", &long] {
            let error = timeout(text).unwrap_err();
            assert!(matches!(error, AnnotationError::WaitTimeout(_)), "{text}");
            assert!(error.to_string().contains("from 1s to 720h"), "{error}");
        }
    }

    #[test]
    fn every_object_name_is_a_name() {
        let longest = "x".repeat(253);
        for name in ["a", "0", "a-b", "a.b-c.0d", "a--b", &longest] {
            let parsed = parse_of([(SEMAPHORE, name)]).and_then(Result::ok);
            assert_eq!(
                parsed.map(|request| request.slots),
                Some(vec![asked(name, None, 1)])
            );
        }
    }

    #[test]
    fn nothing_else_is_a_name() {
        for name in [
            "A", "a_b", "-a", "a-", ".a", "a.", "a..b", "a.-b", "\u{e4}", "a\n", "\ta",
        ] {
            assert_eq!(
                error_of([(SEMAPHORE, name)]),
                AnnotationError::Name(name.to_owned())
            );
        }
    }

    #[test]
    fn of_a_long_value_only_the_beginning_is_repeated() {
        let error = error_of([(SEMAPHORE, &"x".repeat(254))]);
        assert_eq!(
            error,
            AnnotationError::Name(format!("{}...", "x".repeat(64)))
        );
        let error = error_of([(SEMAPHORE, "a"), (HOLD, &"ä".repeat(100_000))]);
        assert_eq!(
            error,
            AnnotationError::Hold(format!("{}...", "ä".repeat(64)))
        );
    }

    #[test]
    fn no_name_is_told_apart_from_a_bad_one() {
        assert_eq!(error_of([(SEMAPHORE, "")]), AnnotationError::Empty);
        assert_eq!(error_of([(SEMAPHORE, "  ")]), AnnotationError::Empty);
    }

    #[test]
    fn a_priority_is_a_32_bit_integer() {
        for text in ["", "high", "1.5", "1e3", " 1", "2147483648", "-2147483649"] {
            assert_eq!(
                error_of([(SEMAPHORE, "a"), (PRIORITY, text)]),
                AnnotationError::Priority(text.to_owned())
            );
        }
    }

    #[test]
    fn hold_is_true_or_false() {
        for text in ["", "True", "yes", "1", "true "] {
            assert_eq!(
                error_of([(SEMAPHORE, "a"), (HOLD, text)]),
                AnnotationError::Hold(text.to_owned())
            );
        }
    }

    #[test]
    fn every_error_names_its_annotation_and_says_what_to_do() {
        let says = |error: AnnotationError, annotation: &str, what: &str| {
            let sentence = error.to_string();
            assert!(
                sentence.contains(annotation) && sentence.contains(what),
                "{sentence}"
            );
        };
        says(
            error_of([(SEMAPHORE, "")]),
            SEMAPHORE,
            "set it to the name of a ConsulSemaphore in the Job's namespace",
        );
        for (text, what) in [
            ("a,", "write it as name[/key][:slots]"),
            ("licenses=2", "write it as name[/key][:slots]"),
            ("a:0", "1 to 50 slots in all"),
            ("a,b,c,d,e,f,g,h,i", "at most 8 semaphores"),
            ("a,a", "name it once, as a:2 for two slots"),
            ("a/..", "1 to 63 letters"),
        ] {
            says(error_of([(SEMAPHORE, text)]), SEMAPHORE, what);
        }
        says(
            error_of([(SEMAPHORE, "A")]),
            SEMAPHORE,
            "use lower case letters, digits, '-' and '.'",
        );
        says(
            error_of([(SEMAPHORE, "a"), (PRIORITY, "x")]),
            PRIORITY,
            "a whole number from -2147483648 to 2147483647",
        );
        says(
            error_of([(SEMAPHORE, "a"), (HOLD, "x")]),
            HOLD,
            r#"set it to "true" or "false""#,
        );
        says(
            error_of([(SEMAPHORE, "a"), (KEY, "a/b")]),
            KEY,
            "1 to 63 letters, digits, '.', '_' and '-'",
        );
        says(
            error_of([(SEMAPHORE, "a"), (ON_CONTENTION, "x")]),
            ON_CONTENTION,
            r#"set it to "Wait" or remove it"#,
        );
    }
}
