//! The plan of a campaign: which faults it injects.

use std::path::PathBuf;

use fastrand::Rng;

use crate::{
    kinds::{KINDS, Kind, OF_JOBS, OF_WORKLOADS, Planned, Reach},
    load::SEMAPHORES,
};

/// One in this many faults is a rare one: a fixed small share.
const RARE: usize = 40;

/// One in this many of the other faults hits everything at once.
const ALL: usize = 4;

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many faults.
    pub faults: usize,
    /// The seed of the choice of faults.
    pub seed: u64,
    /// Where the timeline, the report and the picture are written. An existing timeline is continued.
    pub folder: PathBuf,
    /// Only kinds whose names contain this text.
    pub only: Option<String>,
    /// Whether there are other workloads than Jobs.
    pub workloads: bool,
}

/// Kinds drawn in turn: each comes as often as its weight says before any comes again.
struct Deck {
    whole: Vec<&'static Kind>,
    left: Vec<&'static Kind>,
}

impl Deck {
    fn of(options: &Options, wanted: impl Fn(&Kind) -> bool) -> Self {
        let more: &[Kind] = if options.workloads {
            &OF_WORKLOADS
        } else {
            &OF_JOBS
        };
        let kinds = KINDS.iter().chain(more).filter(|kind| wanted(kind));
        let whole = kinds
            .flat_map(|kind| std::iter::repeat_n(kind, kind.weight))
            .collect();
        Self {
            whole,
            left: Vec::new(),
        }
    }

    fn draw(&mut self, rng: &mut Rng) -> Option<&'static Kind> {
        if self.left.is_empty() {
            self.left.clone_from(&self.whole);
            rng.shuffle(&mut self.left);
        }
        self.left.pop()
    }
}

/// The faults of a campaign, in order. They depend on the seed alone.
pub(crate) fn plan(options: &Options) -> Vec<Planned> {
    let mut rng = Rng::with_seed(options.seed);
    let mut rare = Deck::of(options, |kind| kind.rare);
    let mut all = Deck::of(options, |kind| !kind.rare && kind.reach == Reach::All);
    let mut one = Deck::of(options, |kind| !kind.rare && kind.reach != Reach::All);
    let only = options.only.as_deref();
    let mut wanted = only.map(|only| Deck::of(options, |kind| kind.name.contains(only)));
    let mut planned = Vec::new();
    for id in 0..options.faults {
        let deck = if let Some(wanted) = &mut wanted {
            wanted
        } else if id % RARE == RARE / 2 {
            &mut rare
        } else if id % ALL == 0 {
            &mut all
        } else {
            &mut one
        };
        let Some(kind) = deck.draw(&mut rng) else {
            continue;
        };
        let places: Vec<_> = (0..SEMAPHORES.len())
            .filter(|place| kind.reach == Reach::One || SEMAPHORES[*place].is_shared())
            .collect();
        let semaphore = (kind.reach != Reach::All)
            .then(|| rng.choice(places))
            .flatten();
        planned.push(Planned {
            id,
            kind,
            semaphore,
            seed: rng.u64(..),
        });
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(seed: u64, faults: usize) -> Vec<Planned> {
        plan_with(false, seed, faults)
    }

    fn plan_with(workloads: bool, seed: u64, faults: usize) -> Vec<Planned> {
        plan(&Options {
            faults,
            seed,
            folder: PathBuf::new(),
            only: None,
            workloads,
        })
    }

    #[test]
    fn the_same_seed_plans_the_same_faults() {
        let names = |seed| -> Vec<_> {
            let plan = plan_of(seed, 100).into_iter();
            plan.map(|fault| (fault.kind.name, fault.semaphore, fault.seed))
                .collect()
        };
        assert_eq!(names(1), names(1));
        assert_ne!(names(1), names(2));
    }

    #[test]
    fn faults_of_some_campaigns_are_only_in_those() {
        let kinds = |workloads| {
            let plan = plan_with(workloads, 7, 300).into_iter();
            let names: Vec<&str> = plan.map(|fault| fault.kind.name).collect();
            let more = OF_JOBS.iter().chain(&OF_WORKLOADS);
            let planned = more.map(|kind| names.contains(&kind.name));
            planned.collect::<Vec<bool>>()
        };
        assert_eq!(kinds(false), [true, false, false]);
        assert_eq!(kinds(true), [false, true, true]);
    }

    #[test]
    fn rare_ones_are_a_fixed_small_share_and_every_kind_comes() {
        let plan = plan_of(7, 1000);
        assert_eq!(plan.len(), 1000);
        assert_eq!(plan.iter().filter(|fault| fault.kind.rare).count(), 25);
        for kind in &KINDS {
            assert!(
                plan.iter().any(|fault| fault.kind.name == kind.name),
                "{}",
                kind.name
            );
        }
    }
}
