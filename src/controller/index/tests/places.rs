//! Each workload has the place that it would have if all were new, however workloads and semaphores come, change and
//! go.

use proptest::{collection::vec, prelude::*};

use super::*;

const SEMAPHORES: [&str; 3] = ["a", "b", "c"];
const PREFIXES: [&str; 3] = ["p", "p/k", "q"];
const WORKLOADS: [&str; 4] = ["u", "v", "w", "x"];

#[derive(Clone, Debug)]
enum Change {
    Add(usize, OfferedSemaphore),
    /// Changes what may change of a semaphore that is there.
    Update(usize, OfferedSemaphore),
    Remove(usize),
    Put(usize, AskingWorkload),
    Delete(usize),
    /// A pass asks whom newer ones supersede.
    Pass(usize),
}

/// Properties of a semaphore that vary in this test.
#[derive(Clone, Copy, Debug)]
struct OfferedSemaphore {
    prefix: usize,
    keyed: bool,
    ours: bool,
    limit: u32,
    reserved: u32,
    timeout: Option<u64>,
    is_refused: bool,
}

impl OfferedSemaphore {
    fn manager(&self) -> Manager {
        if self.ours {
            Manager::ThisOperator
        } else {
            Manager::Others
        }
    }

    fn offer(&self) -> Offer {
        Offer {
            limit: self.limit,
            wait_timeout: self.timeout.map(Duration::from_secs),
            restrictions: Restrictions {
                reserved: Some(consul_semaphore::Reserved {
                    slots: self.reserved,
                    min_priority: 1,
                }),
                ..Restrictions::default()
            },
            credential: (!self.is_refused).then_some(Credential::Operator),
            ..offer(PREFIXES[self.prefix], self.keyed)
        }
    }
}

/// Properties of a workload that vary in this test.
#[derive(Clone, Debug)]
struct AskingWorkload {
    semaphores: Vec<usize>,
    has_key: bool,
    slots: u32,
    priority: i32,
    replaces: bool,
    phase: usize,
    granted: Option<usize>,
    timeout: Option<u64>,
    is_barred: bool,
}

impl AskingWorkload {
    fn tracked(&self, name: &str, version: usize) -> TrackedWorkload {
        tracked(name, |tracked| {
            if self.is_barred {
                let names = self.semaphores.iter();
                tracked.barred_from = names.map(|at| SEMAPHORES[*at].into()).collect();
                tracked.obstacle = Some(Obstacle::Malformed(AnnotationError::Empty));
            }
            let requests = self.semaphores.iter().map(|at| SlotRequest {
                semaphore: SEMAPHORES[*at].into(),
                key: self.has_key.then(|| "k".parse().unwrap()),
                slots: self.slots.try_into().unwrap(),
            });
            let workload = workload(tracked);
            workload.version = version.to_string().as_str().into();
            workload.requests = requests.filter(|_| !self.is_barred).collect();
            workload.priority = self.priority;
            workload.wait.timeout = self.timeout.map(Duration::from_secs);
            workload.phase = [Phase::Idle, Phase::Running, Phase::Stopping][self.phase];
            if self.replaces {
                workload.on_contention = OnContention::ReplaceRunning;
            }
            if let Some(at) = self.granted {
                workload.granted = Some(Granted::by(&format!("{}/s", PREFIXES[at]), "s"));
                workload.reported = vec!["s".into()];
            }
        })
    }
}

fn semaphored() -> impl Strategy<Value = OfferedSemaphore> {
    let varies = (
        0..3_usize,
        any::<bool>(),
        prop::bool::weighted(0.8),
        1..4_u32,
    );
    let restricted = (
        0..2_u32,
        prop::option::of(5..7_u64),
        prop::bool::weighted(0.2),
    );
    (varies, restricted).prop_map(
        |((prefix, keyed, ours, limit), (reserved, timeout, is_refused))| OfferedSemaphore {
            prefix,
            keyed,
            ours,
            limit,
            reserved,
            timeout,
            is_refused,
        },
    )
}

fn asking() -> impl Strategy<Value = AskingWorkload> {
    let asks = (
        prop::sample::subsequence(vec![0_usize, 1, 2], 1..=2),
        any::<bool>(),
        1..4_u32,
        0..2_i32,
        prop::bool::weighted(0.1),
    );
    let is = (
        any::<bool>(),
        0..3_usize,
        prop::option::weighted(0.3, 0..3_usize),
        prop::option::of(8..9_u64),
    );
    (asks, is).prop_map(
        |(
            (semaphores, has_key, slots, priority, is_barred),
            (replaces, phase, granted, timeout),
        )| {
            AskingWorkload {
                semaphores,
                has_key,
                slots,
                priority,
                replaces,
                phase,
                granted,
                timeout,
                is_barred,
            }
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..3_usize, semaphored()).prop_map(|(at, it)| Change::Add(at, it)),
        3 => (0..3_usize, semaphored()).prop_map(|(at, it)| Change::Update(at, it)),
        1 => (0..3_usize).prop_map(Change::Remove),
        6 => (0..4_usize, asking()).prop_map(|(at, it)| Change::Put(at, it)),
        1 => (0..4_usize).prop_map(Change::Delete),
        1 => (0..3_usize).prop_map(Change::Pass),
    ]
}

/// Semaphores and workloads that exist.
#[derive(Default)]
struct World {
    semaphores: [Option<OfferedSemaphore>; 3],
    workloads: [Option<TrackedWorkload>; 4],
}

impl World {
    /// The index as it is if everything was seen at once.
    fn index(&self) -> Index {
        let index = empty();
        for (name, semaphored) in SEMAPHORES.iter().zip(&self.semaphores) {
            if let Some(it) = semaphored {
                block_on(index.add_semaphore(&reference(name), it.offer(), it.manager()));
            }
        }
        for tracked in self.workloads.iter().flatten() {
            put(&index, tracked.clone());
        }
        index
    }

    fn take(&mut self, change: &Change, version: usize, index: &Index) {
        match change {
            Change::Add(at, it) => {
                self.semaphores[*at] = Some(*it);
                block_on(index.add_semaphore(
                    &reference(SEMAPHORES[*at]),
                    it.offer(),
                    it.manager(),
                ));
            }
            Change::Update(at, it) => {
                let Some(known) = &mut self.semaphores[*at] else {
                    return;
                };
                let OfferedSemaphore {
                    prefix,
                    keyed,
                    ours,
                    ..
                } = *known;
                *known = OfferedSemaphore {
                    prefix,
                    keyed,
                    ours,
                    ..*it
                };
                block_on(index.update_semaphore(&reference(SEMAPHORES[*at]), known.offer()));
            }
            Change::Remove(at) => {
                self.semaphores[*at] = None;
                block_on(index.remove_semaphore(&reference(SEMAPHORES[*at])));
            }
            Change::Put(at, it) => {
                let tracked = it.tracked(WORKLOADS[*at], version);
                self.workloads[*at] = Some(tracked.clone());
                put(index, tracked);
            }
            Change::Delete(at) => {
                self.workloads[*at] = None;
                index.remove(&WORKLOADS[*at].into());
            }
            Change::Pass(at) => {
                index.superseded(&queue(SEMAPHORES[*at]), 9);
            }
        }
    }
}

/// Place of each workload in the index.
#[derive(Debug, PartialEq, Eq)]
struct Placement {
    queues: Vec<(QueueRef, [BTreeSet<String>; 3], Option<Timestamp>)>,
    unclaimed: Vec<(String, Unclaimed)>,
    ungranted: Vec<String>,
    replaceable: Vec<BTreeSet<String>>,
}

fn placement(index: &Index) -> Placement {
    let set = |workloads: Vec<Arc<Workload>>| -> BTreeSet<String> {
        workloads.iter().map(|it| it.name.to_string()).collect()
    };
    let queues = SEMAPHORES
        .iter()
        .flat_map(|name| [queue(name), queue_of(name, "k")]);
    let placed = queues.map(|queue| {
        let superseded = index.superseded(&queue, 9).into_iter();
        let sets = [
            set(index.all_waiting(&queue)),
            set(index.bound(&queue)),
            set(superseded.map(|one| one.workload).collect()),
        ];
        let next = index.next_overdue(&queue);
        (queue, sets, next)
    });
    let unclaimed = unclaimed(index).into_iter().map(|tracked| {
        let (_, why) = index.unclaimed(&tracked.workload.uid).unwrap();
        (tracked.workload.name.to_string(), why)
    });
    let ungranted = ungranted(index);
    let replaceable = WORKLOADS.iter().map(|name| {
        let replaceable = index.replaceable(&(*name).into());
        set(replaceable.into_iter().map(|one| one.workload).collect())
    });
    Placement {
        queues: placed.collect(),
        unclaimed: unclaimed.collect(),
        ungranted: ungranted
            .iter()
            .map(|it| it.workload.name.to_string())
            .collect(),
        replaceable: replaceable.collect(),
    }
}

proptest! {
    #[test]
    fn each_has_the_place_that_it_would_have_if_all_were_new(changes in vec(change(), 1..30)) {
        let (index, mut world) = (empty(), World::default());
        for (version, change) in changes.iter().enumerate() {
            world.take(change, 10 + version, &index);
            prop_assert_eq!(placement(&index), placement(&world.index()), "{:?}", change);
        }
        // Nothing is kept of what is gone.
        for at in 0..4 {
            world.take(&Change::Delete(at), 99, &index);
        }
        let state = index.state();
        prop_assert_eq!(state.workloads.iter().count(), 0);
        prop_assert!(state.users.is_empty());
        prop_assert_eq!(state.unclaimed.iter().count(), 0);
    }
}
