//! The stored part of a workload.

use std::{collections::BTreeMap, sync::Arc};

use consul_client::clock::Moment;
use consul_semaphore::{OnContention, Phase, SlotRequest, Workload};
use consul_semaphore_api::annotations::{self, AnnotationError};

use crate::{
    Job, Kind, Object, Obstacle,
    read::{self, Read},
    shape::Shape,
};

/// The stored part of a workload that asks for a slot, or was started in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedWorkload {
    /// Namespace of the workload.
    pub namespace: Arc<str>,
    /// The part of the workload that the engine needs.
    pub workload: Arc<Workload>,
    /// The `ConsulSemaphores` that the workload names, if an obstacle keeps it from asking for their slots.
    pub barred_from: Vec<Arc<str>>,
    /// The obstacle that keeps the workload out of every queue, whatever its semaphores are.
    /// [`TrackedWorkload::obstacle_in`] returns this obstacle or the one at a particular semaphore.
    pub obstacle: Option<Obstacle>,
    /// The error in the annotation with the key. The error is an obstacle only if the workload needs that key.
    pub bad_key: Option<AnnotationError>,
    /// The semaphores that the workload names together with a key.
    pub named_with_key: Vec<Arc<str>>,
    /// The facts about the workload that a patch depends on.
    pub shape: Shape,
    /// Whether the workload is a hook of Helm or Argo CD. Hooks run before other objects are created.
    pub is_hook: bool,
}

impl TrackedWorkload {
    /// Reads a Job that was received at `seen`; `None` if it neither asks for a slot nor was started in one.
    pub fn read(object: &Job, seen: Moment) -> Option<Self> {
        Self::read_any(object, seen)
    }

    /// Reads a workload of this kind from JSON that was received at `seen`.
    ///
    /// # Errors
    /// The JSON is not an object of that kind.
    pub fn parse(kind: &Kind, json: &str, seen: Moment) -> serde_json::Result<Option<Self>> {
        match kind {
            Kind::Job => Ok(Self::read(&serde_json::from_str(json)?, seen)),
            kind => Self::read_object(kind, &serde_json::from_str(json)?, seen),
        }
    }

    /// Reads a workload of this kind that was received at `seen`; `None` if it neither asks for a slot nor was started
    /// in one.
    ///
    /// # Errors
    /// The object can't be read as one of that kind.
    pub fn read_object(
        kind: &Kind,
        object: &Object,
        seen: Moment,
    ) -> serde_json::Result<Option<Self>> {
        // An object without annotations does not concern the operator, so it need not be readable.
        let annotations = object.metadata.annotations.as_ref();
        if object.beside.is_none() && annotations.is_none_or(BTreeMap::is_empty) {
            return Ok(None);
        }
        kind.read(object, |object| Self::read_any(object, seen))
    }

    fn read_any(object: &dyn Read, seen: Moment) -> Option<Self> {
        let none = BTreeMap::new();
        let metadata = object.metadata();
        let annotations = metadata.annotations.as_ref().unwrap_or(&none);
        if read::belongs_to_its_owner(object) {
            return None;
        }
        let granted = read::granted(object);
        let request = annotations::parse(annotations);
        if request.is_none() && granted.is_none() {
            return None;
        }
        let obstacle = request
            .is_some()
            .then(|| read::obstacle(object, granted.as_ref()));
        let (request, obstacle) = match (request, obstacle.flatten()) {
            (_, Some(obstacle)) => (None, Some(obstacle)),
            (Some(Err(error)), None) => (None, Some(Obstacle::Malformed(error))),
            (Some(Ok(request)), None) => (Some(request), None),
            (None, None) => (None, None),
        };
        let key = request.as_ref().and_then(|request| request.key.clone());
        let (key, bad_key) = match key {
            Some(Ok(key)) => (Some(key), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let slots = request
            .as_ref()
            .map_or_else(Vec::new, |request| request.slots.clone());
        let barred_from = match request {
            Some(_) => Vec::new(),
            None => names(annotations::slots(annotations)),
        };
        let with_key = slots.iter().filter(|slots| slots.key.is_some());
        let named_with_key = names(with_key.cloned());
        let requests = slots.into_iter().map(|slots| SlotRequest {
            key: slots.key.or_else(|| key.clone()),
            ..slots
        });
        let on_contention = request
            .as_ref()
            .map_or(OnContention::Wait, |request| request.on_contention);
        let cron_job = on_contention
            .is_hasty()
            .then(|| read::cron_job(metadata))
            .flatten()
            .map(Arc::new);
        let timeout = request.as_ref().and_then(|request| request.wait_timeout);
        let reported = read::reported(metadata);
        let phase = object.phase(granted.is_some());
        let wait = read::wait(object, phase, timeout);
        let workload = Workload {
            kind: object.kind().name(),
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
            version: metadata.resource_version.as_deref()?.into(),
            seen,
            requests: requests.collect(),
            on_contention,
            cron_job,
            priority: request.as_ref().map_or(0, |request| request.priority),
            hold: request.as_ref().is_some_and(|request| request.hold),
            since: read::since(object, !reported.is_empty() && wait.recorded.is_none()),
            phase,
            grace: object.grace(),
            was_suspended: object.was_suspended(),
            traits: object.traits(),
            granted,
            reported,
            wait,
        };
        Some(Self {
            namespace: metadata.namespace.as_deref()?.into(),
            workload: Arc::new(workload),
            barred_from,
            obstacle,
            bad_key,
            named_with_key,
            shape: object.shape(),
            is_hook: read::is_hook(annotations),
        })
    }

    /// Returns the semaphores that the workload names, including those from which an obstacle keeps it.
    pub fn semaphores(&self) -> impl Iterator<Item = &Arc<str>> {
        let requests = self.workload.requests.iter();
        let asked = requests.map(|request| &request.semaphore);
        asked.chain(&self.barred_from)
    }

    /// Whether the workload names this semaphore.
    pub fn names(&self, semaphore: &str) -> bool {
        self.semaphores().any(|name| **name == *semaphore)
    }

    /// Returns the obstacle on the workload itself that keeps it out of the queue of this semaphore, if there is one.
    /// `keyed` says whether the semaphore is keyed.
    pub fn obstacle_in(&self, semaphore: &str, keyed: bool) -> Option<Obstacle> {
        if self.obstacle.is_some() {
            return self.obstacle.clone();
        }
        if !keyed {
            let mut named = self.named_with_key.iter();
            let found = named.find(|name| ***name == *semaphore);
            return found.map(|name| Obstacle::NotKeyed(name.clone()));
        }
        let mut requests = self.workload.requests.iter();
        let keyless =
            |request: &&SlotRequest| *request.semaphore == *semaphore && request.key.is_none();
        let request = requests.find(keyless)?;
        let bad_key = self.bad_key.clone().map(Obstacle::Malformed);
        Some(bad_key.unwrap_or_else(|| Obstacle::NoKey(request.semaphore.clone())))
    }

    /// Whether something else than the operator starts and stops the workload.
    pub fn is_managed(&self) -> bool {
        matches!(
            self.obstacle,
            Some(Obstacle::Managed(_) | Obstacle::Owned(_) | Obstacle::Started(_))
        )
    }

    /// Whether a LIST must show if pods of the workload are left, because its status does not.
    ///
    /// The status of a Job counts its pods. If the Job lost its slot soon after it was started, the status may still be
    /// from before the start, so its pods are listed. They are also listed while a suspended Job still has a start
    /// time, which may be cleared once no pod is left.
    ///
    /// The status of other workloads does not show pods that still terminate, so these workloads are listed once they
    /// no longer run. A workload that has finished in the slot that it names is an exception, because its contender
    /// stays until no pod is left. A workload that is held only to fail may have pods, too. A workload that has failed
    /// without a grant and may run again is looked at once more, so that the mark of its failure is removed.
    pub fn may_have_pods(&self) -> bool {
        let workload = &self.workload;
        if workload.kind == Kind::Job.name() {
            let lost = workload.phase == Phase::Idle && workload.lost();
            return lost || self.shape.is_started() && !self.is_managed();
        }
        match workload.phase {
            // Kueue resets the grant of a Workload while its pods terminate.
            Phase::Idle if workload.kind == Kind::KueueWorkload.name() => true,
            Phase::Idle => workload.granted.is_some(),
            Phase::Finished { at_rest } => {
                let failed = workload.granted.is_none() && self.shape.may_run_again();
                !at_rest && (workload.lost() || failed)
            }
            Phase::Stopping => self.shape.is_to_fail() || self.shape.is_reset(),
            Phase::Running | Phase::Deleting => false,
        }
    }

    /// Whether a later version means the same to the operator. Most changes of a workload do not affect its slot.
    pub fn says_the_same(&self, later: &Self) -> bool {
        let workload = Workload {
            version: self.workload.version.clone(),
            seen: self.workload.seen,
            ..Workload::clone(&later.workload)
        };
        let Self {
            namespace,
            workload: _,
            barred_from,
            obstacle,
            bad_key,
            named_with_key,
            shape,
            is_hook,
        } = later;
        *self.workload == workload
            && self.namespace == *namespace
            && self.barred_from == *barred_from
            && self.obstacle == *obstacle
            && self.bad_key == *bad_key
            && self.named_with_key == *named_with_key
            && self.shape == *shape
            && self.is_hook == *is_hook
    }
}

/// Returns the names of the semaphores. A name that follows itself is listed once.
fn names(slots: impl IntoIterator<Item = SlotRequest>) -> Vec<Arc<str>> {
    let mut names: Vec<_> = slots.into_iter().map(|slots| slots.semaphore).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests;
