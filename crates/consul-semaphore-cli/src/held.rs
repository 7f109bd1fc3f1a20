//! Checks whether a sequencer is still valid.

use std::collections::BTreeMap;

use consul_client::{self as consul, Client, Listing, SessionId};
use consul_semaphore::{InvalidPrefix, Mode, Prefix, Reading};

use crate::exec::UNKNOWN_TOKEN;

/// Data that a holder received with its slot: the key that its session has locked, and how often that key has been
/// locked (<https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions>).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequencerToCheck {
    /// Contender key of the slot.
    pub(crate) lock_key: String,
    /// Session of the holder.
    pub(crate) session: SessionId,
    /// `LockIndex` of the key at the grant.
    pub(crate) lock_index: u64,
}

/// Answer to the question whether slots are still held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotVerdict {
    /// All slots are still held.
    Held,
    /// One slot is lost, for this reason.
    NotHeld(String),
}

/// Reason why nobody can tell whether a slot is held.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTold {
    /// The key is below no prefix.
    #[error("{0:?} is not a key below a prefix")]
    Key(String),
    /// The key is below a prefix that can't be one.
    #[error(transparent)]
    Prefix(#[from] InvalidPrefix),
    /// Consul can't be asked or does not answer.
    #[error("{0}{advice}", advice = advice(.0))]
    Consul(consul::Error),
}

impl SequencerToCheck {
    /// Returns the prefix that the key is below, as it is written; `None` if there is none.
    pub(crate) fn prefix(&self) -> Option<&str> {
        self.lock_key.rsplit_once('/').map(|(prefix, _)| prefix)
    }
}

impl From<consul_semaphore::Sequencer> for SequencerToCheck {
    fn from(slot: consul_semaphore::Sequencer) -> Self {
        Self {
            lock_key: slot.lock_key,
            session: slot.session,
            lock_index: slot.lock_index,
        }
    }
}

/// Asks Consul's leader whether the holder still has all of these slots. The answer is true for the moment in which
/// Consul gives it; a moment later it may not be.
///
/// # Errors
/// Consul can't be asked or does not answer, or a key can't belong to a semaphore. If one slot is known to be lost,
/// the function returns that as its answer even if Consul fails for others.
pub(crate) async fn held(
    consul: consul::Config,
    sequencers: &[SequencerToCheck],
) -> anyhow::Result<SlotVerdict> {
    let client = Client::new(consul)?;
    let verdict = ask(&client, sequencers).await;
    client.log_out().await;
    Ok(verdict?)
}

/// Answers like [`held`], with a client that is there.
pub(crate) async fn ask(
    client: &Client,
    sequencers: &[SequencerToCheck],
) -> Result<SlotVerdict, NotTold> {
    let mut by_prefix: BTreeMap<&str, Vec<&SequencerToCheck>> = BTreeMap::new();
    for sequencer in sequencers {
        let prefix = sequencer
            .prefix()
            .ok_or_else(|| NotTold::Key(sequencer.lock_key.clone()))?;
        by_prefix.entry(prefix).or_default().push(sequencer);
    }
    let mut unknown = None;
    for (prefix, sequencers) in by_prefix {
        let prefix: Prefix = prefix.parse()?;
        match client.list(&prefix.folder()).await {
            Ok(listing) => {
                for sequencer in sequencers {
                    let verdict = judge(sequencer, &prefix, &listing);
                    if verdict != SlotVerdict::Held {
                        return Ok(verdict);
                    }
                }
            }
            Err(error) => unknown = Some(error),
        }
    }
    match unknown {
        None => Ok(SlotVerdict::Held),
        Some(error) => Err(NotTold::Consul(error)),
    }
}

/// Returns what the user can do about the error.
fn advice(error: &consul::Error) -> &'static str {
    match error {
        error if error.is_unknown_token() => UNKNOWN_TOKEN,
        consul::Error::Denied(_) => {
            ". Give `held` a token with key:read below the prefix. `exec` does not pass its own token to the command, \
             unless you set --pass-consul-credentials"
        }
        _ => "",
    }
}

fn judge(sequencer: &SequencerToCheck, prefix: &Prefix, listing: &Listing) -> SlotVerdict {
    let SequencerToCheck {
        lock_key,
        session,
        lock_index,
    } = sequencer;
    let mut entries = listing.entries.iter();
    let Some(entry) = entries.find(|entry| entry.key == *lock_key) else {
        return SlotVerdict::NotHeld(format!("{lock_key} does not exist"));
    };
    if entry.session.as_ref() != Some(session) {
        return SlotVerdict::NotHeld(format!("{lock_key} is not locked by session {session}"));
    }
    if entry.lock_index != *lock_index {
        let now = entry.lock_index;
        return SlotVerdict::NotHeld(format!("{lock_key} has LockIndex {now}, not {lock_index}"));
    }
    let reading = Reading::new(prefix.clone(), Mode::Semaphore, listing.clone());
    if *lock_key != prefix.lock_key() && !reading.holds(session) {
        let lock = prefix.lock_key();
        return SlotVerdict::NotHeld(format!(
            "session {session} is not among the Holders of {lock}"
        ));
    }
    SlotVerdict::Held
}
