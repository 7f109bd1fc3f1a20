//! Two operators of two clusters on one prefix: slots are kept for one that asks for several, across both.

use std::num::NonZeroU32;

use super::*;
use crate::{Cluster, ContenderBody, turns::WINDOW};

/// Until when a request must be served: it is passed over for a minute, and what runs then ends within another one.
const BOUND: u64 = 130;

/// How long a workload runs that asks for one slot, and how often one comes.
const RUNS: u64 = 30;

/// Two engines beside one Consul.
struct Clusters {
    worlds: [World; 2],
    consul: Consul,
    /// When the workloads of the second cluster began to run.
    began: BTreeMap<String, u64>,
    come: u64,
}

impl Clusters {
    fn new(semaphores: &[(&str, u32)]) -> Self {
        let world = |cluster: &str| {
            let mut world = World::default();
            for (name, limit) in semaphores {
                let settings = Settings {
                    cluster: Cluster {
                        name: cluster.into(),
                        id: cluster.into(),
                    },
                    name: (*name).to_owned(),
                    prefix: name.parse().unwrap(),
                    fair: Some(WINDOW),
                    ..spec(*limit, false).settings
                };
                let now = world.now();
                world
                    .engine
                    .add_standalone(&semaphore(name), settings, 64, now, &world.store);
            }
            world
        };
        Self {
            worlds: ["east", "west"].map(world),
            consul: Consul::default(),
            began: BTreeMap::new(),
            come: 0,
        }
    }

    /// Something happens in a cluster, and its operator does what is to be done.
    fn at(&mut self, cluster: usize, happens: impl FnOnce(&mut World)) {
        let world = &mut self.worlds[cluster];
        world.consul = std::mem::take(&mut self.consul);
        happens(world);
        world.list_all();
        world.run(0);
        self.consul = std::mem::take(&mut world.consul);
    }

    fn comes(&mut self, cluster: usize, name: &str, requests: &[(&str, u32)]) {
        let request = |(semaphore, slots): &(&str, u32)| SlotRequest {
            slots: NonZeroU32::new(*slots).unwrap(),
            ..SlotRequest::one(*semaphore, None)
        };
        let workload = Workload {
            requests: requests.iter().map(request).collect(),
            since: 1_000_000 + i64::try_from(self.worlds[cluster].seconds).unwrap(),
            ..samples::workload(name, Phase::Idle, None, None)
        };
        self.at(cluster, |world| world.joins(&Arc::new(workload)));
    }

    /// A second passes, and both operators see what the other one did.
    fn tick(&mut self) {
        for cluster in [0, 1, 0, 1] {
            self.at(cluster, |_| ());
        }
        for world in &mut self.worlds {
            world.seconds += 1;
        }
    }

    /// Lets so many seconds pass, in which workloads come to the second cluster that ask for one slot each. At any time
    /// one of these workloads waits, and no two of them end at once.
    fn stream(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let now = self.worlds[1].seconds;
            if now.is_multiple_of(RUNS / 2) {
                self.come += 1;
                let name = format!("single-{}", self.come);
                self.comes(1, &name, &[("db", 1)]);
            }
            let done = self.began.iter().find(|(_, began)| now >= **began + RUNS);
            if let Some(name) = done.map(|(name, _)| name.clone()) {
                self.began.remove(&name);
                self.at(1, |world| {
                    world.change(&Uid::from(name.as_str()), |workload| {
                        workload.phase = Phase::Finished { at_rest: true };
                    });
                });
            }
            self.tick();
            for name in std::mem::take(&mut self.worlds[1].started) {
                self.began.insert(name, self.worlds[1].seconds);
            }
        }
    }

    /// The bodies of the contenders at a prefix of workloads that wait.
    fn waiting(&self, prefix: &str) -> Vec<ContenderBody> {
        let prefix = prefix.parse().unwrap();
        let entries = self.consul.below(&prefix);
        let bodies = entries.filter_map(|entry| ContenderBody::read(&entry.value));
        bodies.filter(|body| body.waiting.is_some()).collect()
    }
}

/// If no slots were kept, the next workload of the stream would take each slot that comes free, while the other slot is
/// in use.
#[test]
fn who_asks_for_all_slots_is_served_beside_another_clusters_stream_of_single_ones() {
    let mut clusters = Clusters::new(&[("db", 2)]);
    clusters.stream(3 * RUNS);
    assert_eq!(clusters.began.len(), 2, "both slots are in use");
    clusters.comes(0, "both", &[("db", 2)]);
    clusters.stream(BOUND);
    assert_eq!(clusters.worlds[0].started, ["both"]);
    assert_eq!(
        clusters
            .waiting("db")
            .iter()
            .filter(|body| body.slots_kept() > 0)
            .count(),
        0
    );
    // The stream goes on afterwards.
    clusters.at(0, |world| {
        world.change(&"both".into(), |workload| {
            workload.phase = Phase::Finished { at_rest: true };
        });
    });
    clusters.stream(5);
    assert!(!clusters.began.is_empty());
}

/// A slot of each of two semaphores: what is free at one of them is kept while the other one is in use.
#[test]
fn slots_of_several_semaphores_are_kept_at_each_of_them() {
    let mut clusters = Clusters::new(&[("db", 1), ("licenses", 1)]);
    clusters.comes(0, "holder", &[("licenses", 1)]);
    clusters.stream(RUNS);
    clusters.comes(0, "both", &[("db", 1), ("licenses", 1)]);
    clusters.stream(BOUND);
    assert_eq!(clusters.worlds[0].started, ["holder"]);
    assert!(
        clusters.began.is_empty(),
        "the slot is kept: {:?}",
        clusters.began
    );
    for prefix in ["db", "licenses"] {
        let waiting = clusters.waiting(prefix);
        let mut keep = waiting.iter().filter(|body| body.slots_kept() == 1);
        let body = keep.next().expect("it is told");
        assert_eq!((body.name.as_str(), body.request.lock_keys()), ("both", 2));
    }
    clusters.at(0, |world| {
        world.change(&"holder".into(), |workload| {
            workload.phase = Phase::Finished { at_rest: true };
        });
    });
    clusters.stream(1);
    assert_eq!(clusters.worlds[0].started, ["holder", "both"]);
}

/// The contender of an operator that is gone stays until its session ends, which may be never.
#[test]
fn what_an_operator_that_is_gone_wanted_is_kept_for_a_minute() {
    let mut clusters = Clusters::new(&[("db", 2)]);
    clusters.stream(3 * RUNS);
    clusters.comes(0, "both", &[("db", 2)]);
    while clusters
        .waiting("db")
        .iter()
        .all(|body| body.slots_kept() == 0)
    {
        clusters.stream(1);
        assert!(clusters.worlds[0].seconds < 1_000, "it keeps nothing");
    }
    // Only the second operator goes on.
    let (started, seconds) = (clusters.come, clusters.worlds[0].seconds);
    clusters.worlds[0] = World::default();
    clusters.stream(3 * RUNS);
    let began = clusters
        .began
        .values()
        .filter(|began| **began > seconds + RUNS);
    assert!(began.count() > 0, "{:?} of {started}", clusters.began);
}
