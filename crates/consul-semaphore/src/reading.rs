//! A semaphore's prefix as it was read from Consul.

use std::collections::{BTreeMap, BTreeSet};

use super::lock::Lock;
use crate::{Mode, Prefix};
use consul_client::{Entry, Listing, Op, SessionId, clock::Moment, id::IdMap};

/// The name of the lock key below a prefix.
pub(super) const LOCK: &str = ".lock";

/// The keys of a semaphore at a prefix: `a/b` stands for `a/b/.lock` and the contenders beside it.
impl Prefix {
    /// The lock key: the semaphore's unit.
    pub fn lock_key(&self) -> String {
        format!("{self}/{LOCK}")
    }

    /// The contender key of a session.
    pub fn contender_key(&self, session: &SessionId) -> String {
        format!("{self}/{session}")
    }

    /// What to list: with the slash, so that `a` does not see `ab`.
    pub fn folder(&self) -> String {
        format!("{self}/")
    }

    /// The name of a direct child of this prefix; `None` for every other key.
    fn child<'a>(&self, key: &'a str) -> Option<&'a str> {
        let name = key.strip_prefix(self.as_str())?.strip_prefix('/')?;
        (!name.is_empty() && !name.contains('/')).then_some(name)
    }
}

/// The prefix's keys, understood.
///
/// Only direct children that are locked by the session they are named after are contenders; every
/// other key is left alone, so that `a` and `a/b` can both be semaphores. Of a mutex the lock key is
/// the only one that counts: its holder is the only contender that can be seen.
#[derive(Clone, Debug)]
pub struct Reading {
    prefix: Prefix,
    mode: Mode,
    /// The lock key.
    lock_entry: Option<Entry>,
    /// The other direct children of the prefix, by name. That of a contender is its session.
    entries: BTreeMap<SessionId, Entry>,
    lock: Lock,
    /// Who is in `Holders`, or has locked the mutex, and whether their contender lives: asked of every
    /// contender again and again, so it must not cost a search.
    holders: IdMap<SessionId, bool>,
    /// When the request for it was sent: it shows what was true then, or later.
    pub sent: Moment,
}

impl Reading {
    /// Reads a listing of [`Prefix::folder`], as what is asked for.
    pub fn new(prefix: Prefix, mode: Mode, listing: Listing) -> Self {
        let mut reading = Self {
            lock_entry: None,
            entries: BTreeMap::new(),
            lock: Lock::read(mode, None),
            holders: IdMap::default(),
            sent: listing.sent,
            prefix,
            mode,
        };
        for entry in listing.entries {
            reading.put(entry);
        }
        reading.read_lock();
        reading
    }

    /// Whether it has just these entries, all of the prefix: nothing has been written to them since.
    pub fn shows(&self, entries: &[Entry]) -> bool {
        fn version(entry: &Entry) -> (&str, u64) {
            (&entry.key, entry.modify_index)
        }
        let is_lock = |entry: &&Entry| self.prefix.child(&entry.key) == Some(LOCK);
        let lock = entries.iter().filter(is_lock);
        let listed = lock.chain(entries.iter().filter(|entry| !is_lock(entry)));
        // Both are in the order of the keys.
        let known = self.lock_entry.iter().chain(self.entries.values());
        listed.map(version).eq(known.map(version))
    }

    /// The same again, as another request showed it. One that was answered only now may have been sent
    /// before this was read: it takes nothing back of what is known to have been true since.
    pub fn confirm(&mut self, sent: Moment) {
        self.sent = self.sent.max(sent);
    }

    /// The prefix that was read.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The lock key.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The lock key's value, as it is in Consul.
    pub(super) fn lock_value(&self) -> Option<&[u8]> {
        let lock = self.lock_entry.as_ref()?;
        Some(&lock.value)
    }

    /// Whether the lock key says who holds: it is of the use that is asked for, or is not there.
    pub fn is_readable(&self) -> bool {
        !matches!(self.lock, Lock::Unreadable(_))
    }

    /// The live contenders: each one's key is locked by its session.
    pub fn contenders(&self) -> impl Iterator<Item = (&SessionId, &Entry)> {
        let (mutex, others) = match self.mode {
            Mode::Semaphore => (None, Some(&self.entries)),
            Mode::Mutex => (self.lock_entry.as_ref(), None),
        };
        let mutex = mutex
            .into_iter()
            .filter_map(|entry| Some((entry.session.as_ref()?, entry)));
        let others = others.into_iter().flatten();
        let others = others.filter(|(name, entry)| entry.session.as_ref() == Some(name));
        mutex.chain(others)
    }

    /// The live contenders that hold no slot.
    pub fn waiting(&self) -> impl Iterator<Item = (&SessionId, &Entry)> {
        self.contenders()
            .filter(|(session, _)| !self.is_named(session))
    }

    /// The live contender of a session.
    pub fn contender(&self, session: &SessionId) -> Option<&Entry> {
        let entry = match self.mode {
            Mode::Semaphore => self.entries.get(session),
            Mode::Mutex => self.lock_entry.as_ref(),
        };
        entry.filter(|entry| entry.session.as_ref() == Some(session))
    }

    /// Whether a session is in `Holders`, dead or alive.
    pub fn is_named(&self, session: &SessionId) -> bool {
        self.holders.contains_key(session)
    }

    /// The key that a session locks: a contender key of its own, or the mutex.
    pub(super) fn key_of(&self, session: &SessionId) -> String {
        match self.mode {
            Mode::Semaphore => self.prefix.contender_key(session),
            Mode::Mutex => self.prefix.lock_key(),
        }
    }

    /// Whether a session holds a slot: it is in `Holders` and its contender lives, or it has locked the
    /// mutex.
    pub fn holds(&self, session: &SessionId) -> bool {
        self.holders.get(session) == Some(&true)
    }

    /// The holders whose contender is gone or has no session, each with the check that fails a
    /// transaction if that has changed. A mutex has none: Consul itself frees it.
    pub fn dead_holders(&self) -> BTreeMap<SessionId, Op> {
        let dead = self.holders.iter().filter(|(_, lives)| !**lives);
        dead.map(|(session, _)| {
            let key = self.prefix.contender_key(session);
            let known = self.entries.get(session);
            let index = known.map_or(0, |entry| entry.modify_index);
            (session.clone(), Op::unchanged(key, index))
        })
        .collect()
    }

    /// This reading after a transaction of ours that went through: what Consul answered is known
    /// to be there, so there is no need to wait for the watch.
    ///
    /// `answer` has the written entries, without their values (of a key that is written twice, the
    /// last one counts), and `sent` is when the transaction was sent: it counts as the reading's time
    /// only if `.lock` was written, because what guards that write proves that nobody else has changed
    /// it since it was read.
    #[must_use]
    pub fn after(mut self, operations: &[Op], answer: &[Entry], sent: Moment) -> Self {
        let written: BTreeMap<&str, &Entry> = answer
            .iter()
            .map(|entry| (entry.key.as_str(), entry))
            .collect();
        for operation in operations {
            match operation {
                Op::Delete { key } | Op::DeleteCas { key, .. } => self.remove(key),
                Op::Lock { key, value, .. }
                | Op::Unlock { key, value, .. }
                | Op::Cas { key, value, .. } => {
                    if let Some(entry) = written.get(key.as_str()) {
                        self.put(Entry {
                            value: value.clone(),
                            ..(*entry).clone()
                        });
                    }
                }
                _ => {}
            }
        }
        if written.contains_key(self.prefix.lock_key().as_str()) {
            self.sent = sent;
        }
        self.read_lock();
        self
    }

    /// This reading with the keys in `written` as `known` shows them, because they were written here
    /// after this was read. What others wrote to all other keys is as this reading shows it.
    #[must_use]
    pub fn with_own<'a>(
        mut self,
        known: &Self,
        written: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        for key in written {
            let entry = match self.prefix.child(key) {
                Some(LOCK) => {
                    // As after the write itself: what guards it proves that nobody else has written it since.
                    self.sent = self.sent.max(known.sent);
                    known.lock_entry.as_ref()
                }
                Some(name) => known.entries.get(&name.into()),
                None => None,
            };
            match entry {
                Some(entry) => self.put(entry.clone()),
                None => self.remove(key),
            }
        }
        self.read_lock();
        self
    }

    fn read_lock(&mut self) {
        self.lock = Lock::read(self.mode, self.lock_entry.as_ref());
        let lives = |session: &SessionId| (session.clone(), self.contender(session).is_some());
        self.holders = match &self.lock {
            Lock::Semaphore { body, .. } => body.holders().map(lives).collect(),
            Lock::Mutex { holder, .. } => holder.iter().map(lives).collect(),
            Lock::Absent { .. } | Lock::Unreadable(_) => IdMap::default(),
        };
    }

    fn put(&mut self, entry: Entry) {
        match self.prefix.child(&entry.key) {
            Some(LOCK) => self.lock_entry = Some(entry),
            Some(name) => {
                self.entries.insert(name.into(), entry);
            }
            None => {}
        }
    }

    fn remove(&mut self, key: &str) {
        match self.prefix.child(key) {
            Some(LOCK) => self.lock_entry = None,
            Some(name) => {
                self.entries.remove(&name.into());
            }
            None => {}
        }
    }
}

/// When each dead holder was first seen dead: its slot rests for the lock-delay from then on.
///
/// Consul's own lock-delay guards only a key that the dead session had locked, and `.lock` of a
/// semaphore is not locked.
#[derive(Clone, Debug, Default)]
pub struct Deaths(BTreeMap<SessionId, Moment>);

impl Deaths {
    /// Takes note of who is dead in this reading, and forgets who is not.
    pub fn observe(&mut self, reading: &Reading, now: Moment) {
        let dead: BTreeSet<SessionId> = reading.dead_holders().into_keys().collect();
        self.0.retain(|session, _| dead.contains(session));
        for session in dead {
            self.0.entry(session).or_insert(now);
        }
    }

    /// When this holder was first seen dead.
    pub fn since(&self, session: &SessionId) -> Option<Moment> {
        self.0.get(session).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{lock::SEMAPHORE_FLAGS, samples::entry};

    fn reading(entries: Vec<Entry>) -> Reading {
        let sent = Moment::from_boot(Duration::from_secs(1));
        let listing = Listing {
            entries,
            index: 5,
            sent,
            reset: false,
        };
        Reading::new("a".parse().unwrap(), Mode::Semaphore, listing)
    }

    #[test]
    fn of_a_mutex_the_lock_key_is_the_one_that_counts() {
        let listing = Listing {
            entries: vec![
                entry("a/.lock", Some("s1"), "body"),
                entry("a/s2", Some("s2"), ""),
            ],
            index: 5,
            sent: Moment::default(),
            reset: false,
        };
        let listing = |flags| {
            let mut listing = listing.clone();
            listing.entries[0].flags = flags;
            Reading::new("a".parse().unwrap(), Mode::Mutex, listing)
        };
        let reading = listing(0);
        let (holder, other) = ("s1".into(), "s2".into());
        let contenders: Vec<_> = reading.contenders().map(|(session, _)| session).collect();
        assert_eq!(contenders, [&holder]);
        assert!(reading.holds(&holder) && !reading.holds(&other));
        assert_eq!(reading.contender(&holder).unwrap().value, b"body");
        assert_eq!(reading.contender(&other), None);
        assert_eq!(reading.key_of(&other), "a/.lock");
        assert!(reading.dead_holders().is_empty());
        assert!(!listing(SEMAPHORE_FLAGS).holds(&holder), "of another use");
    }

    #[test]
    fn only_direct_children_locked_by_their_namesake_are_contenders() {
        let reading = reading(vec![
            entry("a/s1", Some("s1"), ""),
            entry("a/s2", None, ""),
            entry("a/s3", Some("other"), ""),
            entry("a/b/s4", Some("s4"), ""),
            entry("a/b/.lock", None, r#"{"Limit":9,"Holders":{}}"#),
        ]);
        let sessions: Vec<_> = reading
            .contenders()
            .map(|(session, _)| session.as_ref())
            .collect();
        assert_eq!(sessions, ["s1"]);
        assert!(matches!(reading.lock(), Lock::Absent { index: 0, .. }));
    }

    #[test]
    fn a_holder_without_a_live_contender_is_dead() {
        let body = r#"{"Limit":3,"Holders":{"s1":true,"s2":true,"s3":true}}"#;
        let reading = reading(vec![
            entry("a/.lock", None, body),
            entry("a/s1", Some("s1"), ""),
            entry("a/s2", None, ""),
        ]);
        let expected = [
            (
                "s2".into(),
                Op::CheckIndex {
                    key: "a/s2".into(),
                    index: 5,
                },
            ),
            ("s3".into(), Op::CheckNotExists { key: "a/s3".into() }),
        ];
        assert_eq!(reading.dead_holders(), expected.into());
        assert!(reading.holds(&"s1".into()));
        assert!(!reading.holds(&"s2".into()));
    }

    #[test]
    fn what_a_transaction_wrote_is_known_at_once() {
        let before = reading(vec![
            entry("a/.lock", None, r#"{"Limit":1,"Holders":{"s":true}}"#),
            entry("a/s", Some("s"), ""),
        ]);
        let index = 9;
        let answer = |key: &str, session: Option<&str>| Entry {
            modify_index: index,
            ..entry(key, session, "")
        };
        let handed_over = r#"{"Limit":1,"Holders":{"t":true}}"#;
        let operations = [
            Op::Lock {
                key: "a/t".into(),
                value: b"body".into(),
                flags: SEMAPHORE_FLAGS,
                session: "t".into(),
            },
            Op::Cas {
                key: "a/.lock".into(),
                value: handed_over.into(),
                flags: SEMAPHORE_FLAGS,
                index: 5,
            },
            Op::Delete { key: "a/s".into() },
        ];
        let answers = [answer("a/t", Some("t")), answer("a/.lock", None)];
        let sent = Moment::from_boot(Duration::from_secs(2));
        let after = before.after(&operations, &answers, sent);
        assert!(after.holds(&"t".into()));
        assert_eq!(after.contender(&"s".into()), None);
        assert_eq!(after.contender(&"t".into()).unwrap().value, b"body");
        assert!(matches!(after.lock(), Lock::Semaphore { index: 9, .. }));
        assert_eq!(after.sent, sent);
    }

    #[test]
    fn what_was_asked_before_takes_no_evidence_back() {
        let mut known = reading(vec![entry("a/s", Some("s"), "")]);
        let sent = known.sent;
        known.confirm(Moment::from_boot(Duration::ZERO));
        assert_eq!(known.sent, sent);
        let later = sent + Duration::from_secs(1);
        known.confirm(later);
        assert_eq!(known.sent, later);
    }

    #[test]
    fn a_transaction_that_leaves_the_lock_alone_proves_nothing_about_it() {
        let before = reading(vec![entry("a/s", Some("s"), "")]);
        let sent = before.sent;
        let delete = Op::DeleteCas {
            key: "a/s".into(),
            index: 5,
        };
        let after = before.after(&[delete], &[], sent + Duration::from_secs(1));
        assert_eq!(after.contender(&"s".into()), None);
        assert_eq!(after.sent, sent);
    }

    #[test]
    fn a_death_is_dated_once_and_forgotten_when_it_is_over() {
        let second = |n| Moment::from_boot(Duration::from_secs(n));
        let dead = reading(vec![entry(
            "a/.lock",
            None,
            r#"{"Limit":1,"Holders":{"s":true}}"#,
        )]);
        let mut deaths = Deaths::default();
        deaths.observe(&dead, second(1));
        deaths.observe(&dead, second(2));
        assert_eq!(deaths.since(&"s".into()), Some(second(1)));
        deaths.observe(&reading(Vec::new()), second(3));
        assert_eq!(deaths.since(&"s".into()), None);
    }
}
