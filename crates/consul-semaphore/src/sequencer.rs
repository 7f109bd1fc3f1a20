//! Describes a slot to the programs that run in it.

use serde::{Deserialize, Serialize};

use crate::plan::{HeldSlot, Start};
use consul_client::SessionId;

/// A slot as the programs that run in it know it: Consul's sequencer
/// (<https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions>), the fencing token, and the index of the
/// slot. A workload with several slots gets a JSON list of sequencers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sequencer {
    /// The key that the session has locked: its contender key, or the key of the mutex.
    pub lock_key: String,
    /// The session that holds the slot.
    pub session: SessionId,
    /// The key's `LockIndex` at the grant.
    pub lock_index: u64,
    /// The raft index of the grant, as a fencing token.
    pub fencing_token: u64,
    /// The number of the slot among all slots of its semaphore, from 0, which no other holder has meanwhile; left out
    /// for a slot of a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_index: Option<u32>,
    /// The name that the `ConsulSemaphore` gives to this slot index, if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_name: Option<String>,
}

impl From<&HeldSlot> for Sequencer {
    fn from(slot: &HeldSlot) -> Self {
        Self {
            lock_key: slot.key().to_owned(),
            session: slot.session().clone(),
            lock_index: slot.lock_index(),
            fencing_token: slot.fencing_token(),
            slot_index: slot.index(),
            slot_name: slot.name().map(str::to_owned),
        }
    }
}

impl Sequencer {
    /// Returns all slots in which a workload is started, as JSON, in the order in which the workload asks for them.
    pub fn list(start: &Start) -> String {
        let slots: Vec<Self> = start.slots().map(Self::from).collect();
        serde_json::to_string(&slots).unwrap_or_default()
    }

    /// Reads a list that [`Self::list`] wrote.
    ///
    /// # Errors
    /// The text is no such list.
    pub fn read_list(text: &str) -> serde_json::Result<Vec<Self>> {
        serde_json::from_str(text)
    }
}
