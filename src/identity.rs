//! Finds out and shows whether the cluster's identity in Consul belongs to this API server alone.
//!
//! The id of a cluster is the uid of its namespace kube-system, which is copied with a snapshot of etcd and with the
//! image of a machine. So two API servers may have one identity, and the operator of one would release the slots of
//! the other's Jobs.
//!
//! | file | subject |
//! |---|---|
//! | `mark` | the key in Consul that shows which operator uses the identity, and the rules, without IO |
//! | `history` | the annotation of a Lease that shows which marks the operators of this API server have written |
//! | `keeper` | keeps the mark in one datacenter |
//! | `gate` | lets writes to Consul pass only while the mark is kept |
//!
//! The leader writes a new version of the mark every minute: first into the history in a Lease, then into Consul. A
//! leader that finds a version of its own history in Consul continues from there at once, because the API server in
//! which it leads is the one that wrote the mark. A replica that stands by remembers what the Lease shows, so it
//! recognizes the mark even if etcd was restored from a backup in the meantime. Every other version was written
//! through another API server, and makes this operator stop. A session keeps the mark: when no operator renews the
//! session any more, the next operator takes the mark.

mod gate;
mod history;
mod keeper;
mod mark;

use std::{collections::HashMap, sync::Arc, time::Duration};

use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet, time::sleep};

pub(crate) use self::{
    gate::{IdentityGate, TokenOwner},
    history::History,
    mark::{conflict, judge_for_people, mark_key},
};
use self::{
    history::LeaseHistory,
    keeper::{MarkKeeper, MarkPlace},
    mark::Version,
};
use crate::leader::Term;
use consul_client::{self as consul, Scope, SessionId};
use consul_semaphore::{
    Cluster,
    holding::{KnownLife, Renewal},
};

/// Time between two readings of the marks that the leader wrote, by a replica that stands by.
const REREAD: Duration = Duration::from_secs(20);

/// The owner of the identity in one datacenter.
#[derive(Clone, Debug)]
pub(crate) enum Ownership {
    /// The owner is not known yet.
    Undecided,
    /// This API server owns the identity, while the session with this state lives.
    Ours(KnownLife),
    /// The owner can't be found out, or the mark can't be written, because of this error.
    Unknown(consul::Error),
    /// Another API server uses the identity. The text tells people what to do.
    Conflict(String),
}

impl Ownership {
    /// Returns whether semaphores are handled differently than under the other ownership.
    fn differs(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Conflict(one), Self::Conflict(another)) => one != another,
            (Self::Conflict(_) | Self::Undecided, _) | (_, Self::Conflict(_) | Self::Undecided) => {
                std::mem::discriminant(self) != std::mem::discriminant(other)
            }
            _ => false,
        }
    }
}

/// The state that all terms of this process share: the versions of the mark that it wrote, the versions that it saw
/// in the Lease, even while it stood by, and the sessions that keep marks. The sessions are renewed until another
/// replica leads, because an outage of the API server must not hand the identity to a copy.
#[derive(Default)]
pub(crate) struct Marks {
    last: Mutex<Option<Version>>,
    /// Versions that this process has seen in the Lease. The Lease itself has only older ones after etcd was restored
    /// from a backup.
    seen: Mutex<History>,
    renewing: Mutex<HashMap<Option<String>, (SessionId, Renewal)>>,
}

impl Marks {
    /// Returns the last version that this process wrote, or is about to write.
    fn last(&self) -> Option<Version> {
        self.last.lock().clone()
    }

    /// Makes the next version that this process writes.
    fn next(&self) -> Version {
        let mut last = self.last.lock();
        let next = last.as_ref().map_or_else(Version::first, Version::next);
        last.insert(next).clone()
    }

    /// Remembers what the Lease shows from now on, and never returns.
    pub(crate) async fn remember(self: Arc<Self>, place: Place, client: Client) {
        let lease = place.history(client);
        loop {
            if let Ok(history) = lease.read().await {
                self.saw(history);
            }
            sleep(REREAD.mul_f64(fastrand::f64().mul_add(0.2, 0.9))).await;
        }
    }

    /// Adds the versions that the Lease shows, and returns all that this process has seen there.
    fn saw(&self, history: History) -> History {
        let mut seen = self.seen.lock();
        seen.merge(history);
        seen.clone()
    }

    /// Begins a new series of versions, because another process writes the same series: the memory of the machine was
    /// copied, too.
    fn begin_anew(&self) {
        *self.last.lock() = None;
    }

    /// Renews this session, and no earlier one, for the mark in a datacenter.
    fn renew(&self, datacenter: Option<&str>, session: SessionId, renewal: Renewal) {
        let mut renewing = self.renewing.lock();
        let datacenter = datacenter.map(str::to_owned);
        if let Some((_, before)) = renewing.insert(datacenter, (session, renewal)) {
            before.stop();
        }
    }

    /// Returns the state of this session, if it is renewed for the mark in a datacenter.
    fn life(&self, datacenter: Option<&str>, session: &SessionId) -> Option<KnownLife> {
        let renewing = self.renewing.lock();
        let (kept, renewal) = renewing.get(&datacenter.map(str::to_owned))?;
        (kept == session).then(|| renewal.known_life())
    }

    /// Stops renewing the session for the mark in a datacenter.
    fn leave(&self, datacenter: Option<&str>) {
        let datacenter = datacenter.map(str::to_owned);
        if let Some((_, renewal)) = self.renewing.lock().remove(&datacenter) {
            renewal.stop();
        }
    }

    /// Stops renewing all sessions, because another replica leads and renews them.
    pub(crate) fn hand_over(&self) {
        for (_, (_, renewal)) in self.renewing.lock().drain() {
            renewal.stop();
        }
    }
}

/// The place in Consul and in the API server where the operator keeps its identity.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Cluster whose identity this is.
    pub(crate) cluster: Cluster,
    /// External node that owns the sessions.
    pub(crate) node: Arc<str>,
    /// Name of this replica, for people.
    pub(crate) replica: Arc<str>,
    /// Namespace of the operator's Lease.
    pub(crate) namespace: String,
    /// Name of the operator's Lease, even if the leader is elected without it.
    pub(crate) lease: String,
}

impl Place {
    /// Returns the history in the API server of this client.
    pub(crate) fn history(&self, client: Client) -> LeaseHistory {
        LeaseHistory::new(client, &self.namespace, &history_lease(&self.lease))
    }
}

/// Returns the name of the Lease whose annotation shows which marks an operator has written, given the name of the
/// operator's own Lease. The two differ because people delete the Lease of an election to have another leader.
pub(crate) fn history_lease(lease: &str) -> String {
    format!("{lease}-identity")
}

/// The identity in one term of leadership.
pub(crate) struct Identity {
    term: Term,
    consul: consul::Client,
    place: Arc<Place>,
    history: Arc<LeaseHistory>,
    marks: Arc<Marks>,
    keepers: Mutex<Keepers>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Keepers {
    states: HashMap<Option<String>, watch::Receiver<Ownership>>,
    /// Tasks of the keepers, which end when this is dropped.
    tasks: JoinSet<()>,
}

impl Identity {
    /// Begins to keep the mark in the datacenter of the client. Both clients send no writes after the term.
    pub(crate) fn new(
        term: Term,
        kubernetes: Client,
        consul: &consul::Client,
        place: Place,
        marks: Arc<Marks>,
    ) -> Self {
        let history = place.history(kubernetes);
        let this = Self {
            term,
            consul: consul.apart(),
            place: Arc::new(place),
            history: Arc::new(history),
            marks,
            keepers: Mutex::default(),
            changed: watch::Sender::new(()),
        };
        this.ownership(None);
        this
    }

    /// Returns the owner of the identity in a datacenter, as it changes, and keeps the mark there from now on. `None`
    /// is the datacenter of the operator's settings.
    pub(crate) fn ownership(&self, datacenter: Option<&str>) -> watch::Receiver<Ownership> {
        let datacenter = datacenter.map(str::to_owned);
        let mut keepers = self.keepers.lock();
        if let Some(known) = keepers.states.get(&datacenter) {
            return known.clone();
        }
        let (state, seen) = watch::channel(Ownership::Undecided);
        let place = MarkPlace {
            consul: self.consul.scoped(Scope {
                datacenter: datacenter.clone(),
                ..Scope::default()
            }),
            datacenter: datacenter.clone(),
            place: self.place.clone(),
        };
        let (history, marks) = (self.history.clone(), self.marks.clone());
        let keeper = MarkKeeper::new(place, history, marks, (state, self.changed.clone()));
        keepers.tasks.spawn(keeper.run());
        keepers.states.insert(datacenter, seen.clone());
        seen
    }

    /// Returns the gate for calls with this token in a datacenter.
    pub(crate) fn gate(&self, datacenter: Option<&str>, token: TokenOwner) -> IdentityGate {
        IdentityGate {
            term: self.term.clone(),
            ownership: self.ownership(datacenter),
            token,
        }
    }

    /// Returns a receiver that changes when semaphores of some datacenter have to be handled differently.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Waits until the owner of the identity in the operator's own datacenter is known, or why nobody can tell.
    pub(crate) async fn decided(&self) {
        let mut ownership = self.ownership(None);
        // The sender lives as long as this.
        let _ = ownership
            .wait_for(|ownership| !matches!(ownership, Ownership::Undecided))
            .await;
    }
}
