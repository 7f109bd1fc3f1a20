//! Random scripts.

use std::num::NonZeroU32;

use proptest::{collection::vec, prelude::*, strategy::Union};

use super::{
    foreign::Style,
    operator::Lost,
    requests::Deletion,
    workloads::Refusal,
    world::{Event, Setup},
};
use crate::{LimitPolicy, Mode, lock::SEMAPHORE_FLAGS};

/// An index into a list whose length is not known yet.
fn any_one() -> impl Strategy<Value = usize> {
    0..12_usize
}

/// How many operations a server may take in a transaction.
pub(super) fn operations() -> impl Strategy<Value = usize> {
    prop_oneof![Just(4_usize), Just(64), Just(128)]
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    let client = (
        prop_oneof![3 => Just(Style::Go), 1 => Just(Style::Guide)],
        1..4_usize,
    );
    let operations = operations();
    let policy = prop_oneof![3 => Just(LimitPolicy::Refuse), 1 => Just(LimitPolicy::Enforce)];
    let cooldown = prop_oneof![2 => Just(0), 2 => 1..20_u64, 1 => Just(200)];
    (
        1..4_u32,
        policy,
        operations,
        (0..4_u64, cooldown),
        vec(client, 0..4),
    )
        .prop_map(
            |(limit, policy, operations, (lock_delay, cooldown), mut clients)| {
                // All but one of three use the same limit, as they must.
                for (_, theirs) in clients.iter_mut().take(2) {
                    *theirs = usize::try_from(limit).unwrap();
                }
                Setup {
                    mode: Mode::Semaphore,
                    period: None,
                    limit,
                    policy,
                    operations,
                    lock_delay,
                    cooldown,
                    clients,
                    slots: NonZeroU32::MIN,
                }
            },
        )
}

/// A mutex, and other programs that lock it.
pub(super) fn mutex() -> impl Strategy<Value = Setup> {
    let client = prop_oneof![3 => Just(Style::Mutex), 1 => Just(Style::Script)];
    (0..4_u64, vec(client, 0..4)).prop_map(|(lock_delay, clients)| Setup {
        mode: Mode::Mutex,
        period: None,
        limit: 1,
        policy: LimitPolicy::Refuse,
        operations: 64,
        lock_delay,
        cooldown: 0,
        clients: clients.into_iter().map(|style| (style, 1)).collect(),
        slots: NonZeroU32::MIN,
    })
}

/// The everyday actions of users, pods and the Job controller.
pub(super) fn workloads() -> BoxedStrategy<Event> {
    let deletion = prop_oneof![
        Just(Deletion::Background),
        Just(Deletion::Foreground),
        Just(Deletion::Orphan)
    ];
    prop_oneof![
        6 => (any_one(), -1..2).prop_map(|(workload, priority)| Event::Create { workload, priority }),
        2 => any_one().prop_map(Event::CreateSkippable),
        6 => Just(Event::Control),
        5 => any_one().prop_map(Event::EndPod),
        1 => any_one().prop_map(Event::Fail),
        1 => (any_one(), deletion).prop_map(|(workload, how)| Event::Delete(workload, how)),
        1 => Just(Event::CleanUp),
        2 => (any_one(), prop::bool::weighted(0.3)).prop_map(|(workload, hold)| Event::Hold(workload, hold)),
        1 => any_one().prop_map(Event::Suspend),
        1 => any_one().prop_map(Event::Unsuspend),
        1 => (any_one(), prop_oneof![1 => Just(None), 1 => Just(Some("other")), 4 => Just(Some("db"))])
            .prop_map(|(workload, name)| Event::AskFor(workload, name)),
        1 => any_one().prop_map(Event::Touch),
        1 => (any_one(), prop_oneof![Just(Refusal::Forbidden), Just(Refusal::Conflict)])
            .prop_map(|(workload, refusal)| Event::Forbid(workload, refusal)),
    ]
    .boxed()
}

/// Other programs on the prefix.
pub(super) fn clients() -> BoxedStrategy<Event> {
    prop_oneof![
        2 => any_one().prop_map(Event::Arrive),
        1 => any_one().prop_map(Event::Look),
        1 => any_one().prop_map(Event::Claim),
        4 => any_one().prop_map(Event::LookAndClaim),
        1 => any_one().prop_map(Event::Leave),
        1 => any_one().prop_map(Event::Die),
    ]
    .boxed()
}

/// Sessions that end, people who write to Consul by hand, and servers that are replaced.
pub(super) fn mischief() -> BoxedStrategy<Event> {
    prop_oneof![
        3 => any_one().prop_map(Event::Expire),
        1 => any_one().prop_map(Event::DeleteContender),
        2 => any_one().prop_map(Event::TakeOut),
        1 => Just(Event::DeleteLock),
        1 => operations().prop_map(Event::Capacity),
        1 => Just(Event::Restore),
    ]
    .boxed()
}

/// A `.lock` of any kind, occasionally an almost valid one.
pub(super) fn corruption() -> BoxedStrategy<Event> {
    let limit = prop_oneof![6 => Just("1"), 1 => Just("0"), 1 => Just("null"), 1 => Just("[]")];
    let holders = prop_oneof![
        3 => Just("{}"),
        3 => Just("[]"),
        1 => Just("null"),
        1 => Just("1"),
        1 => Just("[1]"),
        1 => Just(r#"{"x":true}"#),
        1 => Just(r#"["x","x"]"#),
        1 => Just(r#"{"":true}"#),
        1 => Just(r#"["b/c"]"#),
    ];
    let almost = (limit, holders).prop_map(|(limit, holders)| {
        format!(r#"{{"Limit":{limit},"Holders":{holders},"More":[1]}}"#).into_bytes()
    });
    let value = prop_oneof![
        1 => Just(Vec::new()),
        1 => any::<Vec<u8>>(),
        1 => any::<String>().prop_map(String::into_bytes),
        3 => almost,
    ];
    let flags = prop_oneof![
        4 => Just(0),
        4 => Just(SEMAPHORE_FLAGS),
        1 => Just(0x2ddc_cbc0_58a5_0c18_u64),
        1 => any::<u64>(),
    ];
    (value, flags, prop::bool::weighted(0.2))
        .prop_map(|(value, flags, locked)| Event::Corrupt {
            value,
            flags,
            locked,
        })
        .boxed()
}

/// Changes to the spec, and to the limit by others.
pub(super) fn limits() -> BoxedStrategy<Event> {
    prop_oneof![
        3 => (1..4_u32).prop_map(Event::SetLimit),
        1 => (1..4_u32).prop_map(Event::WriteLimit),
    ]
    .boxed()
}

/// The operator's steps, and its failures.
pub(super) fn operator() -> BoxedStrategy<Event> {
    let lost = prop_oneof![
        32 => Just(None),
        1 => Just(Some(Lost::answer())),
        1 => Just(Some(Lost::call())),
    ];
    prop_oneof![
        6 => Just(Event::SeeJobs),
        6 => Just(Event::SeeConsul),
        20 => lost.prop_map(Event::Step),
        10 => Just(Event::Pass),
        1 => Just(Event::Crash),
        1 => Just(Event::Land),
    ]
    .boxed()
}

/// Things that happen out of order, twice, late or not at all. A hanging call stops everything that waits for it, so
/// it is given up soon.
pub(super) fn disorder() -> BoxedStrategy<Event> {
    let lost = (any::<bool>(), any::<bool>()).prop_map(|(done, hangs)| Lost { done, hangs });
    let lost = prop_oneof![3 => Just(None), 1 => lost.prop_map(Some)];
    prop_oneof![
        6 => Just(Event::Decide),
        6 => (any_one(), lost).prop_map(|(position, lost)| Event::StepOf(position, lost)),
        2 => any_one().prop_map(Event::Echo),
        1 => Just(Event::LoseTheWatch),
        1 => Just(Event::GiveUp),
    ]
    .boxed()
}

/// A replica that continues for a while after another one has taken over.
pub(super) fn replicas() -> BoxedStrategy<Event> {
    prop_oneof![1 => Just(Event::Depose), 3 => Just(Event::Straggle)].boxed()
}

/// Time, and pauses.
pub(super) fn rest() -> BoxedStrategy<Event> {
    prop_oneof![
        3 => (1..9_u64).prop_map(Event::Wait),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => (0..20_u64).prop_map(Event::SetCooldown),
    ]
    .boxed()
}

/// Anything, while calls are in flight side by side.
pub(super) fn any_order() -> impl Strategy<Value = (Setup, Vec<Event>)> {
    let kinds = [
        (6, workloads()),
        (3, clients()),
        (1, mischief()),
        (1, limits()),
        (6, operator()),
        (10, disorder()),
        (1, rest()),
    ];
    (setup(), script(kinds, 250))
}

/// How many slots others hold, and the priorities of workloads that come one after the other.
pub(super) fn crowd() -> impl Strategy<Value = (u32, Vec<i32>)> {
    (1..25_u32, vec(-4..5, 10..50))
}

/// A script of these kinds of events, in these proportions.
pub(super) fn script(
    kinds: impl IntoIterator<Item = (u32, BoxedStrategy<Event>)>,
    length: usize,
) -> impl Strategy<Value = Vec<Event>> {
    vec(Union::new_weighted(kinds.into_iter().collect()), 0..length)
}
