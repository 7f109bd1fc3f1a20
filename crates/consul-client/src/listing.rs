//! Decodes a listing while it is read.
//!
//! Only one entry at a time is in memory as text. Parts of an entry that nobody needs are not decoded, and an entry
//! that is already known is kept only once: most entries are as they were in the listing before, and are recognised by
//! a hash of their text. Bytes are counted before they are kept.

use std::{
    borrow::Cow,
    cmp::Ordering,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    Entries, Entry, Error, Listed,
    budget::{Account, Derived, is_lock, own_size},
    kv::WireEntry,
};

/// Largest number of bytes that are kept of one prefix, with what a reader derives from it. 5000 holders with a body
/// of 1 KiB each need 15 MiB.
const LARGEST_LISTING: usize = 16 << 20;

/// The longest value of a contender, in bytes. A longer value is left out: this program and `consul lock` write less.
const LONGEST_VALUE: usize = 16 << 10;

/// The keys of the hashes. Nobody outside of this process can find two texts with the same hash.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The prefix of a listing, with what the decoder needs to know about the prefix.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Prefix with which all keys begin.
    pub(super) prefix: String,
    /// Entries of the prefix that are already known.
    pub(super) known: Entries,
    /// Account that counts the entries that are kept.
    pub(super) account: Option<Account>,
}

/// The entries of a listing, while it is read.
pub(super) struct Decoder<'a> {
    wanted: &'a Wanted,
    /// Known entries of the keys that come next.
    known: &'a [Listed],
    kept: Vec<Listed>,
    /// Number of bytes that the kept entries take.
    size: usize,
    /// Amount of data that a reader derives from the entries.
    derived: Derived,
    /// Number of bytes for which there was no room. If it is not zero, entries are only counted and not kept.
    missing: usize,
}

impl Wanted {
    pub(super) fn decoder(&self) -> Decoder<'_> {
        Decoder {
            wanted: self,
            known: &self.known,
            kept: Vec::new(),
            size: 0,
            derived: Derived::default(),
            missing: 0,
        }
    }
}

impl Decoder<'_> {
    /// Takes the next entry, as Consul writes it.
    pub(super) fn take(&mut self, text: &[u8]) -> Result<(), Error> {
        // The prefix is hashed as well, because it decides which values are kept.
        let hash = HASHES.hash_one((&self.wanted.prefix, text));
        if let Some((same, rest)) = self
            .known
            .split_first()
            .filter(|(next, _)| next.is_of(hash))
        {
            self.known = rest;
            self.count(same)?;
            self.kept.push(same.clone());
            return Ok(());
        }
        let wire = serde_json::from_slice(text).map_err(|error| Error::decode(&error))?;
        let entry = self.decode(wire)?;
        self.count(&entry)?;
        if let Some(known) = self.known(&entry) {
            self.kept.push(known);
            return Ok(());
        }
        let charge = match &self.wanted.account {
            None => None,
            Some(account) => {
                let size = own_size(&entry);
                match account.charge(size).filter(|_| self.missing == 0) {
                    None => {
                        self.missing += size;
                        return Ok(());
                    }
                    charge => charge,
                }
            }
        };
        self.kept.push(Listed::decoded(entry, hash, charge));
        Ok(())
    }

    /// Counts the bytes of an entry, before it is kept.
    fn count(&mut self, entry: &Entry) -> Result<(), Error> {
        self.size += own_size(entry);
        self.derived.add(entry);
        if self.size + self.derived.size() > LARGEST_LISTING {
            return Err(Error::AnswerTooLarge(LARGEST_LISTING));
        }
        Ok(())
    }

    /// Returns the listing, once all of it was taken. If there was too little room, waits until other prefixes give
    /// way and returns `None`: then the listing must be read again.
    pub(super) async fn finish(self) -> Result<Option<Entries>, Error> {
        if let Some(account) = &self.wanted.account {
            if self.missing > 0 {
                let room = account.room(self.missing).await;
                if room.is_err() {
                    account.settle(false);
                }
                return room.map(|()| None);
            }
            account.settle(true);
        }
        Ok(Some(self.kept.into()))
    }

    /// Returns the known copy of the entry, if the entry is already known.
    fn known(&mut self, entry: &Entry) -> Option<Listed> {
        while let Some((first, rest)) = self.known.split_first() {
            match first.key.cmp(&entry.key) {
                Ordering::Less => self.known = rest,
                Ordering::Equal => {
                    self.known = rest;
                    return (**first == *entry).then(|| first.clone());
                }
                Ordering::Greater => return None,
            }
        }
        None
    }

    /// Decodes an entry, without its value if nobody needs the value: others may have written anything beside lock
    /// keys, contenders and the one key that was asked for.
    fn decode(&self, mut wire: WireEntry<'_>) -> Result<Entry, Error> {
        let Wanted { prefix, .. } = self.wanted;
        if wire.key != *prefix && !is_lock(&wire.key) {
            let long = |value: &str| value.len() / 4 * 3 > LONGEST_VALUE;
            if !wire.is_contender() || wire.value.is_some_and(|value| long(value.get())) {
                wire.value = None;
            }
        }
        wire.decode()
    }
}

/// Returns the bytes of a value that is written as Consul writes it; `None` if the text is not base64.
pub(super) fn bytes(value: Option<&serde_json::value::RawValue>) -> Option<Vec<u8>> {
    let text: Cow<'_, str> = match value {
        Some(value) => serde_json::from_str::<Option<Cow<'_, str>>>(value.get())
            .ok()?
            .unwrap_or_default(),
        None => Cow::Borrowed(""),
    };
    BASE64_STANDARD.decode(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Budget, Reader};

    fn wanted(account: Option<&Account>, known: Entries) -> Wanted {
        Wanted {
            prefix: "p/".to_owned(),
            known,
            account: account.cloned(),
        }
    }

    fn entry(key: &str, session: &str, value: &[u8], index: u64) -> String {
        let value = BASE64_STANDARD.encode(value);
        format!(
            r#"{{"LockIndex":1,"Key":"{key}","Flags":0,"Value":"{value}","Session":"{session}","CreateIndex":{index},"ModifyIndex":{index}}}"#
        )
    }

    async fn read(wanted: &Wanted, entries: &[String]) -> Result<Option<Entries>, Error> {
        let mut decoder = wanted.decoder();
        for entry in entries {
            decoder.take(entry.as_bytes())?;
        }
        decoder.finish().await
    }

    #[tokio::test]
    async fn only_the_values_of_lock_keys_and_contenders_are_kept() {
        let large = vec![b'x'; LONGEST_VALUE + 100];
        let entries = [
            entry("p/", "", b"the key itself", 1),
            entry("p/.lock", "", b"body", 1),
            entry("p/a", "a", b"contender", 1),
            entry("p/b", "", b"junk", 1),
            entry("p/c", "another", b"locked junk", 1),
            entry("p/d", "d", &large, 1),
            entry("p/k/.lock", "s", b"mutex", 1),
            entry("p/k/s", "s", b"contender of a key", 1),
        ];
        let kept = read(&wanted(None, Entries::default()), &entries).await;
        let values: Vec<_> = kept
            .unwrap()
            .unwrap()
            .iter()
            .map(|entry| String::from_utf8(entry.value.clone()).unwrap())
            .collect();
        let expected = [
            "the key itself",
            "body",
            "contender",
            "",
            "",
            "",
            "mutex",
            "contender of a key",
        ];
        assert_eq!(values, expected);
    }

    #[tokio::test]
    async fn what_is_known_is_kept_once_and_what_differs_is_not_taken_for_it() {
        let budget = Budget::new(1 << 20);
        let account = budget.account(&"team".into(), "p");
        let before = [
            entry("p/.lock", "", b"body", 1),
            entry("p/a", "a", b"1", 2),
            entry("p/b", "b", b"1", 3),
            entry("p/c", "c", b"1", 4),
        ];
        let first = read(&wanted(Some(&account), Entries::default()), &before).await;
        let known = first.unwrap().unwrap();
        let kept = budget.kept();
        assert!(kept > 0);
        let after = [
            before[0].clone(),
            entry("p/aa", "aa", b"1", 5),
            // After a restore the same index may belong to another value.
            entry("p/b", "b", b"2", 3),
            before[3].clone(),
        ];
        let second = read(&wanted(Some(&account), known.clone()), &after).await;
        let now = second.unwrap().unwrap();
        let same: Vec<_> = now
            .iter()
            .map(|entry| known.iter().any(|known| known.is_same_copy(entry)))
            .collect();
        assert_eq!(same, [true, false, false, true]);
        let without_the_first = read(&wanted(Some(&account), now.clone()), &after[1..]).await;
        let rest = without_the_first.unwrap().unwrap();
        let mut pairs = rest.iter().zip(&now[1..]);
        assert!(pairs.all(|(rest, now)| rest.is_same_copy(now)));
        drop((known, rest));
        assert!(budget.kept() <= kept + 10, "only what is listed now");
        drop(now);
        assert_eq!(budget.kept(), 0);
    }

    #[tokio::test]
    async fn a_prefix_that_takes_more_than_any_needs_is_refused_while_it_is_read() {
        let budget = Budget::new(1 << 30);
        let account = budget.account(&"team".into(), "p");
        let wanted = wanted(Some(&account), Entries::default());
        let mut decoder = wanted.decoder();
        let error = (0..1_000_000).find_map(|number| {
            let entry = entry(&format!("p/{number}"), "", b"", 1);
            decoder.take(entry.as_bytes()).err()
        });
        assert_eq!(error, Some(Error::AnswerTooLarge(LARGEST_LISTING)));
        drop(decoder);
        assert_eq!(budget.kept(), 0);
        // Few bytes of a lock key may list very many.
        let many = b"1,".repeat(100_000);
        let lock = entry("p/.lock", "", &many, 1);
        let error = wanted.decoder().take(lock.as_bytes());
        assert_eq!(error, Err(Error::AnswerTooLarge(LARGEST_LISTING)));
    }

    #[tokio::test]
    async fn five_thousand_holders_fit() {
        let session = |number: u32| format!("5e55{number:04x}-0000-4000-8000-000000000000");
        let holders: Vec<_> = (0..5000)
            .map(|number| format!(r#""{}":true"#, session(number)))
            .collect();
        let body = format!(r#"{{"Limit":5000,"Holders":{{{}}}}}"#, holders.join(","));
        let prefix = "semaphores/a-namespace-of-a-team/and-its-semaphore";
        let mut entries = vec![entry(&format!("{prefix}/.lock"), "", body.as_bytes(), 1)];
        entries.extend((0..5000).map(|number| {
            let key = format!("{prefix}/{}", session(number));
            entry(&key, &session(number), &[b'x'; 1024], 1)
        }));
        let kept = read(&wanted(None, Entries::default()), &entries).await;
        assert_eq!(kept.unwrap().unwrap().len(), 5001);
    }

    /// Lists a prefix with so many contenders for an owner, and tells whether the listing is kept.
    async fn keep(
        budget: &Budget,
        owner: &str,
        prefix: &str,
        contenders: usize,
    ) -> (Account, Result<Option<Entries>, Error>) {
        let account = budget.account(&owner.into(), prefix);
        let kept = keep_again(&account, contenders).await;
        (account, kept)
    }

    async fn keep_again(account: &Account, contenders: usize) -> Result<Option<Entries>, Error> {
        account.come_back();
        let entries: Vec<_> = (0..contenders)
            .map(|number| entry(&format!("p/{number:05}"), &format!("{number:05}"), b"", 1))
            .collect();
        read(&wanted(Some(account), Entries::default()), &entries).await
    }

    /// Bytes that one contender takes.
    const EACH: usize = 256 + 7 + 5;

    #[tokio::test]
    async fn past_the_budget_the_largest_prefix_of_whoever_keeps_most_gives_way() {
        let budget = Budget::new(100 * EACH);
        let (_small, kept_small) = keep(&budget, "b", "small", 10).await;
        let (large, kept_large) = keep(&budget, "a", "large", 50).await;
        let (_medium, kept_medium) = keep(&budget, "a", "medium", 30).await;
        let all = [&kept_small, &kept_large, &kept_medium];
        assert!(all.iter().all(|kept| matches!(kept, Ok(Some(_)))));
        // The largest prefix is told to give way; there is room as soon as it is dropped.
        let told = tokio::spawn({
            let large = large.clone();
            async move {
                large.gives_way().await;
                drop(kept_large);
            }
        });
        let (another, kept) = keep(&budget, "c", "p", 40).await;
        assert!(matches!(kept, Ok(None)), "to be read again");
        told.await.unwrap();
        assert!(matches!(keep_again(&another, 40).await, Ok(Some(_))));
        // The prefix is the largest again, so no other prefix gives way to it.
        let error = keep_again(&large, 50).await;
        assert_eq!(error, Err(Error::PrefixTooLarge(100 * EACH)));
    }

    #[tokio::test]
    async fn one_that_gave_way_comes_back_only_when_there_is_room_to_spare() {
        let budget = Budget::new(100 * EACH);
        let (_other, other) = keep(&budget, "b", "other", 40).await;
        let (large, refused) = keep(&budget, "a", "large", 61).await;
        let too_large = Err(Error::PrefixTooLarge(100 * EACH));
        assert_eq!(refused, too_large);
        assert_eq!(keep_again(&large, 60).await, too_large, "it would fit");
        assert!(matches!(keep_again(&large, 40).await, Ok(Some(_))));
        drop(other);
        assert!(matches!(keep_again(&large, 60).await, Ok(Some(_))));
    }

    #[tokio::test]
    async fn many_small_prefixes_of_one_owner_give_way_before_a_large_one_of_another() {
        let budget = Budget::new(100 * EACH);
        let mut small = Vec::new();
        for number in 0..6 {
            small.push(keep(&budget, "evil", &number.to_string(), 10).await);
        }
        let telling = small.iter().map(|(account, _)| account.clone());
        let accounts: Vec<_> = telling.collect();
        let watching = tokio::spawn(async move {
            // The last prefix by name gives way, because all are equal.
            accounts[5].gives_way().await;
            drop(small.pop());
            small
        });
        let (account, kept) = keep(&budget, "team", "large", 50).await;
        assert!(matches!(kept, Ok(None)));
        assert_eq!(watching.await.unwrap().len(), 5);
        assert!(matches!(keep_again(&account, 50).await, Ok(Some(_))));
    }

    #[tokio::test]
    async fn readers_count_and_only_those_that_find_no_room_are_refused() {
        let contenders = 20;
        let listed = 256 + 7 + 5;
        let derived = 4096 + contenders * 1024;
        // The budget has room for the listing, two readers, and an eighth of the whole budget.
        let budget = Budget::new((contenders * listed + 2 * derived) * 8 / 7 + 8);
        let (account, kept) = keep(&budget, "team", "p", contenders).await;
        let entries = kept.unwrap().unwrap();
        let mut readers = [(); 3].map(|()| Reader::new(&account));
        let mut admitted = Vec::new();
        for reader in &mut readers {
            admitted.push(reader.admit(&entries).await.is_ok());
        }
        assert_eq!(admitted, [true, true, false]);
        // The other readers go on, even with a larger listing.
        drop(entries);
        let entries = keep_again(&account, contenders + 1).await.unwrap().unwrap();
        assert!(readers[0].admit(&entries).await.is_ok());
        drop(readers);
        drop(entries);
        assert_eq!(budget.kept(), 0);
    }

    #[test]
    fn an_owner_is_named_once() {
        let budget = Budget::new(1);
        let owner: Arc<str> = "team".into();
        let account = budget.account(&owner, "p");
        assert!(Arc::ptr_eq(account.owner(), &owner));
    }
}
