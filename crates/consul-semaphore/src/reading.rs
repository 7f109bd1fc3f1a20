//! Parses a semaphore's prefix as it was read from Consul.

use std::collections::{BTreeMap, BTreeSet};

use super::lock::{Lock, LockChange, LockDraft, Unreadable};
use crate::{Mode, Prefix};
use consul_client::{Entry, Listed, Listing, Op, SessionId, clock::Moment, id::IdMap};

/// The name of the lock key below a prefix.
pub(super) const LOCK: &str = ".lock";

/// Names of a semaphore's keys at a prefix: `a/b` means `a/b/.lock` and the contenders beside it.
impl Prefix {
    /// Returns the semaphore's lock key.
    pub fn lock_key(&self) -> String {
        format!("{self}/{LOCK}")
    }

    /// Returns the contender key of a session.
    pub fn contender_key(&self, session: &SessionId) -> String {
        format!("{self}/{session}")
    }

    /// Returns the folder to list. It ends with a slash, so that `a` does not include `ab`.
    pub fn folder(&self) -> String {
        format!("{self}/")
    }

    /// Returns the name of a direct child of this prefix; `None` for every other key.
    fn child<'a>(&self, key: &'a str) -> Option<&'a str> {
        let name = key.strip_prefix(self.as_str())?.strip_prefix('/')?;
        (!name.is_empty() && !name.contains('/')).then_some(name)
    }
}

/// The parsed keys of a prefix.
///
/// Only direct children that are locked by the session they are named after are contenders. Every other key is
/// ignored, so that `a` and `a/b` can both be semaphores. For a mutex only the lock key counts: its holder is the
/// only contender that can be seen.
///
/// Our writes and later listings update the reading, at a cost in proportion to what changed, because a prefix may
/// have thousands of holders.
#[derive(Clone, Debug)]
pub struct Reading {
    prefix: Prefix,
    mode: Mode,
    /// The lock key.
    lock_entry: Option<Listed>,
    /// The direct children of the prefix other than the lock key, by name. The name of a contender is its session.
    entries: BTreeMap<SessionId, Listed>,
    lock: Lock,
    roles: Roles,
    /// Time at which the request for this reading was sent: the reading shows what was true at that time or later.
    pub sent: Moment,
}

/// Returns the session that a direct child is named after: the entry's own copy if that session has locked the entry.
fn named(name: &str, entry: &Entry) -> SessionId {
    let locks = entry.session.as_ref();
    match locks.filter(|session| session.as_str() == name) {
        Some(session) => session.clone(),
        None => name.into(),
    }
}

/// The holders and the contenders that wait. They are asked for constantly, so finding them must not cost a search.
#[derive(Clone, Debug, Default)]
struct Roles {
    /// The sessions in `Holders`, or the one that has locked the mutex, each with whether its contender lives.
    holders: IdMap<SessionId, bool>,
    /// The holders without a live contender.
    dead: BTreeSet<SessionId>,
    /// The live contenders that are not in `Holders`.
    waiting: BTreeSet<SessionId>,
    /// The sessions whose entry or role may have changed since this field was last taken.
    changed: Changed,
}

/// The sessions that may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// All sessions: nothing is known of the state before.
    All,
    /// Only these sessions.
    Only(BTreeSet<SessionId>),
}

/// A key that a listing shows differently from what is known.
#[derive(Clone, Debug)]
pub(super) struct KeyDifference<'a> {
    key: String,
    /// The key as the listing shows it; `None` if the listing does not have it.
    listed: Option<&'a Listed>,
}

impl Default for Changed {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl Roles {
    /// Sets the role of a session: whether it is in `Holders`, and whether its contender lives.
    fn set(&mut self, session: &SessionId, named: bool, lives: bool) {
        if named {
            self.holders.insert(session.clone(), lives);
        } else {
            self.holders.remove(session);
        }
        let (dead, waits) = (named && !lives, lives && !named);
        for (set, is_in) in [(&mut self.dead, dead), (&mut self.waiting, waits)] {
            if is_in {
                set.insert(session.clone());
            } else {
                set.remove(session);
            }
        }
        if let Changed::Only(changed) = &mut self.changed {
            changed.insert(session.clone());
        }
    }
}

impl Reading {
    /// Reads a listing of [`Prefix::folder`] for this mode.
    pub fn new(prefix: Prefix, mode: Mode, listing: Listing) -> Self {
        let Listing { entries, sent, .. } = listing;
        let mut reading = Self {
            lock_entry: None,
            entries: BTreeMap::new(),
            lock: Lock::read(mode, None),
            roles: Roles::default(),
            sent,
            prefix,
            mode,
        };
        for entry in &entries {
            match reading.prefix.child(&entry.key) {
                Some(LOCK) => reading.lock_entry = Some(entry.clone()),
                Some(name) => {
                    let name = named(name, entry);
                    reading.entries.insert(name, entry.clone());
                }
                None => {}
            }
        }
        reading.lock = Lock::read(mode, reading.lock_entry.as_deref());
        reading.find_roles();
        reading
    }

    /// Reads a listing in the mode that the lock key itself shows: as a mutex if the lock key can't be read as a
    /// semaphore's because it is a mutex's.
    pub fn found(prefix: Prefix, listing: Listing) -> Self {
        let key = prefix.lock_key();
        let entry = listing.entries.iter().find(|entry| entry.key == key);
        let mode = match Lock::read(Mode::Semaphore, entry.map(|entry| &**entry)) {
            Lock::Unreadable(Unreadable::Mutex | Unreadable::LeftOver { .. }) => Mode::Mutex,
            _ => Mode::Semaphore,
        };
        Self::new(prefix, mode, listing)
    }

    /// Finds all roles from scratch.
    fn find_roles(&mut self) {
        let lives = |session: &SessionId| (session.clone(), self.contender(session).is_some());
        let holders: IdMap<SessionId, bool> = self.named().map(lives).collect();
        let dead = holders.iter().filter(|(_, lives)| !**lives);
        let contenders = self.contenders().map(|(session, _)| session);
        let waiting = contenders.filter(|session| !holders.contains_key(*session));
        self.roles = Roles {
            dead: dead.map(|(session, _)| session.clone()).collect(),
            waiting: waiting.cloned().collect(),
            holders,
            changed: Changed::All,
        };
    }

    /// Returns the sessions in `Holders`, or the one that has locked the mutex.
    fn named(&self) -> impl Iterator<Item = &SessionId> {
        let (body, holder) = match &self.lock {
            Lock::Semaphore { body, .. } => (Some(body.holders()), None),
            Lock::Mutex { holder, .. } => (None, holder.as_ref()),
            Lock::Absent { .. } | Lock::Unreadable(_) => (None, None),
        };
        body.into_iter().flatten().chain(holder)
    }

    /// Takes the sessions whose entry or role may have changed since they were last taken.
    pub(super) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.roles.changed)
    }

    /// Returns the sessions like [`Self::take_changed`], but leaves them in place.
    pub(super) fn changed(&self) -> &Changed {
        &self.roles.changed
    }

    /// Marks all sessions as possibly changed.
    pub(super) fn forget_what_changed(&mut self) {
        self.roles.changed = Changed::All;
    }

    /// Returns the live contenders whose entry or role may have changed.
    pub(super) fn changed_contenders(&self) -> impl Iterator<Item = (&SessionId, &Entry)> {
        let (all, changed) = match &self.roles.changed {
            Changed::All => (Some(self.contenders()), None),
            Changed::Only(sessions) => (None, Some(sessions)),
        };
        let some = changed
            .into_iter()
            .flatten()
            .filter_map(|session| Some((session, self.contender(session)?)));
        all.into_iter().flatten().chain(some)
    }

    /// Whether these entries are the whole prefix, so that nothing has been written to it since.
    pub fn shows(&self, entries: &[Listed]) -> bool {
        self.differences(entries).is_empty()
    }

    /// Records that another request showed the same. That request may have been sent before this reading was read, so
    /// it takes nothing back that is known to have been true since.
    pub fn confirm(&mut self, sent: Moment) {
        self.sent = self.sent.max(sent);
    }

    /// The prefix that was read.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The mode that the prefix was read in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The lock key, as it was read.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The value of the lock key, as it is in Consul.
    pub(super) fn lock_value(&self) -> Option<&[u8]> {
        let lock = self.lock_entry.as_ref()?;
        Some(&lock.value)
    }

    /// Whether the lock key says who holds slots: it is in the expected format, or does not exist.
    pub fn is_readable(&self) -> bool {
        !matches!(self.lock, Lock::Unreadable(_))
    }

    /// Returns the live contenders. The key of each one is locked by its session.
    pub fn contenders(&self) -> impl Iterator<Item = (&SessionId, &Entry)> {
        let (lock, entries) = match self.mode {
            Mode::Semaphore => (None, Some(&self.entries)),
            Mode::Mutex => (self.lock_entry.as_deref(), None),
        };
        let mutex = lock
            .into_iter()
            .filter_map(|entry| Some((entry.session.as_ref()?, entry)));
        let contenders = entries
            .into_iter()
            .flatten()
            .filter(|(name, entry)| entry.session.as_ref() == Some(name))
            .map(|(name, entry)| (name, &**entry));
        mutex.chain(contenders)
    }

    /// Returns the live contenders that hold no slot.
    pub fn waiting(&self) -> impl Iterator<Item = (&SessionId, &Entry)> {
        let waiting = self.roles.waiting.iter();
        waiting.filter_map(|session| Some((session, self.contender(session)?)))
    }

    /// Returns the number of live contenders.
    pub(super) fn count_of_contenders(&self) -> usize {
        let Roles {
            holders,
            dead,
            waiting,
            changed: _,
        } = &self.roles;
        holders.len() - dead.len() + waiting.len()
    }

    /// Returns the live contender of a session.
    pub fn contender(&self, session: &SessionId) -> Option<&Entry> {
        let entry = match self.mode {
            Mode::Semaphore => self.entries.get(session).map(|entry| &**entry),
            Mode::Mutex => self.lock_entry.as_deref(),
        };
        entry.filter(|entry| entry.session.as_ref() == Some(session))
    }

    /// Whether a session is in `Holders`, dead or alive.
    pub fn is_named(&self, session: &SessionId) -> bool {
        self.roles.holders.contains_key(session)
    }

    /// Returns the key that a session locks: its contender key, or the key of the mutex.
    pub(super) fn key_of(&self, session: &SessionId) -> String {
        match self.mode {
            Mode::Semaphore => self.prefix.contender_key(session),
            Mode::Mutex => self.prefix.lock_key(),
        }
    }

    /// Whether a session holds a slot: it is in `Holders` and its contender lives, or it has locked the
    /// mutex.
    pub fn holds(&self, session: &SessionId) -> bool {
        self.roles.holders.get(session) == Some(&true)
    }

    /// Whether a session holds a slot, or may hold one because the lock key can't be read.
    pub(super) fn may_hold(&self, session: &SessionId) -> bool {
        self.holds(session) || !self.is_readable()
    }

    /// Returns the holders whose contender is deleted or has no session, each with the check that fails a transaction
    /// if that has changed. A mutex has no dead holders, because Consul itself frees it.
    pub fn dead_holders(&self) -> BTreeMap<SessionId, Op> {
        let dead = self.roles.dead.iter();
        dead.map(|session| {
            let key = self.prefix.contender_key(session);
            let known = self.entries.get(session);
            let index = known.map_or(0, |entry| entry.modify_index);
            (session.clone(), Op::unchanged(key, index))
        })
        .collect()
    }

    /// Returns the transaction that removes a dead holder from `Holders`, without waiting for the lock-delay; `None`
    /// if the session is no dead holder. The transaction fails if the holder lives by then, or anybody has written
    /// `.lock`.
    pub fn prune(&self, session: &SessionId) -> Option<Vec<Op>> {
        let Lock::Semaphore { body, index } = &self.lock else {
            return None;
        };
        let check = self.dead_holders().remove(session)?;
        let mut draft = LockDraft::of(body);
        draft.remove(session);
        let write = Op::Cas {
            key: self.prefix.lock_key(),
            value: draft.encode(),
            flags: draft.flags(),
            index: *index,
        };
        Some(vec![check, write])
    }

    /// Returns this reading after a successful transaction of ours.
    #[must_use]
    pub fn after(mut self, operations: &[Op], answer: &[Entry], sent: Moment) -> Self {
        self.write(operations, None, answer, sent);
        self
    }

    /// Applies a successful transaction of ours, so that there is no need to wait for the watch.
    ///
    /// `answer` has the written entries, without their values (the last one of a key that is written twice counts).
    /// `sent` is when the transaction was sent. That time counts as the reading's time only if the transaction wrote
    /// `.lock`, because the check in that write proves that nobody else has changed `.lock` since it was read.
    /// `change` is the change of the body of `.lock`, so that the body need not be parsed again.
    pub(super) fn write(
        &mut self,
        operations: &[Op],
        change: Option<&LockChange>,
        answer: &[Entry],
        sent: Moment,
    ) {
        let written: BTreeMap<&str, &Entry> = answer
            .iter()
            .map(|entry| (entry.key.as_str(), entry))
            .collect();
        let mut applies = None;
        for operation in operations {
            match operation {
                Op::Delete { key } | Op::DeleteCas { key, .. } => self.put(key, None, None),
                Op::Lock { key, value, .. }
                | Op::Unlock { key, value, .. }
                | Op::Cas { key, value, .. } => {
                    if let Op::Cas { index, .. } = operation {
                        applies = change.filter(|_| self.is_body_at(*index));
                    }
                    if let Some(entry) = written.get(key.as_str()) {
                        let entry = Entry {
                            value: value.clone(),
                            ..(*entry).clone()
                        };
                        self.put(key, Some(entry.into()), applies);
                    }
                }
                _ => {}
            }
        }
        if written.contains_key(self.prefix.lock_key().as_str()) {
            self.sent = sent;
        }
    }

    /// Whether the lock key has a body that was last written at this index.
    fn is_body_at(&self, at: u64) -> bool {
        matches!(self.lock, Lock::Semaphore { index, .. } if index == at)
    }

    /// Applies a later listing, by its [`Self::differences`]: each key becomes what the listing shows, except the
    /// keys that this process has `written` after the listing was read. Those keys stay as they are known.
    pub(super) fn update<'a>(
        &mut self,
        differences: Vec<KeyDifference<'_>>,
        sent: Moment,
        written: impl IntoIterator<Item = &'a str>,
    ) {
        let written: BTreeSet<&str> = written.into_iter().collect();
        // The lock key is as new as after the write itself, whose check proves that nobody else has written the key
        // since.
        self.sent = if written.contains(self.prefix.lock_key().as_str()) {
            self.sent.max(sent)
        } else {
            sent
        };
        for KeyDifference { key, listed } in differences {
            if !written.contains(key.as_str()) {
                self.put(&key, listed.cloned(), None);
            }
        }
    }

    /// Returns the keys that a listing shows differently from what is known. Nothing has been written to the other
    /// keys since.
    pub(super) fn differences<'a>(&self, listing: &'a [Listed]) -> Vec<KeyDifference<'a>> {
        let mut differences = Vec::new();
        let mut differ = |known: Option<&Listed>, listed: Option<&'a Listed>| {
            let same = known.map(|known| known.modify_index) == listed.map(|l| l.modify_index);
            if let Some(entry) = known.or(listed).filter(|_| !same) {
                let key = entry.key.clone();
                differences.push(KeyDifference { key, listed });
            }
        };
        let mut lock = None;
        // Both lists are sorted by key.
        let mut known = self.entries.values().peekable();
        for entry in listing {
            // Nearly all entries are unchanged.
            if let Some(same) = known.next_if(|known| known.key == entry.key) {
                differ(Some(same), Some(entry));
                continue;
            }
            match self.prefix.child(&entry.key) {
                None => {}
                Some(LOCK) => lock = Some(entry),
                Some(_) => {
                    while let Some(gone) = known.next_if(|known| known.key < entry.key) {
                        differ(Some(gone), None);
                    }
                    let same = known.next_if(|known| known.key == entry.key);
                    differ(same, Some(entry));
                }
            }
        }
        known.for_each(|gone| differ(Some(gone), None));
        differ(self.lock_entry.as_ref(), lock);
        differences
    }

    /// Sets the state of a key; `None` means that the key does not exist. `change` is what the write changed in the
    /// body of `.lock`, if that is known.
    fn put(&mut self, key: &str, entry: Option<Listed>, change: Option<&LockChange>) {
        match self.prefix.child(key) {
            Some(LOCK) => self.put_lock(entry, change),
            Some(name) => {
                let session = if let Some(entry) = entry {
                    let session = named(name, &entry);
                    self.entries.insert(session.clone(), entry);
                    session
                } else {
                    let session = SessionId::from(name);
                    self.entries.remove(&session);
                    session
                };
                self.find_role(&session);
            }
            None => {}
        }
    }

    fn put_lock(&mut self, entry: Option<Listed>, change: Option<&LockChange>) {
        if let (Lock::Semaphore { body, index }, Some(change), Some(written)) =
            (&mut self.lock, change, &entry)
        {
            body.apply(change);
            *index = written.modify_index;
            self.lock_entry = entry;
            for session in change.sessions() {
                self.find_role(session);
            }
            return;
        }
        let locked = |entry: Option<&Listed>| entry.and_then(|entry| entry.session.clone());
        let mut concerned: BTreeSet<SessionId> = self.named().cloned().collect();
        concerned.extend(locked(self.lock_entry.as_ref()));
        self.lock_entry = entry;
        self.lock = Lock::read(self.mode, self.lock_entry.as_deref());
        concerned.extend(locked(self.lock_entry.as_ref()));
        let after: BTreeSet<SessionId> = self.named().cloned().collect();
        // A session that was there before and still is has the same role.
        let stays = |session: &SessionId| self.mode == Mode::Semaphore && after.contains(session);
        concerned.retain(|session| !stays(session));
        let known = |session: &SessionId| {
            self.mode == Mode::Semaphore && self.roles.holders.contains_key(session)
        };
        concerned.extend(after.iter().filter(|session| !known(session)).cloned());
        for session in concerned {
            self.find_role(&session);
        }
    }

    /// Finds the role of a session again.
    fn find_role(&mut self, session: &SessionId) {
        let lives = self.contender(session).is_some();
        let named = match &self.lock {
            Lock::Semaphore { body, .. } => body.holds(session),
            Lock::Mutex { holder, .. } => holder.as_ref() == Some(session),
            Lock::Absent { .. } | Lock::Unreadable(_) => false,
        };
        self.roles.set(session, named, lives);
    }
}

/// Checks for tests.
#[cfg(test)]
impl Reading {
    /// Panics unless this reading equals a fresh one of the same entries.
    pub(super) fn check(&self) {
        self.check_against(&self.over(&[], self.sent, self.keys()));
    }

    /// Panics unless this reading equals another one that was read from scratch.
    pub(super) fn check_against(&self, anew: &Self) {
        let roles = |of: &Self| {
            let Roles {
                holders,
                dead,
                waiting,
                changed: _,
            } = of.roles.clone();
            (holders, dead, waiting)
        };
        assert_eq!(self.lock_entry, anew.lock_entry);
        assert_eq!(self.entries, anew.entries);
        assert_eq!(self.lock, anew.lock);
        assert_eq!(roles(self), roles(anew));
        assert_eq!(self.sent, anew.sent);
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let entries = self.lock_entry.iter().chain(self.entries.values());
        entries.map(|entry| entry.key.as_str())
    }

    /// Returns a listing with the keys in `written` as this reading shows them: the expected result of
    /// [`Self::update`].
    pub(super) fn over<'a>(
        &self,
        listing: &[Listed],
        sent: Moment,
        written: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut entries = listing.to_vec();
        let mut later = sent;
        let lock = self.lock_entry.iter();
        let known: Vec<_> = lock.chain(self.entries.values()).cloned().collect();
        for key in written {
            entries.retain(|entry| entry.key != key);
            entries.extend(known.iter().filter(|entry| entry.key == key).cloned());
            if self.prefix.child(key) == Some(LOCK) {
                later = later.max(self.sent);
            }
        }
        let listing = Listing {
            entries: entries.into(),
            index: 0,
            sent: later,
            reset: false,
        };
        Self::new(self.prefix.clone(), self.mode, listing)
    }
}

/// The times at which dead holders were first seen dead. The slot of a dead holder is free one lock-delay after that.
///
/// Consul's own lock-delay guards only a key that the dead session had locked, and the `.lock` of a semaphore is not
/// locked.
#[derive(Clone, Debug, Default)]
pub struct Deaths(BTreeMap<SessionId, Moment>);

impl Deaths {
    /// Records which holders are dead in this reading, and forgets all other holders.
    pub fn observe(&mut self, reading: &Reading, now: Moment) {
        let dead = &reading.roles.dead;
        self.0.retain(|session, _| dead.contains(session));
        for session in dead {
            self.0.entry(session.clone()).or_insert(now);
        }
    }

    /// Returns when this holder was first seen dead.
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
            entries: entries.into(),
            index: 5,
            sent,
            reset: false,
        };
        Reading::new("a".parse().unwrap(), Mode::Semaphore, listing)
    }

    #[test]
    fn of_a_mutex_the_lock_key_is_the_one_that_counts() {
        let listing = |flags| {
            let lock = Entry {
                flags,
                ..entry("a/.lock", Some("s1"), "body")
            };
            let listing = Listing {
                entries: vec![lock, entry("a/s2", Some("s2"), "")].into(),
                index: 5,
                sent: Moment::default(),
                reset: false,
            };
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
    fn only_a_dead_holder_is_pruned_and_only_while_it_is_dead() {
        let body = r#"{"Limit":3,"Holders":{"dead":true,"freed":true,"lives":true},"More":1}"#;
        let read = reading(vec![
            entry("a/.lock", None, body),
            entry("a/lives", Some("lives"), ""),
            entry("a/freed", None, ""),
        ]);
        let write = |left: &str| Op::Cas {
            key: "a/.lock".into(),
            value: left.as_bytes().to_vec(),
            flags: SEMAPHORE_FLAGS,
            index: 5,
        };
        let gone = Op::CheckNotExists {
            key: "a/dead".into(),
        };
        let left = r#"{"Holders":{"freed":true,"lives":true},"Limit":3,"More":1}"#;
        assert_eq!(read.prune(&"dead".into()), Some(vec![gone, write(left)]));
        let unlocked = Op::CheckIndex {
            key: "a/freed".into(),
            index: 5,
        };
        let left = r#"{"Holders":{"dead":true,"lives":true},"Limit":3,"More":1}"#;
        assert_eq!(
            read.prune(&"freed".into()),
            Some(vec![unlocked, write(left)])
        );
        for other in ["lives", "nobody", ""] {
            assert_eq!(read.prune(&other.into()), None, "{other}");
        }
    }

    #[test]
    fn the_lock_key_shows_its_mode() {
        let found = |lock: Option<Entry>| {
            let listing = Listing {
                entries: lock.into_iter().collect(),
                index: 1,
                sent: Moment::from_boot(Duration::ZERO),
                reset: false,
            };
            Reading::found("a".parse().unwrap(), listing)
        };
        let semaphore = entry("a/.lock", None, r#"{"Limit":1}"#);
        let locked = Entry {
            flags: crate::lock::MUTEX_FLAGS,
            ..entry("a/.lock", Some("s"), "")
        };
        let left = Entry {
            session: None,
            ..locked.clone()
        };
        assert_eq!(found(None).mode(), Mode::Semaphore);
        assert_eq!(found(Some(semaphore)).mode(), Mode::Semaphore);
        for mutex in [locked, left] {
            let reading = found(Some(mutex));
            assert_eq!(reading.mode(), Mode::Mutex);
            assert!(matches!(reading.lock(), Lock::Mutex { .. }));
        }
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
