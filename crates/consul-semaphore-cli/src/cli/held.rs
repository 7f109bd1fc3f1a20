//! The flags that name slots which are held.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use clap::Args;
use consul_semaphore::MOST_SLOTS;

use super::CommonFlags;
use crate::{exec::SlotsAround, held::SequencerToCheck};

/// The meaning of `held`'s exit code.
pub(super) const HELD_HELP: &str = "Exit code: 0 the slot is held, 1 the slot is not held, 2 unknown: stderr says why. \
                                    With several slots: 0 all are held, 1 at least one is not held.";

/// The slots to ask about.
#[derive(Args, Debug)]
pub(crate) struct SequencerFlags {
    /// The key that the holder's session has locked
    #[arg(long, env = "CONSUL_SEMAPHORE_LOCK_KEY", value_name = "KEY")]
    lock_key: String,

    /// The session that was granted the slot
    #[arg(long, env = "CONSUL_SEMAPHORE_SESSION", value_name = "ID")]
    session: String,

    /// The key's LockIndex when the slot was granted
    #[arg(long, env = "CONSUL_SEMAPHORE_LOCK_INDEX", value_name = "NUMBER")]
    lock_index: u64,

    /// All slots that were granted together, as JSON. All of them are checked if the other flags describe the first one
    #[arg(long, env = "CONSUL_SEMAPHORE_SLOTS", value_name = "JSON", value_parser = slots)]
    slots: Option<SlotList>,
}

#[derive(Args, Debug)]
pub(crate) struct HeldFlags {
    #[command(flatten)]
    pub(crate) slots: SequencerFlags,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// Slots that were granted together.
#[derive(Clone, Debug)]
struct SlotList(Vec<SequencerToCheck>);

fn slots(text: &str) -> Result<SlotList, String> {
    let slots = consul_semaphore::Sequencer::read_list(text)
        .map_err(|error| format!("this is not a list of slots: {error}"))?;
    if slots.len() > usize::try_from(MOST_SLOTS).unwrap_or(usize::MAX) {
        return Err(format!("it lists more than {MOST_SLOTS} slots"));
    }
    Ok(SlotList(
        slots.into_iter().map(SequencerToCheck::from).collect(),
    ))
}

impl SequencerFlags {
    /// Returns the sequencers of the slots.
    pub(crate) fn sequencers(self) -> Vec<SequencerToCheck> {
        let named = SequencerToCheck {
            lock_key: self.lock_key,
            session: self.session.into(),
            lock_index: self.lock_index,
        };
        granted_together(named, self.slots)
    }
}

/// Returns all slots that were granted together with this one, of which the list may be another one's.
fn granted_together(named: SequencerToCheck, slots: Option<SlotList>) -> Vec<SequencerToCheck> {
    match slots {
        Some(SlotList(all)) if all.first() == Some(&named) => all,
        // Another slot was named, or there is only one.
        _ => vec![named],
    }
}

/// Returns the slots that the environment names as `exec` and `acquire` do; none if it names no slot.
///
/// # Errors
/// The list of all slots can't be read.
pub(crate) fn slots_in_environment() -> Result<Vec<SequencerToCheck>, String> {
    let Some(named) = first_in_environment() else {
        return Ok(Vec::new());
    };
    let all = variable("SLOTS").map(|text| slots(&text)).transpose();
    match all {
        Ok(all) => Ok(granted_together(named, all)),
        Err(error) => Err(format!("CONSUL_SEMAPHORE_SLOTS: {error}")),
    }
}

/// Returns the slots that this program runs in. A list of all slots that can't be read counts as missing.
pub(super) fn slots_around() -> SlotsAround {
    let all = slots_in_environment();
    SlotsAround(all.unwrap_or_else(|_| first_in_environment().into_iter().collect()))
}

fn first_in_environment() -> Option<SequencerToCheck> {
    Some(SequencerToCheck {
        lock_key: variable("LOCK_KEY")?,
        session: variable("SESSION")?.into(),
        lock_index: variable("LOCK_INDEX")?.parse().ok()?,
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("CONSUL_SEMAPHORE_{name}")).ok()
}
