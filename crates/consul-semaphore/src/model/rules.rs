//! What must be true of every plan, given the facts that it was made from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    Observed, Phase, Plan, Uid, Workload,
    plan::{Grant, Stance, Transaction},
};
use consul_client::{Op, SessionId};

use super::{rest::slots, sight::Body};

/// Checks a plan.
pub(crate) fn check_plan(observed: &Observed<'_>, plan: &Plan) {
    assert_eq!(
        crate::decide(observed),
        *plan,
        "the same facts give the same plan"
    );
    check_patches(observed, plan);
    check_skips(observed, plan);
    if let Some(transaction) = &plan.transaction {
        assert!(plan.record.is_none() || transaction.limit.is_none());
        check_removal(observed, transaction);
        check_order(observed, plan, transaction);
        check_indices(observed, transaction);
    }
}

/// A slot that is granted to a waiting workload has an index that no other slot and nothing that runs has: the one that
/// its session had, or one below the limit, but for the indices of those that have lost their slot. A slot that is
/// granted again has the index that its workload was started with.
fn check_indices(observed: &Observed<'_>, transaction: &Transaction) {
    let Some(reading) = observed.reading.filter(|_| !observed.settings.is_rate()) else {
        return;
    };
    let Some(body) = written(transaction) else {
        return;
    };
    let leaves = |session: &SessionId| {
        let mut releases = transaction.releases.iter();
        releases.any(|release| release.session == *session)
    };
    let contenders = reading.contenders();
    let before: BTreeMap<&SessionId, u64> = contenders
        .filter_map(|(session, entry)| Some((session, index_in(&entry.value)?)))
        .collect();
    let mut indices = before.clone();
    indices.retain(|session, _| !leaves(session));
    for operation in &transaction.operations {
        if let Op::Lock { session, value, .. } = operation {
            indices.extend(index_in(value).map(|index| (session, index)));
        }
    }
    // Those who have lost their slot have their index until their contender is gone.
    let robbed = before.keys().filter(|session| !reading.holds(session));
    let lock_key = observed.settings.prefix.lock_key();
    let runs =
        |workload: &&Arc<Workload>| matches!(workload.phase, Phase::Running | Phase::Stopping);
    let running = observed.bound.iter().filter(runs);
    let granted = running.flat_map(|workload| &workload.granted);
    let slots = granted.flat_map(|granted| &granted.slots);
    let of_running: Vec<_> = slots.filter(|slot| *slot.lock_key == *lock_key).collect();
    let lost = of_running.iter().filter(|slot| !body.holds(&slot.session));
    let most = body.limit() + robbed.count() + lost.count();
    for grant in &transaction.grants {
        for (ordinal, session) in &grant.sessions {
            let index = indices.get(session).copied();
            if !grant.starts {
                let mut bound = observed.bound.iter();
                let workload = bound.find(|workload| workload.uid == grant.workload.uid);
                let before = workload.and_then(|it| it.slot_index(&lock_key, *ordinal));
                assert_eq!(index, before.map(u64::from), "{session} has another index");
                continue;
            }
            let index = index.expect("a granted slot has an index");
            let with_it = indices.values().filter(|other| **other == index).count();
            assert_eq!(with_it, 1, "two slots have the index {index}: {indices:?}");
            let mut running = of_running.iter().filter_map(|slot| slot.index);
            let runs = running.any(|other| u64::from(other) == index);
            assert!(!runs, "something runs with the index {index}");
            let small = usize::try_from(index).is_ok_and(|index| index < most);
            let kept = before.get(session) == Some(&index);
            assert!(kept || small, "{session} has the index {index} of {most}");
        }
    }
}

/// The slot index that a contender's value says.
fn index_in(value: &[u8]) -> Option<u64> {
    let body: serde_json::Value = serde_json::from_slice(value).ok()?;
    body.get("slotIndex")?.as_u64()
}

/// A workload is written to at most once, and not while another write to it is in flight.
fn check_patches(observed: &Observed<'_>, plan: &Plan) {
    let grants = plan.transaction.iter().flat_map(|t| &t.grants);
    let targets = (plan.starts.iter().map(|start| &start.workload))
        .chain(plan.suspends.iter().map(|suspend| &suspend.workload))
        .chain(plan.ends.iter().map(|end| &end.workload))
        .chain(plan.give_backs.iter().map(|give_back| &give_back.workload))
        .chain(plan.renames.iter().map(|rename| &rename.workload))
        .chain(plan.skips.iter().map(|skip| &skip.workload))
        .chain(grants.map(|grant| &grant.workload));
    let mut written = BTreeSet::new();
    for target in targets {
        assert!(
            written.insert(&target.uid),
            "{target:?} is written to twice"
        );
        assert!(
            !observed.excluded.busy.contains(&target.uid),
            "{target:?} is busy"
        );
    }
}

/// A workload is deleted only for contention: by a reading from after it was seen, and while nothing else blocks it.
fn check_skips(observed: &Observed<'_>, plan: &Plan) {
    for skip in &plan.skips {
        let reading = observed.reading.expect("Consul was read");
        let mut queue = observed.queue.iter();
        let workload = queue.find(|workload| workload.uid == skip.workload.uid);
        assert!(
            workload.is_some_and(|workload| workload.seen <= reading.sent),
            "{skip:?}"
        );
        let paused = observed.settings.paused || observed.settings.terminating;
        assert!(!paused && plan.transaction.is_none(), "{skip:?}");
    }
}

/// The lock is removed only if nobody is seen to use it, but those who leave it in the same transaction.
fn check_removal(observed: &Observed<'_>, transaction: &Transaction) {
    let lock_key = observed.settings.prefix.lock_key();
    let mut operations = transaction.operations.iter();
    let removed = operations.any(|op| matches!(op, Op::DeleteCas { key, .. } if *key == lock_key));
    let stays = |session: &SessionId| {
        let mut releases = transaction.releases.iter();
        !releases.any(|release| release.session == *session)
    };
    let used = observed.reading.is_some_and(|reading| {
        let mut contenders = reading.contenders();
        contenders.any(|(session, _)| stays(session))
    });
    assert!(!(removed && used), "removed a lock in use: {transaction:?}");
}

/// Nobody is passed: a waiting workload is granted slots only if enough are left for everyone before it, and for
/// every running workload that is to get its own back.
fn check_order(observed: &Observed<'_>, plan: &Plan, transaction: &Transaction) {
    let granted: BTreeSet<&Uid> = transaction.grants.iter().map(|g| &g.workload.uid).collect();
    let starts = |grant: &&Grant| grant.starts;
    if !transaction.grants.iter().any(|grant| starts(&grant)) {
        return;
    }
    assert!(!observed.settings.paused && !observed.settings.terminating);
    let body = written(transaction).expect("a grant writes the lock");

    let queue: Vec<&Workload> = observed
        .queue
        .iter()
        .map(AsRef::as_ref)
        .filter(|workload| waits(observed, transaction, workload))
        .collect();
    let in_order = |workload: &&Workload| {
        let lost = workload.granted.is_some();
        let (name, uid) = (workload.name.to_string(), workload.uid.to_string());
        (
            !lost,
            -i64::from(workload.priority),
            workload.since,
            name,
            uid,
        )
    };
    assert!(queue.is_sorted_by_key(in_order), "the line is out of order");
    let last = queue
        .iter()
        .rposition(|workload| granted.contains(&workload.uid));
    let before = &queue[..last.unwrap_or(0)];
    let mut first = true;
    let passed = before
        .iter()
        .filter(|workload| !granted.contains(&workload.uid))
        .filter(|workload| {
            let stance = observed.stances.get(&workload.uid);
            let is_first = first;
            let undecided = workload.asks_for_several() && stance.is_none();
            first &= undecided || stance == Some(&Stance::Stopped) || !fits_in(observed, workload);
            match stance {
                // Nothing is kept for what does not wait.
                Some(Stance::Keeps) => is_first && !workload.is_skippable(),
                Some(Stance::PassedOver | Stance::Stopped) => false,
                // Free slots that are too few for it are for those behind it.
                Some(Stance::Grants) | None => {
                    slots(observed.settings, workload) == 1 && fits_in(observed, workload)
                }
            }
        });

    let suspended = |workload: &Workload| {
        let uid = &workload.uid;
        plan.suspends.iter().any(|s| s.workload.uid == *uid)
            || plan.ends.iter().any(|end| end.workload.uid == *uid)
    };
    let robbed = observed.bound.iter().filter(|workload| {
        runs_without_slot(observed, workload)
            && !granted.contains(&workload.uid)
            && !suspended(workload)
    });
    let without_place = robbed.filter(|workload| {
        let mut held_by = workload.held_by();
        !held_by.any(|session| body.holds(session))
    });
    let left = body.limit().saturating_sub(body.holders.len());
    let passed = passed.map(|workload| slots(observed.settings, workload));
    assert!(
        passed.sum::<usize>() + without_place.count() <= left,
        "somebody was passed: {transaction:?}"
    );
}

/// Whether the limit in force now allows as many slots as a workload asks for.
fn fits_in(observed: &Observed<'_>, workload: &Workload) -> bool {
    let settings = observed.settings;
    let opening = settings.restrictions.windows.at(observed.time);
    let restrictions = &settings.restrictions;
    let most = restrictions.limit(settings.limit, opening, workload.priority);
    usize::try_from(most).is_ok_and(|most| slots(settings, workload) <= most)
}

/// Whether a workload in the queue can be granted a slot now, or in the next pass because this one releases the slot
/// that it gave back.
fn waits(observed: &Observed<'_>, transaction: &Transaction, workload: &Workload) -> bool {
    let taken = observed.ours.iter().any(|ours| {
        let session = &ours.session;
        let leaves = transaction.releases.iter().any(|r| r.session == *session);
        let held = observed.reading.is_some_and(|r| r.holds(session));
        let given_back = workload.reported.contains(session);
        ours.identity.uid == workload.uid
            && (workload.started_by(session) || (held || given_back) && !leaves)
    });
    let away = observed.excluded.barred.contains(&workload.uid)
        || observed.excluded.busy.contains(&workload.uid);
    // A proof may say that a workload was deleted before the watch does.
    let mut ours = observed.ours.iter();
    let gone = ours.any(|ours| ours.identity.uid == workload.uid && ours.workload.is_none());
    observed.settings.may_start(workload) && !taken && !away && !gone
}

/// Whether a running workload that was started here has no slot in the reading.
fn runs_without_slot(observed: &Observed<'_>, workload: &Workload) -> bool {
    let lock_key = observed.settings.prefix.lock_key();
    let here = workload.started_at(&lock_key);
    let held = observed.ours.iter().any(|ours| {
        let held = observed.reading.is_some_and(|r| r.holds(&ours.session));
        ours.identity.uid == workload.uid && held
    });
    here && workload.phase == Phase::Running
        && !held
        && !observed.excluded.busy.contains(&workload.uid)
}

/// The body of `.lock` that a transaction writes, or its equivalent for a mutex.
fn written(transaction: &Transaction) -> Option<Arc<Body>> {
    let mut operations = transaction.operations.iter();
    operations.find_map(|operation| match operation {
        Op::Cas { value, .. } => Body::read(value),
        Op::Lock { key, session, .. } if key.ends_with("/.lock") => {
            Some(Arc::new(Body::of_mutex(session.clone())))
        }
        _ => None,
    })
}
