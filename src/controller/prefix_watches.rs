//! Watches prefixes in Consul, with one watch for all semaphores of one place, credential and prefix.
//!
//! The listing of a watch is in memory once, however many semaphores read it, and counts against the budget of what
//! is kept of Consul's answers. What each semaphore derives from the listing counts, too.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::shell::Input;
use consul_client::{
    self as consul, Account, Budget, Client, Entries, Listing, Reader, Scope, WatchOptions,
};
use consul_semaphore::engine::SemaphoreRef;
use consul_semaphore_api::TokenSecretRef;

/// Number of the next watch of a semaphore. Each watch has its own number, because a listing may still be queued when
/// its semaphore was deleted and another one has the same name.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Credential that reads a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WatchCredential {
    /// The operator's own token.
    Own,
    /// The token of a Secret in this namespace.
    Secret(Arc<str>, TokenSecretRef),
}

/// Folder to watch, with its place and the token to use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchedFolder {
    pub(super) place: Scope,
    pub(super) credential: WatchCredential,
    pub(super) folder: String,
}

/// Demand of one semaphore on the watch of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// Time that Consul may wait for a change before it answers anyway.
    pub(super) wait: Duration,
    /// Whether somebody waits for a change.
    pub(super) urgent: bool,
}

/// Demands of all semaphores that share a watch, by the numbers of their watches.
#[derive(Debug, Default)]
struct Demands {
    all: BTreeMap<u64, Demand>,
    /// Number of requests to begin the watch anew.
    renewed: u64,
}

impl Demands {
    /// Returns the demand that suits all semaphores; `None` if there are none.
    fn together(&self) -> Option<Demand> {
        let all = self.all.values().copied();
        all.reduce(|one, other| Demand {
            wait: one.wait.min(other.wait),
            urgent: one.urgent || other.urgent,
        })
    }
}

/// Latest listing or error of a shared watch.
#[derive(Clone, Debug, Default)]
struct Latest {
    reading: Option<Result<Listing, consul::Error>>,
    /// Number of times that Consul's index has gone back.
    resets: u64,
}

impl Latest {
    fn take(&mut self, reading: Result<Listing, consul::Error>) {
        let reset = reading.as_ref().is_ok_and(|listing| listing.reset);
        self.resets += u64::from(reset);
        self.reading = Some(reading);
    }
}

/// Watch that semaphores share.
struct SharedWatch {
    account: Account,
    client: Client,
    demands: watch::Sender<Demands>,
    latest: watch::Receiver<Latest>,
    _task: JoinSet<()>,
}

impl SharedWatch {
    fn start(account: Account, consul: &Client, folder: String) -> Self {
        let client = consul.charged(account.clone());
        let (demands, demanded) = watch::channel(Demands::default());
        let (brought, latest) = watch::channel(Latest::default());
        let mut task = JoinSet::new();
        let follower = Follower {
            client: client.clone(),
            folder,
            demanded,
            brought,
        };
        task.spawn(follower.run());
        Self {
            account,
            client,
            demands,
            latest,
            _task: task,
        }
    }
}

/// Task that watches a folder according to the demands.
struct Follower {
    client: Client,
    folder: String,
    demanded: watch::Receiver<Demands>,
    brought: watch::Sender<Latest>,
}

impl Follower {
    async fn run(mut self) {
        while let Some((demand, renewed)) = self.demand().await {
            if !self.follow(demand, renewed).await {
                return;
            }
        }
    }

    /// Returns the current demand, and the number of requests to begin the watch anew; `None` when nobody shares the
    /// watch any more.
    async fn demand(&mut self) -> Option<(Demand, u64)> {
        loop {
            {
                let demands = self.demanded.borrow_and_update();
                if let Some(demand) = demands.together() {
                    return Some((demand, demands.renewed));
                }
            }
            self.demanded.changed().await.ok()?;
        }
    }

    /// Watches the folder until the watch must begin anew; returns false when nobody shares it any more.
    async fn follow(&mut self, demand: Demand, renewed: u64) -> bool {
        let known = match &self.brought.borrow().reading {
            Some(Ok(listing)) => listing.entries.clone(),
            _ => Entries::default(),
        };
        let urgent = watch::channel(demand.urgent).0;
        let options = WatchOptions {
            wait: demand.wait,
            urgent: urgent.subscribe(),
            known,
            ..WatchOptions::default()
        };
        let mut readings = self.client.readings(&self.folder, options);
        loop {
            tokio::select! {
                reading = readings.recv() => {
                    let Some(reading) = reading else { return false };
                    self.brought.send_modify(|latest| latest.take(reading));
                }
                changed = self.demanded.changed() => {
                    if changed.is_err() {
                        return false;
                    }
                    let demands = self.demanded.borrow_and_update();
                    let now = demands.together();
                    let Some(now) = now.filter(|now| now.wait == demand.wait) else {
                        return true;
                    };
                    if demands.renewed != renewed {
                        return true;
                    }
                    urgent.send_if_modified(|is| std::mem::replace(is, now.urgent) != now.urgent);
                }
            }
        }
    }
}

/// All shared watches.
pub(super) struct PrefixWatches {
    budget: Budget,
    shared: Mutex<HashMap<WatchedFolder, Weak<SharedWatch>>>,
}

impl PrefixWatches {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            budget,
            shared: Mutex::default(),
        }
    }

    /// Returns the watch of this folder. What it keeps in memory counts for the namespace of the first semaphore
    /// that shared it.
    fn shared(
        &self,
        watched: WatchedFolder,
        consul: &Client,
        owner: &Arc<str>,
    ) -> Arc<SharedWatch> {
        let mut all = self.shared.lock();
        if let Some(shared) = all.get(&watched).and_then(Weak::upgrade) {
            return shared;
        }
        let account = self.budget.account(owner, &watched.folder);
        let shared = Arc::new(SharedWatch::start(account, consul, watched.folder.clone()));
        all.retain(|_, shared| shared.strong_count() > 0);
        all.insert(watched, Arc::downgrade(&shared));
        shared
    }

    /// Watches a prefix for a semaphore. Sends the listings to the shell, with the number of the watch.
    pub(super) fn watch(
        &self,
        watched: WatchedFolder,
        consul: &Client,
        demand: Demand,
        (semaphore, inputs): (SemaphoreRef, mpsc::Sender<Input>),
    ) -> PrefixWatch {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let shared = self.shared(watched, consul, &semaphore.namespace);
        let mut task = JoinSet::new();
        let reader = Reader::new(&shared.account);
        let latest = shared.latest.clone();
        task.spawn(pass_on(latest, reader, semaphore, number, inputs));
        let watch = PrefixWatch {
            number,
            shared,
            _task: task,
        };
        watch.demand(demand);
        watch
    }
}

/// Passes what a shared watch brings to the shell, for one semaphore.
async fn pass_on(
    mut latest: watch::Receiver<Latest>,
    mut reader: Reader,
    semaphore: SemaphoreRef,
    number: u64,
    inputs: mpsc::Sender<Input>,
) {
    let mut resets = latest.borrow().resets;
    // A semaphore that joins later also gets the latest listing.
    latest.mark_changed();
    while latest.changed().await.is_ok() {
        let Latest {
            reading,
            resets: now,
        } = latest.borrow_and_update().clone();
        let brought = match reading {
            None => continue,
            Some(Ok(listing)) => {
                let admitted = reader.admit(&listing.entries).await;
                admitted.map(|()| Listing {
                    // Consul's index may have gone back in a listing that a later one replaced before this loop saw
                    // it.
                    reset: now > resets,
                    ..listing
                })
            }
            Some(Err(error)) => {
                if error.is_too_much_to_keep() {
                    reader.leave();
                }
                Err(error)
            }
        };
        if brought.is_ok() {
            resets = now;
        }
        let input = Input::Listed(semaphore.clone(), number, brought);
        if inputs.send(input).await.is_err() {
            return;
        }
    }
}

/// Watch of a semaphore's prefix, until this is dropped.
pub(super) struct PrefixWatch {
    number: u64,
    shared: Arc<SharedWatch>,
    _task: JoinSet<()>,
}

impl Drop for PrefixWatch {
    fn drop(&mut self) {
        let number = self.number;
        self.shared
            .demands
            .send_if_modified(|demands| demands.all.remove(&number).is_some());
    }
}

impl PrefixWatch {
    /// Whether this is the watch with this number.
    pub(super) fn is(&self, number: u64) -> bool {
        self.number == number
    }

    /// Changes how the prefix is watched.
    pub(super) fn demand(&self, demand: Demand) {
        self.shared
            .demands
            .send_if_modified(|demands| demands.all.insert(self.number, demand) != Some(demand));
    }

    /// Begins the watch anew with a listing, because the access has changed and a call that failed may succeed, or because
    /// a listing from before does not count.
    pub(super) fn renew(&self) {
        self.shared
            .demands
            .send_modify(|demands| demands.renewed += 1);
    }

    /// Returns the client for other listings of the prefix. They count against the budget together with those of the
    /// watch.
    pub(super) fn client(&self) -> &Client {
        &self.shared.client
    }
}
