//! What must be true once nothing is left to do.

use std::{collections::BTreeSet, sync::Arc};

use super::{operator::Operator, outside::Outside, sight::Body, workloads::Object};
use crate::{AHEAD, Agreement, MOST_OVERTAKEN, OnSlotLost, Phase, Plan, Settings, Uid, Workload};

/// What must be true while calls hang and everything else is done: only the workloads that they are about wait for
/// them. One that is being written to may have pods, so a slot is kept for it.
pub(super) fn check_beside_hung(outside: &Outside, operator: &Operator) {
    let settings = &outside.settings;
    let sight = outside.sight();
    let agreed = |body: &&Arc<Body>| body.limit == settings.limit && !settings.paused;
    let Some(body) = sight.body.as_ref().filter(agreed) else {
        return;
    };
    let holding = sight.workloads();
    let read = |uid: &Uid| outside.workloads.read(uid, outside.now());
    let writes = operator.hung().filter(|(_, written)| *written);
    let written = writes.filter(|(uid, _)| !holding.contains(*uid));
    let kept = written.map(|(uid, _)| read(uid).map_or(1, |workload| slots(settings, &workload)));
    let taken = sight.holding().count() + kept.sum::<usize>();
    let hangs = |uid: &Uid| operator.hung().any(|(hung, _)| hung == uid);
    let objects = outside.workloads.objects();
    let listed = objects.filter_map(|object| read(&object.uid));
    let waiting = listed.filter(|workload| !hangs(&workload.uid) && settings.may_start(workload));
    // Free slots that are too few for the first are kept for it.
    let first = waiting.min_by_key(super::super::workload::Workload::place);
    let idle =
        first.is_some_and(|first| body.limit().saturating_sub(taken) >= slots(settings, &first));
    assert!(!idle, "a slot is idle while a call hangs");
}

/// How many slots of a semaphore a workload asks for.
pub(super) fn slots(settings: &Settings, workload: &Workload) -> usize {
    let request = settings.request(workload);
    request.map_or(1, |request| usize::try_from(request.slots.get()).unwrap())
}

/// What must be true of a rate: all slots are free again, and nobody waits for one.
fn check_rate_at_rest(outside: &Outside, plan: &Plan) {
    let (settings, sight) = (&outside.settings, outside.sight());
    let held = sight.body.as_ref().map_or(0, |body| body.holders.len());
    assert_eq!(held, 0, "a slot is still held");
    assert!(
        sight.contenders.is_empty(),
        "{:?} is left",
        sight.contenders
    );
    let objects = outside.workloads.objects();
    let mut waiting =
        objects.filter_map(|object| outside.workloads.read(&object.uid, outside.now()));
    let waits = waiting.any(|workload| settings.may_start(&workload));
    let open = plan.agreement == Some(Agreement::Agreed) && !settings.paused;
    assert!(!waits || !open, "a slot is idle");
}

/// What must be true once nothing is left to do.
pub(super) fn check_at_rest(outside: &Outside, plan: &Plan) {
    let settings = &outside.settings;
    let sight = outside.sight();
    let holding = sight.workloads();
    let workload = |uid: &Uid| outside.workloads.read(uid, outside.now());

    if settings.is_rate() {
        return check_rate_at_rest(outside, plan);
    }
    for uid in sight.contenders.values().flatten() {
        let phase = workload(uid).map(|workload| workload.phase);
        let waits = phase == Some(Phase::Idle) && !holding.contains(uid);
        assert!(
            phase == Some(Phase::Running) || waits,
            "{uid} is {phase:?} and has a contender"
        );
    }
    for object in outside.workloads.objects().filter(|_| !sight.is_misused()) {
        let asks = object.wants.as_deref() == Some(settings.name.as_str());
        let ours = asks || object.granted.is_some();
        let held = holding.contains(&object.uid);
        // Without a slot it keeps running only if its user asked for that.
        let goes_on = settings.on_slot_lost == OnSlotLost::Continue && object.granted.is_some();
        assert!(
            !(object.runs() && ours) || held || goes_on,
            "it runs: {object:?}"
        );
        let slots = sight.holding().filter(|(_, uid)| *uid == Some(&object.uid));
        let all: usize = object
            .granted
            .iter()
            .map(|granted| granted.slots.len())
            .sum();
        // A contender of what runs and neither asks nor was granted anything stays until that has ended.
        let granted = object.granted.is_some();
        assert!(
            !(object.runs() && held && granted) || goes_on || slots.count() == all,
            "of {all}: {object:?}"
        );
    }
    for object in outside
        .workloads
        .objects()
        .filter(|object| object.may_run())
    {
        assert!(
            object.hold || !object.stopped_by_user,
            "no hold: {object:?}"
        );
        let rests = object.hold && object.suspend && !outside.workloads.has_pods(&object.uid);
        let mut slots = object.granted.iter().flat_map(|granted| &granted.slots);
        let stale = slots.any(|slot| {
            *slot.lock_key == *settings.prefix.lock_key() && !outside.is_in_holders(&slot.session)
        });
        assert!(!(rests && stale), "a stale grant: {object:?}");
    }
    let Some(body) = &sight.body else {
        let left = sight.is_misused() || settings.terminating;
        assert!(left, "there is no lock");
        return;
    };
    let held = sight.holding().count();
    assert_eq!(body.holders.len(), held, "a dead holder is left");

    if plan.agreement == Some(Agreement::Agreed) {
        let limit = settings.limit;
        assert_eq!(body.limit, limit);
        let others = outside.applied.iter().any(|applied| *applied != limit);
        assert!(!others, "a limit of others is ours: {:?}", outside.applied);
        assert!(!outside.observer.limit_is_ours || outside.applied == [limit]);
        let objects = outside.workloads.objects();
        let known = objects.filter_map(|object| workload(&object.uid));
        let startable = known.filter(|workload| settings.may_start(workload));
        // Free slots that are too few for the first are kept for it.
        let first = startable.min_by_key(super::super::workload::Workload::place);
        let idle =
            first.is_some_and(|first| body.limit().saturating_sub(held) >= slots(settings, &first));
        assert!(!idle || settings.paused, "a slot is idle");
        let waiting =
            |uid: &&Uid| workload(uid).is_some_and(|workload| workload.phase == Phase::Idle);
        let contenders = sight.contenders.iter();
        let without_slot = contenders.filter(|(session, _)| !body.holds(session));
        let shown = without_slot
            .filter_map(|(_, uid)| uid.as_ref())
            .filter(waiting);
        // A workload that has lost several slots has a contender for each.
        let lost = |uid: &&Uid| workload(uid).is_some_and(|workload| workload.lost());
        let (lost, others): (Vec<_>, Vec<_>) = shown.partition(lost);
        let shown = others.len() + BTreeSet::from_iter(lost).len();
        let most = body.limit().min(AHEAD) + MOST_OVERTAKEN;
        assert!(settings.paused || shown <= most, "{shown} are shown");
        // Slots that are kept for another workload are not taken.
        let free = body.limit().saturating_sub(held);
        let waits = |object: &Object| {
            let found = workload(&object.uid);
            let workload = found.filter(|workload| settings.may_start(workload));
            object.is_skippable()
                && workload.is_some_and(|workload| free < slots(settings, &workload))
        };
        let waiting = outside.workloads.objects().any(waits);
        assert!(!waiting || settings.paused, "it was not to wait");
    }
}
