//! Elects a leader by a Lease in Kubernetes.
//!
//! No published crate follows these rules: the clock of another machine is not trusted, and every write names the
//! version that the decision was based on.

mod record;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{
    Api, Client, Config,
    api::PostParams,
    runtime::watcher::{self, watch_object},
};
use tokio::time::{sleep, timeout};

use self::record::LeaseSighting;
use super::{
    Candidate, ElectionSettings, LEGACY, LeaseName, Legacy, Standing, Term, Timing, board::Board,
};
use consul_client::clock::{self, Moment};

/// A replica that is a candidate in an election by a Lease.
pub(super) struct LeaseCandidate {
    leases: Api<Lease>,
    namespace: String,
    name: LeaseName,
    identity: String,
    timing: Timing,
    seen: Option<LeaseSighting>,
    /// Acquire time that this replica last tried to write. It tells the replica's own record from that of another
    /// process with the same name, even when the answer was lost.
    claim: Option<MicroTime>,
    legacy: Arc<dyn Legacy>,
}

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
enum LeaseFailure {
    /// The Lease was written or deleted by somebody else.
    #[error("another replica was faster")]
    Outrun,
    #[error(transparent)]
    Refused(Box<kube::Error>),
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
}

impl LeaseCandidate {
    /// # Errors
    /// Fails if the settings of the API server can't be used.
    pub(super) fn new(
        settings: &ElectionSettings,
        mut config: Config,
        legacy: Arc<dyn Legacy>,
    ) -> anyhow::Result<Self> {
        let namespace = settings
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        // The election has its own client, because calls about the Lease must not be retried late, and must not wait
        // for other calls.
        config.default_retry = false;
        let client = Client::try_from(config).context("the API server")?;
        Ok(Self {
            leases: Api::namespaced(client, &namespace),
            namespace,
            name: settings.lease_name.clone(),
            identity: settings.identity.clone(),
            timing: Timing {
                lease: settings.lease,
            },
            seen: None,
            claim: None,
            legacy,
        })
    }

    /// Records the current Lease.
    fn note(&mut self, lease: Option<Lease>) -> &LeaseSighting {
        let seen = LeaseSighting::after(self.seen.take(), lease, Moment::now());
        self.seen.insert(seen)
    }

    /// Reads the Lease.
    async fn look(&mut self) -> Result<&LeaseSighting, LeaseFailure> {
        let lease = self.call(self.leases.get_opt(self.name.as_ref())).await?;
        Ok(self.note(lease))
    }

    /// Takes the Lease if it has not changed, and returns the moment until which the lead is certain.
    async fn take(&mut self, seen: &LeaseSighting) -> Result<Moment, LeaseFailure> {
        let claim = self.claim.as_ref();
        let mut lease = seen.taken(&self.identity, claim, self.timing.lease, &present());
        let spec = lease.spec.as_ref();
        self.claim = spec.and_then(|spec| spec.acquire_time.clone());
        self.legacy.take_over(legacy_in(&lease));
        self.leave(&mut lease);
        let params = PostParams::default();
        let sent = Moment::now();
        let taken = if seen.lease.is_some() {
            self.call(self.leases.replace(self.name.as_ref(), &params, &lease))
                .await?
        } else {
            lease.metadata.name = Some(self.name.to_string());
            self.call(self.leases.create(&params, &lease)).await?
        };
        self.note(Some(taken));
        Ok(sent + self.timing.certain())
    }

    /// Tries to take the Lease. If another replica was faster, reports that one; if there is a problem, reports it
    /// and waits.
    async fn try_take<F: Fn(&Standing)>(&mut self, board: &Board<F>) -> Option<Moment> {
        let seen = self.seen.clone()?;
        let tried = match self.take(&seen).await {
            Ok(until) => return Some(until),
            Err(LeaseFailure::Outrun) => self.look().await.map(drop),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = tried {
            self.complain(board, &failure);
            sleep(self.timing.pause()).await;
        }
        None
    }

    fn complain<F: Fn(&Standing)>(&self, board: &Board<F>, problem: &dyn std::fmt::Display) {
        let Self {
            namespace, name, ..
        } = self;
        board.trouble(format!("Lease {namespace}/{name}: {problem}"));
    }

    /// Writes into the Lease what this leader leaves for the next one.
    fn leave(&self, lease: &mut Lease) {
        if let Some(legacy) = self.legacy.leave(legacy_in(lease)) {
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(LEGACY.to_owned(), legacy);
        }
    }

    /// Makes a call with a timeout.
    async fn call<T>(
        &self,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, LeaseFailure> {
        match timeout(self.timing.call(), call).await {
            Ok(Ok(answer)) => Ok(answer),
            // The API server also answers with a conflict when a Lease to be created exists or one to be replaced
            // does not.
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.code == 409 => {
                Err(LeaseFailure::Outrun)
            }
            Ok(Err(error)) => Err(LeaseFailure::Refused(Box::new(error))),
            Err(_) => Err(LeaseFailure::Silent(self.timing.call())),
        }
    }
}

impl Candidate for LeaseCandidate {
    async fn win<F: Fn(&Standing)>(&mut self, board: &Board<F>) -> Moment {
        // The watch makes a hand-over quick. When it is broken and silent, the lease runs out by our clock, and the
        // attempt to take it shows that it was renewed.
        let mut changes = std::pin::pin!(watch_object(self.leases.clone(), self.name.as_ref()));
        loop {
            let free = self.seen.as_ref().map_or(Moment::END, |seen| {
                seen.free_at(&self.identity, self.claim.as_ref(), self.timing.lease)
            });
            tokio::select! {
                Some(change) = changes.next() => match change {
                    Ok(lease) => {
                        let seen = self.note(lease).clone();
                        board.follows(seen.holder().filter(|holder| *holder != self.identity));
                    }
                    Err(error) => {
                        self.complain(board, &cause(&error));
                        sleep(self.timing.pause()).await;
                    }
                },
                () = sleep(free.since(Moment::now())) => {
                    if let Some(until) = self.try_take(board).await {
                        return until;
                    }
                }
            }
        }
    }

    async fn keep(&mut self, term: &Term) -> String {
        let mut pause = self.timing.pause();
        loop {
            sleep(pause).await;
            pause = self.timing.pause();
            let Some(seen) = self.seen.clone() else {
                return "the Lease is unknown".to_owned();
            };
            let sent = Moment::now();
            let mut lease = seen.renewed(&present());
            self.leave(&mut lease);
            let params = PostParams::default();
            let failure = match self
                .call(self.leases.replace(self.name.as_ref(), &params, &lease))
                .await
            {
                Ok(lease) => {
                    self.note(Some(lease));
                    term.extend(sent + self.timing.certain());
                    continue;
                }
                Err(LeaseFailure::Outrun) => match self.held().await {
                    // Somebody wrote something else into the Lease, or the answer to this replica's last write was
                    // lost.
                    Ok(None) => {
                        pause = Duration::ZERO;
                        continue;
                    }
                    Ok(Some(lost)) => return lost,
                    Err(failure) => failure,
                },
                Err(LeaseFailure::Refused(error)) if is_gone(&error) => {
                    self.note(None);
                    return "the Lease was deleted".to_owned();
                }
                Err(failure) => failure,
            };
            tracing::debug!(%failure, "can't renew the leadership yet");
        }
    }

    async fn resign(&mut self) {
        let Ok(None) = self.held().await else {
            return;
        };
        let Some(seen) = &self.seen else { return };
        let mut lease = seen.given_back(&present());
        self.leave(&mut lease);
        let params = PostParams::default();
        let given = self.leases.replace(self.name.as_ref(), &params, &lease);
        if let Err(failure) = self.call(given).await {
            tracing::debug!(%failure, "can't release the leadership");
        }
    }
}

impl LeaseCandidate {
    /// Reads the Lease. Returns `None` if this replica has it, else the reason why not.
    async fn held(&mut self) -> Result<Option<String>, LeaseFailure> {
        let (identity, claim) = (self.identity.clone(), self.claim.clone());
        let seen = self.look().await?;
        if seen.is_held_by(&identity, claim.as_ref()) {
            return Ok(None);
        }
        Ok(Some(match (&seen.lease, seen.holder()) {
            (None, _) => "the Lease was deleted".to_owned(),
            (_, None) => "somebody released the Lease".to_owned(),
            (_, Some(holder)) => format!("{holder} has taken the Lease"),
        }))
    }
}

/// Returns the time of the wall clock in microseconds, the unit of a Lease. It is for people who read the record; no
/// decision depends on it.
fn present() -> MicroTime {
    let now = clock::time();
    MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

/// Returns the text that an earlier leader left in the Lease.
fn legacy_in(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(LEGACY).map(String::as_str)
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// Returns the API server's message, without the words that the watcher adds.
fn cause(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            error.to_string()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
