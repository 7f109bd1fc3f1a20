//! The semaphores below a prefix, in bounded memory: the names of the lock keys first, and then one after the other.

use consul_client::{self as consul, Client, Listing, clock::Moment};
use consul_semaphore::{Prefix, Reading};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::{failure::Failure, names::Names, seen::Semaphore};

/// How many semaphores are listed at most.
const MOST: usize = 5000;

/// How many of them are read at once.
const AT_ONCE: usize = 4;

/// How many prefixes a note names.
const NAMED: usize = 5;

/// What a lock key ends with.
const LOCK: &str = "/.lock";

/// The semaphores that were found.
pub(super) struct Found {
    /// By prefix. Nobody is named.
    pub(super) all: Vec<Semaphore>,
    /// What is missing, for people.
    pub(super) notes: Vec<String>,
}

/// Finds them.
///
/// # Errors
/// Consul can't be asked, or refuses.
pub(super) async fn find(client: &Client, below: Option<&Prefix>) -> Result<Found, Failure> {
    let folder = below.map_or_else(String::new, Prefix::folder);
    let keys = client.keys(&folder, LOCK).await?;
    let names = keys.keys.iter().filter_map(|key| key.strip_suffix(LOCK));
    let mut prefixes: Vec<Prefix> = names.filter_map(|name| name.parse().ok()).collect();
    let unusable = keys.keys.len() - prefixes.len();
    let more = prefixes.len().saturating_sub(MOST);
    prefixes.truncate(MOST);
    let notes = [
        (!keys.complete)
            .then(|| "the token may not read some keys, so what is there is not listed".to_owned()),
        (unusable > 0).then(|| {
            format!("not listed: {unusable} whose keys have a name that this program does not use")
        }),
        (more > 0).then(|| format!("not listed: {more} more. Give a longer prefix")),
    ];
    let all = stream::iter(prefixes).map(|prefix| read(client, prefix));
    let all: Vec<Read> = all.buffered(AT_ONCE).try_collect().await?;
    let mut notes: Vec<_> = notes.into_iter().flatten().collect();
    let (mut denied, mut found) = (Vec::new(), Vec::new());
    for read in all {
        match read {
            Read::Found(one) => found.push(one),
            Read::Denied(prefix) => denied.push(prefix),
        }
    }
    if !denied.is_empty() {
        let denied = in_words(&denied);
        notes.push(format!(
            "not listed, because the token may not read it: {denied}"
        ));
    }
    Ok(Found {
        // Some may have gone since their key was listed.
        all: found.into_iter().filter(|one| !one.is_unused()).collect(),
        notes,
    })
}

/// What the token may see of a semaphore.
enum Read {
    Found(Semaphore),
    Denied(Prefix),
}

/// The first of these, and how many more there are.
fn in_words(prefixes: &[Prefix]) -> String {
    let named: Vec<_> = prefixes.iter().take(NAMED).map(Prefix::as_str).collect();
    let named = named.join(", ");
    match prefixes.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Reads one. If there is too much below it, or the token may not read all of that, only its lock key is.
async fn read(client: &Client, prefix: Prefix) -> Result<Read, consul::Error> {
    let why = match client.list(&prefix.folder()).await {
        Err(consul::Error::AnswerTooLarge(_)) => "there is too much below it to see who waits",
        Err(consul::Error::Denied(_)) => "the token may not read all keys that show who waits",
        listing => {
            let reading = Reading::found(prefix, listing?);
            let mut semaphore = Semaphore::of(&reading, &Names::default());
            forget(&mut semaphore);
            return Ok(Read::Found(semaphore));
        }
    };
    match read_lock(client, prefix.clone(), why).await {
        Err(consul::Error::Denied(_)) => Ok(Read::Denied(prefix)),
        read => read.map(Read::Found),
    }
}

/// Reads the lock key alone.
async fn read_lock(client: &Client, prefix: Prefix, why: &str) -> Result<Semaphore, consul::Error> {
    let sent = Moment::now();
    let lock = client.get(&prefix.lock_key()).await?;
    let listing = Listing {
        entries: lock.into_iter().collect(),
        index: 1,
        sent,
        reset: false,
    };
    let mut semaphore = Semaphore::of(&Reading::found(prefix, listing), &Names::default());
    semaphore.summary.waiting = None;
    semaphore.summary.problem = Some(why.to_owned());
    forget(&mut semaphore);
    Ok(semaphore)
}

/// Only the figures are shown.
fn forget(semaphore: &mut Semaphore) {
    semaphore.holders = Vec::new();
    // Whether it is in use depends on these.
    semaphore.waiters.truncate(1);
}
