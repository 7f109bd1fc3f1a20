//! Elects a leader by a key in Consul that a session locks, as in Consul's guide.
//!
//! A session is created only while the key is free, so a replica that stands by costs one blocking query.

use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, time::sleep};

use super::{Candidate, Election, Standing, Term, Timing, board::Board};
use consul_client::{
    self as consul, Client, Entry, Listing, NewSession, PutMode, SessionId, WatchOptions,
    clock::Moment,
};

/// Consul's shortest TTL.
const SHORTEST_TTL: Duration = Duration::from_secs(10);

/// Consul's longest lock-delay.
const LONGEST_LOCK_DELAY: Duration = Duration::from_mins(1);

/// A replica that is a candidate in an election by a lock.
pub(super) struct LockCandidate {
    consul: Client,
    key: String,
    node: String,
    me: Leader,
    timing: Timing,
    /// Session that this replica created. It is missing before the first attempt.
    session: Option<SessionId>,
    /// Whether the process has read nothing yet since it started.
    new: bool,
}

/// The value of the key, as JSON, which names the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Leader {
    identity: String,
    cluster: String,
    cluster_id: String,
}

/// The meaning of a reading of the key to a candidate.
#[derive(Debug, PartialEq, Eq)]
enum KeyHolder {
    /// Nobody holds the key.
    Free,
    /// This replica holds the key: an answer was lost, or the replica was cut off for a while.
    Mine,
    /// A process of this name held the key, by this session, before this process started.
    Before(SessionId),
    /// Another replica holds the key.
    Other(String),
    /// A replica of another cluster with the same name holds the key.
    OtherCluster(Leader),
}

impl LockCandidate {
    pub(super) fn new(election: Election) -> Self {
        let Election {
            settings,
            kubernetes: _,
            consul,
            node,
            cluster,
            cluster_id,
            telemetry: _,
            legacy: _,
        } = election;
        Self {
            consul: consul.apart(),
            key: settings.lease_name.key(&cluster),
            node,
            me: Leader {
                identity: settings.identity,
                cluster,
                cluster_id,
            },
            timing: Timing {
                lease: settings.lease.max(SHORTEST_TTL),
            },
            session: None,
            new: true,
        }
    }

    /// Returns the meaning of this entry of the key, or of a missing one.
    fn judge(&self, entry: Option<&Entry>) -> KeyHolder {
        let held = entry.and_then(|entry| Some((entry, entry.session.as_ref()?)));
        let Some((entry, session)) = held else {
            return KeyHolder::Free;
        };
        if self.session.as_ref() == Some(session) {
            return KeyHolder::Mine;
        }
        match serde_json::from_slice::<Leader>(&entry.value) {
            Ok(leader) if leader.cluster_id != self.me.cluster_id => {
                KeyHolder::OtherCluster(leader)
            }
            Ok(leader) if self.new && leader == self.me => KeyHolder::Before(session.clone()),
            Ok(leader) => KeyHolder::Other(leader.identity),
            // Somebody locked the key by hand.
            Err(_) => KeyHolder::Other(format!("session {session}")),
        }
    }

    fn of<'a>(&self, listing: &'a Listing) -> Option<&'a Entry> {
        let mut entries = listing.entries.iter().map(|entry| &**entry);
        entries.find(|entry| entry.key == self.key)
    }

    fn watch(&self) -> mpsc::Receiver<Result<Listing, consul::Error>> {
        let options = WatchOptions {
            wait: self.timing.lease,
            // While the key does not exist, every write to Consul wakes the watch.
            burst: 5,
            rate: 2.0,
            ..WatchOptions::default()
        };
        self.consul.readings(&self.key, options)
    }

    /// Tries to lock the key with a live session. Returns `None` if Consul refuses, because another replica was
    /// faster or because the lock-delay is not over.
    async fn acquire(&mut self) -> Result<Option<Moment>, consul::Error> {
        let (session, sent) = self.live_session().await?;
        let acquired = self.write(PutMode::Acquire(session.clone())).await;
        if acquired == Err(consul::Error::Gone) {
            self.session = None;
        }
        Ok(acquired?.then(|| sent + self.timing.certain()))
    }

    /// Returns a session of this replica, and a moment at which it existed.
    async fn live_session(&mut self) -> Result<(SessionId, Moment), consul::Error> {
        if let Some(session) = self.session.clone() {
            match self.consul().renew_session(&session).await {
                Ok(renewed) => return Ok((session, renewed.sent)),
                Err(consul::Error::Gone) => self.session = None,
                Err(error) => return Err(error),
            }
        }
        let request = NewSession {
            name: format!("consul-semaphore-operator leader {}", self.me.identity),
            node: Some(self.node.clone()),
            ttl: Some(self.timing.lease),
            // A leader that is cut off may rely on a destroyed session for this long.
            lock_delay: self.timing.certain().min(LONGEST_LOCK_DELAY),
        };
        let sent = Moment::now();
        let session = self.consul().create_session_on_node(&request).await?;
        self.session = Some(session.clone());
        Ok((session, sent))
    }

    async fn write(&self, mode: PutMode) -> Result<bool, consul::Error> {
        // The value has only strings, so writing it cannot fail.
        let value = serde_json::to_vec(&self.me).unwrap_or_default();
        self.consul().put(&self.key, &value, 0, mode).await
    }

    /// Returns a client for one call, with the election's timeout.
    fn consul(&self) -> Client {
        self.consul.by(Moment::now() + self.timing.call())
    }

    /// Destroys a session, without a retry, because the session expires anyway.
    async fn end(&self, session: &SessionId) {
        if let Err(error) = self.consul().destroy_session(session).await {
            tracing::debug!(%session, %error, "can't destroy the session of the leader election");
        }
    }

    /// Frees the key from the session of an earlier process with this name.
    async fn free(&self, session: &SessionId) -> Result<(), consul::Error> {
        // The key is unlocked first, because a key that a destroyed session held can't be locked until the lock-delay
        // is over.
        self.write(PutMode::Release(session.clone())).await?;
        self.end(session).await;
        Ok(())
    }

    /// Handles a reading. Returns whether to try to lock the key now.
    async fn handle_reading<F: Fn(&Standing)>(
        &mut self,
        listing: &Listing,
        board: &Board<F>,
    ) -> Result<bool, consul::Error> {
        let seen = self.judge(self.of(listing));
        let may_try = match &seen {
            KeyHolder::Free | KeyHolder::Mine => {
                board.follows(None);
                true
            }
            KeyHolder::Before(session) => {
                self.free(session).await?;
                true
            }
            KeyHolder::Other(leader) => {
                board.follows(Some(leader));
                false
            }
            KeyHolder::OtherCluster(leader) => {
                board.trouble(format!(
                    "{}: the cluster {} has the same name and leads there: give each cluster a --cluster-name of its own",
                    self.key, leader.cluster_id
                ));
                false
            }
        };
        self.new = false;
        if !may_try && let Some(session) = self.session.take() {
            self.end(&session).await;
        }
        Ok(may_try)
    }
}

impl Candidate for LockCandidate {
    async fn win<F: Fn(&Standing)>(&mut self, board: &Board<F>) -> Moment {
        let mut readings = self.watch();
        // No watch sees the end of a lock-delay, so a refusal sets a timer.
        let mut again = Moment::END;
        loop {
            let heeded = tokio::select! {
                Some(reading) = readings.recv() => match reading {
                    Ok(listing) => self.handle_reading(&listing, board).await,
                    Err(error) => Err(error),
                },
                () = sleep(again.since(Moment::now())) => Ok(true),
            };
            again = Moment::END;
            let tried = match heeded {
                Ok(true) => self.acquire().await,
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            match tried {
                Ok(Some(until)) => return until,
                Ok(None) => {}
                Err(error) => board.trouble(format!("{}: {error}", self.key)),
            }
            again = Moment::now() + self.timing.pause();
        }
    }

    async fn keep(&mut self, term: &Term) -> String {
        let Some(session) = self.session.clone() else {
            return "there is no session".to_owned();
        };
        let (lost, gone) = tokio::select! {
            () = self.renew(&session, term) => ("the session is gone from Consul".to_owned(), true),
            lost = self.lose() => (lost, false),
        };
        if gone {
            self.session = None;
        }
        lost
    }

    async fn resign(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        if let Err(error) = self.free(&session).await.context("releasing the key") {
            tracing::debug!(%error, "can't release the leadership");
        }
    }
}

impl LockCandidate {
    /// Renews the session until it no longer exists.
    async fn renew(&self, session: &SessionId, term: &Term) {
        let usual = self.timing.lease / 3;
        let (mut from, mut pause) = (Moment::now(), usual);
        loop {
            let due = from + pause.mul_f64(fastrand::f64().mul_add(0.2, 0.8));
            sleep(due.since(Moment::now())).await;
            (from, pause) = match self.consul().renew_session(session).await {
                Ok(renewed) => {
                    term.extend(renewed.sent + self.timing.certain());
                    (renewed.sent, usual)
                }
                Err(consul::Error::Gone) => return,
                Err(error) => {
                    tracing::debug!(%error, "can't renew the leadership yet");
                    (Moment::now(), self.timing.retry().min(usual))
                }
            };
        }
    }

    /// Waits until this replica no longer holds the key, and returns why.
    async fn lose(&self) -> String {
        let mut readings = self.watch();
        while let Some(reading) = readings.recv().await {
            let Ok(listing) = reading else { continue };
            match self.judge(self.of(&listing)) {
                KeyHolder::Mine => {}
                KeyHolder::Free => return "somebody released the key".to_owned(),
                KeyHolder::Other(leader) => return format!("{leader} has taken the key"),
                KeyHolder::Before(_) | KeyHolder::OtherCluster(_) => {
                    return "another cluster has taken the key".to_owned();
                }
            }
        }
        // The watch never ends.
        std::future::pending().await
    }
}

#[cfg(test)]
mod golden;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::entry;

    fn candidate() -> LockCandidate {
        LockCandidate {
            consul: Client::new(consul::Config::default()).unwrap(),
            key: "service/x/leader".to_owned(),
            node: "k8s-1".to_owned(),
            me: leader("me", "1"),
            timing: Timing {
                lease: SHORTEST_TTL,
            },
            session: Some("mine".into()),
            new: true,
        }
    }

    fn leader(identity: &str, cluster_id: &str) -> Leader {
        Leader {
            identity: identity.to_owned(),
            cluster: "prod".to_owned(),
            cluster_id: cluster_id.to_owned(),
        }
    }

    fn held_for(leader: &Leader, session: Option<&str>) -> Entry {
        entry(serde_json::to_vec(leader).unwrap(), session)
    }

    #[test]
    fn only_the_session_says_that_it_is_held() {
        let mut candidate = candidate();
        let (me, other) = (leader("me", "1"), leader("other", "1"));
        assert_eq!(candidate.judge(None), KeyHolder::Free);
        assert_eq!(
            candidate.judge(Some(&held_for(&other, None))),
            KeyHolder::Free
        );
        let judged = candidate.judge(Some(&held_for(&other, Some("mine"))));
        assert_eq!(judged, KeyHolder::Mine);
        let judged = candidate.judge(Some(&held_for(&other, Some("theirs"))));
        assert_eq!(judged, KeyHolder::Other("other".to_owned()));
        // This replica's name in another session: the session is from before a restart if it existed when the process
        // started.
        let before = held_for(&me, Some("old"));
        assert_eq!(
            candidate.judge(Some(&before)),
            KeyHolder::Before("old".into())
        );
        candidate.new = false;
        assert_eq!(
            candidate.judge(Some(&before)),
            KeyHolder::Other("me".to_owned())
        );
    }

    #[test]
    fn another_cluster_of_the_same_name_is_noticed() {
        let stranger = leader("me", "2");
        let judged = candidate().judge(Some(&held_for(&stranger, Some("theirs"))));
        assert_eq!(judged, KeyHolder::OtherCluster(stranger));
    }

    #[test]
    fn a_lock_taken_by_hand_is_reported_by_its_session() {
        let by_hand = entry("maintenance", Some("theirs"));
        let judged = candidate().judge(Some(&by_hand));
        assert_eq!(judged, KeyHolder::Other("session theirs".to_owned()));
    }
}
