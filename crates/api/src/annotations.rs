//! The names on a Job and its pod template, and what the user's annotations ask for.

use std::collections::BTreeMap;

use consul_semaphore::{InvalidKey, Key, OnContention};

/// On a Job, by its user: the name of the `ConsulSemaphore`, in the Job's namespace, of which the Job needs a slot.
pub const SEMAPHORE: &str = "consul-semaphore.io/semaphore";
/// On a Job, by its user: a whole number, default 0. Jobs with a higher one are granted first.
pub const PRIORITY: &str = "consul-semaphore.io/priority";
/// On a Job, by its user: `"true"` keeps the Job out of the queue. The operator sets it if a user suspends the running
/// Job.
pub const HOLD: &str = "consul-semaphore.io/hold";
/// On a Job, by its user: the key of a keyed `ConsulSemaphore`: 1 to 63 letters, digits, `.`, `_` and `-`, not only
/// dots, and not `.lock`.
pub const KEY: &str = "consul-semaphore.io/key";
/// On a Job, by its user: `Wait`, the default, or `Skip`: the operator deletes the Job if all slots are held when it is
/// created, or if it is too late.
pub const ON_CONTENTION: &str = "consul-semaphore.io/on-contention";
/// On a Job and on its pod template, by the operator: the id of the Consul session that holds the slot, or held it.
pub const SESSION: &str = "consul-semaphore.io/session";
/// On the pod template, by the operator: the `Key` of Consul's sequencer, which the session has locked. In mode Semaphore
/// it is the contender key, in mode Mutex the lock key.
pub const LOCK_KEY: &str = "consul-semaphore.io/lock-key";
/// On the pod template, by the operator: the `LockIndex` of Consul's sequencer. It does not order grants, because it starts
/// again when the key is deleted.
pub const LOCK_INDEX: &str = "consul-semaphore.io/lock-index";
/// On the pod template, by the operator: the raft index of the grant. Later grants have greater ones, in every cluster.
pub const FENCING_TOKEN: &str = "consul-semaphore.io/fencing-token";
/// On the pod template, by the operator: the uid of the Job that got the slot.
pub const GRANTED_TO: &str = "consul-semaphore.io/granted-to";

/// A label on the pod template, by the operator: the uid of the Job that got the slot. The operator finds the Job's pods by
/// it, even after the Job is deleted.
pub const HOLDER_LABEL: &str = "consul-semaphore.io/holder";

/// The finalizer on a `ConsulSemaphore`.
pub const FINALIZER: &str = "consul-semaphore.io/finalizer";

/// What a Job's annotations ask for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The name of a `ConsulSemaphore` in the Job's namespace: a valid object name.
    pub semaphore: String,
    /// Higher goes first; 0 without the annotation.
    pub priority: i32,
    /// Whether the Job stays out of the queue.
    pub hold: bool,
    /// Which semaphore of a keyed `ConsulSemaphore`. An invalid key does not matter if the semaphore is not keyed.
    pub key: Option<Result<Key, AnnotationError>>,
    /// What happens to the Job if all slots are taken when it arrives.
    pub on_contention: OnContention,
}

/// Why a Job's annotations can't be followed. Each says what to do, for an event on the Job. It quotes only the
/// beginning of the value, because an annotation may be longer than an event's note.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AnnotationError {
    /// [`SEMAPHORE`] is set, without a value.
    #[error(
        "annotation {SEMAPHORE} is empty: set it to the name of a ConsulSemaphore in the Job's namespace, or remove it"
    )]
    Empty,
    /// [`SEMAPHORE`] names several.
    #[error(
        "annotation {SEMAPHORE} is {0:?}: several semaphores for one Job are not supported yet, set it to the name of one"
    )]
    Several(String),
    /// [`SEMAPHORE`] can't be the name of an object.
    #[error(
        "annotation {SEMAPHORE} is {0:?}, which can't be the name of a ConsulSemaphore: use lower case letters, digits, '-' \
         and '.', with a letter or digit at both ends, at most 253 in all, and no namespace: it is the Job's"
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
    /// [`ON_CONTENTION`] is neither `Wait` nor `Skip`.
    #[error(
        "annotation {ON_CONTENTION} is {0:?}: set it to \"Wait\" or remove it; for \"Skip\" make a new Job"
    )]
    OnContention(String),
}

/// What a Job's annotations ask for; `None` without [`SEMAPHORE`]: the Job is not ours.
pub fn parse(annotations: &BTreeMap<String, String>) -> Option<Result<Request, AnnotationError>> {
    let semaphore = annotations.get(SEMAPHORE)?;
    Some(parse_request(semaphore, annotations))
}

fn parse_request(
    semaphore: &str,
    annotations: &BTreeMap<String, String>,
) -> Result<Request, AnnotationError> {
    Ok(Request {
        semaphore: parse_semaphore(semaphore)?,
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
    })
}

fn parse_semaphore(text: &str) -> Result<String, AnnotationError> {
    if text.trim().is_empty() {
        Err(AnnotationError::Empty)
    } else if text.contains(',') {
        Err(AnnotationError::Several(beginning(text)))
    } else if is_object_name(text) {
        Ok(text.to_owned())
    } else {
        Err(AnnotationError::Name(beginning(text)))
    }
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
        _ => Err(AnnotationError::OnContention(beginning(text))),
    }
}

/// The part of a value that an error quotes.
fn beginning(text: &str) -> String {
    const SHOWN: usize = 64;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether this is a DNS-1123 subdomain, as the names of most Kubernetes objects are.
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
        fn any_annotations_are_read_or_refused(values in prop::collection::vec((0..6_usize, hostile::text()), 0..7)) {
            let names = [SEMAPHORE, PRIORITY, HOLD, SESSION, KEY, ON_CONTENTION];
            let annotations = values.into_iter().map(|(name, value)| (names[name].to_owned(), value));
            match parse(&annotations.collect()) {
                None => {}
                Some(Ok(request)) => prop_assert!(is_object_name(&request.semaphore)),
                Some(Err(error)) => {
                    let note = error.to_string();
                    prop_assert!(note.len() < 1000, "{}", note);
                    prop_assert!(!note.chars().any(char::is_control), "{}", note);
                }
            }
        }
    }

    fn parse_of<const N: usize>(
        annotations: [(&str, &str); N],
    ) -> Option<Result<Request, AnnotationError>> {
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
        let request = Request {
            semaphore: "db-migrations".to_owned(),
            priority: 0,
            hold: false,
            key: None,
            on_contention: OnContention::Wait,
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
        ]);
        let request = Request {
            semaphore: "a.b".to_owned(),
            priority: -10,
            hold: true,
            key: Some(Ok("customer-42".parse().unwrap())),
            on_contention: OnContention::Skip,
        };
        assert_eq!(parsed, Some(Ok(request)));
        let parsed = parse_of([
            (SEMAPHORE, "a"),
            (PRIORITY, "2147483647"),
            (HOLD, "false"),
            (ON_CONTENTION, "Wait"),
        ]);
        let request = Request {
            semaphore: "a".to_owned(),
            priority: i32::MAX,
            hold: false,
            key: None,
            on_contention: OnContention::Wait,
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
        for word in ["", "skip", "Never"] {
            let error = error_of([(SEMAPHORE, "a"), (ON_CONTENTION, word)]);
            assert_eq!(error, AnnotationError::OnContention(word.to_owned()));
        }
    }

    #[test]
    fn every_object_name_is_a_name() {
        let longest = "x".repeat(253);
        for name in ["a", "0", "a-b", "a.b-c.0d", "a--b", &longest] {
            let parsed = parse_of([(SEMAPHORE, name)]).and_then(Result::ok);
            assert_eq!(
                parsed.map(|request| request.semaphore).as_deref(),
                Some(name)
            );
        }
    }

    #[test]
    fn nothing_else_is_a_name() {
        for name in [
            "A", "a_b", "-a", "a-", ".a", "a.", "a..b", "a.-b", "a/b", " a", "a ", "a b", "\u{e4}",
            "a\n",
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
    fn no_name_and_several_names_are_told_apart_from_a_bad_one() {
        assert_eq!(error_of([(SEMAPHORE, "")]), AnnotationError::Empty);
        assert_eq!(error_of([(SEMAPHORE, "  ")]), AnnotationError::Empty);
        assert_eq!(
            error_of([(SEMAPHORE, "a,b")]),
            AnnotationError::Several("a,b".to_owned())
        );
        assert_eq!(
            error_of([(SEMAPHORE, "a, b")]),
            AnnotationError::Several("a, b".to_owned())
        );
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
        says(
            error_of([(SEMAPHORE, "a,b")]),
            SEMAPHORE,
            "several semaphores for one Job are not supported yet",
        );
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
            "from 1 to 63 letters, digits, '.', '_' and '-'",
        );
        says(
            error_of([(SEMAPHORE, "a"), (ON_CONTENTION, "x")]),
            ON_CONTENTION,
            r#"set it to "Wait" or remove it"#,
        );
    }
}
