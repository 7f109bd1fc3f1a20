//! The slots of a workload that has several, as its template records them.

use std::sync::Arc;

use consul_semaphore::{Granted, GrantedSlot, Sequencer, lock_key_of, plan::Start};

/// The slots in which a workload is started, as JSON. The names are those of the single annotations for a workload with
/// one slot.
pub(crate) fn written(start: &Start) -> String {
    Sequencer::list(start)
}

/// Reads that; `None` if it can't be read, or has a text that no real one has.
pub(crate) fn read(text: &str, is_real: impl Fn(&str, &str) -> bool) -> Option<Granted> {
    let slots = Sequencer::read_list(text).ok()?.into_iter();
    let slots = slots.map(|slot| {
        is_real(&slot.lock_key, slot.session.as_str()).then(|| GrantedSlot {
            lock_key: Arc::from(lock_key_of(&slot.lock_key)),
            session: slot.session,
        })
    });
    let slots: Vec<GrantedSlot> = slots.collect::<Option<_>>()?;
    (!slots.is_empty()).then_some(Granted { slots })
}
