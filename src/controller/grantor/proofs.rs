//! Proofs that no pod of a Job is left: a GET of the Job and a LIST of its pods, both sent after its
//! contender was read. Never a cache. They are brought beside the passes: an API server that gives no
//! answer delays nothing but the slots that depend on it.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use tokio::task::JoinSet;

use super::{Grantor, refusals::Withheld};
use crate::controller::{
    Context,
    call::{CallError, call},
    events::Reason,
    patch,
};
use consul_client::{SessionId, clock::Moment, id::IdMap};
use consul_semaphore::{Identity, Job, Ours, Standing, holding::Setback, plan::Target};
use consul_semaphore_api::annotations::HOLDER_LABEL;

/// How long it is believed that pods are left while nothing is heard of them.
const PROVE_AGAIN: Duration = Duration::from_secs(5);

/// The same after one of them has ended: many end at once.
const PROVE_SOON: Duration = Duration::from_millis(250);

/// For how long after a start it proves nothing that there are no pods: the Job controller may make
/// them yet, from a Job that it saw before it was suspended or deleted again.
const UNHEARD: Duration = Duration::from_secs(5);

/// After how long pods that are left over are warned of.
const OVERDUE: Duration = Duration::from_secs(90);

/// How many Jobs are asked about at once.
const CONCURRENCY: usize = 16;

/// How many of the pods that are left are named.
const NAMED: u32 = 10;

/// What was asked about a Job, and answered.
struct Proof {
    /// The version of the Job that it was asked for.
    of: Option<Arc<str>>,
    job: Option<Arc<Job>>,
    /// The pods that are left, with their nodes; or that there was no answer.
    pods: Result<Vec<String>, Setback>,
    first: Moment,
    taken: Moment,
    /// From when on it counts that there are no pods.
    counts: Moment,
    /// Whether one of the pods has ended since.
    touched: bool,
    warned: bool,
}

impl Proof {
    /// When it is to be taken again.
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

    fn is_current(&self, ours: &Ours) -> bool {
        let version = ours.job.as_ref().map(|job| &job.version);
        self.of.as_ref() == version && self.due().is_none_or(|due| due > Moment::now())
    }

    fn tell(&self, ours: &mut Ours) {
        ours.job.clone_from(&self.job);
        ours.pods_gone = self.pods_gone();
    }
}

/// The Job as it is now, and the pods of it that are left.
type Answer = Result<(Option<Arc<Job>>, Vec<String>), CallError>;

/// A question that was answered.
pub(super) struct Answered {
    of: Question,
    answer: Answer,
}

/// What is asked: about the Job of a contender that a reading shows, at the version that is known then.
#[derive(Clone)]
struct Question {
    session: SessionId,
    identity: Arc<Identity>,
    version: Option<Arc<str>>,
    asked: Moment,
}

/// The proofs that were brought, and those that are being brought beside the passes.
#[derive(Default)]
pub(super) struct Proofs {
    brought: IdMap<SessionId, Proof>,
    /// The contenders that are asked about, and whether a pod of each has ended since.
    asking: IdMap<SessionId, bool>,
    pub(super) answers: JoinSet<Answered>,
}

impl Proofs {
    /// When one is to be brought again.
    pub(super) fn due(&self) -> impl Iterator<Item = Moment> {
        self.brought.values().filter_map(Proof::due)
    }

    /// Forgets what was proved for a contender.
    pub(super) fn forget(&mut self, session: &SessionId) {
        self.brought.remove(session);
    }

    /// Forgets what was proved for all contenders but these.
    pub(super) fn retain(&mut self, is_there: impl Fn(&SessionId) -> bool) {
        self.brought.retain(|session, _| is_there(session));
    }

    /// A pod of this contender's Job has ended.
    fn touch(&mut self, session: &SessionId) {
        if let Some(proof) = self.brought.get_mut(session) {
            proof.touched = true;
        }
        if let Some(touched) = self.asking.get_mut(session) {
            *touched = true;
        }
    }

    /// Whether one more may be asked about.
    fn may_ask(&self, session: &SessionId) -> bool {
        self.asking.len() < CONCURRENCY && !self.asking.contains_key(session)
    }
}

impl Grantor {
    /// Takes proofs into account where what happens to a contender depends on one, and has those brought
    /// that are missing. Until they are, it counts as if pods were left.
    pub(super) fn prove(&mut self, ours: &mut [Ours], withheld: &Withheld) {
        let touched = self.context.index.touched(&self.reference);
        for contender in ours
            .iter()
            .filter(|ours| touched.contains(&ours.identity.uid))
        {
            self.proofs.touch(&contender.session);
        }
        self.note_starts(ours);
        for contender in ours {
            if !self.needs_proof(contender, withheld) {
                continue;
            }
            match self.proofs.brought.get(&contender.session) {
                Some(proof) if proof.is_current(contender) => proof.tell(contender),
                _ if self.proofs.may_ask(&contender.session) => self.ask(contender),
                _ => {}
            }
        }
    }

    fn ask(&mut self, contender: &Ours) {
        let question = Question {
            session: contender.session.clone(),
            identity: contender.identity.clone(),
            version: contender.job.as_ref().map(|job| job.version.clone()),
            asked: Moment::now(),
        };
        self.proofs.asking.insert(question.session.clone(), false);
        let context = self.context.clone();
        self.proofs.answers.spawn(async move {
            let answer = ask(&context, &question.identity).await;
            Answered {
                of: question,
                answer,
            }
        });
    }

    /// Notes since when Jobs are known to have been started, which may have been a moment before. Of one
    /// that is gone before it was seen started, that is now.
    fn note_starts(&mut self, ours: &[Ours]) {
        for contender in ours {
            let session = &contender.session;
            let started = contender.job.as_ref().is_none_or(|job| {
                job.standing == Standing::Deleting || job.held_by().any(|held| held == session)
            });
            if started && !self.starts.contains_key(session) {
                self.starts.insert(session.clone(), Moment::now());
            }
        }
    }

    fn needs_proof(&self, ours: &Ours, withheld: &Withheld) -> bool {
        let held = self
            .view
            .reading
            .as_ref()
            .is_some_and(|reading| reading.holds(&ours.session));
        let may_start = ours
            .job
            .as_ref()
            .is_some_and(|job| self.settings.may_start(job));
        let immovable = withheld.immovable.contains(&ours.identity.uid);
        ours.needs_proof(held, may_start && !immovable)
    }

    /// Takes note of an answer.
    pub(super) fn settle_proof(&mut self, Answered { of, answer }: Answered) {
        let Question {
            session,
            identity,
            version,
            asked,
        } = of;
        let touched = self.proofs.asking.remove(&session) == Some(true);
        let before = self.proofs.brought.remove(&session);
        let now = Moment::now();
        let start = self.starts.get(&session);
        let unanswered = before
            .as_ref()
            .and_then(|before| before.pods.as_ref().err());
        let (job, pods) = match answer {
            Ok((job, pods)) => (job, Ok(pods)),
            Err(error) => {
                let job = &identity.job;
                if unanswered.is_none() {
                    tracing::warn!(%job, %error, "it can't be seen whether pods are left");
                }
                let known = self.context.index.job(&identity.uid);
                (known, Err(Setback::after(unanswered, now)))
            }
        };
        let mut proof = Proof {
            of: version,
            job,
            pods,
            first: before.as_ref().map_or(asked, |before| before.first),
            taken: asked,
            counts: start.map_or(asked, |start| *start + UNHEARD),
            touched,
            warned: before.is_some_and(|before| before.warned),
        };
        self.warn_if_overdue(&identity, &mut proof);
        self.proofs.brought.insert(session, proof);
    }

    /// Says which pods keep a slot that should be free by now.
    fn warn_if_overdue(&self, identity: &Identity, proof: &mut Proof) {
        let Ok(pods) = &proof.pods else {
            return;
        };
        if pods.is_empty() || proof.warned || proof.taken.since(proof.first) < OVERDUE {
            return;
        }
        proof.warned = true;
        let note = format!(
            "the slot of {} is kept because pods of this Job have not ended: {}. If a node is lost \
             for good, delete its Node object or force the deletion of the pod",
            self.reference.title(),
            pods.join(", ")
        );
        tracing::warn!(job = %identity.job, semaphore = %self.reference, "{note}");
        self.tell_job(&identity.job, &identity.uid, Reason::PodsRemain, note);
    }
}

async fn ask(context: &Context, identity: &Identity) -> Answer {
    let Identity {
        namespace,
        job,
        uid,
        ..
    } = identity;
    let target = Target {
        name: job.clone(),
        uid: uid.clone(),
        version: Arc::default(),
    };
    let found = patch::read(context, namespace, &target).await?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let left = ListParams::default()
        .labels(&format!("{HOLDER_LABEL}={uid}"))
        .fields("status.phase!=Succeeded,status.phase!=Failed")
        .limit(NAMED);
    let left = call(pods.list(&left)).await?;
    let named = left.items.iter().map(|pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        format!("{name} on node {}", node.unwrap_or("(none yet)"))
    });
    Ok((found.map(|found| found.job), named.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_there_are_no_pods_counts_once_the_job_controller_must_have_heard_of_the_start() {
        let second = |since| Moment::from_boot(Duration::from_secs(since));
        let proof = |pods: &[&str], taken| Proof {
            of: None,
            job: None,
            pods: Ok(pods.iter().map(|pod| (*pod).to_owned()).collect()),
            first: second(10),
            taken: second(taken),
            counts: second(15),
            touched: false,
            warned: false,
        };
        let early = proof(&[], 11);
        assert!(!early.pods_gone());
        assert_eq!(early.due(), Some(second(15)));
        let late = proof(&[], 15);
        assert!(late.pods_gone());
        assert_eq!(late.due(), None);
        let left = proof(&["a"], 16);
        assert!(!left.pods_gone());
        assert_eq!(left.due(), Some(second(16) + PROVE_AGAIN));
    }

    #[test]
    fn a_contender_is_asked_about_once_at_a_time_and_not_all_of_them_at_once() {
        let mut proofs = Proofs::default();
        let session = |number: usize| SessionId::from(format!("s{number}").as_str());
        for number in 0..CONCURRENCY {
            assert!(proofs.may_ask(&session(number)));
            proofs.asking.insert(session(number), false);
            assert!(!proofs.may_ask(&session(number)));
        }
        assert!(!proofs.may_ask(&session(CONCURRENCY)));
        // A pod that ends meanwhile may be in the answer yet.
        proofs.touch(&session(3));
        assert_eq!(proofs.asking.remove(&session(3)), Some(true));
        assert!(proofs.may_ask(&session(CONCURRENCY)));
    }

    #[test]
    fn who_gives_no_answer_is_asked_ever_less_often() {
        let mut setback = Setback::after(None, Moment::from_boot(Duration::ZERO));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let taken = setback.until;
            setback = Setback::after(Some(&setback), taken);
            let proof = Proof {
                of: None,
                job: None,
                pods: Err(setback),
                first: taken,
                taken,
                counts: taken,
                touched: true,
                warned: false,
            };
            assert!(!proof.pods_gone());
            pauses.push(proof.due().unwrap().since(taken));
        }
        assert!(pauses.iter().all(|pause| !pause.is_zero()), "{pauses:?}");
        assert!(*pauses.last().unwrap() > 2 * PROVE_AGAIN, "{pauses:?}");
    }
}
