//! What is stored of a workload.

use std::{collections::BTreeMap, sync::Arc};

use consul_client::clock::Moment;
use consul_semaphore::{OnContention, SlotRequest, Workload};
use consul_semaphore_api::annotations::{self, AnnotationError};

use crate::{Obstacle, WorkloadObject, job};

/// The stored part of a workload that asks for a slot, or was started in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedWorkload {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// What the engine needs to know about it.
    pub workload: Arc<Workload>,
    /// The `ConsulSemaphore` that it names, even if an obstacle keeps it out of the queue.
    pub semaphore: Option<Arc<str>>,
    /// Why it is in no queue, whatever its semaphore: see [`TrackedWorkload::obstacle_in`].
    pub obstacle: Option<Obstacle>,
    /// Why its key is invalid: an obstacle if the semaphore is keyed.
    pub bad_key: Option<AnnotationError>,
}

impl TrackedWorkload {
    /// Reads a workload that was received at `seen`; `None` if it neither asks for a slot nor was started in one.
    pub fn read(object: &WorkloadObject, seen: Moment) -> Option<Self> {
        let none = BTreeMap::new();
        let metadata = &object.metadata;
        let annotations = metadata.annotations.as_ref().unwrap_or(&none);
        let granted = job::granted(object);
        let request = annotations::parse(annotations);
        if request.is_none() && granted.is_none() {
            return None;
        }
        let manager = request.is_some().then(|| job::manager(object)).flatten();
        let (request, obstacle) = match (request, manager) {
            (_, Some(manager)) => (None, Some(Obstacle::Managed(manager))),
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
        let semaphore = annotations.get(annotations::SEMAPHORE);
        let semaphore = semaphore.filter(|name| annotations::is_object_name(name));
        let semaphore: Option<Arc<str>> = semaphore.map(|name| name.as_str().into());
        let on_contention = request
            .as_ref()
            .map_or(OnContention::Wait, |request| request.on_contention);
        let cron_job = match on_contention {
            OnContention::Wait => None,
            OnContention::Skip => job::cron_job(object).map(Arc::new),
        };
        let reported = job::reported(object);
        let asks = semaphore.iter().filter(|_| request.is_some());
        let requests = asks.map(|semaphore| SlotRequest::one(semaphore.clone(), key.clone()));
        let workload = Workload {
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
            version: metadata.resource_version.as_deref()?.into(),
            seen,
            requests: requests.collect(),
            on_contention,
            cron_job,
            priority: request.as_ref().map_or(0, |request| request.priority),
            hold: request.as_ref().is_some_and(|request| request.hold),
            since: job::since(object, !reported.is_empty()),
            phase: job::phase(object),
            grace: job::grace(object),
            was_suspended: job::was_suspended(object),
            granted,
            reported,
        };
        Some(Self {
            namespace: metadata.namespace.as_deref()?.into(),
            workload: Arc::new(workload),
            semaphore,
            obstacle,
            bad_key,
        })
    }

    /// Whether it names this semaphore.
    pub fn names(&self, semaphore: &str) -> bool {
        self.semaphore.as_deref() == Some(semaphore)
    }

    /// The obstacle on the workload itself that keeps it out of the queue of its semaphore, if there is one. `keyed`
    /// says whether the semaphore is keyed.
    pub fn obstacle_in(&self, keyed: bool) -> Option<Obstacle> {
        let mut requests = self.workload.requests.iter();
        if self.obstacle.is_some() || !keyed || requests.all(|request| request.key.is_some()) {
            return self.obstacle.clone();
        }
        let bad_key = self.bad_key.clone().map(Obstacle::Malformed);
        Some(bad_key.unwrap_or(Obstacle::NoKey))
    }

    /// Whether something else starts and stops it.
    pub fn is_managed(&self) -> bool {
        match &self.obstacle {
            Some(Obstacle::Managed(_)) => true,
            None | Some(Obstacle::Malformed(_) | Obstacle::NoKey) => false,
        }
    }

    /// Whether a later version means the same: most changes of a workload do not affect its slot.
    pub fn says_the_same(&self, later: &Self) -> bool {
        let workload = Workload {
            version: self.workload.version.clone(),
            seen: self.workload.seen,
            ..Workload::clone(&later.workload)
        };
        let Self {
            namespace,
            workload: _,
            semaphore,
            obstacle,
            bad_key,
        } = later;
        *self.workload == workload
            && self.namespace == *namespace
            && self.semaphore == *semaphore
            && self.obstacle == *obstacle
            && self.bad_key == *bad_key
    }
}

#[cfg(test)]
mod tests;
