//! Feeds one open page: server-sent events with what its user may see, and with its changes.
//!
//! Nothing is queued for a browser. When the browser has taken the last event, it gets what changed since, in its
//! current state; so a slow browser delays nobody.
//!
//! | event | data |
//! |---|---|
//! | `begin` | the program, the user, and the time here: everything is sent again |
//! | `operator` | the state of this replica |
//! | `change` | semaphores in their current state, and names of deleted ones |
//! | `complete` | everything has been sent |
//! | `refused` | why nothing more is sent; it is the last event |

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse,
    sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, future::try_join_all, stream};
use serde::Serialize;
use tokio::{sync::watch, time::sleep};

use super::{
    AppState,
    guard::{PageRefusal, Pass},
    picture::{Changes, Picture, ShownSemaphore},
    places::PagePlace,
};
use crate::telemetry;
use consul_client::clock::{self, Moment};

/// Largest number of semaphores in one event.
const CHUNK: usize = 32;

/// Least time between two events with changes.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_millis(250);

/// Time between two checks of the state of this replica.
const STATE_INTERVAL: Duration = Duration::from_secs(2);

/// Time between two checks of the user's rights. Answers of the API server are valid for a shorter time.
const RIGHTS_CHECK_INTERVAL: Duration = Duration::from_secs(45);

/// Time between two comments that show that the connection lives.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Time after which the browser reconnects: well before its connection is closed.
const RECONNECT_AFTER: Duration = Duration::from_mins(10);

/// A page that is open.
struct OpenPage {
    app: Arc<AppState>,
    pass: Pass,
    _place: PagePlace,
    picture: watch::Receiver<Picture>,
    /// Number of the last change that was sent.
    seen: u64,
    begun: bool,
    complete: bool,
    /// Whether the next change waits a moment for more changes.
    pause: bool,
    /// Last state of this replica that was sent.
    told: Option<ReplicaState>,
    sees: Sight,
    check: Moment,
    end: Moment,
}

#[derive(Serialize)]
struct Begin<'a> {
    version: &'a str,
    commit: &'a str,
    user: Option<Arc<str>>,
    now: i64,
}

/// The namespaces that the user of a page may see.
struct Sight {
    /// Whether the user may see all namespaces.
    all: bool,
    /// Single namespaces that were checked, and whether the user may see them.
    others: HashMap<Arc<str>, bool>,
}

impl Sight {
    fn shows(&self, namespace: &str) -> bool {
        self.all || self.others.get(namespace) == Some(&true)
    }

    fn anything(&self) -> bool {
        self.all || self.others.values().any(|shown| *shown)
    }
}

/// The state of this replica, as the page shows it.
#[derive(Clone, PartialEq, Eq, Serialize)]
struct ReplicaState {
    /// Problems of the replica.
    obstacles: String,
    /// Other remarks, such as who leads.
    remarks: String,
    /// Problems of the page itself.
    trouble: Option<String>,
}

#[derive(Serialize)]
struct Change<'a> {
    semaphores: Vec<&'a ShownSemaphore>,
    gone: Vec<String>,
}

/// Returns the events for an accepted client.
pub(super) async fn open(app: Arc<AppState>, pass: Pass) -> Result<impl IntoResponse, PageRefusal> {
    let place = app.places.take(pass.user()).map_err(PageRefusal::Full)?;
    // A client that may see nothing is refused before the answer begins.
    let all = app.guard.shows(&pass, None).await?;
    let now = Moment::now();
    let open = OpenPage {
        picture: app.picture.subscribe(),
        app,
        pass,
        _place: place,
        seen: 0,
        begun: false,
        complete: false,
        pause: false,
        told: None,
        sees: Sight {
            all,
            others: HashMap::new(),
        },
        check: now + RIGHTS_CHECK_INTERVAL,
        end: now + RECONNECT_AFTER,
    };
    Ok(Sse::new(open.events()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)))
}

impl OpenPage {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(Some(self), |open| async move {
            let mut open = open?;
            match open.next().await {
                Ok(event) => Some((Ok(event?), Some(open))),
                Err(refusal) => {
                    tracing::debug!(%refusal, "stopped serving an open page");
                    Some((Ok(event("refused", &refusal.to_string())), None))
                }
            }
        })
    }

    /// Returns the next event; `None` to start again.
    async fn next(&mut self) -> Result<Option<Event>, PageRefusal> {
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(Some(self.begin()));
        }
        loop {
            // There is no pause before everything was sent once.
            if std::mem::take(&mut self.pause) {
                sleep(MIN_CHANGE_INTERVAL).await;
            }
            let now = Moment::now();
            if now >= self.end || (now >= self.check && !self.sees_the_same().await?) {
                return Ok(None);
            }
            if let Some(event) = self.operator() {
                return Ok(Some(event));
            }
            let changes = self.picture.borrow_and_update().after(self.seen, CHUNK);
            let Some(changes) = changes else {
                return Ok(None);
            };
            if !changes.semaphores.is_empty() {
                self.seen = changes.number;
                self.ask_about(&changes).await?;
                if let Some(event) = self.change(&changes) {
                    self.pause = self.complete;
                    return Ok(Some(event));
                }
                continue;
            }
            let all_is_known = self
                .told
                .as_ref()
                .is_some_and(|told| told.trouble.is_none());
            if all_is_known && !std::mem::replace(&mut self.complete, true) {
                return Ok(Some(event("complete", &())));
            }
            tokio::select! {
                // The sender outlives every page, so there is no error.
                _ = self.picture.changed() => {}
                () = sleep(STATE_INTERVAL) => {}
            }
        }
    }

    fn begin(&self) -> Event {
        let begin = Begin {
            version: telemetry::VERSION,
            commit: telemetry::COMMIT,
            user: self.pass.user(),
            now: clock::time().as_second(),
        };
        event("begin", &begin)
    }

    /// Returns the state of this replica, if it has changed.
    fn operator(&mut self) -> Option<Event> {
        let health = &self.app.telemetry.health;
        let whole = ReplicaState {
            obstacles: health.obstacles(),
            remarks: health.remarks(),
            trouble: self.picture.borrow().trouble(),
        };
        let operator = Some(if self.sees.anything() {
            whole
        } else {
            whole.in_brief()
        });
        let news = self.told != operator;
        self.told = operator;
        news.then(|| event("operator", &self.told))
    }

    /// Checks whether the user may see the namespaces of these changes.
    async fn ask_about(&mut self, changes: &Changes) -> Result<(), PageRefusal> {
        if self.sees.all {
            return Ok(());
        }
        let names = changes.semaphores.iter();
        let mut new: Vec<_> = names.map(|(name, _)| name.namespace.clone()).collect();
        new.sort_unstable();
        new.dedup();
        new.retain(|namespace| !self.sees.others.contains_key(namespace));
        let answers = self.ask(&new).await?;
        self.sees.others.extend(new.into_iter().zip(answers));
        Ok(())
    }

    /// Returns whether the user is still accepted and may see the same as before. If not, everything is sent again.
    async fn sees_the_same(&mut self) -> Result<bool, PageRefusal> {
        self.check = Moment::now() + RIGHTS_CHECK_INTERVAL;
        let guard = &self.app.guard;
        guard.renew(&mut self.pass).await?;
        if guard.shows(&self.pass, None).await? != self.sees.all {
            return Ok(false);
        }
        let namespaces: Vec<_> = self.sees.others.keys().cloned().collect();
        for namespaces in namespaces.chunks(CHUNK) {
            let answers = self.ask(namespaces).await?;
            let mut pairs = namespaces.iter().zip(answers);
            if pairs.any(|(namespace, sees)| self.sees.others.get(namespace) != Some(&sees)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn ask(&self, namespaces: &[Arc<str>]) -> Result<Vec<bool>, PageRefusal> {
        let guard = &self.app.guard;
        let asked = namespaces.iter();
        try_join_all(asked.map(|namespace| guard.shows(&self.pass, Some(namespace)))).await
    }

    /// Returns the part of these changes that the user may see, if any.
    fn change(&self, changes: &Changes) -> Option<Event> {
        let mut change = Change {
            semaphores: Vec::new(),
            gone: Vec::new(),
        };
        for (name, shown) in &changes.semaphores {
            if !self.sees.shows(&name.namespace) {
                continue;
            }
            match shown {
                Some(shown) => change.semaphores.push(shown),
                None => change
                    .gone
                    .push(format!("{}/{}", name.namespace, name.name)),
            }
        }
        let empty = change.semaphores.is_empty() && change.gone.is_empty();
        (!empty).then(|| event("change", &change))
    }
}

impl ReplicaState {
    /// Returns the state for a user who may see nothing: that there is a problem, but not which.
    fn in_brief(self) -> Self {
        let is_fine = self.obstacles.is_empty();
        let obstacles = if is_fine { "" } else { "there is a problem" };
        Self {
            obstacles: obstacles.to_owned(),
            remarks: String::new(),
            trouble: self
                .trouble
                .map(|_| "some data can't be shown now".to_owned()),
        }
    }
}

/// Makes an event. JSON has line breaks only in escapes, so it fits in one line of an event.
fn event(kind: &str, data: &impl Serialize) -> Event {
    let data = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(kind).data(data)
}

#[cfg(test)]
mod tests;
