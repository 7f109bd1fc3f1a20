//! Runs the duties for semaphores as a whole, each as a separate task.

use tokio::task::JoinSet;

use crate::{
    call::CallError,
    controller::semaphore::SemaphoreController,
    crash::{self, Point},
};
use consul_client as consul;
use consul_semaphore::engine::SemaphoreRef;

/// `ConsulSemaphore` in the API server. One that is recreated under the same name is another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::controller) struct SemaphoreObject {
    pub(in crate::controller) semaphore: SemaphoreRef,
    pub(in crate::controller) uid: Option<String>,
}

/// Result of a duty.
pub(super) enum DutyDone {
    AddedFinalizer(Result<(), CallError>),
    RemovedFinalizer(Result<(), CallError>),
    Recorded(Vec<u32>),
    Sessions(Result<Vec<consul::Session>, consul::Error>),
}

/// Duties that are running.
#[derive(Default)]
pub(super) struct Duties(JoinSet<(SemaphoreObject, DutyDone)>);

impl Duties {
    fn begin(
        &mut self,
        of: &SemaphoreController,
        duty: impl Future<Output = DutyDone> + Send + 'static,
    ) {
        let object = of.object();
        self.0.spawn(async { (object, duty.await) });
    }

    pub(super) fn add_finalizer(&mut self, of: &SemaphoreController) {
        let adding = of.add_finalizer();
        self.begin(of, async { DutyDone::AddedFinalizer(adding.await) });
    }

    /// Removes the finalizer; `clean` says that nothing of the semaphore is left in Consul.
    pub(super) fn remove_finalizer(&mut self, of: &SemaphoreController, clean: bool) {
        let removing = of.remove_finalizer(clean);
        self.begin(of, async { DutyDone::RemovedFinalizer(removing.await) });
    }

    /// Lists the sessions of the semaphore's node.
    pub(super) fn list_sessions(&mut self, of: &SemaphoreController) {
        let target = of.target().cloned();
        self.begin(of, async {
            let Some(target) = target else {
                let why = "no access to Consul".into();
                return DutyDone::Sessions(Err(consul::Error::NotSent(why)));
            };
            DutyDone::Sessions(target.consul.node_sessions(&target.node).await)
        });
    }

    /// Notes that these limits are in the status as ours.
    pub(super) fn record(&mut self, of: &SemaphoreController, limits: Vec<u32>) {
        let namespace = of.object().semaphore.namespace;
        self.begin(of, async move {
            crash::reach(Point::LimitRecorded, &namespace).await;
            DutyDone::Recorded(limits)
        });
    }

    /// Waits until a duty has ended; returns `None` if no duty runs.
    pub(super) async fn next(&mut self) -> Option<(SemaphoreObject, DutyDone)> {
        match self.0.join_next().await? {
            Ok(ended) => Some(ended),
            // A task that panics is a bug, and ends the shell, too. No task is aborted.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
