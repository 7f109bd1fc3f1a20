//! Makes the lines about one semaphore.

use std::collections::BTreeSet;

use super::{
    ALIVE,
    consul::{advice, steps},
    holder, named,
    queue::{self, LockKeyFacts},
};
use crate::check::{
    NamespacedName,
    api_server::{Answer, ApiError},
    report::{Area, Line, Outcome},
    semaphore::{CheckedToken, PrefixFacts, SemaphoreFacts, Unknown},
};
use command_line::page;
use consul_client::{Listing, SessionId};
use consul_semaphore::Mode;
use consul_semaphore::{
    Agreement, ContenderBody, Key, Lock, Plan, Reading, Settings, lock::Unreadable,
    windows::Opening,
};
use consul_semaphore_api::{
    ConsulSemaphore,
    conditions::{self, ConditionType, Reason},
};
use consul_semaphore_workload::TrackedWorkload;
use jiff::Timestamp;

/// The most keys of a keyed semaphore that are checked.
const MAX_CHECKED_KEYS: usize = 20;

/// Returns the lines about the semaphore of this name.
pub(in crate::check) fn lines(name: &NamespacedName, seen: &Answer<SemaphoreFacts>) -> Vec<Line> {
    let NamespacedName { namespace, name } = name;
    let seen = match seen {
        Ok(seen) => seen,
        Err(ApiError::NotThere) => {
            let missing =
                format!("there is no ConsulSemaphore {name} in the namespace {namespace}");
            let todo = format!("kubectl get csem -n {namespace}, or kubectl get csem -A");
            return vec![line("object", Outcome::Failed, missing).todo(todo)];
        }
        Err(ApiError::Forbidden(why)) => {
            return vec![
                line("object", Outcome::Unknown, why)
                    .todo("use a kubeconfig that may get ConsulSemaphores there"),
            ];
        }
        Err(why) => {
            return vec![
                line("object", Outcome::Failed, why).todo("if its spec is invalid, correct it"),
            ];
        }
    };
    let mut lines = vec![object(seen)];
    lines.extend(conditions(&seen.semaphore));
    lines.push(prefix(seen));
    let time = seen.prefix.as_ref().map(|prefix| prefix.time);
    lines.extend(windows(&seen.settings, time));
    lines.extend(reserved(&seen.settings));
    if let Some(token) = &seen.token {
        lines.extend(of_token(token));
    }
    if let Some(prefix) = &seen.prefix {
        let whose = match &seen.token {
            Some(token) => format!("the token of the Secret {}", token.from.name),
            None => "the operator's token".to_owned(),
        };
        lines.extend(steps(Area::Semaphore, &prefix.tried, &whose));
        lines.extend(ttl(&seen.settings, prefix));
    }
    lines.extend(unqueued_jobs(seen));
    match &seen.prefix {
        Some(prefix) => lines.extend(places(seen, prefix)),
        None => lines.push(line(
            "slots",
            Outcome::Unknown,
            "Consul was not asked: see above",
        )),
    }
    lines
}

fn line(what: &str, outcome: Outcome, message: impl std::fmt::Display) -> Line {
    Line::new(Area::Semaphore, what, outcome, message)
}

/// Returns whether an operator has processed the current version of the object.
fn object(seen: &SemaphoreFacts) -> Line {
    let of = |outcome, message: &str| line("object", outcome, message);
    if !seen.in_scope {
        let message = "an operator with these --namespaces and this --semaphore-selector does not serve this ConsulSemaphore";
        return of(Outcome::Warning, message).todo(
            "run check with the flags of the operator that serves it, or start such an operator",
        );
    }
    let metadata = &seen.semaphore.metadata;
    let status = seen.semaphore.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation);
    match observed {
        None => of(Outcome::Warning, "no operator has seen it yet").todo(ALIVE),
        Some(_) if observed != metadata.generation => of(
            Outcome::Warning,
            "its status is for an earlier spec: no operator has seen this one yet",
        )
        .todo(ALIVE),
        Some(_) => of(Outcome::Ok, "an operator has seen this spec"),
    }
}

/// Returns lines with the conditions that the operator reports.
fn conditions(semaphore: &ConsulSemaphore) -> Vec<Line> {
    let status = semaphore.status.as_ref();
    let said = status.map_or(&[][..], |status| &status.conditions);
    let ours = ConditionType::ALL.into_iter().filter_map(|type_| {
        let condition = conditions::find(said, type_)?;
        let meant = [Reason::Paused, Reason::Terminating].map(Reason::as_str);
        let outcome = match condition.status.as_str() {
            "True" => Outcome::Ok,
            "False" if conditions::is_normal(condition) => Outcome::Ok,
            "False" if meant.contains(&condition.reason.as_str()) => Outcome::Warning,
            "False" => Outcome::Failed,
            _ => Outcome::Unknown,
        };
        let message = format!("{}: {}", condition.reason, condition.message);
        let line = line(&format!("condition {type_}"), outcome, message);
        Some(match outcome {
            Outcome::Failed => line.todo(format!(
                "do what the message says; {} explains the reason {}",
                page!("why-waiting.md#4-look-at-the-conditions"),
                condition.reason
            )),
            _ => line,
        })
    });
    ours.collect()
}

fn prefix(seen: &SemaphoreFacts) -> Line {
    match &seen.barred {
        Some(why) => line("prefix", Outcome::Failed, why).todo(
            "do what the message says; run check with the operator's --tenant-prefix and --trusted-namespaces",
        ),
        None => line("prefix", Outcome::Ok, &seen.settings.prefix),
    }
}

/// Returns which windows never open, and whether one is open now.
fn windows(settings: &Settings, time: Option<Timestamp>) -> Vec<Line> {
    let windows = &settings.restrictions.windows;
    let never = windows.invalid().iter().map(|(place, why)| {
        let message = format!("spec.windows[{place}] never opens: {why}");
        line("windows", Outcome::Warning, message).todo("correct the schedule or the time zone")
    });
    let now = match time.map(|time| windows.at(time)) {
        None | Some(Opening::Always) => None,
        Some(Opening::Open { limit, .. }) => Some(match limit {
            Some(limit) => format!("a window is open, for {limit} slots"),
            None => "a window is open".to_owned(),
        }),
        Some(Opening::Closed { until: Some(until) }) => Some(format!(
            "no window is open: no slot is granted before {until:.0}"
        )),
        Some(Opening::Closed { until: None }) => {
            let message = "no window ever opens: no slot is granted";
            let line = line("windows", Outcome::Failed, message)
                .todo("correct spec.windows, or remove it");
            return never.chain([line]).collect();
        }
    };
    let opening = now.map(|message| line("windows", Outcome::Ok, message));
    never.chain(opening).collect()
}

/// Returns a line that says whether the reserved slots leave any slot for other Jobs.
fn reserved(settings: &Settings) -> Option<Line> {
    let restrictions = &settings.restrictions;
    let reserved = restrictions.reserved?;
    let (slots, least) = (reserved.slots, reserved.min_priority);
    let limit = restrictions.windows.most(settings.limit);
    if slots >= limit {
        let message = format!(
            "spec.reserved leaves no slot for Jobs with a priority below {least}: {slots} of at most {limit} slots are reserved"
        );
        let todo =
            format!("reserve fewer than {limit} slots, unless you want no other Jobs to start");
        return Some(line("reserved", Outcome::Warning, message).todo(todo));
    }
    let message = format!("the last {slots} slots are for Jobs of priority {least} and above");
    Some(line("reserved", Outcome::Ok, message))
}

fn of_token(token: &CheckedToken) -> Vec<Line> {
    let name = &token.from.name;
    let allowed = match &token.allowed {
        Ok(true) => line("Secret", Outcome::Ok, format!("the operator may read {name}")),
        Ok(false) => line("Secret", Outcome::Failed, format!("the operator may not read {name}"))
            .todo(
                "give the operator a Role that may get that Secret: kubectl apply -k config/token-secret -n \
                 <namespace>",
            ),
        Err(why) => line("Secret", Outcome::Unknown, why),
    };
    let read = token.problem.as_ref().map(|problem| {
        line(
            "token",
            Outcome::Unknown,
            format!("Consul is not asked: {problem}"),
        )
        .todo("correct the Secret, or use a kubeconfig that may read it")
    });
    [allowed].into_iter().chain(read).collect()
}

/// Returns a line if Consul does not accept the requested TTL.
fn ttl(settings: &Settings, prefix: &PrefixFacts) -> Option<Line> {
    let (asked, shortest) = (settings.ttl?, prefix.tried.shortest?);
    (asked < shortest).then(|| {
        let (asked, shortest) = (asked.as_secs(), shortest.as_secs());
        let message =
            format!("spec.session.ttl is {asked} s, but Consul accepts {shortest} s or more");
        line("session TTL", Outcome::Failed, message).todo(format!(
            "set spec.session.ttl to {shortest}s or more, or None"
        ))
    })
}

/// Returns lines about the Jobs that name the semaphore and are not in its queue. Jobs that have ended don't count.
fn unqueued_jobs(seen: &SemaphoreFacts) -> Vec<Line> {
    let jobs = match &seen.jobs {
        Ok(jobs) => jobs,
        Err(why) => {
            return vec![
                line(
                    "Jobs",
                    Outcome::Unknown,
                    format!("they can't be read: {why}"),
                )
                .todo("use a kubeconfig that may list Jobs in the namespace"),
            ];
        }
    };
    let name = seen.settings.name.as_str();
    let named_so = jobs.iter().filter(|workload| workload.names(name));
    let (mut held, mut stuck) = (Vec::new(), Vec::new());
    for workload in named_so {
        let job = &workload.workload.name;
        match workload.obstacle_in(name, seen.semaphore.spec.keyed) {
            _ if workload.workload.has_ended() => {}
            Some(why) => stuck.push(format!("{job}: {why}")),
            None if workload.workload.hold => held.push(job),
            None => {}
        }
    }
    let stuck = stuck.iter().take(MAX_CHECKED_KEYS).map(|why| {
        line("Job not queued", Outcome::Warning, why)
            .todo("correct the Job; it stays suspended until then")
    });
    let mut lines: Vec<Line> = stuck.collect();
    if !held.is_empty() {
        let message = format!("{}: on hold", named(held.iter()));
        lines.push(line("Jobs on hold", Outcome::Ok, message));
    }
    lines
}

/// Returns the lines about each lock key.
fn places(seen: &SemaphoreFacts, prefix: &PrefixFacts) -> Vec<Line> {
    let listing = match &prefix.listing {
        Ok(listing) => listing,
        Err(error) => {
            let line = line(
                "slots",
                Outcome::Failed,
                format!("the prefix can't be read: {error}"),
            );
            return vec![line.todo(advice(error))];
        }
    };
    let jobs = seen.jobs.as_deref().unwrap_or_default();
    if !seen.semaphore.spec.keyed {
        return of_place(seen, prefix, listing, jobs, seen.settings.clone());
    }
    let keys = keys_in_use(&seen.settings, listing, jobs);
    let mut lines = Vec::new();
    for key in keys.iter().take(MAX_CHECKED_KEYS) {
        let settings = seen.settings.clone().of_key(key);
        let of_key = of_place(seen, prefix, listing, jobs, settings);
        lines.extend(of_key.into_iter().map(|line| Line {
            what: format!("{key}: {}", line.what),
            ..line
        }));
    }
    let message = match keys.len().checked_sub(MAX_CHECKED_KEYS) {
        Some(more) if more > 0 => {
            format!("{} are in use; {more} of them are not checked", keys.len())
        }
        _ => format!("{} are in use", keys.len()),
    };
    lines.push(line("keys", Outcome::Ok, message));
    lines
}

/// Returns the keys that queued Jobs name, and the keys that exist in Consul.
fn keys_in_use(settings: &Settings, listing: &Listing, jobs: &[TrackedWorkload]) -> BTreeSet<Key> {
    let named_so = jobs.iter().map(|workload| &workload.workload);
    let queued = named_so.filter(|workload| workload.is_queued());
    let requests = queued.flat_map(|workload| &workload.requests);
    let of_semaphore = requests.filter(|request| *request.semaphore == *settings.name);
    let wanted = of_semaphore.filter_map(|request| request.key.clone());
    let folder = settings.prefix.folder();
    let there = listing.entries.iter().filter_map(|entry| {
        let (key, _) = entry.key.strip_prefix(&folder)?.split_once('/')?;
        key.parse().ok()
    });
    wanted.chain(there).collect()
}

fn of_place(
    seen: &SemaphoreFacts,
    prefix: &PrefixFacts,
    listing: &Listing,
    jobs: &[TrackedWorkload],
    settings: Settings,
) -> Vec<Line> {
    let reading = Reading::new(settings.prefix.clone(), settings.mode, listing.clone());
    let sessions = prefix.sessions.as_deref().unwrap_or_default();
    let place = LockKeyFacts::new(&seen.semaphore, settings, reading, sessions, jobs);
    let plan = place.decide(prefix.now, prefix.time, prefix.operations);
    let mut lines = vec![lock(&place, &plan)];
    lines.extend(dead(&place));
    lines.extend(others(&place, prefix));
    if seen.jobs.is_ok() {
        lines.extend(waiting(&place, &plan, prefix));
    }
    lines
}

/// Returns the line about `.lock`: whether it can be used, and whether all agree on its limit.
fn lock(place: &LockKeyFacts, plan: &Plan) -> Line {
    let Settings {
        prefix,
        mode,
        limit,
        lock_delay,
        ..
    } = &place.settings;
    let key = prefix.lock_key();
    let of = |outcome, message: String| line("lock", outcome, message);
    match (place.reading.lock(), plan.agreement) {
        (Lock::Absent { .. }, _) => of(
            Outcome::Ok,
            format!("{key} does not exist yet: the operator writes it with the limit"),
        ),
        (Lock::Mutex { holder: None, .. }, _) => {
            of(Outcome::Ok, format!("the mutex {key} is free"))
        }
        (
            Lock::Mutex {
                holder: Some(session),
                ..
            },
            _,
        ) => of(
            Outcome::Ok,
            format!(
                "the mutex {key} is held by {}",
                holder(&place.reading, session)
            ),
        ),
        (Lock::Unreadable(why @ Unreadable::LeftOver { .. }), _) => {
            let rest = lock_delay.as_secs();
            of(
                Outcome::Warning,
                format!("{key} can't be used yet: {why}. The operator removes it after {rest} s"),
            )
            .todo(ALIVE)
        }
        (Lock::Unreadable(why), _) => {
            let (used_as, scripts) = match mode {
                Mode::Semaphore => ("a semaphore", "consul lock -n <limit>"),
                Mode::Mutex => ("a mutex", "consul lock without -n"),
            };
            of(Outcome::Failed, format!("{key} can't be used as {used_as}: {why}. Nothing is granted"))
                .todo(format!(
                    "delete the key when nobody uses it, or create another ConsulSemaphore with another prefix or mode; scripts need {scripts}"
                ))
        }
        (Lock::Semaphore { .. }, Some(Agreement::Conflict { theirs })) => {
            let message = format!(
                "Consul's limit is {theirs} and spec.limit is {limit}: another program or cluster wrote Consul's limit, and nothing is granted until both agree"
            );
            of(Outcome::Failed, message).todo(format!(
                "set spec.limit to {theirs}, make all others use {limit}, or set spec.limitPolicy to Enforce"
            ))
        }
        (Lock::Semaphore { body, .. }, agreement) => {
            let (held, theirs) = (body.held(), body.limit());
            let list = if body.is_list() {
                "; the holders are stored as a list, which Consul's Go client and consul lock can't read"
            } else {
                ""
            };
            let message = format!("{held} of {theirs} slots are held{list}");
            match agreement {
                Some(Agreement::Write { .. }) => {
                    let moving = format!("{message}; the operator will write the limit {limit}");
                    of(Outcome::Warning, moving).todo(ALIVE)
                }
                _ => of(Outcome::Ok, message),
            }
        }
    }
}

fn dead(place: &LockKeyFacts) -> Option<Line> {
    let dead = place.reading.dead_holders();
    if dead.is_empty() {
        return None;
    }
    let rest = place.settings.lock_delay.as_secs();
    let message = format!(
        "{} in Holders without a live session: {}. Their slots are free after spec.session.lockDelay, {rest} s",
        dead.len(),
        named(dead.keys().map(SessionId::shown))
    );
    let todo = format!("if they stay for longer, {ALIVE}");
    Some(line("dead holders", Outcome::Warning, message).todo(todo))
}

/// Returns a line about the waiting contenders of others.
fn others(place: &LockKeyFacts, prefix: &PrefixFacts) -> Option<Line> {
    let waiting: Vec<String> = place
        .others()
        .map(|(session, entry)| match ContenderBody::read(&entry.value) {
            Some(body) => body.holder().to_string(),
            None => format!("session {session}"),
        })
        .collect();
    if waiting.is_empty() {
        return None;
    }
    let message = format!(
        "{} of other clusters or programs wait: {}",
        waiting.len(),
        named(waiting.iter())
    );
    let Err(unknown) = &prefix.sessions else {
        return Some(line("contenders of others", Outcome::Ok, message));
    };
    let message = format!("{message}; some may be this cluster's own: {unknown}");
    let todo = match unknown {
        Unknown::Cluster => "see the line about the cluster id",
        Unknown::Sessions(error) => advice(error),
    };
    Some(line("contenders of others", Outcome::Unknown, message).todo(todo))
}

/// Returns lines about the queued Jobs, and why the first of them does not run.
fn waiting(place: &LockKeyFacts, plan: &Plan, prefix: &PrefixFacts) -> Vec<Line> {
    let Some(first) = place.waiting.first() else {
        return vec![line("waiting Jobs", Outcome::Ok, "none")];
    };
    let names = named(place.waiting.iter().map(|job| &job.name));
    let count = place.waiting.len();
    let all_known = prefix.sessions.is_ok();
    let (outcome, why, todo) = queue::why_it_waits(place, plan, first, prefix.time, all_known);
    let why = line(&format!("first: {}", first.name), outcome, why);
    vec![
        line(
            "waiting Jobs",
            Outcome::Ok,
            format!("{count}, next first: {names}"),
        ),
        match todo {
            Some(todo) => why.todo(todo),
            None => why,
        },
    ]
}

#[cfg(test)]
mod tests;
