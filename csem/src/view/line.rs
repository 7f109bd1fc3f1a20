//! Who waits, in which order, and why: what the status, the conditions and the events say.

use std::collections::{HashMap, HashSet};

use consul_semaphore_operator::{
    api::{ConsulSemaphore, annotations::HOLD, conditions::ConditionType},
    controller::asker::Asker,
    semaphore::Standing,
};
use jiff::Timestamp;
use serde::Serialize;

use super::{
    item::{condition, count, status},
    told::{Told, last_words},
};

/// A Job in line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Place {
    pub(crate) job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Unknown where Jobs can't be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    /// A word for programs.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A Job that names the semaphore, has not begun, and is not in line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outside {
    pub(crate) job: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// All who want a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) places: Vec<Place>,
    /// How many wait behind these.
    pub(crate) more: usize,
    pub(crate) outside: Vec<Outside>,
    /// How many beside these are not in line.
    pub(crate) more_outside: usize,
}

/// The line of a semaphore, of whose Jobs these are known: its head as the status has it, and, as far as
/// that is cut off, what the Jobs themselves say. At most so many of each.
pub(crate) fn line(
    semaphore: &ConsulSemaphore,
    askers: &[Asker],
    told: &[Told],
    most: usize,
) -> Line {
    let words = last_words(told);
    let status = status(semaphore);
    let waiting = usize::try_from(status.waiting).unwrap_or(0);
    let mut explainer = Explainer::of(semaphore);
    let known: HashMap<&str, &Asker> = askers
        .iter()
        .map(|asker| (&*asker.job.name, asker))
        .collect();
    let last_word = |asker: &Asker| {
        let uid: &str = asker.job.uid.as_ref();
        words.get(&(&*asker.job.name, uid)).copied()
    };
    let mut places: Vec<Place> = Vec::new();
    for queued in status.queue.iter().take(most) {
        let asker = known.get(queued.job.as_str()).copied();
        let word = asker.and_then(last_word);
        let key = queued.key.clone();
        let (reason, message) = explainer.explain(&queued.job, key.as_deref(), word);
        places.push(Place {
            job: queued.job.clone(),
            key,
            priority: asker.map(|asker| asker.job.priority),
            since: queued.since.as_ref().map(|time| time.0),
            reason,
            message,
        });
    }

    let listed: HashSet<&str> = status
        .queue
        .iter()
        .map(|queued| queued.job.as_str())
        .collect();
    let behind = waiting.saturating_sub(status.queue.len());
    let keyed = semaphore.spec.keyed;
    let unlisted = || {
        askers
            .iter()
            .filter(|asker| !listed.contains(&*asker.job.name))
    };
    let mut rest: Vec<&Asker> = unlisted()
        .filter(|asker| asker.job.in_line() && asker.obstacle(keyed).is_none())
        .collect();
    rest.sort_by_cached_key(|asker| asker.job.place());
    rest.truncate(behind);
    let in_rest: HashSet<&str> = rest.iter().map(|asker| &*asker.job.name).collect();
    for asker in rest.iter().take(most.saturating_sub(places.len())) {
        let key = asker
            .job
            .key
            .as_ref()
            .filter(|_| keyed)
            .map(ToString::to_string);
        let word = last_word(asker);
        let (reason, message) = explainer.explain(&asker.job.name, key.as_deref(), word);
        places.push(Place {
            job: asker.job.name.to_string(),
            key,
            priority: Some(asker.job.priority),
            since: Timestamp::from_second(asker.job.since).ok(),
            reason,
            message,
        });
    }

    let mut outside: Vec<Outside> = unlisted()
        .filter(|asker| !in_rest.contains(&*asker.job.name))
        .filter_map(|asker| outsider(asker, keyed, last_word(asker)))
        .collect();
    outside.sort_by(|a, b| a.job.cmp(&b.job));
    let more_outside = outside.len().saturating_sub(most);
    outside.truncate(most);
    Line {
        more: waiting.max(status.queue.len()).saturating_sub(places.len()),
        places,
        outside,
        more_outside,
    }
}

/// Why a Job is not in line; `None` for one that has begun, or is done.
fn outsider(asker: &Asker, keyed: bool, word: Option<&Told>) -> Option<Outside> {
    let stopping = match asker.job.standing {
        Standing::Idle => false,
        Standing::Stopping => true,
        Standing::Running | Standing::Finished { .. } | Standing::Deleting => return None,
    };
    let (reason, message) = if let Some(obstacle) = asker.obstacle(keyed) {
        obstacle
    } else if asker.job.hold {
        let message = format!("the annotation {HOLD} is true");
        ("OnHold".to_owned(), message)
    } else if let Some(warning) = word.filter(|told| told.warning) {
        (warning.reason.clone(), warning.message.clone())
    } else if stopping {
        let message = "its last pods are not gone yet, or its status does not say so";
        ("Stopping".to_owned(), message.to_owned())
    } else {
        let message =
            "the operator has not put it in line: it has not seen it yet, or does not run";
        ("Unseen".to_owned(), message.to_owned())
    };
    Some(Outside {
        job: asker.job.name.to_string(),
        reason,
        message,
    })
}

/// What the operator says of why nobody, or nobody more, is granted a slot.
enum Why {
    /// It holds for everyone.
    Stopped(String, String),
    /// It is what the first one waits for, and the others wait for the first.
    First(String, String),
}

/// Says of one after another, in the order of the line, why they wait.
struct Explainer<'a> {
    semaphore: &'a ConsulSemaphore,
    why: Why,
    /// Who goes next before those that follow, of each key: one in whose way nothing else is.
    before: HashMap<Option<String>, String>,
}

impl<'a> Explainer<'a> {
    fn of(semaphore: &'a ConsulSemaphore) -> Self {
        let says = |type_| {
            let condition = condition(semaphore, type_)?;
            let said = (condition.reason.clone(), condition.message.clone());
            Some((condition.status == "True", said))
        };
        let why = match (
            says(ConditionType::Ready),
            says(ConditionType::SlotsAvailable),
        ) {
            (None, _) => Why::Stopped(
                "Unseen".to_owned(),
                "the operator has not said anything of the semaphore yet: does it run?".to_owned(),
            ),
            (Some((false, (reason, message))), _) => Why::Stopped(reason, message),
            (Some((true, _)), Some((_, (reason, message))))
            | (Some((true, (reason, message))), None) => Why::First(reason, message),
        };
        Self {
            semaphore,
            why,
            before: HashMap::new(),
        }
    }

    fn explain(&mut self, job: &str, key: Option<&str>, word: Option<&Told>) -> (String, String) {
        if let Why::Stopped(reason, message) = &self.why {
            return (reason.clone(), message.clone());
        }
        if let Some(refused) = word.filter(|told| told.reason == "StartRefused") {
            return (refused.reason.clone(), refused.message.clone());
        }
        let behind = self.before.insert(key.map(str::to_owned), job.to_owned());
        match (behind, key, &self.why) {
            (Some(before), ..) => ("Behind".to_owned(), format!("behind {before}")),
            (None, Some(key), _) => self.first_of(key),
            (None, None, Why::First(reason, message) | Why::Stopped(reason, message)) => {
                (reason.clone(), message.clone())
            }
        }
    }

    /// Of a key the conditions say something only if it is in conflict; its holders are in the status,
    /// unless that is cut off.
    fn first_of(&self, key: &str) -> (String, String) {
        let status = status(self.semaphore);
        let ready = condition(self.semaphore, ConditionType::Ready);
        if let Some(ready) = ready.filter(|ready| ready.reason != "Reconciled") {
            return (ready.reason.clone(), ready.message.clone());
        }
        let all = usize::try_from(status.held).is_ok_and(|held| held <= status.holders.len());
        let holders = status.holders.iter();
        let held = holders
            .filter(|holder| holder.key.as_deref() == Some(key))
            .count();
        let message = if all {
            let slots = count(i64::from(self.semaphore.spec.limit), "slot", "slots");
            format!("{held} of {slots} of the key {key} held")
        } else {
            format!("next for a slot of the key {key}")
        };
        ("Next".to_owned(), message)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::samples::{asker, semaphore, told};

    fn reasons(line: &Line) -> Vec<(&str, &str, &str)> {
        let places = line.places.iter();
        places
            .map(|place| (&*place.job, &*place.reason, &*place.message))
            .collect()
    }

    fn queue(jobs: &[&str]) -> Value {
        jobs.iter().map(|job| json!({ "job": job })).collect()
    }

    #[test]
    fn the_first_waits_for_a_slot_and_the_others_for_those_before_them() {
        let semaphore = semaphore(&json!({ "waiting": 3, "queue": queue(&["a", "b", "c"]) }));
        let askers = [asker("b", &json!({ "consul-semaphore.io/priority": "7" }))];
        let line = line(&semaphore, &askers, &[], 99);
        let held = "2 of 2 slots are held";
        let expected = [
            ("a", "AllSlotsHeld", held),
            ("b", "Behind", "behind a"),
            ("c", "Behind", "behind b"),
        ];
        assert_eq!(reasons(&line), expected);
        let priorities: Vec<_> = line.places.iter().map(|place| place.priority).collect();
        assert_eq!(priorities, [None, Some(7), None]);
        assert_eq!((line.more, line.outside.len()), (0, 0));
    }

    #[test]
    fn what_stops_the_semaphore_stops_everyone() {
        let mut status = json!({ "waiting": 2, "queue": queue(&["a", "b"]) });
        status["conditions"] = json!([{
            "type": "Ready", "status": "False", "reason": "Paused", "message": "spec.paused is true",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let line = line(&semaphore(&status), &[], &[], 99);
        let paused = |job| (job, "Paused", "spec.paused is true");
        assert_eq!(reasons(&line), [paused("a"), paused("b")]);
    }

    #[test]
    fn one_that_can_not_be_started_is_in_nobodys_way() {
        let semaphore = semaphore(&json!({ "waiting": 3, "queue": queue(&["a", "b", "c"]) }));
        let askers = ["a", "b", "c"].map(|name| asker(name, &json!({})));
        let events = [told(1, "Job", "a", "uid-a", "StartRefused")];
        let line = line(&semaphore, &askers, &events, 99);
        let words: Vec<_> = line.places.iter().map(|place| &*place.reason).collect();
        assert_eq!(words, ["StartRefused", "AllSlotsHeld", "Behind"]);
        assert_eq!(line.places[2].message, "behind b");
    }

    #[test]
    fn where_the_status_is_cut_off_the_jobs_say_who_is_next() {
        let semaphore = semaphore(&json!({ "waiting": 5, "queue": queue(&["a", "b"]) }));
        let with = |name, priority: &str| {
            asker(name, &json!({ "consul-semaphore.io/priority": priority }))
        };
        let askers = [
            with("a", "0"),
            with("z-low", "-5"),
            with("d", "0"),
            with("b", "0"),
            with("e-high", "9"),
            asker("held", &json!({ "consul-semaphore.io/hold": "true" })),
        ];
        let all = line(&semaphore, &askers, &[], 99);
        let jobs = |line: &Line| -> Vec<String> {
            line.places.iter().map(|place| place.job.clone()).collect()
        };
        assert_eq!(jobs(&all), ["a", "b", "e-high", "d", "z-low"]);
        assert_eq!(all.places[2].message, "behind b");
        assert_eq!(all.more, 0);
        let outside: Vec<_> = all
            .outside
            .iter()
            .map(|one| (&*one.job, &*one.reason))
            .collect();
        assert_eq!(outside, [("held", "OnHold")]);

        let few = line(&semaphore, &askers, &[], 3);
        assert_eq!((jobs(&few).len(), few.more), (3, 2));
        let none = line(&semaphore, &[], &[], 99);
        assert_eq!((none.places.len(), none.more), (2, 3));
    }

    #[test]
    fn who_is_not_in_line_is_told_with_the_reason() {
        let semaphore = semaphore(&json!({ "waiting": 0 }));
        let askers = [
            asker("held", &json!({ "consul-semaphore.io/hold": "true" })),
            asker(
                "malformed",
                &json!({ "consul-semaphore.io/priority": "high" }),
            ),
            asker("new", &json!({})),
            asker("stray", &json!({})),
        ];
        let events = [told(1, "Job", "stray", "uid-stray", "NoSemaphore")];
        let line = line(&semaphore, &askers, &events, 99);
        let words: Vec<_> = line
            .outside
            .iter()
            .map(|one| (&*one.job, &*one.reason))
            .collect();
        let expected = [
            ("held", "OnHold"),
            ("malformed", "Malformed"),
            ("new", "Unseen"),
            ("stray", "NoSemaphore"),
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn of_a_keyed_one_each_key_has_a_line() {
        let mut semaphore = semaphore(&json!({
            "waiting": 3, "held": 1,
            "holders": [{ "session": "s", "key": "k1" }],
            "queue": [{ "job": "a", "key": "k1" }, { "job": "b", "key": "k2" }, { "job": "c", "key": "k1" }],
        }));
        semaphore.spec.keyed = true;
        let line = line(&semaphore, &[], &[], 99);
        let expected = [
            ("a", "Next", "1 of 2 slots of the key k1 held"),
            ("b", "Next", "0 of 2 slots of the key k2 held"),
            ("c", "Behind", "behind a"),
        ];
        assert_eq!(reasons(&line), expected);
    }

    #[test]
    fn without_an_operator_nobody_knows() {
        let mut semaphore = semaphore(&json!({ "waiting": 0 }));
        semaphore.status = None;
        let line = line(&semaphore, &[asker("a", &json!({}))], &[], 99);
        assert_eq!(line.outside[0].reason, "Unseen");
    }
}
