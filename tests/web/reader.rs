//! A reader of the page's events, which reconnects when they end, like the page does.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use testbed::{eventually_within, http_client};
use tokio::task::AbortHandle;

/// Longer than revoked rights may still be cached.
const PATIENCE: Duration = Duration::from_mins(4);

/// Reads until it is dropped.
pub(crate) struct Reader {
    seen: Arc<Mutex<Seen>>,
    reading: AbortHandle,
}

/// What it has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// By `namespace/name`.
    pub(crate) semaphores: BTreeMap<String, Value>,
    /// The semaphores of the list that is being received.
    listed: Vec<String>,
    /// How often a complete list was received.
    pub(crate) complete: usize,
    /// The status and message of the last refusal; 200 if it came after the answer had begun.
    pub(crate) refusal: Option<(u16, String)>,
    /// The user of the page.
    pub(crate) user: Value,
    /// What the replica reported about itself.
    pub(crate) operator: Value,
}

impl Reader {
    /// Reads the page at this address, with or without a token.
    pub(crate) fn open(address: &str, token: Option<&str>) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let reading = read_on(address.to_owned(), token.map(str::to_owned), seen.clone());
        Self {
            seen,
            reading: tokio::spawn(reading).abort_handle(),
        }
    }

    /// What it has seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// Waits until what it has seen satisfies `met`.
    pub(crate) async fn until(&self, what: &str, met: impl Fn(&Seen) -> bool) -> Seen {
        eventually_within(PATIENCE, what, || async {
            let seen = self.seen();
            if met(&seen) {
                Ok(seen)
            } else {
                Err(format!("{seen:#?}"))
            }
        })
        .await
    }

    /// Waits until it has seen everything, and these are the semaphores.
    pub(crate) async fn sees_exactly(&self, ids: &[&str]) {
        let what = format!("exactly {ids:?} are shown");
        self.until(&what, |seen| {
            seen.complete > 0 && seen.semaphores.keys().eq(ids.iter().copied())
        })
        .await;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// A client like a browser, which may read the events for longer than any test.
pub(crate) fn http() -> reqwest::Client {
    let client = http_client().timeout(Duration::from_hours(1));
    client.build().expect("a client")
}

/// Requests the events.
pub(crate) async fn events(
    address: &str,
    token: Option<&str>,
) -> reqwest::Result<reqwest::Response> {
    let mut request = http().get(format!("http://{address}/events"));
    if let Some(token) = token {
        request = request.header("X-Consul-Semaphore-Token", token);
    }
    request.send().await
}

async fn read_on(address: String, token: Option<String>, seen: Arc<Mutex<Seen>>) {
    loop {
        if let Ok(answer) = events(&address, token.as_deref()).await {
            read(answer, &seen).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn read(mut answer: reqwest::Response, seen: &Mutex<Seen>) {
    let status = answer.status().as_u16();
    if status != 200 {
        let words = answer.text().await.unwrap_or_default();
        seen.lock().refusal = Some((status, words));
        return;
    }
    let mut text = String::new();
    while let Ok(Some(part)) = answer.chunk().await {
        text.push_str(&String::from_utf8_lossy(&part));
        while let Some((event, rest)) = text.split_once("\n\n") {
            seen.lock().receive(event);
            text = rest.to_owned();
        }
    }
}

impl Seen {
    fn receive(&mut self, event: &str) {
        let field = |name| event.lines().find_map(|line| line.strip_prefix(name));
        let Some(data) = field("data: ") else {
            return;
        };
        let data: Value = serde_json::from_str(data).expect("JSON");
        match field("event: ").expect("a kind") {
            "begin" => {
                self.user = data["user"].clone();
                self.listed.clear();
            }
            "operator" => self.operator = data,
            "refused" => {
                let words = data.as_str().expect("words").to_owned();
                self.refusal = Some((200, words));
            }
            "complete" => {
                let listed = std::mem::take(&mut self.listed);
                self.semaphores.retain(|id, _| listed.contains(id));
                self.complete += 1;
            }
            "change" => {
                for semaphore in data["semaphores"].as_array().expect("semaphores") {
                    let is = &semaphore["is"];
                    let text = |name: &str| is[name].as_str().expect("a name").to_owned();
                    let id = format!("{}/{}", text("namespace"), text("name"));
                    self.listed.push(id.clone());
                    self.semaphores.insert(id, semaphore.clone());
                }
                for gone in data["gone"].as_array().expect("names") {
                    self.semaphores.remove(gone.as_str().expect("a name"));
                }
            }
            other => panic!("an event {other}"),
        }
    }

    /// What is shown of a semaphore; null if nothing is.
    pub(crate) fn is(&self, id: &str) -> &Value {
        self.semaphores
            .get(id)
            .map_or(&Value::Null, |semaphore| &semaphore["is"])
    }

    /// The names of the holders of its slots.
    pub(crate) fn holders(&self, id: &str) -> Vec<&str> {
        names(&self.is(id)["holders"], "name")
    }

    /// The Jobs in its queue.
    pub(crate) fn queue(&self, id: &str) -> Vec<&str> {
        names(&self.is(id)["queue"], "name")
    }
}

fn names<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|item| item[field].as_str())
        .collect()
}
