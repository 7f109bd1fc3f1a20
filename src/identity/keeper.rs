//! Keeps the mark in one datacenter during a term of leadership.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};

use super::{
    History, LeaseHistory, Marks, Ownership, Place, conflict,
    mark::{Mark, MarkOwner, Version, judge},
    mark_key,
};
use crate::call::CallError;
use consul_client::{
    self as consul, Backoff, Client, Entry, Listing, NewSession, PutMode, SessionId, WatchOptions,
    clock::Moment,
};
use consul_semaphore::{SessionState, holding::Renewal};

/// Time for which the mark is kept without a renewal. Consul takes up to twice as long to notice, and so does an
/// operator that was restored in place of another one.
const TTL: Duration = Duration::from_mins(5);

/// Time between two versions. A copy of etcd that is older than this can't pass for this API server.
const ROTATE: Duration = Duration::from_mins(1);

/// Longest time that the work waits at its start for the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(3);

/// Time limit of a call to Consul.
const CONSUL_CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses after something failed, or after another process was faster.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// The place of one mark.
pub(super) struct MarkPlace {
    /// A client for the datacenter of the mark.
    pub(super) consul: Client,
    pub(super) datacenter: Option<String>,
    pub(super) place: Arc<Place>,
}

/// The only writer of this process's mark in one datacenter.
pub(super) struct MarkKeeper {
    at: MarkPlace,
    key: String,
    history: Arc<LeaseHistory>,
    marks: Arc<Marks>,
    ownership: watch::Sender<Ownership>,
    changed: watch::Sender<()>,
    /// Moment at which this keeper last wrote the mark.
    written: Option<Moment>,
}

/// The reason why the mark could not be kept.
#[derive(Debug, thiserror::Error)]
enum MarkFailure {
    #[error(transparent)]
    Consul(#[from] consul::Error),
    #[error("the Lease of this operator can't be read or written: {0}")]
    Kubernetes(#[from] CallError),
}

impl MarkFailure {
    /// Returns the error for conditions. If a right is missing, the error names it with the key.
    fn of_consul(self, key: &str) -> consul::Error {
        match self {
            Self::Consul(consul::Error::Denied(message)) => consul::Error::Denied(format!(
                "{message}, for the key {key}, which shows whether another cluster uses this cluster's id"
            )),
            Self::Consul(error) => error,
            Self::Kubernetes(error) => consul::Error::Withheld(format!(
                "the Lease that shows whether another cluster uses this cluster's id can't be read or written: {error}"
            )),
        }
    }
}

impl MarkKeeper {
    pub(super) fn new(
        at: MarkPlace,
        history: Arc<LeaseHistory>,
        marks: Arc<Marks>,
        (ownership, changed): (watch::Sender<Ownership>, watch::Sender<()>),
    ) -> Self {
        let key = mark_key(&at.place);
        Self {
            at,
            key,
            history,
            marks,
            ownership,
            changed,
            written: None,
        }
    }

    /// Keeps the mark, and never returns.
    pub(super) async fn run(self) {
        let (ownership, changed) = (self.ownership.clone(), self.changed.clone());
        tokio::join!(self.keep_the_mark(), say_when_overdue(&ownership, &changed));
    }

    async fn keep_the_mark(mut self) {
        let options = WatchOptions {
            wait: ROTATE / 2,
            // While the key does not exist, every write to Consul wakes the watch.
            burst: 5,
            rate: 2.0,
            ..WatchOptions::default()
        };
        let mut readings = self.at.consul.readings(&self.key, options);
        let mut again: Option<Moment> = None;
        let mut backoff = BACKOFF;
        loop {
            let result = tokio::select! {
                Some(reading) = readings.recv() => match reading {
                    Ok(listing) => self.handle(self.entry(&listing).as_ref()).await,
                    Err(error) => Err(error.into()),
                },
                () = at(again) => self.look().await,
            };
            again = match result {
                Ok(true) => {
                    backoff.reset();
                    None
                }
                Ok(false) => Some(Moment::now() + backoff.pause()),
                Err(failure) => {
                    self.fail(failure);
                    Some(Moment::now() + backoff.pause())
                }
            };
        }
    }

    /// Returns the mark in a listing.
    fn entry(&self, listing: &Listing) -> Option<Entry> {
        let mut entries = listing.entries.iter().map(|entry| &**entry);
        entries.find(|entry| entry.key == self.key).cloned()
    }

    async fn look(&mut self) -> Result<bool, MarkFailure> {
        let entry = self.consul().get(&self.key).await?;
        self.handle(entry.as_ref()).await
    }

    /// Returns a client for one call.
    fn consul(&self) -> Client {
        self.at.consul.by(Moment::now() + CONSUL_CALL_TIMEOUT)
    }

    /// Handles a reading. Returns whether the keeper has nothing more to do before the next reading.
    async fn handle(&mut self, entry: Option<&Entry>) -> Result<bool, MarkFailure> {
        let last = self.marks.last();
        let found = match judge(entry, last.as_ref(), &History::default()) {
            MarkOwner::Foreign(Some(_)) => {
                let history = self.marks.saw(self.history.read().await?);
                judge(entry, last.as_ref(), &history)
            }
            known => known,
        };
        match (found, entry) {
            (MarkOwner::Foreign(mark), _) => {
                self.marks.leave(self.at.datacenter.as_deref());
                let id = &self.at.place.cluster.id;
                self.set(Ownership::Conflict(conflict(&self.key, id, mark.as_ref())));
                Ok(true)
            }
            (MarkOwner::Mine(session), Some(entry)) => self.keep(session, entry).await,
            // Without an election, several operators may keep one mark. None of them writes it just because another
            // one did.
            (MarkOwner::OfThisApiServer(session), Some(entry)) if self.written.is_some() => {
                self.keep(session, entry).await
            }
            (MarkOwner::OfThisApiServer(session), Some(entry)) => {
                if !self.adopt(&session).await? {
                    return Ok(false);
                }
                let written = self.rotate(entry).await?;
                if written {
                    self.own(&session);
                }
                Ok(written)
            }
            (MarkOwner::Free, _) | (_, None) => self.take().await,
        }
    }

    /// Keeps a mark that this API server has already: renews its session, and writes a new version now and then.
    async fn keep(&mut self, session: SessionId, entry: &Entry) -> Result<bool, MarkFailure> {
        if !self.adopt(&session).await? {
            return Ok(false);
        }
        self.own(&session);
        let due = self
            .written
            .is_none_or(|written| Moment::now() >= written + ROTATE);
        if !due {
            return Ok(true);
        }
        match self.rotate(entry).await {
            Ok(written) => Ok(written),
            // The mark still belongs to this API server, so only the next version has to wait.
            Err(failure) => {
                tracing::debug!(%failure, key = self.key, "can't write the mark of this cluster's identity again yet");
                Ok(false)
            }
        }
    }

    /// Renews the session of the mark from now on. Returns whether the session lives.
    async fn adopt(&self, session: &SessionId) -> Result<bool, MarkFailure> {
        if self
            .marks
            .life(self.at.datacenter.as_deref(), session)
            .is_some()
        {
            return Ok(true);
        }
        match self.consul().renew_session(session).await {
            Ok(renewed) => {
                let ttl = renewed.session.ttl.unwrap_or(TTL);
                self.renew(session, renewed.sent, ttl);
                Ok(true)
            }
            // Consul deletes the key with the session.
            Err(consul::Error::Gone) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn renew(&self, session: &SessionId, sent: Moment, ttl: Duration) {
        let (consul, life) = (self.at.consul.clone(), SessionState::Renewed { sent, ttl });
        let renewal = Renewal::start(consul, session.clone(), life, Arc::new(|| {}));
        let datacenter = self.at.datacenter.as_deref();
        self.marks.renew(datacenter, session.clone(), renewal);
    }

    /// Writes the next version over this entry, under the same session. Returns whether the entry was still
    /// unchanged.
    async fn rotate(&mut self, entry: &Entry) -> Result<bool, MarkFailure> {
        let version = self.announce().await?;
        let written = self
            .write(version, PutMode::Cas(entry.modify_index))
            .await?;
        if !written {
            self.marks.begin_anew();
        }
        Ok(written)
    }

    /// Takes a mark that nobody keeps, with a new session of this operator.
    async fn take(&mut self) -> Result<bool, MarkFailure> {
        let version = self.announce().await?;
        let request = NewSession {
            name: format!(
                "consul-semaphore-operator identity {}",
                self.at.place.replica
            ),
            node: Some(self.at.place.node.as_ref().to_owned()),
            ttl: Some(TTL),
            lock_delay: Duration::ZERO,
        };
        let sent = Moment::now();
        let session = self.consul().create_session_on_node(&request).await?;
        let acquired = self.write(version, PutMode::Acquire(session.clone())).await;
        match acquired {
            Ok(true) => {
                self.renew(&session, sent, TTL);
                self.own(&session);
            }
            // The session may hold the mark, because the answer was lost. The next reading then recognizes the
            // version.
            Err(ref error) if error.may_have_been_applied() => {}
            _ => drop(self.consul().destroy_session(&session).await),
        }
        Ok(acquired?)
    }

    /// Makes the next version and adds it to the history before it is written to Consul, so that Consul has no
    /// version that this API server does not know.
    async fn announce(&self) -> Result<Version, CallError> {
        let version = self.marks.next();
        self.history.note(&version).await?;
        Ok(version)
    }

    async fn write(&mut self, version: Version, mode: PutMode) -> Result<bool, consul::Error> {
        let mark = Mark {
            version,
            cluster: self.at.place.cluster.name.clone(),
            replica: self.at.place.replica.to_string(),
        };
        // The mark has only strings and numbers, so writing it cannot fail.
        let value = serde_json::to_vec(&mark).unwrap_or_default();
        let written = self.consul().put(&self.key, &value, 0, mode).await?;
        if written {
            self.written = Some(Moment::now());
        }
        Ok(written)
    }

    /// Shows that this API server has the identity, while this session lives.
    fn own(&self, session: &SessionId) {
        if let Some(life) = self.marks.life(self.at.datacenter.as_deref(), session) {
            self.set(Ownership::Ours(life));
        }
    }

    /// Handles a failure, which changes nothing while the session of the mark lives.
    fn fail(&self, failure: MarkFailure) {
        tracing::debug!(%failure, key = self.key, "can't lock the mark of this cluster's identity yet");
        let is_certain = match &*self.ownership.borrow() {
            Ownership::Ours(life) => matches!(
                life.get(),
                SessionState::Renewed { sent, ttl } if Moment::now() < sent + ttl
            ),
            // A conflict with another API server does not end because Consul is away.
            Ownership::Conflict(_) => true,
            Ownership::Undecided | Ownership::Unknown(_) => false,
        };
        if !is_certain {
            self.set(Ownership::Unknown(failure.of_consul(&self.key)));
        }
    }

    fn set(&self, ownership: Ownership) {
        let before = self.ownership.send_replace(ownership);
        let now = self.ownership.borrow();
        if !now.differs(&before) {
            return;
        }
        match &*now {
            Ownership::Conflict(message) => tracing::error!("{message}"),
            Ownership::Ours(_) if matches!(before, Ownership::Conflict(_)) => {
                tracing::warn!(
                    key = self.key,
                    "no other API server uses the identity of this cluster any more"
                );
            }
            _ => {}
        }
        drop(now);
        self.changed.send_replace(());
    }
}

/// Shows that the owner of the identity is unknown, if there is no answer in time. The work can't wait for long,
/// because running Jobs must be suspended in time if Consul is away.
async fn say_when_overdue(ownership: &watch::Sender<Ownership>, changed: &watch::Sender<()>) {
    sleep(FIRST_ANSWER).await;
    let overdue = ownership.send_if_modified(|ownership| {
        let overdue = matches!(ownership, Ownership::Undecided);
        if overdue {
            let why = "it is not known yet whether another cluster uses this cluster's id";
            *ownership = Ownership::Unknown(consul::Error::Withheld(why.to_owned()));
        }
        overdue
    });
    if overdue {
        changed.send_replace(());
    }
}

/// Waits until this moment, or for ever if there is none.
async fn at(moment: Option<Moment>) {
    match moment {
        Some(moment) => sleep(moment.since(Moment::now())).await,
        None => std::future::pending().await,
    }
}
