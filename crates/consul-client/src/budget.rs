//! Limits how many bytes of Consul's answers are kept at once, over all prefixes.
//!
//! Anybody who can write below a prefix decides how much there is to keep of the prefix. So every entry that is kept
//! is counted from the time when it is decoded until it is dropped, whoever has the entry by then. When there is no
//! room, a prefix gives way: the largest prefix of the owner that keeps most over all its prefixes.

use std::{
    collections::{BTreeMap, btree_map::Entry as Slot},
    fmt,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{Entries, Entry, Error};

/// Longest time to wait for the room of a prefix that gives way, before the owner that needs room is told that there
/// is none.
const LONGEST_WAIT_FOR_ROOM: Duration = Duration::from_secs(2);

/// Divisor of the budget: this part of it must be free, beside the room that is asked for, before a prefix that gave
/// way is kept again, or has one more reader. Otherwise prefixes and readers would come and go with each change.
const SLACK_DIVISOR: usize = 8;

/// A limit on the bytes of Consul's answers that are kept at once. Clones share the limit.
#[derive(Clone)]
pub struct Budget(Arc<SharedLedger>);

struct SharedLedger {
    limit: usize,
    ledger: Mutex<Ledger>,
    /// Something was dropped.
    freed: Notify,
}

#[derive(Default)]
struct Ledger {
    kept: usize,
    next: u64,
    accounts: BTreeMap<u64, Figures>,
}

/// Counts of one account.
struct Figures {
    owner: Arc<str>,
    prefix: Arc<str>,
    kept: usize,
    /// The account gives way: its entries are about to be dropped.
    leaving: bool,
    /// The account gave way, or found no room, and has not kept a whole listing since.
    refused: bool,
    told: Arc<Notify>,
}

/// The decision about who gives way.
enum Verdict {
    /// Nobody gives way: there is room.
    Room,
    /// Other accounts give way and are told so: there will be room when they have dropped what they keep.
    Soon,
    /// The account that asks for room gives way.
    Refused,
}

impl Budget {
    /// Makes a budget of this many bytes.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(SharedLedger {
            limit,
            ledger: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// Opens an account for the entries that are kept of a prefix. The account gives way with the other prefixes of
    /// its owner.
    pub fn account(&self, owner: &Arc<str>, prefix: &str) -> Account {
        let mut ledger = self.0.ledger.lock();
        let number = ledger.next;
        ledger.next += 1;
        let told = Arc::new(Notify::new());
        let figures = Figures {
            owner: owner.clone(),
            prefix: prefix.into(),
            kept: 0,
            leaving: false,
            refused: false,
            told: told.clone(),
        };
        ledger.accounts.insert(number, figures);
        drop(ledger);
        Account(Arc::new(Opened {
            number,
            owner: owner.clone(),
            told,
            budget: self.clone(),
        }))
    }

    /// Returns the number of bytes that are kept at present.
    pub fn kept(&self) -> usize {
        self.0.ledger.lock().kept
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("limit", &self.0.limit)
            .field("kept", &self.kept())
            .finish()
    }
}

/// An account of the bytes that are kept of one prefix. Clones share the account.
#[derive(Clone, Debug)]
pub struct Account(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    number: u64,
    owner: Arc<str>,
    told: Arc<Notify>,
    budget: Budget,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut ledger = self.budget.0.ledger.lock();
        ledger.accounts.remove(&self.number);
    }
}

impl Account {
    /// Returns the owner of the account.
    pub(super) fn owner(&self) -> &Arc<str> {
        &self.0.owner
    }

    /// Takes this many bytes, if they are free.
    pub(super) fn charge(&self, bytes: usize) -> Option<Charge> {
        let shared = &self.0.budget.0;
        let mut ledger = shared.ledger.lock();
        let figures = ledger.accounts.get(&self.0.number)?;
        if figures.leaving || ledger.kept + bytes + figures.slack(shared.limit) > shared.limit {
            return None;
        }
        ledger.add(self.0.number, bytes);
        Some(Charge {
            account: self.clone(),
            bytes,
        })
    }

    /// Waits until this many bytes more are free, if other accounts give way; fails if this account must give way.
    /// The caller drops the entries that it has kept in vain only after this method returns.
    pub(super) async fn room(&self, bytes: usize) -> Result<(), Error> {
        let shared = &self.0.budget.0;
        let until = Instant::now() + LONGEST_WAIT_FOR_ROOM;
        loop {
            let freed = shared.freed.notified();
            let verdict = shared
                .ledger
                .lock()
                .judge(self.0.number, bytes, shared.limit);
            let in_time = match verdict {
                Verdict::Room => return Ok(()),
                Verdict::Soon => timeout_at(until, freed).await.is_ok(),
                Verdict::Refused => false,
            };
            if !in_time {
                return Err(Error::PrefixTooLarge(shared.limit));
            }
        }
    }

    /// Returns when this account gives way to others: the caller must then drop what is kept of the prefix.
    pub async fn gives_way(&self) {
        self.0.told.notified().await;
    }

    /// Returns the limit of the whole budget, in bytes.
    pub(super) fn limit(&self) -> usize {
        self.0.budget.0.limit
    }

    /// Records that the entries of the prefix have been dropped, and that the prefix is about to be read again.
    pub(super) fn come_back(&self) {
        self.change(|figures| figures.leaving = false);
    }

    /// Records whether a whole listing was kept, or there was no room for it.
    pub(super) fn settle(&self, kept: bool) {
        self.change(|figures| figures.refused = !kept);
    }

    fn give_back(&self, bytes: usize) {
        let Opened { number, budget, .. } = &*self.0;
        budget.0.ledger.lock().take_back(*number, bytes);
        budget.0.freed.notify_waiters();
    }

    fn change(&self, change: impl FnOnce(&mut Figures)) {
        let mut ledger = self.0.budget.0.ledger.lock();
        if let Some(figures) = ledger.accounts.get_mut(&self.0.number) {
            change(figures);
        }
    }
}

impl Figures {
    /// Returns the number of bytes that must stay free beside the account.
    fn slack(&self, limit: usize) -> usize {
        if self.refused {
            limit / SLACK_DIVISOR
        } else {
            0
        }
    }
}

impl Ledger {
    fn add(&mut self, account: u64, bytes: usize) {
        self.kept += bytes;
        if let Some(figures) = self.accounts.get_mut(&account) {
            figures.kept += bytes;
        }
    }

    fn take_back(&mut self, account: u64, bytes: usize) {
        self.kept = self.kept.saturating_sub(bytes);
        if let Some(figures) = self.accounts.get_mut(&account) {
            figures.kept = figures.kept.saturating_sub(bytes);
        }
    }

    /// Decides who gives way so that an account may keep this much more, and tells the accounts that give way.
    fn judge(&mut self, asks: u64, more: usize, limit: usize) -> Verdict {
        let staying = self.accounts.get(&asks).filter(|asks| !asks.leaving);
        let Some(slack) = staying.map(|asks| asks.slack(limit)) else {
            return Verdict::Refused;
        };
        let needs = self.kept + more + slack;
        if needs <= limit {
            return Verdict::Room;
        }
        loop {
            let leaving = self.accounts.values().filter(|other| other.leaving);
            let soon_free: usize = leaving.map(|other| other.kept).sum();
            if needs - soon_free <= limit {
                return Verdict::Soon;
            }
            let largest = self.largest(asks, more, slack);
            let Some(other) = largest.filter(|largest| *largest != asks) else {
                break;
            };
            let Some(figures) = self.accounts.get_mut(&other).filter(|other| other.kept > 0) else {
                break;
            };
            (figures.leaving, figures.refused) = (true, true);
            figures.told.notify_one();
        }
        Verdict::Refused
    }

    /// Returns the largest account of the owner that would keep most if the account that asks had what it asks for.
    /// Accounts of equal size are told apart by their names, so that the same one gives way each time.
    fn largest(&self, asks: u64, more: usize, slack: usize) -> Option<u64> {
        let staying = || self.accounts.iter().filter(|(_, figures)| !figures.leaving);
        let size = |number: u64, figures: &Figures| match number {
            number if number == asks => figures.kept + more + slack,
            _ => figures.kept,
        };
        let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, figures) in staying() {
            let size = size(*number, figures);
            match owners.entry(&figures.owner) {
                Slot::Vacant(new) => drop(new.insert(size)),
                Slot::Occupied(mut known) => *known.get_mut() += size,
            }
        }
        let (owner, _) = owners
            .into_iter()
            .max_by_key(|(name, kept)| (*kept, *name))?;
        let its = staying().filter(|(_, figures)| *figures.owner == *owner);
        let largest = its.max_by_key(|(number, figures)| {
            (size(**number, figures), figures.prefix.clone(), **number)
        });
        largest.map(|(number, _)| *number)
    }
}

/// Bytes of a budget that are taken until the charge is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: Account,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

impl Charge {
    /// Reduces the charge to this many bytes, if it is larger.
    fn shrink_to(&mut self, bytes: usize) {
        let back = self.bytes.saturating_sub(bytes);
        self.bytes -= back;
        self.account.give_back(back);
    }

    /// Adds the bytes of another charge of the same account.
    fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

/// A reader that derives something from the listings of a prefix. The derived bytes count, too.
#[derive(Debug)]
pub struct Reader {
    account: Account,
    charge: Charge,
}

impl Reader {
    /// Makes a reader that has read nothing yet.
    pub fn new(account: &Account) -> Self {
        Self {
            account: account.clone(),
            charge: Charge {
                account: account.clone(),
                bytes: 0,
            },
        }
    }

    /// Admits the reader to read these entries instead of the entries that it read before. Fails if there is no room
    /// for what the reader would derive from them, and no other prefix gives way. Then the reader must drop what it
    /// has.
    pub async fn admit(&mut self, entries: &Entries) -> Result<(), Error> {
        let admitted = self.make_room(entries.derived_size()).await;
        if admitted.is_err() {
            self.leave();
        }
        admitted
    }

    /// Records that the reader has dropped what it read.
    pub fn leave(&mut self) {
        self.charge.shrink_to(0);
    }

    async fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        let more = bytes.saturating_sub(self.charge.bytes);
        if more == 0 {
            self.charge.shrink_to(bytes);
            return Ok(());
        }
        let limit = self.account.limit();
        // A new reader leaves room for what is added to the listings of the existing readers.
        let new = self.charge.bytes == 0;
        let slack = if new { limit / SLACK_DIVISOR } else { 0 };
        self.account.room(more + slack).await?;
        let extra = self.account.charge(more);
        self.charge
            .absorb(extra.ok_or(Error::PrefixTooLarge(limit))?);
        Ok(())
    }
}

/// Bytes that an entry takes besides its texts: the entry itself, and the overhead of its allocations.
const ENTRY_SIZE: usize = 256;

/// Bytes that a contender takes in the data that a reader derives from a listing: who holds, who waits, and whose the
/// contender is. A contender with a longer value takes as much as that, because parts of the value are copied.
const CONTENDER_SIZE: usize = 1024;

/// Bytes that any other key takes in the derived data.
const KEY_SIZE: usize = 128;

/// Bytes that a folder with a lock key or a contender takes in the derived data: in a keyed semaphore each folder has
/// a queue.
const FOLDER_SIZE: usize = 4 << 10;

/// Bytes that a holder, or anything else between two commas of a lock key's value, takes in the derived data.
const HOLDER_SIZE: usize = 640;

/// Returns the bytes that an entry takes itself.
pub(super) fn own_size(entry: &Entry) -> usize {
    let session = entry
        .session
        .as_ref()
        .map_or(0, |session| session.as_str().len());
    ENTRY_SIZE + entry.key.len() + entry.value.len() + session
}

/// The amount of data that a reader derives from the entries of a listing.
#[derive(Default)]
pub(super) struct Derived {
    size: usize,
    /// Folder of the last lock key or contender. All keys of one folder come one after the other.
    folder: String,
}

impl Derived {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        let lock = is_lock(&entry.key);
        if !lock && entry.session.is_none() {
            self.size += KEY_SIZE;
            return;
        }
        self.size += if lock {
            let holders = entry.value.split(|byte| *byte == b',').count();
            entry.value.len() + HOLDER_SIZE * holders
        } else {
            CONTENDER_SIZE.max(entry.value.len())
        };
        let folder = entry.key.rsplit_once('/').map_or("", |(folder, _)| folder);
        if self.folder != folder {
            self.size += FOLDER_SIZE;
            folder.clone_into(&mut self.folder);
        }
    }
}

/// Whether the key is a lock key.
pub(super) fn is_lock(key: &str) -> bool {
    key.ends_with("/.lock")
}
