//! Finds the semaphores below a prefix in bounded memory: it lists the names of the lock keys first, and then reads a
//! few semaphores at a time.

use consul_client::{self as consul, Client, Listing, clock::Moment};
use consul_semaphore::{
    Prefix, Reading,
    usage::{SessionNames, Usage},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::failure::InspectFailure;

/// Largest number of semaphores that are listed.
const MOST_LISTED: usize = 5000;

/// Number of semaphores that are read at once.
const READS_AT_ONCE: usize = 4;

/// Number of prefixes that a note names.
const NAMED_PREFIXES: usize = 5;

/// Ending of every lock key.
const LOCK_SUFFIX: &str = "/.lock";

/// Semaphores that were found, and what is missing.
pub(super) struct FoundSemaphores {
    /// Semaphores in the order of their prefixes, without the names of holders and waiting contenders.
    pub(super) all: Vec<Usage>,
    /// Notes for people about what is missing in the list.
    pub(super) notes: Vec<String>,
}

/// Finds the semaphores below a prefix, or all.
///
/// # Errors
/// Consul can't be asked or refuses the request.
pub(super) async fn find(
    client: &Client,
    below: Option<&Prefix>,
) -> Result<FoundSemaphores, InspectFailure> {
    let folder = below.map_or_else(String::new, Prefix::folder);
    let keys = client.keys(&folder, LOCK_SUFFIX).await?;
    let names = keys
        .keys
        .iter()
        .filter_map(|key| key.strip_suffix(LOCK_SUFFIX));
    let mut prefixes: Vec<Prefix> = names.filter_map(|name| name.parse().ok()).collect();
    let unusable = keys.keys.len() - prefixes.len();
    let more = prefixes.len().saturating_sub(MOST_LISTED);
    prefixes.truncate(MOST_LISTED);
    let mut notes: Vec<String> = [
        (!keys.complete)
            .then(|| "the token may not read some keys, so the list may be incomplete".to_owned()),
        (unusable > 0).then(|| {
            format!(
                "not listed: {unusable} lock keys whose prefixes are not valid for this program"
            )
        }),
        (more > 0).then(|| format!("not listed: {more} more. Use a longer prefix")),
    ]
    .into_iter()
    .flatten()
    .collect();
    let outcomes: Vec<ReadOutcome> = stream::iter(prefixes)
        .map(|prefix| read(client, prefix))
        .buffered(READS_AT_ONCE)
        .try_collect()
        .await?;
    let (mut denied, mut found) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            ReadOutcome::Found(one) => found.push(one),
            ReadOutcome::Denied(prefix) => denied.push(prefix),
        }
    }
    if !denied.is_empty() {
        let denied = in_words(&denied);
        notes.push(format!(
            "not listed, because the token may not read it: {denied}"
        ));
    }
    Ok(FoundSemaphores {
        // A semaphore may have gone since its key was listed.
        all: found.into_iter().filter(|one| !one.is_unused()).collect(),
        notes,
    })
}

/// Outcome of an attempt to read a semaphore.
enum ReadOutcome {
    /// The token may read at least the lock key.
    Found(Usage),
    /// The token may not read the semaphore at this prefix.
    Denied(Prefix),
}

/// Names the first prefixes, and says how many more there are.
fn in_words(prefixes: &[Prefix]) -> String {
    let first: Vec<_> = prefixes
        .iter()
        .take(NAMED_PREFIXES)
        .map(Prefix::as_str)
        .collect();
    let named = first.join(", ");
    match prefixes.len().saturating_sub(NAMED_PREFIXES) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Reads one semaphore. If there is too much below the prefix, or the token may not read all of it, only the lock key
/// is read.
async fn read(client: &Client, prefix: Prefix) -> Result<ReadOutcome, consul::Error> {
    let why = match client.list(&prefix.folder()).await {
        Err(consul::Error::AnswerTooLarge(_)) => {
            "too much data is below the prefix to see who waits"
        }
        Err(consul::Error::Denied(_)) => "the token may not read all keys that show who waits",
        listing => {
            let reading = Reading::found(prefix, listing?);
            let mut semaphore = Usage::of(&reading, &SessionNames::default());
            forget(&mut semaphore);
            return Ok(ReadOutcome::Found(semaphore));
        }
    };
    match read_lock(client, prefix.clone(), why).await {
        Err(consul::Error::Denied(_)) => Ok(ReadOutcome::Denied(prefix)),
        read => read.map(ReadOutcome::Found),
    }
}

/// Reads only the lock key of a semaphore.
async fn read_lock(client: &Client, prefix: Prefix, why: &str) -> Result<Usage, consul::Error> {
    let sent = Moment::now();
    let lock = client.get(&prefix.lock_key()).await?;
    let listing = Listing {
        entries: lock.into_iter().collect(),
        index: 1,
        sent,
        reset: false,
    };
    let reading = Reading::found(prefix, listing);
    let mut semaphore = Usage::of(&reading, &SessionNames::default());
    semaphore.summary.waiting = None;
    semaphore.summary.problem = Some(why.to_owned());
    forget(&mut semaphore);
    Ok(semaphore)
}

/// Drops the holders and waiting contenders, because `list` shows only numbers.
fn forget(semaphore: &mut Usage) {
    semaphore.holders = Vec::new();
    // One waiting contender is kept, because [`Usage::is_unused`] depends on it.
    semaphore.waiters.truncate(1);
}
