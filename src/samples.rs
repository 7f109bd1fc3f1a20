//! What several modules have their tests read.

use consul_client::Entry;

/// A key in Consul with this value, and the session that locks it.
pub(crate) fn entry(value: impl Into<Vec<u8>>, session: Option<&str>) -> Entry {
    Entry {
        key: "k".to_owned(),
        value: value.into(),
        flags: 0,
        session: session.map(Into::into),
        lock_index: 1,
        create_index: 1,
        modify_index: 1,
    }
}
