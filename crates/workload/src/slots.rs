//! The slots of a workload that has several, as its template records them.

use std::sync::Arc;

use consul_client::SessionId;
use consul_semaphore::{Granted, GrantedSlot, lock_key_of, plan::Start};
use serde::{Deserialize, Serialize};

/// One slot. The names are those of the single annotations for a workload with one slot.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recorded<'a> {
    lock_key: &'a str,
    session: &'a str,
    lock_index: u64,
    fencing_token: u64,
}

/// The slots in which a workload is started, as JSON.
pub(crate) fn written(start: &Start) -> String {
    let slots = start.slots().map(|slot| Recorded {
        lock_key: slot.key(),
        session: slot.session().as_str(),
        lock_index: slot.lock_index(),
        fencing_token: slot.fencing_token(),
    });
    let slots: Vec<_> = slots.collect();
    serde_json::to_string(&slots).unwrap_or_default()
}

/// Reads that; `None` if it can't be read, or has a text that no real one has.
pub(crate) fn read(text: &str, is_real: impl Fn(&str, &str) -> bool) -> Option<Granted> {
    let slots: Vec<Recorded<'_>> = serde_json::from_str(text).ok()?;
    let slots = slots.iter().map(|slot| {
        let (key, session) = (slot.lock_key, slot.session);
        is_real(key, session).then(|| GrantedSlot {
            lock_key: Arc::from(lock_key_of(key)),
            session: SessionId::from(session),
        })
    });
    let slots: Vec<GrantedSlot> = slots.collect::<Option<_>>()?;
    (!slots.is_empty()).then_some(Granted { slots })
}
