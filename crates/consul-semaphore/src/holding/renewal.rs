//! Renews a session.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use tokio::{task::AbortHandle, time::sleep};

use crate::SessionState;
use consul_client::{self as consul, Backoff, Client, Renewed, SessionId, clock::Moment};

/// The longest pause between tries to renew a session of unknown state, which is short beside the shortest TTL.
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The longest sleep until a renewal is due. Timers stand still while the machine sleeps, and the session does not, so
/// the boot-time clock is read again that often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A function that is called when something about a session has changed.
pub type OnChange = Arc<dyn Fn() + Send + Sync>;

/// A session with a TTL that a task renews until it no longer exists or [`Renewal::stop`] is called.
#[derive(Debug)]
pub struct Renewal {
    life: KnownLife,
    task: AbortHandle,
}

impl Renewal {
    /// Starts to renew a session whose state is `life`. A session of unknown state is renewed at once. `on_change` is
    /// called when the state was unknown before, or when the session is gone.
    pub fn start(consul: Client, id: SessionId, life: SessionState, on_change: OnChange) -> Self {
        let life = KnownLife::new(life);
        let renewer = Renewer {
            consul,
            id,
            life: life.clone(),
            on_change,
        };
        let task = tokio::spawn(renewer.run()).abort_handle();
        Self { life, task }
    }

    /// Returns what is known of the session.
    pub fn life(&self) -> SessionState {
        self.life.get()
    }

    /// Returns the time at which the last good renewal was sent; if there was none, a time long ago.
    pub(crate) fn sent(&self) -> Moment {
        match self.life() {
            SessionState::Renewed { sent, .. } => sent,
            SessionState::Endless | SessionState::Unknown | SessionState::Gone => Moment::default(),
        }
    }

    /// Returns a handle from which others can read what is known of the session while it is renewed.
    pub fn known_life(&self) -> KnownLife {
        self.life.clone()
    }

    /// Stops renewing the session, and leaves it in Consul.
    pub fn stop(&self) {
        self.task.abort();
    }

    /// Returns a handle that can only stop the renewal.
    pub fn handle(&self) -> AbortHandle {
        self.task.clone()
    }
}

/// The state of a session that is renewed, as far as it is known. All clones share the state.
#[derive(Clone, Debug)]
pub struct KnownLife(Arc<Mutex<SessionState>>);

impl KnownLife {
    /// Returns a handle whose first state is `life`.
    pub fn new(life: SessionState) -> Self {
        Self(Arc::new(Mutex::new(life)))
    }

    /// Whether both handles belong to the same renewal.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns what is known of the session at present.
    pub fn get(&self) -> SessionState {
        *self.0.lock()
    }

    /// Replaces the state of the session.
    #[cfg(test)]
    pub(crate) fn set(&self, life: SessionState) {
        self.replace(life);
    }

    /// Replaces the state of the session, and returns the state that was known before.
    fn replace(&self, life: SessionState) -> SessionState {
        let mut known = self.0.lock();
        std::mem::replace(&mut known, life)
    }
}

/// Waits until the boot-time clock, which `now` reads, shows this moment. The wait ends at most [`LONGEST_SLEEP`] late,
/// even if the machine sleeps meanwhile.
async fn until(moment: Moment, now: impl Fn() -> Moment) {
    loop {
        let left = moment.since(now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(LONGEST_SLEEP)).await;
    }
}

/// The task that renews one session.
struct Renewer {
    consul: Client,
    id: SessionId,
    life: KnownLife,
    on_change: OnChange,
}

impl Renewer {
    /// Renews the session until it no longer exists, or turns out to have no TTL.
    async fn run(self) {
        loop {
            match self.life.get() {
                SessionState::Unknown => {}
                // The pause is at most a third of the TTL, with jitter so that sessions made together spread out. The
                // pause, like the TTL, counts from the time at which the last renewal was sent, so a late answer
                // leaves that much less time.
                SessionState::Renewed { sent, ttl } => {
                    let due = sent + (ttl / 3).mul_f64(fastrand::f64().mul_add(0.1, 0.9));
                    until(due, Moment::now).await;
                }
                SessionState::Endless | SessionState::Gone => return,
            }
            self.renew().await;
        }
    }

    /// Sends renewals until one is answered.
    async fn renew(&self) {
        let longest = match self.life.get() {
            SessionState::Renewed { ttl, .. } => ttl / 6,
            _ => LONGEST_RETRY_PAUSE,
        };
        let mut backoff = backoff(longest);
        loop {
            match self.in_time().renew_session(&self.id).await {
                // The session has its own TTL: longer than requested if Consul has a minimum, and from an earlier
                // spec if it was adopted.
                Ok(Renewed { session, sent }) => {
                    return self.set(match session.ttl {
                        Some(ttl) => SessionState::Renewed { sent, ttl },
                        None => SessionState::Endless,
                    });
                }
                Err(consul::Error::Gone) => return self.set(SessionState::Gone),
                Err(error) => {
                    tracing::debug!(session = %self.id, %error, "the session can't be renewed yet");
                }
            }
            backoff.wait().await;
        }
    }

    /// Returns a client whose calls end when the session may have expired. After that time a renewal only finds out
    /// whether the session has expired, and may take the whole time of a call.
    fn in_time(&self) -> Client {
        match self.life.get().end() {
            Some(end) if end > Moment::now() => self.consul.by(end),
            _ => self.consul.clone(),
        }
    }

    fn set(&self, life: SessionState) {
        let before = self.life.replace(life);
        if before == SessionState::Unknown || life == SessionState::Gone {
            (self.on_change)();
        }
    }
}

/// Returns the pauses between attempts of a call about a session: the pauses grow to `longest`.
pub fn backoff(longest: Duration) -> Backoff {
    let shortest = Duration::from_millis(200);
    Backoff::new(shortest, longest.max(shortest * 2))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use wiremock::{Mock, MockServer, ResponseTemplate, matchers::path};

    use super::*;

    /// The machine sleeps for two hours, in which the clock of the timers stands still.
    #[tokio::test]
    async fn a_renewal_is_due_by_the_clock_that_runs_while_the_machine_sleeps() {
        let hours = AtomicU64::new(0);
        let now = || Moment::from_boot(Duration::from_hours(hours.load(Ordering::Relaxed)));
        let due = Moment::from_boot(Duration::from_hours(1));
        let sleeps = async {
            sleep(Duration::from_millis(5)).await;
            hours.store(2, Ordering::Relaxed);
        };
        let both = async { tokio::join!(until(due, now), sleeps) };
        let woken = tokio::time::timeout(Duration::from_mins(1), both).await;
        assert!(woken.is_ok(), "not an hour after it woke");
    }

    /// The state after an outage in which a renewal was retried for nearly as long as the session lives.
    #[tokio::test]
    async fn a_late_answer_leaves_less_time_for_the_next_renewal() {
        let server = MockServer::start().await;
        let answer = r#"[{"ID":"s","Node":"n","TTL":"300s","CreateIndex":1}]"#;
        Mock::given(path("/v1/session/renew/s"))
            .respond_with(ResponseTemplate::new(200).set_body_string(answer))
            .mount(&server)
            .await;
        // As old as the machine: long overdue.
        let sent = Moment::default();
        let ttl = Moment::now().since(sent);
        let address = server.uri().parse().unwrap();
        let consul = Client::new(consul::Config {
            addresses: vec![address],
            ..consul::Config::default()
        });
        let renewal = Renewal::start(
            consul.unwrap(),
            "s".into(),
            SessionState::Renewed { sent, ttl },
            Arc::new(|| {}),
        );
        let renewed = async {
            while !matches!(renewal.life(), SessionState::Renewed { sent: now, .. } if now > sent) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let renewed = tokio::time::timeout(Duration::from_mins(1), renewed).await;
        assert!(renewed.is_ok(), "not before another third of the TTL");
    }
}
