//! Turns blocking queries into a stream of listings.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Account, Backoff, Client, Entries, Error, Listing,
    call::{Call, Wait},
    endpoints::Target,
    kv::list_path,
    session::write_duration,
    shared_turn::{Purpose, SharedTurn},
};

/// Settings of the watch of a prefix.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The longest time between two readings without a change, at most 10 min. Consul adds up to a sixteenth.
    pub wait: Duration,
    /// Number of readings that may follow each other without a pause.
    pub burst: u32,
    /// Largest number of readings a second in the long run, more than zero. Faster changes share a reading. A reading
    /// counts once for each 25 entries, because Consul sends all entries for each change. A reading delays the next one
    /// by at most half of `wait`.
    pub rate: f64,
    /// Whether changes are urgent. A watch beyond [`Config::max_watches`](super::Config::max_watches) polls: every
    /// second if changes are urgent, and after `wait` if not.
    pub urgent: watch::Receiver<bool>,
    /// Shortest time from one reading to the next, at most half of `wait`. Changes within this time share a reading.
    /// The sender may shorten the time whenever it likes.
    pub spacing: watch::Receiver<Duration>,
    /// Whether the watch takes one of the turns to watch that all programs of this machine share. Without a turn the
    /// watch polls, as a watch beyond [`Config::max_watches`](super::Config::max_watches) does, and keeps no
    /// connection meanwhile. This setting is for programs of which hundreds may run on a machine.
    pub shares_turns: bool,
    /// Entries of the prefix that are already known. The watch makes no second copy of them.
    pub known: Entries,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            wait: Duration::from_mins(5),
            burst: 200,
            rate: 100.0,
            urgent: watch::channel(true).1,
            spacing: watch::channel(Duration::ZERO).1,
            shares_turns: false,
            known: Entries::default(),
        }
    }
}

/// Largest number of entries of a reading that counts once.
const ENTRIES_COUNTED_ONCE: u32 = 25;

/// Pause between urgent readings of a watch that polls, shortened by up to a half.
const POLL_PAUSE: Duration = Duration::from_millis(1500);

/// The longest wait that Consul allows.
const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// Pauses between readings that fail.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(4));

/// Pause after a reading that is too large: reading the prefix again costs as much.
const PAUSE_AFTER_TOO_LARGE: Backoff =
    Backoff::new(Duration::from_secs(15), Duration::from_secs(15));

impl Client {
    /// Reads a prefix: at once, then after every change and after every `wait`. A reading without a change is
    /// yielded, too: it is fresh evidence, see [`Listing::sent`]. An error is yielded after a few attempts; then the
    /// watch continues after a growing pause. The stream never ends; dropping it ends the watch.
    ///
    /// Watching a prefix without keys is expensive, because Consul counts every write to the store as a change of it.
    pub fn watch(
        &self,
        prefix: &str,
        options: WatchOptions,
    ) -> impl Stream<Item = Result<Listing, Error>> + Send + 'static + use<> {
        let poller = if options.shares_turns {
            self.without_idle_connections()
        } else {
            self.clone()
        };
        let watch = Watch {
            client: self.clone(),
            poller,
            shares_turns: options.shares_turns,
            shared_turn: None,
            prefix: prefix.to_owned(),
            wait: options.wait.min(LONGEST_WAIT),
            since: None,
            seen: 0,
            cost: 1.0,
            bucket: Bucket::new(options.burst, options.rate),
            urgent: options.urgent,
            spacing: options.spacing,
            last: None,
            failures: None,
            lost_waits: BACKOFF,
            known: options.known,
        };
        stream::unfold(watch, async |mut watch| {
            let reading = watch.next().await;
            Some((reading, watch))
        })
    }
}

impl Client {
    /// Watches like [`Self::watch`], in a separate task that polls until the receiver is dropped: a stream that is
    /// not polled could hold a lock that other calls of this client wait for. Consul is asked again once the receiver
    /// has taken a reading, because the reading may say how soon the next one is of use.
    pub fn readings(
        &self,
        prefix: &str,
        options: WatchOptions,
    ) -> mpsc::Receiver<Result<Listing, Error>> {
        let watch = self.watch(prefix, options);
        let (readings, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut watch = std::pin::pin!(watch);
            while let Ok(room) = readings.reserve().await {
                let reading = tokio::select! {
                    () = readings.closed() => return,
                    reading = watch.next() => reading,
                };
                let Some(reading) = reading else { return };
                room.send(reading);
            }
        });
        receiver
    }
}

struct Watch {
    client: Client,
    /// Client for the calls that do not wait for a change.
    poller: Client,
    shares_turns: bool,
    /// Turn that the watch has among the programs of this machine.
    shared_turn: Option<SharedTurn>,
    prefix: String,
    wait: Duration,
    urgent: watch::Receiver<bool>,
    spacing: watch::Receiver<Duration>,
    /// Time of the last reading.
    last: Option<Instant>,
    /// Index that a change must pass, and the server that the index is from; `None` if the next reading does not
    /// wait.
    since: Option<(u64, Arc<Target>)>,
    /// The index of the last reading.
    seen: u64,
    /// The expected cost of the next reading: how many times it counts.
    cost: f64,
    bucket: Bucket,
    /// The pauses between readings, since the last one failed.
    failures: Option<Backoff>,
    /// The longest pauses after failed waits.
    lost_waits: Backoff,
    /// Entries of the last reading: most of them are in the next one, too.
    known: Entries,
}

impl Watch {
    async fn next(&mut self) -> Result<Listing, Error> {
        let account = self.client.account.clone();
        let gives_way = async {
            match &account {
                Some(account) => account.gives_way().await,
                None => std::future::pending().await,
            }
        };
        let reading = tokio::select! {
            biased;
            () = gives_way => Err(Error::PrefixTooLarge(account.as_ref().map_or(0, Account::limit))),
            reading = self.read_in_time() => reading,
        };
        self.last = Some(Instant::now());
        match &reading {
            Ok(listing) => {
                self.known = listing.entries.clone();
                let entries = u32::try_from(listing.entries.len()).unwrap_or(u32::MAX);
                self.cost = self.bucket.cost(entries, self.wait);
                self.failures = None;
            }
            Err(error) if error.is_too_much_to_keep() => {
                self.known = Entries::default();
                self.failures = Some(PAUSE_AFTER_TOO_LARGE);
            }
            Err(_) if self.failures.is_none() => self.failures = Some(BACKOFF),
            Err(_) => {}
        }
        reading
    }

    /// Returns the next reading, after the pauses that must be before it.
    async fn read_in_time(&mut self) -> Result<Listing, Error> {
        if let Some(failures) = &mut self.failures {
            failures.wait().await;
            if let Some(account) = &self.client.account {
                account.come_back();
            }
        }
        self.bucket.take(self.cost).await;
        self.keep_space().await;
        self.read().await
    }

    /// Waits until the next reading is far enough from the last one.
    async fn keep_space(&mut self) {
        let Some(last) = self.last else {
            return;
        };
        loop {
            let spacing = *self.spacing.borrow_and_update();
            let due = last + spacing.min(self.wait / 2);
            let shortened = async {
                if self.spacing.changed().await.is_err() {
                    // The sender is dropped, so the spacing does not change.
                    std::future::pending::<()>().await;
                }
            };
            if timeout_at(due, shortened).await.is_err() {
                return;
            }
        }
    }

    /// Whether the watch may wait at this server, beside the other programs of this machine.
    fn has_shared_turn(&mut self, server: &Target) -> bool {
        if self.shared_turn.is_none() {
            self.shared_turn = SharedTurn::take(Purpose::Watch, server.base());
        }
        self.shared_turn.is_some()
    }

    async fn read(&mut self) -> Result<Listing, Error> {
        let waited = match self.since.take() {
            None => None,
            Some((index, server)) => {
                let lanes = self.client.lanes.clone();
                let shared = !self.shares_turns || self.has_shared_turn(&server);
                if let Some(_turn) = lanes.watch_turn().filter(|_| shared) {
                    Some(self.wait_for_change(index, server).await)
                } else {
                    self.pause().await;
                    None
                }
            }
        };
        let (mut listing, server) = match waited {
            Some(Ok(reading)) if reading.0.index >= self.seen => {
                self.lost_waits.reset();
                reading
            }
            Some(Err(error)) if !error.is_transient() => return Err(error),
            Some(Err(_)) => {
                // Only the wait failed: a plain read may work, perhaps at another server. All watches of a server
                // fail together, and may fail together again.
                let pause = self.lost_waits.pause().min(self.wait);
                sleep(pause.mul_f64(fastrand::f64())).await;
                self.list_now().await?
            }
            // An index that went back is believed only when a second, consistent read has it: it may come from a
            // new leader ([`Call::consistent`]).
            Some(Ok(_)) | None => self.list_now().await?,
        };
        if listing.index < self.seen {
            // Only a store whose own index went back has lost data.
            let store = self.client.table_index("kv_watch", &self.prefix).await?;
            listing.reset = store < self.seen;
        }
        self.since = Some((listing.index, server));
        self.seen = listing.index;
        Ok(listing)
    }

    /// Returns the current listing, without a wait.
    async fn list_now(&self) -> Result<(Listing, Arc<Target>), Error> {
        let call = self.call()?.consistent();
        self.poller.list_with(&self.prefix, &self.known, call).await
    }

    /// Waits while no change is urgent, at most for `wait`.
    async fn pause(&mut self) {
        let shortened = |pause: Duration| pause.mul_f64(1.0 - fastrand::f64() / 2.0);
        let poll = POLL_PAUSE.min(self.wait);
        let rest = async {
            // An error means that the sender is dropped.
            let _ = self.urgent.wait_for(|urgent| *urgent).await;
            sleep(shortened(poll)).await;
        };
        let _ = timeout(shortened(self.wait), rest).await;
    }

    /// Makes the blocking query.
    async fn wait_for_change(
        &self,
        index: u64,
        server: Arc<Target>,
    ) -> Result<(Listing, Arc<Target>), Error> {
        let mut call = self.call()?;
        call = call.with("index", index.to_string());
        call = call.with("wait", write_duration(self.wait));
        // Consul adds up to a sixteenth, so that not all waits end at the same time.
        let most = self.wait + self.wait / 16;
        call.wait = Some(Wait { most, server });
        self.client.list_with(&self.prefix, &self.known, call).await
    }

    fn call(&self) -> Result<Call, Error> {
        Ok(Call::get("kv_watch", list_path(&self.prefix)?))
    }
}

/// A token bucket: `burst` readings at once, then `rate` a second.
struct Bucket {
    burst: f64,
    rate: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn new(burst: u32, rate: f64) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            burst,
            rate: if rate > 0.0 { rate } else { 1.0 },
            tokens: burst,
            filled: Instant::now(),
        }
    }

    /// Returns how many times a reading of this size counts. The reading causes a pause of at most half of `wait`,
    /// because readings are evidence, and there must be one in each `wait`.
    fn cost(&self, entries: u32, wait: Duration) -> f64 {
        let size = f64::from(entries) / f64::from(ENTRIES_COUNTED_ONCE);
        let most = self.rate * wait.as_secs_f64() / 2.0;
        size.min(most).max(1.0)
    }

    async fn take(&mut self, cost: f64) {
        let pause = self.pause(Instant::now(), cost);
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }

    /// Takes this many tokens, and waits for them if necessary.
    fn pause(&mut self, now: Instant, cost: f64) -> Duration {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * self.rate).min(self.burst) - cost;
        self.filled = now;
        Duration::try_from_secs_f64(-self.tokens / self.rate).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_reading_counts_by_its_size_but_delays_no_evidence() {
        let WatchOptions { burst, rate, .. } = WatchOptions::default();
        let bucket = Bucket::new(burst, rate);
        let wait = Duration::from_secs(2);
        let costs = [0, 25, 250, 25_000].map(|entries| bucket.cost(entries, wait));
        let pause = |cost| Duration::from_secs_f64(cost / bucket.rate).as_millis();
        assert_eq!(costs.map(pause), [10, 10, 100, 1000]);
    }

    #[test]
    fn a_burst_is_free_and_then_there_is_a_rate() {
        let mut bucket = Bucket::new(3, 10.0);
        let start = bucket.filled;
        let pauses: Vec<_> = (0..5)
            .map(|_| bucket.pause(start, 1.0).as_millis())
            .collect();
        assert_eq!(pauses, [0, 0, 0, 100, 200]);
        let later = start + Duration::from_mins(1);
        assert_eq!(bucket.pause(later, 1.0), Duration::ZERO);
        assert_eq!(bucket.pause(later, 1.0), Duration::ZERO);
        assert_eq!(bucket.pause(later, 1.0), Duration::ZERO);
        assert!(bucket.pause(later, 1.0) > Duration::ZERO);
        let rested = later + Duration::from_mins(1);
        assert_eq!(bucket.pause(rested, 20.0), Duration::from_millis(1700));
    }
}
