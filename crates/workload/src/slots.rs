//! The slots of a workload that has several, as its template records them.

use std::sync::Arc;

use consul_semaphore::{Granted, GrantedSlot, Sequencer, lock_key_of, plan::Start};

/// Writes the slots in which a workload is started, as JSON. The names of the fields are those of the annotations for a
/// workload with one slot.
pub(crate) fn written(start: &Start) -> String {
    Sequencer::list(start)
}

/// Reads slots that [`written`] wrote; `None` if the text can't be read, names no slot, or names a lock key and a
/// session for which `is_real` returns false.
pub(crate) fn read(text: &str, is_real: impl Fn(&str, &str) -> bool) -> Option<Granted> {
    let sequencers = Sequencer::read_list(text).ok()?.into_iter();
    let granted = sequencers.map(|slot| {
        is_real(&slot.lock_key, slot.session.as_str()).then(|| GrantedSlot {
            lock_key: Arc::from(lock_key_of(&slot.lock_key)),
            session: slot.session,
            index: slot.slot_index,
        })
    });
    let slots: Vec<GrantedSlot> = granted.collect::<Option<_>>()?;
    (!slots.is_empty()).then_some(Granted { slots })
}
