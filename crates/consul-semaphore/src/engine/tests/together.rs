//! Random worlds of workloads that ask for slots of up to three semaphores. After every event, once all is at rest:
//! no semaphore has more holders than its limit; what runs holds all that it asked for, what does not run holds
//! nothing; and the first workload of all has its slots if they are free. In the end everybody was served.

use std::num::NonZeroU32;

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::{ContenderBody, Place, SlotRequest};

const NAMES: [&str; 3] = ["x", "y", "z"];

#[derive(Clone, Debug)]
enum Happening {
    /// A workload comes that asks for so many slots of each semaphore.
    Comes([u32; 3], i32),
    Ends(Index),
    Pauses(usize, bool),
    /// More time passes than that for which a workload is passed over.
    TimePasses,
    /// The next transaction goes through, and its answer is lost.
    AnswerIsLost,
    /// A session of a running workload is destroyed.
    SessionEnds(Index),
    Restarts,
}

fn happening() -> impl Strategy<Value = Happening> {
    let slots = || prop_oneof![3 => Just(0_u32), 3 => Just(1), 1 => Just(2)];
    let asks = (slots(), slots(), slots()).prop_map(|(x, y, z)| [x, y, z]);
    prop_oneof![
        6 => (asks, -1..2_i32).prop_map(|(asks, priority)| Happening::Comes(asks, priority)),
        5 => any::<Index>().prop_map(Happening::Ends),
        2 => (0..3_usize, prop::bool::weighted(0.4)).prop_map(|(one, paused)| Happening::Pauses(one, paused)),
        2 => Just(Happening::TimePasses),
        1 => Just(Happening::AnswerIsLost),
        1 => any::<Index>().prop_map(Happening::SessionEnds),
        1 => Just(Happening::Restarts),
    ]
}

struct Together {
    world: World,
    limits: [u32; 3],
    paused: [bool; 3],
    /// The workloads that have come and are not done, with what they ask for.
    workloads: BTreeMap<String, [u32; 3]>,
    come: usize,
}

impl Together {
    fn new(limits: [u32; 3]) -> Self {
        let mut together = Self {
            world: World::default(),
            limits,
            paused: [false; 3],
            workloads: BTreeMap::new(),
            come: 0,
        };
        together.add();
        together
    }

    fn add(&mut self) {
        for (name, limit) in NAMES.iter().zip(self.limits) {
            let settings = Settings {
                name: (*name).to_owned(),
                prefix: name.parse().unwrap(),
                ..spec(limit, false).settings
            };
            let now = self.world.now();
            let (engine, store) = (&mut self.world.engine, &self.world.store);
            engine.add_standalone(&semaphore(name), settings, 64, now, store);
        }
        for one in 0..3 {
            self.pause(one, self.paused[one]);
        }
    }

    fn pause(&mut self, one: usize, paused: bool) {
        self.paused[one] = paused;
        self.world.pauses(NAMES[one], paused);
    }

    fn happens(&mut self, happening: &Happening) {
        match happening {
            Happening::Comes(asks, priority) => self.comes(*asks, *priority),
            Happening::Ends(which) => {
                if let Some(name) = self.pick(*which) {
                    self.world.ends(&name);
                    self.workloads.remove(&name);
                }
            }
            Happening::Pauses(one, paused) => self.pause(*one, *paused),
            Happening::TimePasses => self.world.seconds += 61,
            Happening::AnswerIsLost => self.world.answers_are_lost = 1,
            Happening::SessionEnds(which) => {
                let held = self.held();
                if !held.is_empty() {
                    let (session, ..) = which.get(&held);
                    self.world.consul.destroy(session);
                    self.world.list_all();
                }
            }
            Happening::Restarts => {
                self.world.engine = Engine::default();
                self.add();
            }
        }
        self.rests();
        self.check();
    }

    fn comes(&mut self, asks: [u32; 3], priority: i32) {
        let asks: Vec<u32> = asks
            .iter()
            .zip(self.limits)
            .map(|(asks, limit)| (*asks).min(limit))
            .collect();
        if asks.iter().sum::<u32>() == 0 || self.come >= 12 {
            return;
        }
        self.come += 1;
        let name = format!("w{:02}", self.come);
        let requests = NAMES.iter().zip(&asks).filter_map(|(name, slots)| {
            Some(SlotRequest {
                slots: NonZeroU32::new(*slots)?,
                ..SlotRequest::one(*name, None)
            })
        });
        let workload = Workload {
            requests: requests.collect(),
            priority,
            since: self.world.seconds.try_into().unwrap(),
            ..samples::workload(&name, Phase::Idle, None, None)
        };
        self.world.joins(&Arc::new(workload));
        self.workloads.insert(name, [asks[0], asks[1], asks[2]]);
    }

    fn running(&self) -> Vec<String> {
        let workload = |name: &String| self.world.workload_with(&name.as_str().into()).unwrap();
        let names = self.workloads.keys();
        let running = names.filter(|name| workload(name).phase == Phase::Running);
        running.cloned().collect()
    }

    /// A running workload.
    fn pick(&self, which: Index) -> Option<String> {
        let running = self.running();
        (!running.is_empty()).then(|| which.get(&running).clone())
    }

    /// The watches bring what has changed, and pauses after a lost answer go by.
    fn rests(&mut self) {
        for _ in 0..3 {
            self.world.list_all();
            self.world.settle();
            self.world.seconds += 5;
        }
    }

    /// Who holds slots: the session, the semaphore, the workload and the raft index of the grant.
    fn held(&self) -> Vec<(SessionId, usize, String, u64)> {
        let mut held = Vec::new();
        for (one, name) in NAMES.iter().enumerate() {
            let prefix = name.parse().unwrap();
            let holders = self.holders(name);
            for entry in self.world.consul.below(&prefix) {
                let Some(body) = ContenderBody::read(&entry.value) else {
                    continue;
                };
                let session = entry.session.clone();
                if let Some(session) = session.filter(|session| holders.contains(session)) {
                    held.push((session, one, body.name, entry.modify_index));
                }
            }
        }
        held
    }

    fn holders(&self, name: &str) -> Vec<SessionId> {
        let lock = self.world.consul.get(&format!("{name}/.lock"));
        let body =
            lock.map(|lock| serde_json::from_slice::<serde_json::Value>(&lock.value).unwrap());
        let holders = body
            .iter()
            .flat_map(|body| body["Holders"].as_object().unwrap().keys());
        holders.map(|session| session.as_str().into()).collect()
    }

    fn check(&self) {
        let held = self.held();
        let mut free = self.limits;
        for (one, name) in NAMES.iter().enumerate() {
            let holders = u32::try_from(self.holders(name).len()).unwrap();
            assert!(holders <= self.limits[one], "{name} has {holders}");
            free[one] -= holders;
        }
        let mut waiting: Vec<(Place, [u32; 3])> = Vec::new();
        for (name, asks) in &self.workloads {
            let workload = self.world.workload_with(&name.as_str().into()).unwrap();
            let own: Vec<_> = held.iter().filter(|(_, _, of, _)| of == name).collect();
            let count =
                |one| u32::try_from(own.iter().filter(|(_, of, ..)| *of == one).count()).unwrap();
            let has = [0, 1, 2].map(count);
            if workload.phase == Phase::Running {
                assert_eq!(has, *asks, "{name} runs");
            } else {
                assert_eq!(has, [0; 3], "{name} waits: {workload:?}");
                waiting.push((workload.place(), *asks));
            }
        }
        waiting.sort();
        let open = |asks: &[u32; 3]| {
            asks.iter()
                .zip(self.paused)
                .all(|(asks, paused)| *asks == 0 || !paused)
        };
        let fits = |asks: &[u32; 3]| asks.iter().zip(free).all(|(asks, free)| *asks <= free);
        let first = waiting.iter().find(|(_, asks)| open(asks));
        assert!(
            first.is_none_or(|(_, asks)| !fits(asks)),
            "{first:?} could have all of {free:?}"
        );
    }

    /// Everything is open again, and what runs ends, one after another: everybody is served.
    fn drains(&mut self) {
        for one in 0..3 {
            self.pause(one, false);
        }
        for _ in 0..3 * NAMES.len() + 2 * self.come {
            self.rests();
            self.check();
            let Some(name) = self.running().into_iter().next() else {
                break;
            };
            self.world.ends(&name);
            self.workloads.remove(&name);
            self.world.seconds += 61;
        }
        assert!(
            self.workloads.is_empty(),
            "never served: {:?}",
            self.workloads
        );
    }
}

proptest! {
    #[test]
    fn all_or_nothing_and_everybody_in_the_end(
        limits in prop::array::uniform3(1..4_u32),
        script in vec(happening(), 1..40),
    ) {
        let mut together = Together::new(limits);
        for happening in &script {
            together.happens(happening);
        }
        together.drains();
    }
}
