//! Whether a sequencer is still valid.

use consul_client::{self as consul, Client, Listing, SessionId};
use consul_semaphore::Prefix;
use consul_semaphore::{Mode, Reading};

/// What a holder received with its slot: the key that its session has locked, and how often that key has been locked
/// (<https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions>).
#[derive(Clone, Debug)]
pub(crate) struct Sequencer {
    /// The contender key.
    pub(crate) lock_key: String,
    /// The session.
    pub(crate) session: SessionId,
    /// The key's `LockIndex` at the grant.
    pub(crate) lock_index: u64,
}

/// Whether the slot is still held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is still held.
    Held,
    /// It is not held any more, and why.
    NotHeld(String),
}

/// Asks Consul's leader whether the holder still has the slot. The answer was true when it was given; a moment later
/// it may not be.
///
/// # Errors
/// Consul can't be asked, or does not answer; or the key can't belong to a semaphore.
pub(crate) async fn held(consul: consul::Config, sequencer: &Sequencer) -> anyhow::Result<Verdict> {
    let (prefix, _) = sequencer
        .lock_key
        .rsplit_once('/')
        .ok_or_else(|| anyhow::anyhow!("{:?} is no key below a prefix", sequencer.lock_key))?;
    let prefix: Prefix = prefix.parse()?;
    let client = Client::new(consul)?;
    let listing = client.list(&prefix.folder()).await;
    client.log_out().await;
    Ok(judge(sequencer, &prefix, listing?))
}

fn judge(sequencer: &Sequencer, prefix: &Prefix, listing: Listing) -> Verdict {
    let Sequencer {
        lock_key,
        session,
        lock_index,
    } = sequencer;
    let mut entries = listing.entries.iter();
    let Some(entry) = entries.find(|entry| entry.key == *lock_key) else {
        return Verdict::NotHeld(format!("{lock_key} is not there"));
    };
    if entry.session.as_ref() != Some(session) {
        return Verdict::NotHeld(format!("{lock_key} is not locked by session {session}"));
    }
    if entry.lock_index != *lock_index {
        let now = entry.lock_index;
        return Verdict::NotHeld(format!("{lock_key} has LockIndex {now}, not {lock_index}"));
    }
    let reading = Reading::new(prefix.clone(), Mode::Semaphore, listing);
    if *lock_key != prefix.lock_key() && !reading.holds(session) {
        let lock = prefix.lock_key();
        return Verdict::NotHeld(format!(
            "session {session} is not among the Holders of {lock}"
        ));
    }
    Verdict::Held
}
