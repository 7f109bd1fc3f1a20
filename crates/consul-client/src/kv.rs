//! Reads, writes and deletes keys and values.

use std::{borrow::Cow, fmt, sync::Arc};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde::{
    Deserialize, Deserializer as _,
    de::{SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    Client, Entries, Entry, Error, Keys, Listing, SessionId,
    call::Call,
    endpoints::Target,
    lanes::Lane,
    listing::{self, Wanted},
};

/// The condition for writing a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// No condition.
    Set,
    /// The key was last written at this index; 0: the key does not exist.
    Cas(u64),
    /// No other session holds the key; then this session does.
    Acquire(SessionId),
    /// This session holds the key; then no session does.
    Release(SessionId),
}

impl Client {
    /// Returns all entries whose keys begin with `prefix`, taken literally: end it with `/` to list one folder. If
    /// there are none, the listing is empty and has an index. The read is consistent: no change that was answered
    /// before this call is missing.
    ///
    /// If the token may not read some of the entries, the call fails with [`Error::Denied`], because an incomplete
    /// listing would pass for a complete one.
    ///
    /// Only lock keys (`/.lock`), contenders (locked by the session that they are named after) and the key `prefix`
    /// itself have their values. The call fails with [`Error::AnswerTooLarge`] if there is more than 5000 holders
    /// need, and with [`Error::PrefixTooLarge`] if the listing does not fit into the budget of [`Self::charged`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        self.list_over(prefix, &Entries::default()).await
    }

    /// Lists the prefix like [`Self::list`], with the copy of each entry that is already known.
    pub async fn list_over(&self, prefix: &str, known: &Entries) -> Result<Listing, Error> {
        let call = Call::get("kv_list", list_path(prefix)?).consistent();
        Ok(self.list_with(prefix, known, call).await?.0)
    }

    /// Returns the keys that begin with `prefix` and end with `ending`, without their values. This reads much less
    /// than [`Self::list`] where others keep large or many values. An empty `prefix` is the whole store.
    ///
    /// Keys that the token may not read are left out, see [`Keys::complete`]; the call fails with [`Error::Denied`]
    /// if the token may read none.
    pub async fn keys(&self, prefix: &str, ending: &str) -> Result<Keys, Error> {
        let call = Call::get("kv_keys", list_path(prefix)?).consistent();
        let answer = self.send(call.with("keys", "")).await?;
        let mut keys = Vec::new();
        if answer.found {
            let mut wire = serde_json::Deserializer::from_slice(&answer.body);
            let read = wire.deserialize_seq(Ending {
                ending,
                keys: &mut keys,
            });
            read.map_err(|error| Error::decode(&error))?;
        } else if answer.index.is_none() {
            return Err(answer.not_found());
        }
        if keys.is_empty() {
            // Consul may not report that it left keys out, but it denies reading a single key explicitly.
            self.table_index("kv_keys", prefix).await?;
        }
        let complete = !answer.filtered;
        Ok(Keys { keys, complete })
    }

    /// Returns the entry of one key, if there is one.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        let call = Call::get("kv_get", key_path(key)?).consistent();
        let answer = self.send(call).await?;
        if !answer.found && answer.index.is_some() {
            return Ok(None);
        }
        let wire: Vec<WireEntry<'_>> = answer.json()?;
        wire.into_iter().next().map(WireEntry::decode).transpose()
    }

    /// Writes a key; returns false if the condition does not hold. The call is not repeated when its answer was lost.
    /// It fails with [`Error::Gone`] if the acquiring session is gone.
    pub async fn put(
        &self,
        key: &str,
        value: &[u8],
        flags: u64,
        mode: PutMode,
    ) -> Result<bool, Error> {
        let put = Call::put("kv_put", key_path(key)?, value.to_vec());
        let call = match mode {
            PutMode::Set => put,
            PutMode::Cas(index) => put.with("cas", index.to_string()),
            PutMode::Acquire(session) => put.with("acquire", session.as_str()),
            PutMode::Release(session) => put.with("release", session.as_str()),
        };
        self.send(call.with("flags", flags.to_string()))
            .await?
            .json()
    }

    /// Deletes a key, with `cas` only if the key was last written at that index; returns false if it was not. Without
    /// `cas` a missing key is success.
    pub async fn delete(&self, key: &str, cas: Option<u64>) -> Result<bool, Error> {
        let mut call = Call {
            lane: Lane::Write,
            method: Method::DELETE,
            changes: true,
            idempotent: false,
            ..Call::get("kv_delete", key_path(key)?)
        };
        if let Some(index) = cas {
            call = call.with("cas", index.to_string());
        }
        self.send(call).await?.json()
    }

    /// Returns the listing that this call reads of the prefix, and the server that answered.
    pub(super) async fn list_with(
        &self,
        prefix: &str,
        known: &Entries,
        call: Call,
    ) -> Result<(Listing, Arc<Target>), Error> {
        let kind = call.kind;
        let wanted = Wanted {
            prefix: prefix.to_owned(),
            known: known.clone(),
            account: self.account.clone(),
        };
        let answer = self.send(call.with("recurse", "").listing(wanted)).await?;
        if answer.filtered {
            return Err(Error::Denied(format!(
                "the token lacks permission 'key:read' on some keys below {prefix:?}"
            )));
        }
        // Something other than Consul, such as a proxy, answers with 404, too. If that counted as "there are no
        // keys", every lock would be lost.
        let index = match answer.index {
            Some(index) => index,
            None if answer.found => return Err(Error::Decode("no X-Consul-Index".to_owned())),
            None => return Err(answer.not_found()),
        };
        if answer.entries.is_empty() {
            // Not every Consul reports that it left entries out, but it denies reading a single key explicitly.
            self.table_index(kind, prefix).await?;
        }
        let listing = Listing {
            entries: answer.entries,
            index,
            sent: answer.sent,
            reset: false,
        };
        Ok((listing, answer.server))
    }

    /// Returns the index of the whole store; fails if the token may not read the prefix. The index goes back only
    /// when Consul loses data, while the index of a prefix also goes back when Consul forgets, after some minutes,
    /// that keys below the prefix were deleted.
    pub(super) async fn table_index(&self, kind: &'static str, prefix: &str) -> Result<u64, Error> {
        let absent = key_path(&format!("{prefix}.absent"))?;
        let answer = self.send(Call::get(kind, absent).consistent()).await?;
        answer.index.ok_or_else(|| answer.not_found())
    }
}

/// Keeps the keys with this ending while they are read.
struct Ending<'a> {
    ending: &'a str,
    keys: &'a mut Vec<String>,
}

impl<'de> Visitor<'de> for Ending<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of keys")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        while let Some(key) = all.next_element::<Cow<'de, str>>()? {
            if key.ends_with(self.ending) {
                self.keys.push(key.into_owned());
            }
        }
        Ok(())
    }
}

/// Characters that are escaped in a path: all except those that need no escape.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Escapes one segment of a path.
pub(super) fn segment(text: &str) -> Result<String, Error> {
    match text {
        // "." and ".." have a meaning in URLs and can't be escaped.
        "" | "." | ".." => Err(Error::invalid_key(text)),
        _ => Ok(utf8_percent_encode(text, ESCAPED).to_string()),
    }
}

fn key_path(key: &str) -> Result<String, Error> {
    match key {
        "" => Err(Error::invalid_key(key)),
        _ => list_path(key),
    }
}

pub(super) fn list_path(prefix: &str) -> Result<String, Error> {
    const FOLDERS: &AsciiSet = &ESCAPED.remove(b'/');
    // Empty segments and dots are normalized on the way, and by Consul since 1.21.5 even if they are escaped: the call
    // would be about another key.
    let folders = prefix.strip_suffix('/').unwrap_or(prefix);
    let usual = |name: &str| !matches!(name, "" | "." | "..");
    if !prefix.is_empty() && !folders.split('/').all(usual) {
        return Err(Error::invalid_key(prefix));
    }
    Ok(format!("/v1/kv/{}", utf8_percent_encode(prefix, FOLDERS)))
}

/// An entry as Consul writes it. Its value is decoded only when needed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct WireEntry<'a> {
    pub(super) key: String,
    #[serde(borrow)]
    pub(super) value: Option<&'a RawValue>,
    #[serde(default)]
    flags: u64,
    session: Option<SessionId>,
    #[serde(default)]
    lock_index: u64,
    create_index: u64,
    modify_index: u64,
}

impl WireEntry<'_> {
    /// Whether the session that the entry's key is named after has locked the entry.
    pub(super) fn is_contender(&self) -> bool {
        let name = self.key.rsplit_once('/').map(|(_, name)| name);
        let session = self.session.as_ref().map(SessionId::as_str);
        name == session && name.is_some_and(|name| !name.is_empty())
    }

    pub(super) fn decode(self) -> Result<Entry, Error> {
        let not_base64 = || Error::decode(&format!("the value of {:?} is not base64", self.key));
        Ok(Entry {
            value: listing::bytes(self.value).ok_or_else(not_base64)?,
            key: self.key,
            flags: self.flags,
            session: self.session.filter(|session| !session.as_str().is_empty()),
            lock_index: self.lock_index,
            create_index: self.create_index,
            modify_index: self.modify_index,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the key that Consul looks up for a request with this URL, which Consul unescapes once and normalizes;
    /// `None` if something on the way would normalize it before.
    fn routed(path: &str) -> Option<String> {
        let url = reqwest::Url::parse(&format!("http://consul{path}")).ok()?;
        let decoded = percent_encoding::percent_decode_str(url.path())
            .decode_utf8()
            .ok()?;
        if url.query().is_some() || url.fragment().is_some() {
            return None;
        }
        let key = decoded.strip_prefix("/v1/kv/")?;
        let usual = |name: &&str| !matches!(*name, "" | "." | "..");
        let cleaned: Vec<_> = key.split('/').filter(usual).collect();
        let end = if key.ends_with('/') { "/" } else { "" };
        Some(cleaned.join("/") + end)
    }

    proptest! {
        /// No key is mistaken for another one on its way to Consul.
        #[test]
        fn any_key_arrives_as_it_is(key in prop_oneof![hostile::text(), "[a-z.%/ ?#\\\\]{0,12}", "(a|b|[.]{1,3}|%2e|%2F|/){0,8}"]) {
            match list_path(&key) {
                Ok(path) => prop_assert_eq!(routed(&path), Some(key)),
                Err(error) => prop_assert_eq!(error, Error::invalid_key(&key)),
            }
        }

        /// No server rewrites keys like those of a prefix: no segment is empty or only dots, and nothing is escaped.
        #[test]
        fn keys_of_plain_segments_need_no_escapes(key in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,5}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,5}){0,3}/?") {
            prop_assert_eq!(list_path(&key), Ok(format!("/v1/kv/{key}")));
        }

        #[test]
        fn any_entries_are_read_or_refused(body in hostile::bytes(), value in hostile::json()) {
            let entry = format!(r#"[{{"Key":"k","Value":"e30=","Flags":{value},"CreateIndex":1,"ModifyIndex":2}}]"#);
            for body in [body, entry.into_bytes()] {
                if let Ok(wire) = serde_json::from_slice::<Vec<WireEntry<'_>>>(&body) {
                    let _: Result<Vec<_>, _> = wire.into_iter().map(WireEntry::decode).collect();
                }
            }
        }
    }

    #[test]
    fn keys_are_escaped_by_segment() {
        let path = |key| key_path(key).unwrap();
        assert_eq!(path("shared/db/.lock"), "/v1/kv/shared/db/.lock");
        assert_eq!(path("a b/ä%?#+/\n"), "/v1/kv/a%20b/%C3%A4%25%3F%23%2B/%0A");
        assert_eq!(path("folder/"), "/v1/kv/folder/");
        assert_eq!(list_path("").unwrap(), "/v1/kv/");
    }

    #[test]
    fn keys_that_consul_would_take_for_others_are_refused() {
        for key in ["", ".", "..", "/", "/a", "a//", "a//b", "a/./b", "a/../b/"] {
            let refused = key_path(key).unwrap_err();
            assert_eq!(refused, Error::invalid_key(key));
            assert_eq!(
                refused.to_string(),
                format!("Consul does not accept this key: {key:?}")
            );
        }
    }

    #[test]
    fn entries_of_a_real_consul() {
        let body = r#"[{"LockIndex":1,"Key":"s/1","Flags":16210313421097356768,"Value":"eyJhIjoxfQ==",
            "Session":"e3bc48c5-d578-a5a2-8922-52dbf9ee84ab","CreateIndex":22,"ModifyIndex":23},
            {"LockIndex":0,"Key":"s/2","Flags":0,"Value":null,"CreateIndex":5,"ModifyIndex":5}]"#;
        let wire: Vec<WireEntry<'_>> = serde_json::from_str(body).unwrap();
        let decoded: Result<Vec<_>, _> = wire.into_iter().map(WireEntry::decode).collect();
        let entries = decoded.unwrap();
        assert_eq!(entries[0].value, br#"{"a":1}"#);
        assert_eq!(entries[0].flags, 0xe0f6_9a2b_aa41_4de0);
        assert_eq!(
            entries[0].session,
            Some("e3bc48c5-d578-a5a2-8922-52dbf9ee84ab".into())
        );
        assert_eq!((entries[0].lock_index, entries[0].modify_index), (1, 23));
        assert_eq!(entries[1].value, b"");
        assert_eq!(entries[1].session, None);
    }
}
