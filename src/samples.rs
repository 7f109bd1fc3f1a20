//! Makes samples that the tests of several modules read.

use consul_client::Entry;

/// Returns a key in Consul with this value, and with the session that locks it.
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
