//! A `ConsulSemaphore` as it was read.

use consul_semaphore::ContenderName;
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus,
    conditions::{self, ConditionType},
};
use consul_semaphore_workload::KIND;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{ResourceExt as _, api::DynamicObject};

use super::text::{Span, Tone};

/// A `ConsulSemaphore` that can be parsed, or one that was stored before its schema and can't be parsed.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Semaphore(Box<ConsulSemaphore>),
    Unreadable {
        namespace: String,
        name: String,
        created: Option<Timestamp>,
        why: String,
    },
}

impl Item {
    pub(crate) fn read(object: &DynamicObject) -> Self {
        match object.clone().try_parse::<ConsulSemaphore>() {
            Ok(semaphore) => Self::Semaphore(Box::new(semaphore)),
            Err(error) => Self::Unreadable {
                namespace: object.namespace().unwrap_or_default(),
                name: object.name_any(),
                created: object.creation_timestamp().map(|time| time.0),
                why: error.to_string(),
            },
        }
    }
}

/// Returns the last status that the operator reported; an empty one if there is none yet.
pub(crate) fn status(semaphore: &ConsulSemaphore) -> ConsulSemaphoreStatus {
    semaphore.status.clone().unwrap_or_default()
}

/// Returns the title of a workload in a column of Jobs: its name alone, or `KIND/NAME` if it is of another kind.
pub(crate) fn title(kind: &str, name: &str) -> String {
    if kind == KIND {
        return name.to_owned();
    }
    format!("{kind}/{name}")
}

/// Returns the kind of a contender, as a word that is always there.
pub(crate) fn kind_of(contender: &ContenderName) -> &str {
    contender.kind.as_deref().unwrap_or("Unknown")
}

/// Returns a condition, if the operator has reported it.
pub(crate) fn condition(semaphore: &ConsulSemaphore, type_: ConditionType) -> Option<&Condition> {
    conditions::find(&semaphore.status.as_ref()?.conditions, type_)
}

/// Returns the generation of the spec that the status describes, if it is not the current one.
pub(crate) fn outdated(semaphore: &ConsulSemaphore) -> Option<i64> {
    let seen = semaphore.status.as_ref()?.observed_generation?;
    (semaphore.metadata.generation != Some(seen)).then_some(seen)
}

/// Returns the status of a condition as a word with its tone.
pub(crate) fn phase(condition: Option<&Condition>) -> Span {
    let word = condition.map_or("Unknown", |condition| condition.status.as_str());
    let tone = match word {
        "True" => Tone::Good,
        "False" => Tone::Bad,
        _ => Tone::Doubt,
    };
    Span::new(tone, word)
}

/// Returns a number with the word for one thing or for several.
pub(crate) fn count<N: TryInto<u64>>(number: N, one: &str, several: &str) -> String {
    let number = number.try_into().unwrap_or(0);
    format!("{number} {}", if number == 1 { one } else { several })
}
