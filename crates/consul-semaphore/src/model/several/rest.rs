//! What must be true once nothing is left to do.

use std::sync::Arc;

use super::{super::sight::Sight, outside::Outside};
use crate::{Phase, Uid, Workload};

/// All or nothing, and no slot that somebody could have is idle.
pub(super) fn check_at_rest(outside: &Outside) {
    check_holders(outside);
    check_idle(outside);
}

/// Whoever runs holds all that it asked for when it was started, and nobody else holds anything.
fn check_holders(outside: &Outside) {
    let sights = outside.sights();
    for object in outside.workloads.objects() {
        let mut held = Outside::held(&sights, &object.uid);
        let mut needs = [0; 3];
        for slot in object.granted.iter().flat_map(|granted| &granted.slots) {
            needs[outside.place_of(&slot.lock_key).expect("a semaphore")] += 1;
        }
        // A rate's slots count starts, and not what runs.
        for (place, _) in outside.rates() {
            (held[place], needs[place]) = (0, 0);
        }
        if object.runs() {
            assert_eq!(held, needs, "it runs: {object:?}");
        } else {
            assert_eq!(held, [0; 3], "it holds slots: {object:?}");
        }
    }
    for (sight, place) in sights.iter().zip(&outside.places) {
        let name = &place.settings.name;
        assert!(sight.dead_holders().is_empty(), "{name} has a dead holder");
        let holders = sight.workloads().into_iter();
        for uid in holders.filter(|_| !place.settings.is_rate()) {
            let there = outside.workloads.get(&uid).is_some();
            assert!(there, "{uid} is gone and holds a slot of {name}");
        }
    }
}

/// The workloads that wait and can be started, in the order of the queues.
pub(super) fn waiting(outside: &Outside) -> Vec<Arc<Workload>> {
    let objects = outside.workloads.objects();
    let startable = objects.filter(|object| object.forbidden.is_none());
    let read = startable.filter_map(|object| outside.workloads.read(&object.uid, outside.now()));
    let waiting = read.filter(Workload::is_queued).map(Arc::new);
    let can_ever_start = |workload: &Arc<Workload>| {
        let mut asks = outside.asks(workload).into_iter().zip(&outside.places);
        asks.all(|(asks, place)| asks <= place.ever(workload.priority))
    };
    let mut waiting: Vec<_> = waiting.filter(can_ever_start).collect();
    waiting.sort_by_key(|workload| workload.place());
    waiting
}

/// No more workloads wait in a queue than may.
pub(super) fn check_bounds(outside: &Outside) {
    let waiting = waiting(outside);
    for (number, place) in outside.places.iter().enumerate() {
        let there = waiting
            .iter()
            .filter(|workload| outside.asks(workload)[number] > 0);
        let (waiting, most) = (there.count(), place.settings.wait.max_waiting);
        let most = usize::try_from(most.unwrap_or(u32::MAX)).unwrap();
        assert!(
            waiting <= most,
            "{waiting} wait where {most} may: {:?}",
            place.settings.name
        );
    }
}

/// How many slots of each semaphore may be held after a grant to this workload; `None` if it grants nothing now.
fn in_force(outside: &Outside, sights: &[Sight], workload: &Workload) -> [Option<usize>; 3] {
    let mut limits = [None; 3];
    for ((limit, place), sight) in limits.iter_mut().zip(&outside.places).zip(sights) {
        // Another program's limit is left alone, and nothing is granted.
        let body = sight.body.as_ref();
        let agreed = body.is_none_or(|body| body.limit == place.settings.limit);
        *limit = place.most(workload.priority).filter(|_| agreed);
    }
    limits
}

/// Nobody waits for slots that are free, except those that are kept for workloads before it: for each that is the
/// first in all its queues, among those that can be granted at all, what it asks for.
fn check_idle(outside: &Outside) {
    let sights = outside.sights();
    let mut taken = [0; 3];
    for (taken, sight) in taken.iter_mut().zip(&sights) {
        *taken = sight.body.as_ref().map_or(0, |body| body.holders.len());
    }
    let mut before = [false; 3];
    for workload in waiting(outside) {
        let (asks, limits) = (
            outside.asks(&workload),
            in_force(outside, &sights, &workload),
        );
        let there = |place: &usize| asks[*place] > 0;
        let places: Vec<usize> = (0..3).filter(there).collect();
        let mut all = places.iter();
        if all.any(|place| limits[*place].is_none_or(|limit| limit < asks[*place])) {
            continue;
        }
        let fits = |place: &usize| taken[*place] + asks[*place] <= limits[*place].unwrap_or(0);
        let fits = places.iter().all(fits);
        assert!(
            !fits,
            "{workload:?} could start and waits: {taken:?} are taken"
        );
        let is_first = places.iter().all(|place| !before[*place]);
        for place in places {
            before[place] = true;
            if is_first {
                taken[place] += asks[place];
            }
        }
    }
}

/// In the end, when everybody is served and gone: all slots are free, and nothing of ours is left.
pub(super) fn check_all_free(outside: &Outside) {
    for (sight, place) in outside.sights().iter().zip(&outside.places) {
        let name = &place.settings.name;
        let holders = sight.body.as_ref().map_or(0, |body| body.holders.len());
        assert_eq!(holders, 0, "{name} has holders: {sight:?}");
        assert!(sight.contenders.is_empty(), "{name}: {sight:?}");
    }
    let sessions: Vec<_> = outside.consul.sessions().collect();
    assert!(sessions.is_empty(), "sessions are left: {sessions:?}");
}

/// The workloads that run in their slots, the longest-running first.
pub(super) fn running(outside: &Outside) -> Vec<Uid> {
    let runs = |uid: &&Uid| {
        let workload = outside.workloads.read(uid, outside.now());
        workload.is_some_and(|workload| workload.phase == Phase::Running)
    };
    let mut running: Vec<Uid> = Vec::new();
    for uid in outside.started.iter().filter(runs) {
        running.retain(|other| other != uid);
        running.push(uid.clone());
    }
    running
}
