//! When two states are the same: their descriptions differ only in numbers that are only ever compared with each other.
//!
//! Such numbers are the names of sessions, the numbers of calls, and everything above 100: raft indices, versions,
//! moments. Each counts by its place among those of its kind. A difference between them never counts, because time
//! passes in steps that are longer than anything waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::State;

/// Up to here a number counts as it is.
const SMALL: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Session,
    /// Numbers of calls.
    Call,
    /// Numbers of the listings that the watch of a semaphore returned.
    Listing,
    Large,
}

#[derive(Debug, Hash)]
enum Token<'a> {
    Text(&'a str),
    Number(Kind, u64),
}

/// The digest of a state.
pub(super) fn of(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    in_places(&text(state), |text, place| {
        (text, place).hash(&mut hasher);
    });
    hasher.finish()
}

/// Where the descriptions of two states differ.
pub(super) fn differences(one: &State, other: &State) -> Vec<String> {
    let [one, other] = [one, other].map(|state| {
        let mut all = String::new();
        in_places(&text(state), |text, place| {
            let _always_fits = match place {
                Some((kind, place)) => write!(all, "{kind:?} {place}"),
                None => write!(all, "{text}"),
            };
        });
        let parts = all.split_inclusive([',', '{']).map(ToOwned::to_owned);
        parts.collect::<Vec<String>>()
    });
    let pairs = one.iter().zip(&other).filter(|(one, other)| one != other);
    let different = pairs.map(|(one, other)| format!("{one} / {other}"));
    different.take(20).collect()
}

/// Goes through a description, with the place of each number that counts by it instead of the number.
fn in_places(text: &str, mut each: impl FnMut(&str, Option<(Kind, usize)>)) {
    let tokens = tokens(text);
    let mut places: BTreeMap<Kind, BTreeSet<u64>> = BTreeMap::new();
    for token in &tokens {
        if let Token::Number(kind, number) = token {
            places.entry(*kind).or_default().insert(*number);
        }
    }
    let places: BTreeMap<Kind, BTreeMap<u64, usize>> = places
        .into_iter()
        .map(|(kind, numbers)| (kind, numbers.into_iter().zip(0..).collect()))
        .collect();
    for token in &tokens {
        match token {
            Token::Text(text) => each(text, None),
            Token::Number(kind, number) => each("", Some((*kind, places[kind][number]))),
        }
    }
}

/// All of a state that counts, in words.
fn text(state: &State) -> String {
    let mut text = String::new();
    let outside = &state.world.outside;
    let sessions: Vec<_> = outside.consul.sessions().collect();
    let _always_fits = write!(
        text,
        "{} {} {:?} {:?} {:?} {:?} {:?}",
        state.faults,
        state.waits,
        sessions,
        outside.consul.entries(),
        outside.workloads,
        outside.facts(),
        state.world.operators,
    );
    decoded(&text)
}

/// The description with lists of bytes as the text that they are.
fn decoded(text: &str) -> String {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        decoded.push_str(&rest[..=start]);
        rest = &rest[start + 1..];
        let list = &rest[..rest.find(']').unwrap_or(0)];
        let bytes: Option<Vec<u8>> = list.split(", ").map(|byte| byte.parse().ok()).collect();
        if let Some(bytes) = bytes.filter(|bytes| bytes.len() > 8) {
            decoded.push_str(&String::from_utf8_lossy(&bytes));
            rest = &rest[list.len()..];
        }
    }
    decoded.push_str(rest);
    decoded
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut queue = false;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let before = &rest[..start];
        let length = rest[start..].find(|c: char| !c.is_ascii_digit());
        let end = length.map_or(rest.len(), |length| start + length);
        let number = &rest[start..end];
        tokens.push(Token::Text(before));
        let kind = kind(before, queue);
        queue = before.ends_with("CallId { queue: ");
        let value: Option<u64> = number.parse().ok();
        tokens.push(match (kind, value) {
            (Some(kind), Some(value)) => Token::Number(kind, value),
            (None, Some(value)) if value > SMALL => Token::Number(Kind::Large, value),
            _ => Token::Text(number),
        });
        rest = &rest[end..];
    }
    tokens.push(Token::Text(rest));
    tokens
}

/// What the number after this text is, if it counts by its place. `queue`: the number before it is that of the queue
/// of a call.
fn kind(before: &str, queue: bool) -> Option<Kind> {
    let is = |what: &str| before.ends_with(what);
    if is("session-") {
        Some(Kind::Session)
    } else if is(" last: ") || queue && is(", number: ") {
        Some(Kind::Call)
    } else if is(" number: ") || is(" since: ") || is(" last_read: ") {
        Some(Kind::Listing)
    } else {
        None
    }
}
