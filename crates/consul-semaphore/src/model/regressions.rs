//! Scripts that long random runs have found, as short as they could be made.

use super::{
    alone,
    foreign::Style,
    operator::Lost,
    requests::Deletion,
    workloads::Refusal,
    world::{
        Event::{self, *},
        Setup, World,
    },
};
use crate::Mode;

/// A step whose answer is lost, after the call was carried out or without it.
fn lost(done: bool) -> Event {
    Step(Some(Lost { done, hangs: false }))
}

fn create() -> Event {
    create_with(0, 0)
}

fn create_with(workload: usize, priority: i32) -> Event {
    Create { workload, priority }
}

/// A semaphore without a lock-delay, whose transactions have few operations.
fn setup(limit: u32) -> Setup {
    Setup {
        lock_delay: 0,
        ..alone(limit, 4)
    }
}

fn mutex() -> Setup {
    Setup {
        mode: Mode::Mutex,
        operations: 64,
        ..setup(1)
    }
}

/// A semaphore that another program uses, too.
fn beside_a_program(limit: u32) -> Setup {
    Setup {
        clients: vec![(Style::Go, usize::try_from(limit).unwrap())],
        ..setup(limit)
    }
}

/// A start had an answer and was not seen yet when the slot was taken and granted once more. The contender told a
/// smaller index then than the workload.
#[test]
fn a_session_that_is_granted_a_slot_once_more_keeps_its_index() {
    let script = [
        create(),
        create_with(1, 0),
        CreateSkippable(0),
        Step(None),
        Hold(0, true),
        create(),
        Pass,
        CreateSkippable(0),
        Step(None),
        Pass,
        Control,
        EndPod(7),
        Fail(2),
        Step(None),
        Pass,
        Arrive(0),
        Delete(6, Deletion::Background),
        Control,
        EndPod(0),
        EndPod(0),
        create(),
        CreateSkippable(0),
        Pass,
        Step(None),
        create(),
        Step(None),
        TakeOut(7),
        Expire(0),
        lost(true),
        Step(None),
        SeeJobs,
        create(),
    ];
    World::run(&beside_a_program(2), &script).settle();
}

/// Two contenders kept their indices after somebody had deleted `.lock`, so the next one was beyond the limit.
#[test]
fn an_index_is_beyond_the_limit_while_those_below_are_told_by_contenders_without_a_slot() {
    let script = [
        create_with(1, 0),
        Forbid(0, Refusal::Forbidden),
        create(),
        Step(None),
        SetLimit(2),
        Forbid(8, Refusal::Forbidden),
        Pass,
        create_with(0, 1),
        Step(None),
        lost(true),
        create_with(0, 1),
        SetLimit(1),
        Pass,
        DeleteLock,
        SeeJobs,
    ];
    World::run(&setup(1), &script).settle();
}

/// A transaction without an answer was applied after the last reading and before its session was ended. The semaphore
/// was taken for cleaned up, and a dead holder stayed in `.lock`.
#[test]
fn a_transaction_that_is_late_leaves_nothing_of_a_deleted_semaphore() {
    let before = [Step(None), create(), Pass, create(), Step(None)];
    let after = [lost(false), StepOf(0, None), Step(None), create(), Land];
    let mut world = World::run(&beside_a_program(1), &before);
    world.happen(&Terminate);
    for event in &after {
        world.happen(event);
    }
    world.settle();
}

/// A contender came back and was deleted once more between the reading of a prune and its transaction, and `.lock` did
/// not change.
#[test]
fn a_death_that_no_transaction_can_see_does_not_begin_a_lock_delay() {
    let setup = Setup {
        lock_delay: 3,
        ..beside_a_program(1)
    };
    let script = [
        create_with(1, 0),
        Arrive(0),
        create_with(1, 0),
        CreateSkippable(1),
        Step(None),
        CreateSkippable(1),
        Expire(0),
        Delete(4, Deletion::Background),
        Pass,
        Pass,
        create(),
        Control,
        EndPod(0),
        TakeOut(0),
        LookAndClaim(0),
        DeleteContender(0),
        SeeConsul,
        SeeConsul,
        Step(None),
        Arrive(0),
        Die(0),
    ];
    World::run(&setup, &script).settle();
}

/// The question who holds the slot hung, and a workload that must not wait was not deleted meanwhile.
#[test]
fn what_must_not_wait_stays_until_the_holders_have_names() {
    let script = [
        Arrive(0),
        Step(None),
        SeeConsul,
        Claim(0),
        Step(None),
        Step(None),
        SeeConsul,
        Decide,
        StepOf(
            1,
            Some(Lost {
                done: false,
                hangs: true,
            }),
        ),
        CreateSkippable(0),
    ];
    World::run(&beside_a_program(1), &script).settle();
}

/// A workload that had given its slot back was deleted, which a proof said before the watch, and the next one was
/// granted the slot.
#[test]
fn what_a_proof_shows_to_be_deleted_is_passed() {
    let script = [
        Step(None),
        create_with(0, 1),
        Forbid(0, Refusal::Forbidden),
        Step(None),
        SeeJobs,
        Step(None),
        Step(None),
        create(),
        Step(None),
        Pass,
        Delete(8, Deletion::Background),
        Step(None),
    ];
    World::run(&mutex(), &script).settle();
}
