//! Finds out what changed between two readings of a semaphore.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use consul_client::SessionId;
use consul_semaphore::{
    Prefix,
    usage::{Usage, UsageContender, UsageHolder, UsageWaiter},
};
use serde::Serialize;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChangeKind {
    /// The limit has changed, or was written for the first time.
    Limit,
    /// The lock key has become unreadable: nobody can say what happens until it can be read again.
    Unreadable,
    /// The prefix has become unused.
    Unused,
    /// The contender held a slot when the watch began.
    Held,
    /// The contender was granted a slot.
    Granted,
    /// The contender gave its slot back.
    Released,
    /// The contender holds a slot, but its session has ended.
    Dead,
    /// The contender was a dead holder and was removed.
    Pruned,
    /// The contender waits for a slot.
    Waiting,
    /// The contender has stopped waiting without a slot.
    Left,
}

/// Change of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SemaphoreChange<'a> {
    prefix: &'a Prefix,
    #[serde(rename = "change")]
    what: ChangeKind,
    #[serde(flatten)]
    contender: Option<&'a UsageContender>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
}

impl Display for SemaphoreChange<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            ChangeKind::Limit => "limit",
            ChangeKind::Unreadable => "unreadable",
            ChangeKind::Unused => "unused",
            ChangeKind::Held => "held",
            ChangeKind::Granted => "granted",
            ChangeKind::Released => "released",
            ChangeKind::Dead => "dead",
            ChangeKind::Pruned => "pruned",
            ChangeKind::Waiting => "waiting",
            ChangeKind::Left => "left",
        };
        write!(f, "{} {what}", self.prefix)?;
        if let Some(limit) = self.limit {
            write!(f, " {limit}")?;
        }
        if let Some(problem) = self.problem {
            write!(f, ": {problem}")?;
        }
        match self.contender {
            Some(contender) => write!(f, " {} (session {})", contender, contender.session.shown()),
            None => Ok(()),
        }
    }
}

/// Returns the changes between two readings, in the order in which they must have happened: slots become free before
/// they are granted. `first` means that nothing was known before.
pub(super) fn between<'a>(
    before: Option<&'a Usage>,
    after: Option<&'a Usage>,
    first: bool,
) -> Vec<SemaphoreChange<'a>> {
    let Some(prefix) = after.or(before).map(|semaphore| &semaphore.summary.prefix) else {
        return Vec::new();
    };
    let change = |what, contender| SemaphoreChange {
        prefix,
        what,
        contender,
        fencing_token: None,
        limit: None,
        problem: None,
    };
    let limit = |of: Option<&Usage>| of.and_then(|semaphore| semaphore.summary.limit);
    let unreadable = |of: Option<&Usage>| of.is_some_and(Usage::is_unreadable);
    if let Some(after) = after.filter(|after| after.is_unreadable()) {
        let problem = after.summary.problem.as_deref();
        let news = (!unreadable(before)).then(|| SemaphoreChange {
            problem,
            ..change(ChangeKind::Unreadable, None)
        });
        return news.into_iter().collect();
    }
    // The semaphore was unreadable in all earlier readings.
    let first = first || (unreadable(before) && limit(before).is_none());
    let (old, new) = (holders(before), holders(after));
    let (waited, waits) = (waiters(before), waiters(after));
    let mut changes = Vec::new();
    let (limit_before, limit_after) = (limit(before), limit(after));
    // A limit is also reported when the lock key becomes readable again.
    if limit_after.is_some() && (limit_after != limit_before || unreadable(before)) {
        changes.push(SemaphoreChange {
            limit: limit_after,
            ..change(ChangeKind::Limit, None)
        });
    }
    for (session, holder) in &old {
        let what = match new.get(session) {
            None if holder.dead => ChangeKind::Pruned,
            None => ChangeKind::Released,
            Some(now) if now.dead && !holder.dead => ChangeKind::Dead,
            Some(_) => continue,
        };
        changes.push(change(what, Some(&holder.contender)));
    }
    let left = waited
        .iter()
        .filter(|(session, _)| !waits.contains_key(*session) && !new.contains_key(*session));
    changes.extend(left.map(|(_, waiter)| change(ChangeKind::Left, Some(&waiter.contender))));
    // New holders are reported in the order of the reading.
    let came = after.into_iter().flat_map(|semaphore| &semaphore.holders);
    for holder in came.filter(|holder| !old.contains_key(&holder.contender.session)) {
        let what = match (holder.dead, first) {
            (true, _) => ChangeKind::Dead,
            (false, true) => ChangeKind::Held,
            (false, false) => ChangeKind::Granted,
        };
        changes.push(SemaphoreChange {
            fencing_token: holder.fencing_token,
            ..change(what, Some(&holder.contender))
        });
    }
    let joined = after
        .into_iter()
        .flat_map(|semaphore| &semaphore.waiters)
        .filter(|waiter| !waited.contains_key(&waiter.contender.session));
    changes.extend(joined.map(|waiter| change(ChangeKind::Waiting, Some(&waiter.contender))));
    let was_used = limit_before.is_some() || unreadable(before);
    if was_used && limit_after.is_none() && waits.is_empty() {
        changes.push(change(ChangeKind::Unused, None));
    }
    changes
}

/// Takes from an earlier reading what this one can't show: the owner of a dead holder's session, which Consul forgets,
/// and everything while the lock key is unreadable.
pub(super) fn remember(after: &mut Usage, before: Option<&Usage>) {
    if after.is_unreadable() {
        after.summary.limit = before.and_then(|before| before.summary.limit);
        after.holders = before.map_or_else(Vec::new, |before| before.holders.clone());
        after.waiters = before.map_or_else(Vec::new, |before| before.waiters.clone());
        return;
    }
    let Some(before) = before else { return };
    let known: BTreeMap<_, _> = before
        .holders
        .iter()
        .map(|holder| (&holder.contender.session, &holder.contender))
        .collect();
    for holder in after.holders.iter_mut().filter(|holder| holder.dead) {
        if let Some(contender) = known.get(&holder.contender.session) {
            holder.contender = (*contender).clone();
        }
    }
}

fn holders(of: Option<&Usage>) -> BTreeMap<&SessionId, &UsageHolder> {
    let holders = of.into_iter().flat_map(|semaphore| &semaphore.holders);
    holders
        .map(|holder| (&holder.contender.session, holder))
        .collect()
}

fn waiters(of: Option<&Usage>) -> BTreeMap<&SessionId, &UsageWaiter> {
    let waiters = of.into_iter().flat_map(|semaphore| &semaphore.waiters);
    waiters
        .map(|waiter| (&waiter.contender.session, waiter))
        .collect()
}

#[cfg(test)]
mod tests {
    use consul_client::{Entry, Listing, clock::Moment};
    use consul_semaphore::{Reading, lock::SEMAPHORE_FLAGS, usage::SessionNames};

    use super::*;

    const A: &str = "aaaaaaaa-0000-4000-8000-000000000000";
    const B: &str = "bbbbbbbb-0000-4000-8000-000000000000";

    fn entry(name: &str, session: Option<&str>, value: &str) -> Entry {
        Entry {
            key: format!("p/{name}"),
            value: value.as_bytes().to_vec(),
            flags: SEMAPHORE_FLAGS,
            session: session.map(Into::into),
            lock_index: 1,
            create_index: 1,
            modify_index: 2,
        }
    }

    /// Returns a semaphore with these holders in its body and these live contenders.
    fn semaphore(limit: u32, holders: &[&str], alive: &[&str]) -> Usage {
        let holders: Vec<_> = holders
            .iter()
            .map(|holder| format!("\"{holder}\":true"))
            .collect();
        let body = format!(
            "{{\"Limit\":{limit},\"Holders\":{{{}}}}}",
            holders.join(",")
        );
        let mut entries = vec![entry(".lock", None, &body)];
        entries.extend(
            alive
                .iter()
                .map(|session| entry(session, Some(session), "")),
        );
        let listing = Listing {
            entries: entries.into(),
            index: 1,
            sent: Moment::now(),
            reset: false,
        };
        Usage::of(
            &Reading::found("p".parse().unwrap(), listing),
            &SessionNames::default(),
        )
    }

    #[track_caller]
    fn says(before: &Usage, after: &Usage, expected: &[&str]) {
        let changes = between(Some(before), Some(after), false);
        let said: Vec<_> = changes.iter().map(ToString::to_string).collect();
        let expected: Vec<_> = expected.iter().map(|words| format!("p {words}")).collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn each_change_has_its_word() {
        let of = |what: &str, session: &str| format!("{what} Unknown (session {session})");
        let free = semaphore(1, &[], &[]);
        let waiting = semaphore(1, &[A], &[A, B]);
        let handed = semaphore(1, &[B], &[B]);
        let dead = semaphore(1, &[A], &[]);
        says(&free, &free, &[]);
        says(&free, &waiting, &[&of("granted", A), &of("waiting", B)]);
        says(&waiting, &handed, &[&of("released", A), &of("granted", B)]);
        says(&waiting, &dead, &[&of("dead", A), &of("left", B)]);
        says(&dead, &free, &[&of("pruned", A)]);
        says(&free, &semaphore(3, &[], &[]), &["limit 3"]);
    }

    #[test]
    fn what_can_not_be_read_has_neither_released_nor_granted_anything() {
        let there = semaphore(2, &[A], &[A, B]);
        let junk = || {
            let listing = Listing {
                entries: vec![entry(".lock", None, "junk"), entry(A, Some(A), "")].into(),
                index: 2,
                sent: Moment::now(),
                reset: false,
            };
            Usage::of(
                &Reading::found("p".parse().unwrap(), listing),
                &SessionNames::default(),
            )
        };
        let mut unreadable = junk();
        let problem = unreadable.summary.problem.clone().unwrap();
        remember(&mut unreadable, Some(&there));
        says(&there, &unreadable, &[&format!("unreadable: {problem}")]);
        let mut still = junk();
        remember(&mut still, Some(&unreadable));
        says(&unreadable, &still, &[]);
        let handed = semaphore(2, &[B], &[B]);
        let of = |what: &str, session: &str| format!("{what} Unknown (session {session})");
        says(
            &still,
            &handed,
            &["limit 2", &of("released", A), &of("granted", B)],
        );
        let mut at_first = junk();
        remember(&mut at_first, None);
        says(&at_first, &at_first, &[]);
        let gone = between(Some(&at_first), None, false);
        let last = gone.last().map(ToString::to_string);
        assert_eq!(last.as_deref(), Some("p unused"));
    }

    #[test]
    fn what_is_there_at_first_was_not_granted_now() {
        let there = semaphore(1, &[A], &[A]);
        let said: Vec<_> = between(None, Some(&there), true)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            said,
            [
                "p limit 1".to_owned(),
                format!("p held Unknown (session {A})")
            ]
        );
        let gone: Vec<_> = between(Some(&there), None, false)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            gone,
            [
                format!("p released Unknown (session {A})"),
                "p unused".to_owned()
            ]
        );
    }
}
