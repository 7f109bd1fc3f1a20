//! Decides what happens to a contender of ours, given the phase of its workload.

use std::sync::Arc;

use super::{
    identity::Identity,
    workload::{Phase, Workload},
};
use consul_client::SessionId;

/// A live contender of ours. Its session belongs to our node, and its name says that it is for this workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnContender {
    /// The session, and the name of the contender key.
    pub session: SessionId,
    /// The workload that the session was made for.
    pub identity: Arc<Identity>,
    /// The workload of `identity`, if it exists; another workload with the same name does not count.
    pub workload: Option<Arc<Workload>>,
    /// Whether a GET of the workload and a LIST of its pods, both sent after the contender was read, show that no pod
    /// of the workload is left. Without such a proof this is false.
    pub pods_gone: bool,
}

/// The decision about a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The contender stays, because its workload runs, or pods of the workload may be left.
    Keep,
    /// The contender waits in the queue with its workload.
    Wait,
    /// The slot is granted, and the workload is still to be started.
    Start,
    /// The workload won't run in this slot. The workload is changed to say so before the slot is released.
    GiveBack {
        /// Whether the workload is put on hold.
        hold: bool,
    },
    /// The workload has run and is finished. Its slot stays held for the cooldown that came with the grant.
    Cool,
    /// The contender is no longer needed.
    Release,
}

impl OwnContender {
    /// Returns the fate of this contender. `held` says whether it holds a slot, and `may_start` whether its workload
    /// can still be started in the slot.
    pub fn fate(&self, held: bool, may_start: bool) -> Fate {
        self.fate_if(self.pods_gone, held, may_start)
    }

    fn fate_if(&self, pods_gone: bool, held: bool, may_start: bool) -> Fate {
        let gone = |then| if pods_gone { then } else { Fate::Keep };
        let Some(workload) = &self.workload else {
            // Nobody knows whether the workload was started.
            return gone(Fate::Cool);
        };
        match workload.phase {
            Phase::Running | Phase::Stopping => Fate::Keep,
            // A workload that may run again must not run in this slot then.
            Phase::Finished { .. } if workload.traits.runs_again && workload.granted.is_some() => {
                gone(Fate::GiveBack { hold: false })
            }
            // A terminal condition is a proof by itself.
            Phase::Finished { at_rest: true } => Fate::Cool,
            Phase::Finished { at_rest: false } => gone(Fate::Cool),
            Phase::Deleting if workload.granted.is_some() => gone(Fate::Cool),
            Phase::Deleting => gone(Fate::Release),
            // The user suspended the workload, whatever session it was started with.
            Phase::Idle if workload.granted.is_some() && !workload.lost() => {
                gone(Fate::GiveBack { hold: true })
            }
            // The PATCH that comes before a release has been done: it leaves the session in the annotation, and no
            // grant.
            Phase::Idle if workload.reported.contains(&self.session) => gone(Fate::Release),
            Phase::Idle if !held && may_start => Fate::Wait,
            Phase::Idle if !held => Fate::Release,
            Phase::Idle if may_start => Fate::Start,
            Phase::Idle => gone(Fate::GiveBack { hold: false }),
        }
    }

    /// Whether the workload runs, was started at this lock key by this very contender, and reports it. If so, nothing
    /// needs deciding while the contender holds its slot.
    pub(super) fn runs_as_granted(&self, lock_key: &str) -> bool {
        self.workload.as_ref().is_some_and(|workload| {
            workload.phase == Phase::Running
                && workload.started_at(lock_key)
                && workload.started_by(&self.session)
                && workload.reported.contains(&self.session)
        })
    }

    /// Whether the fate of this contender depends on a proof that no pod of its workload is left.
    pub fn needs_proof(&self, held: bool, may_start: bool) -> bool {
        let fate = |pods_gone| self.fate_if(pods_gone, held, may_start);
        fate(true) != fate(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    /// Each row has the phase, the session of the grant, the session in the annotation, whether the contender is held,
    /// whether the workload may start, and the fates without and with proof.
    #[test]
    fn the_table() {
        use Fate::{Cool, GiveBack, Keep, Release, Start, Wait};
        use Phase::{Deleting, Finished, Idle, Running, Stopping};
        const MINE: Option<&str> = Some("mine");
        const OLD: Option<&str> = Some("old");
        let put_on_hold = GiveBack { hold: true };
        let give_back = GiveBack { hold: false };
        for (phase, granted, reported, held, may_start, unproved, proved) in [
            (Running, MINE, MINE, true, true, Keep, Keep),
            (Stopping, MINE, MINE, true, true, Keep, Keep),
            (
                Finished { at_rest: true },
                MINE,
                MINE,
                true,
                false,
                Cool,
                Cool,
            ),
            (
                Finished { at_rest: false },
                MINE,
                MINE,
                true,
                false,
                Keep,
                Cool,
            ),
            (Deleting, MINE, MINE, true, false, Keep, Cool),
            // The workload was never started.
            (Deleting, None, None, true, false, Keep, Release),
            // The user suspended the workload while it ran.
            (Idle, MINE, MINE, true, true, Keep, put_on_hold),
            (Idle, OLD, MINE, true, true, Keep, put_on_hold),
            (Idle, OLD, OLD, true, true, Keep, put_on_hold),
            (Idle, MINE, MINE, false, true, Keep, put_on_hold),
            (Idle, None, MINE, true, true, Keep, Release),
            // The start was interrupted, and is completed or given back.
            (Idle, None, None, true, true, Start, Start),
            (Idle, None, OLD, true, true, Start, Start),
            (Idle, OLD, None, true, true, Start, Start),
            (Idle, None, None, true, false, Keep, give_back),
            // The workload lost its slot, and the operator suspended it.
            (Idle, MINE, None, false, true, Wait, Wait),
            (Idle, MINE, None, true, true, Start, Start),
            // The contender has no slot.
            (Idle, None, None, false, true, Wait, Wait),
            (Idle, None, None, false, false, Release, Release),
        ] {
            let workload = samples::workload("a", phase, granted, reported);
            let case = format!("{workload:?}, held {held}, may start {may_start}");
            for (pods_gone, expected) in [(false, unproved), (true, proved)] {
                let ours = OwnContender {
                    pods_gone,
                    ..samples::ours("mine", Some(workload.clone()))
                };
                assert_eq!(
                    ours.fate(held, may_start),
                    expected,
                    "{case}, gone {pods_gone}"
                );
                assert_eq!(
                    ours.needs_proof(held, may_start),
                    unproved != proved,
                    "{case}"
                );
            }
        }
    }

    /// The workload's grant is taken from it once no pod is left, and only then its slot is free.
    #[test]
    fn what_may_run_again_does_not_run_in_this_slot_then() {
        for at_rest in [false, true] {
            let finished = |granted| {
                let phase = Phase::Finished { at_rest };
                let mut workload = samples::workload("a", phase, granted, Some("mine"));
                workload.traits.runs_again = true;
                samples::ours("mine", Some(workload))
            };
            let proved = |ours: OwnContender| OwnContender {
                pods_gone: true,
                ..ours
            };
            let granted = || finished(Some("mine"));
            let give_back = Fate::GiveBack { hold: false };
            assert_eq!(granted().fate(true, false), Fate::Keep);
            assert_eq!(proved(granted()).fate(true, false), give_back);
            assert_eq!(proved(finished(None)).fate(true, false), Fate::Cool);
        }
    }

    #[test]
    fn a_workload_that_is_not_there_keeps_its_slot_until_its_pods_are_gone() {
        let ours = samples::ours("mine", None);
        assert_eq!(ours.fate(true, false), Fate::Keep);
        assert_eq!(
            OwnContender {
                pods_gone: true,
                ..ours
            }
            .fate(true, false),
            Fate::Cool
        );
    }
}
