//! The first part of a pass: gathers the facts that it decides on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

use super::{CALL_TIMEOUT, events::Reason, grantor::Grantor, job::CONTROLLER_UID, patch};
use crate::{
    clock::Moment,
    consul::SessionId,
    semaphore::{Identity, Job, Observed, Ours, Reading, Uid, plan::Target},
};

/// For whom a contender's session was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// For this Job of this semaphore.
    Own(Identity),
    /// For another `ConsulSemaphore` of this cluster on the same prefix.
    Neighbour,
    /// By somebody else.
    Foreign,
}

/// How long a proof that pods are left is believed while nothing is heard of them.
const PROVE_AGAIN: Duration = Duration::from_secs(5);

/// After how long pods that are left over are warned of.
const OVERDUE: Duration = Duration::from_secs(90);

/// How many Jobs are asked about at once.
const CONCURRENCY: usize = 16;

/// What a GET of a Job and a LIST of its pods showed, both sent after its contender was read.
pub(super) struct Proof {
    /// The Job's version that it was asked for.
    of: Option<String>,
    job: Option<Job>,
    /// The pods that are left, with their nodes; `None` if there was no answer.
    pods: Option<Vec<String>>,
    first: Moment,
    taken: Moment,
    warned: bool,
}

impl Proof {
    /// When it is to be taken again.
    pub(super) fn due(&self) -> Option<Moment> {
        (!self.pods_gone()).then(|| self.taken + PROVE_AGAIN)
    }

    fn pods_gone(&self) -> bool {
        self.pods.as_ref().is_some_and(Vec::is_empty)
    }
}

/// The facts of one round, owned.
pub(super) struct Facts {
    ours: Vec<Ours>,
    pub(super) bound: Vec<Job>,
    line: Vec<Job>,
    busy: BTreeSet<Uid>,
    barred: BTreeSet<Uid>,
}

impl Facts {
    /// These facts with the grantor's own knowledge.
    pub(super) fn observed<'a>(&'a self, grantor: &'a Grantor) -> Observed<'a> {
        Observed {
            now: Moment::now(),
            time: jiff::Timestamp::now(),
            settings: &grantor.settings,
            applied: &grantor.applied,
            enforced: grantor.enforced,
            reading: grantor.reading.as_ref(),
            deaths: &grantor.deaths,
            ours: &self.ours,
            bound: &self.bound,
            line: &self.line,
            sessions: &grantor.ahead,
            busy: &self.busy,
            barred: &self.barred,
            operations: grantor.consul.transaction_capacity(),
        }
    }
}

impl Grantor {
    /// Gathers the facts.
    pub(super) async fn observe(&mut self) -> Facts {
        let now = Moment::now();
        self.identify().await;
        self.adopt();
        let (mut busy, mut barred) = (self.busy.clone(), BTreeSet::new());
        for (uid, trouble) in &self.troubles {
            if trouble.setback.until <= now {
                continue;
            }
            if trouble.refused {
                &mut barred
            } else {
                &mut busy
            }
            .insert(uid.clone());
        }
        let ours = self.ours().await;
        let head = self.consul.transaction_capacity() + ours.len() + busy.len() + barred.len() + 32;
        let slice = self.context.index.slice(&self.reference, head);
        self.waiting = slice.waiting;
        Facts {
            ours,
            bound: slice.bound,
            line: slice.line,
            busy,
            barred,
        }
    }

    /// Finds out whom the sessions of contenders stand for that were not seen before.
    async fn identify(&mut self) {
        let Some(reading) = &self.reading else { return };
        let mut current = BTreeSet::new();
        let mut unknown = Vec::new();
        for (session, _) in reading.contenders() {
            current.insert(session.clone());
            if !self.identities.contains_key(session) {
                unknown.push(session.clone());
            }
        }
        let consul = &self.consul;
        let asked = stream::iter(unknown)
            .map(|session| async move { (consul.session(&session).await, session) })
            .buffer_unordered(CONCURRENCY);
        let answers: Vec<_> = asked.collect().await;
        for (answer, session) in answers {
            match answer {
                Ok(found) => {
                    let found = found.filter(|found| found.node == self.context.keeper.node());
                    let whose = match found.and_then(|found| Identity::parse(&found.name)) {
                        Some(identity) if self.settings.owns(&identity) => Whose::Own(identity),
                        Some(identity) if identity.cluster == self.settings.cluster.id => {
                            Whose::Neighbour
                        }
                        _ => Whose::Foreign,
                    };
                    self.identities.insert(session, whose);
                }
                Err(error) => {
                    // Whose it is decides what may be done, so nothing is done without it.
                    self.read_failed(error);
                    return;
                }
            }
        }
        let kept = &self.sessions;
        self.identities
            .retain(|session, _| current.contains(session) || kept.contains_key(session));
    }

    /// Renews the sessions of our contenders that are not renewed yet: after a start, before
    /// anything else is done.
    fn adopt(&mut self) {
        let Some(reading) = &self.reading else { return };
        for (session, _) in reading.contenders() {
            let Some(Whose::Own(identity)) = self.identities.get(session) else {
                continue;
            };
            self.ahead.retain(|_, ahead| ahead != session);
            if self.sessions.contains_key(session) {
                continue;
            }
            tracing::info!(
                job = %format_args!("{}/{}", identity.namespace, identity.job),
                semaphore = %self.reference,
                %session,
                "adopted"
            );
            let kept = self.context.keeper.adopt(
                &self.consul,
                session.clone(),
                self.ttl,
                self.wake.clone(),
            );
            self.sessions.insert(session.clone(), kept);
        }
    }

    /// Our contenders, each with its Job, and with a proof where what happens to it depends on one.
    async fn ours(&mut self) -> Vec<Ours> {
        let Some(reading) = &self.reading else {
            return Vec::new();
        };
        let touched = self.context.index.touched(&self.reference);
        let mut ours = Vec::new();
        let mut in_doubt = Vec::new();
        for (session, _) in reading.contenders() {
            let Some(Whose::Own(identity)) = self.identities.get(session) else {
                continue;
            };
            let mut contender = Ours {
                session: session.clone(),
                identity: identity.clone(),
                job: self.context.index.job(&identity.uid),
                pods_gone: false,
            };
            if self.needs_proof(reading, &contender) {
                match self.proofs.get(session).filter(|proof| {
                    proof.of == contender.job.as_ref().map(|job| job.version.clone())
                        && !touched.contains(&identity.uid)
                        && proof.due().is_none_or(|due| due > Moment::now())
                }) {
                    Some(proof) => proof.tell(&mut contender),
                    None => in_doubt.push(contender.clone()),
                }
            }
            ours.push(contender);
        }
        self.prove(in_doubt, &mut ours).await;
        let sessions: BTreeSet<_> = ours.iter().map(|ours| ours.session.clone()).collect();
        self.proofs.retain(|session, _| sessions.contains(session));
        ours
    }

    fn needs_proof(&self, reading: &Reading, ours: &Ours) -> bool {
        let may_start = ours
            .job
            .as_ref()
            .is_some_and(|job| self.settings.may_start(job));
        ours.needs_proof(reading.holds(&ours.session), may_start)
    }

    /// Asks the API server about Jobs and their pods.
    async fn prove(&mut self, in_doubt: Vec<Ours>, ours: &mut [Ours]) {
        let grantor = &*self;
        let asked = stream::iter(in_doubt)
            .map(|contender| async move { (grantor.ask(&contender).await, contender) })
            .buffer_unordered(CONCURRENCY);
        let answers: BTreeMap<SessionId, _> = asked
            .map(|(answer, contender)| (contender.session.clone(), (answer, contender)))
            .collect()
            .await;
        for contender in ours {
            let Some((answer, asked)) = answers.get(&contender.session) else {
                continue;
            };
            let before = self.proofs.remove(&contender.session);
            let now = Moment::now();
            let mut proof = Proof {
                of: asked.job.as_ref().map(|job| job.version.clone()),
                job: asked.job.clone(),
                pods: None,
                first: before.as_ref().map_or(now, |before| before.first),
                taken: now,
                warned: before.is_some_and(|before| before.warned),
            };
            match answer {
                Ok((job, pods)) => {
                    proof.job.clone_from(job);
                    proof.pods = Some(pods.clone());
                }
                Err(error) => {
                    tracing::warn!(job = %asked.identity.job, error, "can't see whether pods are left");
                }
            }
            self.warn_if_overdue(&asked.identity, &mut proof);
            proof.tell(contender);
            self.proofs.insert(contender.session.clone(), proof);
        }
    }

    async fn ask(&self, ours: &Ours) -> Result<(Option<Job>, Vec<String>), String> {
        let Identity {
            namespace,
            job,
            uid,
            ..
        } = &ours.identity;
        let target = Target {
            name: job.as_str().into(),
            uid: uid.clone(),
            version: String::new(),
        };
        let found = patch::read(&self.context, namespace, &target).await?;
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let params = ListParams::default().labels(&format!("{CONTROLLER_UID}={uid}"));
        let listed = match tokio::time::timeout(CALL_TIMEOUT, pods.list(&params)).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("the API server did not answer in time".into()),
        };
        let left = listed
            .items
            .iter()
            .filter(|pod| !has_ended(pod))
            .map(|pod| {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                format!("{name} on node {}", node.unwrap_or("(none yet)"))
            });
        Ok((found.map(|found| found.job), left.collect()))
    }

    /// Says which pods keep a slot that should be free by now.
    fn warn_if_overdue(&self, identity: &Identity, proof: &mut Proof) {
        let Some(pods) = proof.pods.as_ref().filter(|pods| !pods.is_empty()) else {
            return;
        };
        if proof.warned || proof.taken.since(proof.first) < OVERDUE {
            return;
        }
        proof.warned = true;
        let note = format!(
            "the slot of {} is kept because pods of this Job have not ended: {}. If a node is lost \
             for good, delete its Node object or force the deletion of the pod",
            self.reference,
            pods.join(", ")
        );
        tracing::warn!(job = %identity.job, semaphore = %self.reference, "{note}");
        let Identity {
            namespace,
            job,
            uid,
            ..
        } = identity;
        self.context
            .events
            .job(namespace, job, uid, Reason::PodsRemain, note);
    }
}

impl Proof {
    fn tell(&self, ours: &mut Ours) {
        ours.job.clone_from(&self.job);
        ours.pods_gone = self.pods_gone();
    }
}

/// Whether none of a pod's containers runs, or will.
pub(super) fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
