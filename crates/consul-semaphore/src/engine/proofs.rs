//! Collects proofs that no pod of a workload is left. Until there is a proof, pods are assumed to be left. An API
//! server that does not answer delays only the slots that depend on it.

use std::{sync::Arc, time::Duration};

use super::Now;
use crate::{Identity, OwnContender, Phase, Workload, holding::Setback};
use consul_client::{SessionId, clock::Moment, id::IdMap};

/// Time for which pods are assumed to be left while none is seen to end.
const PROVE_AGAIN: Duration = Duration::from_secs(5);

/// Time for which pods are assumed to be left after one of them has ended, because often many end at once.
const PROVE_SOON: Duration = Duration::from_millis(250);

/// Time after a start in which the absence of pods proves nothing. The Job controller may still make pods, from a
/// workload that it saw before the workload was suspended or deleted again.
pub const START_SETTLE_TIME: Duration = Duration::from_secs(5);

/// Time after which the operator warns about pods that are left.
const PODS_OVERDUE_AFTER: Duration = Duration::from_secs(90);

/// Largest number of workloads that the API server is asked about at once.
const MOST_PROOFS_AT_ONCE: usize = 16;

/// Question about the workload of a contender in a reading, at the version that was known then.
#[derive(Clone, Debug)]
pub(super) struct PodQuestion {
    pub(super) session: SessionId,
    pub(super) identity: Arc<Identity>,
    version: Option<Arc<str>>,
    asked: Moment,
}

/// Answer to a question about a workload: whether pods of the workload are left.
#[derive(Clone, Debug)]
struct PodProof {
    /// Version of the workload that the question was about.
    of: Option<Arc<str>>,
    workload: Option<Arc<Workload>>,
    /// Pods that are left, or the failure to get an answer.
    pods: Result<Vec<String>, Setback>,
    first: Moment,
    taken: Moment,
    /// Time from which the absence of pods counts.
    counts: Moment,
    /// Whether one of the pods has ended since.
    touched: bool,
    warned: bool,
}

impl PodProof {
    /// Returns when to ask again.
    fn due(&self) -> Option<Moment> {
        let again = match &self.pods {
            Err(setback) => setback.until,
            Ok(pods) if pods.is_empty() => self.counts,
            _ if self.touched => self.taken + PROVE_SOON,
            _ => self.taken + PROVE_AGAIN,
        };
        (!self.pods_gone()).then_some(again)
    }

    fn pods_gone(&self) -> bool {
        self.taken >= self.counts && self.pods.as_ref().is_ok_and(Vec::is_empty)
    }

    fn is_current(&self, ours: &OwnContender, now: Moment) -> bool {
        let version = ours.workload.as_ref().map(|workload| &workload.version);
        self.of.as_ref() == version && self.due().is_none_or(|due| due > now)
    }
}

/// Remark to report about an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// Pods are left that should have ended long ago.
    Overdue(Vec<String>),
    /// There is no answer for the first time, for this reason.
    Unknown(String),
    /// There has been no answer for a long time, for this reason.
    LongUnknown(String),
}

/// Proofs that were received, and those that were requested.
#[derive(Clone, Debug)]
pub(crate) struct Proofs {
    brought: IdMap<SessionId, PodProof>,
    /// Contenders whose workloads are being asked about, and whether a pod of each has ended since.
    asking: IdMap<SessionId, bool>,
    /// Times since which the workload of each of our contenders is known to have been started.
    starts: IdMap<SessionId, Moment>,
    /// Value of [`START_SETTLE_TIME`]; zero in the exhaustive search, which has no time for it.
    start_settle_time: Duration,
}

impl Default for Proofs {
    fn default() -> Self {
        Self {
            brought: IdMap::default(),
            asking: IdMap::default(),
            starts: IdMap::default(),
            start_settle_time: START_SETTLE_TIME,
        }
    }
}

impl Proofs {
    /// Returns when to ask for a proof again.
    pub(crate) fn due(&self) -> impl Iterator<Item = Moment> {
        self.brought.values().filter_map(PodProof::due)
    }

    /// Makes the absence of pods count at once, because no Job controller can still act on an older state.
    pub(crate) fn believe_at_once(&mut self) {
        self.start_settle_time = Duration::ZERO;
    }

    /// Forgets the proof for a contender.
    pub(super) fn forget(&mut self, session: &SessionId) {
        self.brought.remove(session);
    }

    /// Forgets contenders that are gone. `ours` is the number of contenders that exist, and `is_there` says which
    /// ones do.
    pub(super) fn retain(&mut self, ours: usize, is_there: impl Fn(&SessionId) -> bool) {
        self.brought.retain(|session, _| is_there(session));
        // Each session has one start, so old starts are forgotten in batches.
        if self.starts.len() > 2 * ours {
            self.starts.retain(|session, _| is_there(session));
        }
    }

    /// Records that a pod of this contender's workload has ended.
    pub(super) fn touch(&mut self, session: &SessionId) {
        if let Some(proof) = self.brought.get_mut(session) {
            proof.touched = true;
        }
        if let Some(touched) = self.asking.get_mut(session) {
            *touched = true;
        }
    }

    /// Records since when workloads are known to have been started; the start itself may have been a moment before.
    /// For a workload deleted before it was seen started, the present counts.
    pub(super) fn note_starts(&mut self, ours: &[OwnContender], now: Moment) {
        for contender in ours {
            let session = &contender.session;
            let started = contender.workload.as_ref().is_none_or(|workload| {
                workload.phase == Phase::Deleting || workload.held_by().any(|held| held == session)
            });
            if started && !self.starts.contains_key(session) {
                self.starts.insert(session.clone(), now);
            }
        }
    }

    /// Takes a proof into account, or returns the question to ask.
    pub(super) fn apply(
        &mut self,
        contender: &mut OwnContender,
        now: Moment,
    ) -> Option<PodQuestion> {
        let session = &contender.session;
        match self.brought.get(session) {
            Some(proof) if proof.is_current(contender, now) => {
                contender.workload.clone_from(&proof.workload);
                contender.pods_gone = proof.pods_gone();
                None
            }
            _ if self.asking.len() < MOST_PROOFS_AT_ONCE && !self.asking.contains_key(session) => {
                self.asking.insert(session.clone(), false);
                Some(PodQuestion {
                    session: session.clone(),
                    identity: contender.identity.clone(),
                    version: contender
                        .workload
                        .as_ref()
                        .map(|workload| workload.version.clone()),
                    asked: now,
                })
            }
            _ => None,
        }
    }

    /// Records an answer. `known` is the workload as it is known without the answer.
    pub(super) fn answered(
        &mut self,
        question: PodQuestion,
        answer: Result<(Option<Arc<Workload>>, Vec<String>), String>,
        known: Option<Arc<Workload>>,
        now: Now,
    ) -> Option<Remark> {
        let PodQuestion {
            session,
            version,
            asked,
            ..
        } = question;
        let touched = self.asking.remove(&session) == Some(true);
        let before = self.brought.remove(&session);
        let unanswered = before
            .as_ref()
            .and_then(|before| before.pods.as_ref().err());
        let mut remark = None;
        let first = before.as_ref().map_or(asked, |before| before.first);
        let mut warned = before.as_ref().is_some_and(|before| before.warned);
        let is_overdue = !warned && asked.since(first) >= PODS_OVERDUE_AFTER;
        let (workload, pods) = match answer {
            Ok((workload, pods)) => {
                if is_overdue && !pods.is_empty() {
                    remark = Some(Remark::Overdue(pods.clone()));
                    warned = true;
                }
                (workload, Ok(pods))
            }
            Err(why) => {
                if is_overdue {
                    remark = Some(Remark::LongUnknown(why));
                    warned = true;
                } else if unanswered.is_none() {
                    remark = Some(Remark::Unknown(why));
                }
                (
                    known,
                    Err(Setback::with_jitter(unanswered, now.moment, now.jitter)),
                )
            }
        };
        let start = self.starts.get(&session);
        let proof = PodProof {
            of: version,
            workload,
            pods,
            first,
            taken: asked,
            counts: start.map_or(asked, |start| *start + self.start_settle_time),
            touched,
            warned,
        };
        self.brought.insert(session, proof);
        remark
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn at(second: u64) -> Now {
        Now {
            moment: Moment::from_boot(Duration::from_secs(second)),
            time: jiff::Timestamp::UNIX_EPOCH,
            jitter: 0.0,
        }
    }

    fn ask(proofs: &mut Proofs, contender: &OwnContender, now: Now) -> Option<PodQuestion> {
        proofs.apply(&mut contender.clone(), now.moment)
    }

    #[test]
    fn that_there_are_no_pods_counts_once_the_workload_controller_must_have_heard_of_the_start() {
        let mut proofs = Proofs::default();
        let mut gone = samples::ours("s", None);
        proofs.note_starts(std::slice::from_ref(&gone), at(10).moment);
        let early = ask(&mut proofs, &gone, at(11)).unwrap();
        proofs.answered(early, Ok((None, Vec::new())), None, at(12));
        assert_eq!(proofs.due().next(), Some(at(15).moment));
        assert!(proofs.apply(&mut gone, at(13).moment).is_none());
        assert!(!gone.pods_gone);
        let late = ask(&mut proofs, &gone, at(15)).unwrap();
        proofs.answered(late, Ok((None, Vec::new())), None, at(16));
        assert!(proofs.apply(&mut gone, at(16).moment).is_none());
        assert!(gone.pods_gone);
        assert_eq!(proofs.due().next(), None);
    }

    #[test]
    fn a_contender_is_asked_about_once_at_a_time_and_not_all_of_them_at_once() {
        let mut proofs = Proofs::default();
        let contender = |number: usize| samples::ours(&format!("s{number}"), None);
        let mut asked = Vec::new();
        for number in 0..MOST_PROOFS_AT_ONCE {
            asked.extend(ask(&mut proofs, &contender(number), at(10)));
            assert!(ask(&mut proofs, &contender(number), at(10)).is_none());
        }
        assert_eq!(asked.len(), MOST_PROOFS_AT_ONCE);
        assert!(ask(&mut proofs, &contender(MOST_PROOFS_AT_ONCE), at(10)).is_none());
        // A pod that ends in the meantime may still be in the answer.
        let first = asked.remove(0);
        proofs.touch(&first.session);
        proofs.answered(first, Ok((None, vec!["a".into()])), None, at(11));
        assert_eq!(proofs.due().next(), Some(at(10).moment + PROVE_SOON));
        assert!(ask(&mut proofs, &contender(MOST_PROOFS_AT_ONCE), at(11)).is_some());
    }

    #[test]
    fn who_gives_no_answer_is_asked_ever_less_often() {
        let mut proofs = Proofs::default();
        let gone = samples::ours("s", None);
        let mut now = at(100);
        let mut pauses = Vec::new();
        for round in 0..12 {
            let question = ask(&mut proofs, &gone, now).expect("it is due");
            let remark = proofs.answered(question, Err("away".into()), None, now);
            if now.moment.since(at(0).moment) < PODS_OVERDUE_AFTER {
                assert_eq!(remark.is_some(), round == 0, "it is said once");
            }
            let due = proofs.due().next().unwrap();
            pauses.push(due.since(now.moment));
            assert!(ask(&mut proofs, &gone, now).is_none());
            now.moment = due;
        }
        assert!(pauses.iter().all(|pause| !pause.is_zero()), "{pauses:?}");
        assert!(*pauses.last().unwrap() > 2 * PROVE_AGAIN, "{pauses:?}");
    }

    #[test]
    fn pods_that_stay_are_warned_of_once() {
        let mut proofs = Proofs::default();
        let gone = samples::ours("s", None);
        let mut remarks = Vec::new();
        for second in [0, 60, 100, 200] {
            let question = ask(&mut proofs, &gone, at(second)).expect("it is due");
            let pods = Ok((None, vec!["a on node n".into()]));
            remarks.push(proofs.answered(question, pods, None, at(second)));
        }
        let overdue = Some(Remark::Overdue(vec!["a on node n".into()]));
        assert_eq!(remarks, [None, None, overdue, None]);
    }

    /// The operator may not read a kind any more, for example.
    #[test]
    fn that_nothing_is_known_of_pods_for_long_is_warned_of_once() {
        let mut proofs = Proofs::default();
        let gone = samples::ours("s", None);
        let mut remarks = Vec::new();
        for second in [0, 60, 100, 200] {
            let question = ask(&mut proofs, &gone, at(second)).expect("it is due");
            let forbidden = Err("forbidden".to_owned());
            remarks.push(proofs.answered(question, forbidden, None, at(second)));
        }
        let said = |remark: fn(String) -> Remark| Some(remark("forbidden".to_owned()));
        let expected = [said(Remark::Unknown), None, said(Remark::LongUnknown), None];
        assert_eq!(remarks, expected);
    }
}
