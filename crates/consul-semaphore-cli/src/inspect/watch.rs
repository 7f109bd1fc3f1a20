//! Implements `watch`, which writes a line for each change.

use std::{collections::BTreeMap, time::Duration};

use command_line::terminal::{message, try_write};
use consul_client::{self as consul, Client, Listing, WatchOptions, clock};
use consul_semaphore::{
    Prefix, Reading,
    usage::{SessionNames, Usage},
};
use jiff::Timestamp;
use serde::Serialize;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
};

use super::{
    AnswerFormat,
    changes::{self, SemaphoreChange},
    failure::InspectFailure,
};

/// Returns how the prefix is watched: changes that come faster than this rate share a reading.
fn options() -> WatchOptions {
    WatchOptions {
        wait: Duration::from_mins(5),
        burst: 10,
        rate: 5.0,
        ..WatchOptions::default()
    }
}

/// A change with the time at which it was seen.
#[derive(Serialize)]
struct Timed<'a> {
    time: Timestamp,
    #[serde(flatten)]
    change: SemaphoreChange<'a>,
}

/// Writes the changes at a prefix and below it, until a signal arrives or nobody reads the output any more.
pub(crate) async fn watch(
    client: &Client,
    below: &Prefix,
    format: AnswerFormat,
) -> Result<(), InspectFailure> {
    let mut ends = EndSignals::new().map_err(InspectFailure::System)?;
    let mut readings = client.readings(&below.folder(), options());
    let mut seen = WatchedSemaphores::default();
    let mut trouble = None;
    loop {
        let reading = tokio::select! {
            reading = readings.recv() => reading,
            () = ends.come() => return Ok(()),
        };
        let lines = match reading {
            None => return Ok(()),
            Some(Ok(listing)) => {
                trouble = None;
                tokio::select! {
                    lines = seen.take(client, listing, format) => lines?,
                    () = ends.come() => return Ok(()),
                }
            }
            // Once the watch has begun, a failure that may pass is only an interruption.
            Some(Err(error)) if seen.began && error.may_pass() => {
                let said = InspectFailure::from(error).to_string();
                if trouble.as_ref() != Some(&said) {
                    message(&format!("{said}; trying again"));
                }
                trouble = Some(said);
                continue;
            }
            Some(Err(error)) => return Err(error.into()),
        };
        // A reader that has stopped for a while must not keep a signal from ending this program.
        let written = tokio::select! {
            written = spawn_blocking(move || try_write(&lines)) => written,
            () = ends.come() => return Ok(()),
        };
        match written {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(()),
            Ok(Err(error)) => return Err(InspectFailure::Output(error)),
            Err(stopped) => return Err(InspectFailure::Output(stopped.into())),
        }
    }
}

/// Semaphores as they were last seen.
#[derive(Default)]
struct WatchedSemaphores {
    began: bool,
    names: SessionNames,
    all: BTreeMap<Prefix, Usage>,
}

impl WatchedSemaphores {
    /// Returns the lines for the changes that this listing shows.
    async fn take(
        &mut self,
        client: &Client,
        listing: Listing,
        format: AnswerFormat,
    ) -> Result<String, consul::Error> {
        let readings = semaphores(listing);
        // Contenders whose sessions can't be looked up at this time stay without a name.
        match self.names.learn(client, &readings).await {
            Err(error) if !error.may_pass() => return Err(error),
            _ => {}
        }
        let mut all: BTreeMap<Prefix, Usage> = BTreeMap::new();
        for reading in &readings {
            let mut usage = Usage::of(reading, &self.names);
            changes::remember(&mut usage, self.all.get(reading.prefix()));
            all.insert(reading.prefix().clone(), usage);
        }
        let first = !self.began;
        let prefixes = self
            .all
            .keys()
            .filter(|prefix| !all.contains_key(prefix))
            .chain(all.keys());
        let time = clock::time();
        let mut lines = String::new();
        for prefix in prefixes {
            for change in changes::between(self.all.get(prefix), all.get(prefix), first) {
                let line = match format {
                    AnswerFormat::Text => format!("{time:.0} {change}\n"),
                    AnswerFormat::Json => json_line(&Timed { time, change }),
                };
                lines.push_str(&line);
            }
        }
        self.all = all;
        self.began = true;
        Ok(lines)
    }
}

fn json_line(timed: &Timed<'_>) -> String {
    // The value consists of texts and numbers only, so writing it cannot fail.
    serde_json::to_string(timed).unwrap_or_default() + "\n"
}

/// Returns the semaphores of a listing: the folders that have a lock key or a contender.
fn semaphores(listing: Listing) -> Vec<Reading> {
    let parts = listing.split(|entry| {
        let (folder, name) = entry.key.rsplit_once('/')?;
        let prefix: Prefix = folder.parse().ok()?;
        let session = entry.session.as_ref();
        let contends = session.is_some_and(|session| session.as_str() == name);
        (contends || entry.key == prefix.lock_key()).then_some(prefix)
    });
    parts
        .into_iter()
        .map(|(prefix, listing)| Reading::found(prefix, listing))
        .collect()
}

/// Signals that end the watch.
struct EndSignals([Signal; 3]);

impl EndSignals {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    async fn come(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}
