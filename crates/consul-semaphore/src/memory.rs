//! Remembers what single readings of a prefix do not show.

use consul_client::clock::Moment;

use crate::{Deaths, MutexMemory, Reading, Turns, slot_index::SlotIndices};

/// Data that is derived from successive readings of a prefix.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Times at which dead holders were first seen dead.
    pub deaths: Deaths,
    /// State of a mutex that its key does not show.
    pub mutex: MutexMemory,
    /// Turns of the waiting contenders.
    pub turns: Turns,
    /// Indices of the slots that are held.
    pub indices: SlotIndices,
}

impl Memory {
    /// Updates the data by a new reading, which was taken over at this moment of the monotonic clock and at this time.
    pub fn observe(&mut self, reading: &Reading, now: Moment, time: jiff::Timestamp) {
        self.deaths.observe(reading, now);
        self.mutex.observe(reading, now);
        self.turns.observe(reading, now, time);
        self.indices.observe(reading);
    }
}
