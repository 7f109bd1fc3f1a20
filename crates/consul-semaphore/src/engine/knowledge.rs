//! Keeps what is known of a prefix in Consul, and what prevents knowing more.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Lookup, News, Now,
    calls::{Blocks, PendingCalls},
    capacity::Capacity,
    message::Call,
    own_writes::OwnWrites,
    sessions::Sessions,
    troubles::{Troubles, note_failure},
};
use crate::{
    ContenderBody, Lock, Mode, Prefix, Reading, Turns, evidence::LATE, memory::Memory,
    plan::Transaction,
};
use consul_client::{self as consul, Entry, Listing, SessionId, clock::Moment};

/// Largest number of keys written here that may be missing from every listing. Beyond that the watch has brought
/// nothing for very long, and the prefix is read separately.
const MOST_UNLISTED_KEYS: usize = 10_000;

/// Least time that a call to Consul may take, however soon a running workload has to be suspended. A call that lasts
/// longer than [`LATE`] would make the next pass believe that the process has slept.
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// State of a prefix, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    prefix: Prefix,
    mode: Mode,
    /// Number of operations that a transaction may have.
    pub(super) capacity: Capacity,
    /// Prefix as Consul last showed it; `None` while it is unknown.
    pub(crate) reading: Option<Reading>,
    /// Prefix as it was known before `reading` became unknown. Nothing is decided from it.
    outdated: Option<Reading>,
    listed: LatestListing,
    own_writes: OwnWrites,
    /// Whether the watch failed last. The watch retries by itself, and its listings are for all queues that share it,
    /// so no queue reads the prefix alone in the meantime.
    watch_failed: bool,
    pub(crate) troubles: Troubles,
    /// Whether the last transaction was denied, because the token may read and not write.
    is_read_only: bool,
    /// Data that is derived from successive readings.
    pub(crate) memory: Memory,
    /// Number of races in a row that were lost to others, and the time until which the prefix is not read again
    /// because of that.
    conflicts: u32,
    pub(crate) quiet_until: Option<Moment>,
    /// Whether Consul's index went back.
    pub(crate) went_back: bool,
    /// Time at which a running workload must be suspended unless its slot is confirmed.
    pub(crate) deadline: Option<Moment>,
}

/// Place of a listing in Consul's history.
#[derive(Clone, Copy, Debug, Default)]
struct LatestListing {
    index: u64,
    received: Moment,
}

impl Knowledge {
    /// Returns the state of a prefix of which nothing is known yet.
    pub(super) fn new(prefix: Prefix, mode: Mode, turns: Turns) -> Self {
        Self {
            prefix,
            mode,
            capacity: Capacity::default(),
            reading: None,
            outdated: None,
            listed: LatestListing::default(),
            own_writes: OwnWrites::default(),
            watch_failed: false,
            troubles: Troubles::default(),
            is_read_only: false,
            memory: Memory {
                turns,
                ..Memory::default()
            },
            conflicts: 0,
            quiet_until: None,
            went_back: false,
            deadline: None,
        }
    }

    /// Applies a listing of the watch, unless newer data is known. If the listing shows that Consul lost its data, that
    /// was [recorded](Self::note_reset) when the listing came, because what was written since then is not lost.
    pub(super) fn listed(&mut self, brought: Result<News, consul::Error>, now: Now) {
        let news = match brought {
            Ok(news) => news,
            Err(error) => {
                self.watch_failed = true;
                return self.read_failed(error, now);
            }
        };
        self.watch_failed = false;
        // The index of a prefix also decreases when Consul forgets deleted keys. A request that was sent after the
        // last answer is certainly newer.
        let newer = news.index >= self.listed.index || news.sent > self.listed.received;
        if !newer && !news.reset {
            return;
        }
        let News {
            entries,
            index,
            sent,
            reset,
        } = news;
        let Some(known) = self.reading.as_mut().filter(|_| !reset) else {
            let listing = Listing {
                entries,
                index,
                sent,
                reset,
            };
            return self.accept(listing, now);
        };
        let differences = known.differences(&entries);
        self.note_listing(index, sent, now);
        let Some(known) = &mut self.reading else {
            return;
        };
        if differences.is_empty() {
            known.confirm(sent);
        } else {
            // Our own writes that the listing does not show yet are kept as they are known, because a prefix with
            // thousands of holders is written to more often than it can be listed.
            #[cfg(test)]
            let anew = known.over(&entries, sent, self.own_writes.keys());
            known.update(differences, sent, self.own_writes.keys());
            #[cfg(test)]
            known.check_against(&anew);
            self.memory.observe(known, now.moment, now.time);
        }
        self.reading_works();
    }

    /// Records that Consul lost its data, or was restored from a backup.
    pub(super) fn note_reset(&mut self) {
        self.went_back = true;
        self.own_writes.clear();
    }

    /// Returns whether to read the prefix, because nothing is known of it and nothing prevents it.
    fn is_to_be_read(&self, now: Moment) -> bool {
        let quiet = self.quiet_until.is_some_and(|until| until > now);
        self.reading.is_none() && !self.watch_failed && !quiet && self.may_use_consul(now)
    }

    /// Requests what is unknown: the prefix, and the owners of the contenders. Returns whether all of that is known.
    /// `gone` has the sessions that Consul reported as gone since the last check of a reading.
    pub(super) fn request_missing(
        &mut self,
        sessions: &mut Sessions,
        gone: &BTreeSet<SessionId>,
        calls: &mut PendingCalls,
        now: Now,
        lookup: &impl Lookup,
    ) -> bool {
        let until = self.call_until(now);
        if let Some(reading) = &self.reading
            && sessions.outlived(reading, gone, lookup)
        {
            // A renewal found out before the watch that a session is gone.
            self.invalidate();
        }
        let Some(reading) = &mut self.reading else {
            if self.is_to_be_read(now.moment) {
                let call = Call::Read { not_after: until };
                calls.block(Blocks::Read, call, until);
            }
            return false;
        };
        if sessions.forget_ended(reading, now.moment) {
            reading.forget_what_changed();
        }
        let unknown = sessions.unknown(reading);
        if unknown.is_empty() {
            self.resolving_works();
            return true;
        }
        if self.may_use_consul(now.moment) {
            let call = Call::Resolve {
                sessions: unknown.clone(),
                not_after: until,
            };
            calls.block(Blocks::Resolve(unknown), call, until);
        }
        false
    }

    /// Returns until when to wait for a call that blocks.
    pub(super) fn call_until(&self, now: Now) -> Option<Moment> {
        let deadline = self.deadline?;
        Some(deadline.max(now.moment + MIN_CALL_TIMEOUT))
    }

    /// Returns the prefix as Consul last showed it, or `None` while it is unknown or Consul fails to tell the owners
    /// of its contenders.
    pub(super) fn resolved_reading(&self) -> Option<&Reading> {
        let reading = self.reading.as_ref();
        reading.filter(|_| !self.troubles.resolving_fails())
    }

    /// Returns whether the latest reading was sent at most `age` ago.
    pub(super) fn has_read_within(&self, age: Duration, now: Moment) -> bool {
        let reading = self.resolved_reading();
        reading.is_some_and(|reading| reading.sent + age >= now)
    }

    /// Returns what a contender says of itself.
    pub(super) fn body(&self, session: &SessionId) -> Option<ContenderBody> {
        let contender = self.reading.as_ref()?.contender(session)?;
        ContenderBody::read(&contender.value)
    }

    /// Returns whether the last try to lock the mutex was refused because of its lock-delay, and nobody has locked it
    /// since.
    pub(crate) fn is_in_lock_delay(&self) -> bool {
        self.memory.mutex.rests_until().is_some()
    }

    /// Discards the reading, so that the prefix is read again before anything else is decided from it.
    pub(super) fn invalidate(&mut self) {
        self.outdated = self.reading.take().or(self.outdated.take());
    }

    /// Returns the prefix as it is known, or as it was known last.
    pub(crate) fn last_reading(&self) -> Option<&Reading> {
        self.reading.as_ref().or(self.outdated.as_ref())
    }

    /// Takes over a listing that was requested because nothing was known.
    pub(super) fn accept(&mut self, listing: Listing, now: Now) {
        self.note_listing(listing.index, listing.sent, now);
        if !self.own_writes.is_empty() {
            // The state after these writes is not known any more, and only a later listing can show it.
            return self.invalidate();
        }
        self.outdated = None;
        let reading = Reading::new(self.prefix.clone(), self.mode, listing);
        self.memory.observe(&reading, now.moment, now.time);
        self.reading = Some(reading);
        self.reading_works();
    }

    fn note_listing(&mut self, index: u64, sent: Moment, now: Now) {
        self.own_writes.listed(index, sent);
        self.listed = LatestListing {
            index,
            received: now.moment,
        };
    }

    fn reading_works(&mut self) {
        self.troubles.reading = None;
    }

    /// Records that the owners of all contenders' sessions are known.
    fn resolving_works(&mut self) {
        self.troubles.resolving = None;
    }

    /// Takes over what a transaction of ours wrote, which was sent at `sent`.
    pub(super) fn committed(
        &mut self,
        transaction: &Transaction,
        answer: &[Entry],
        sent: Moment,
        now: Now,
    ) {
        self.conflicts = 0;
        self.is_read_only = false;
        self.writing_works();
        let grants = transaction.grants.iter();
        for session in grants.flat_map(|grant| grant.sessions.values()) {
            self.memory.mutex.took(session, now.moment);
        }
        // The writes are recorded even if the reading was invalidated meanwhile, because a listing from before shows
        // none of them.
        let keys = transaction.written_keys();
        self.own_writes.add(keys, answer, now.moment);
        if let Some(reading) = &mut self.reading {
            let change = transaction.lock.as_ref();
            reading.write(&transaction.operations, change, answer, sent);
            #[cfg(test)]
            reading.check();
            self.memory.observe(reading, now.moment, now.time);
        }
        if self.own_writes.len() > MOST_UNLISTED_KEYS {
            self.invalidate();
        }
    }

    /// Records that a transaction was refused because something in it had changed. The prefix is read again, after a
    /// pause that grows with each conflict in a row. The pause stays short, because most often another program was
    /// faster and got what it wanted, and with a long pause this queue would never get a slot beside programs that
    /// ask again at once. A conflict also counts if only the part of another queue was refused, for example because
    /// its mutex is in its lock-delay. Then nobody got anything, and that queue, which waits for longer, keeps the
    /// joint transaction from being repeated.
    pub(super) fn lost_race(&mut self, now: Now) {
        self.invalidate();
        self.conflicts = self.conflicts.saturating_add(1);
        let longest = Duration::from_millis(5) * self.conflicts.min(4);
        self.quiet_until = Some(now.moment + longest.mul_f64(now.jitter));
    }

    /// Records that the mutex is in its lock-delay because its last holder died. It is tried again after a pause.
    pub(super) fn delayed(&mut self, now: Now) {
        self.memory.mutex.delay(now.moment, now.jitter);
    }

    /// Records that the prefix can't be read.
    pub(super) fn read_failed(&mut self, error: consul::Error, now: Now) {
        // Nothing is granted while the prefix is unknown.
        self.invalidate();
        if error.is_too_much_to_keep() {
            self.outdated = None;
        }
        note_failure(&mut self.troubles.reading, error, now);
    }

    /// Records that Consul did not tell the owners of some contenders' sessions. The reading stays, because nothing
    /// is decided from it before the owners are known.
    pub(super) fn resolve_failed(&mut self, error: consul::Error, now: Now) {
        note_failure(&mut self.troubles.resolving, error, now);
    }

    /// Records that a transaction failed.
    pub(super) fn transaction_failed(
        &mut self,
        transaction: &Transaction,
        error: consul::Error,
        now: Now,
    ) {
        if error.may_have_been_applied() {
            self.transaction_lost(transaction, now);
        }
        self.is_read_only = matches!(error, consul::Error::Denied(_));
        self.write_failed(error, now);
    }

    /// Records that a transaction has no answer but may have been applied. A listing requested before says nothing
    /// about that.
    pub(super) fn transaction_lost(&mut self, transaction: &Transaction, now: Now) {
        let keys = transaction.written_keys();
        self.own_writes.add(keys, &[], now.moment);
    }

    /// Records that a write failed. If it may have been applied all the same, the prefix is read to find out.
    pub(super) fn write_failed(&mut self, error: consul::Error, now: Now) {
        if error.may_have_been_applied() {
            self.invalidate();
        }
        note_failure(&mut self.troubles.writing, error, now);
    }

    /// Records that Consul can be written to again, or that nothing is left to write.
    pub(super) fn writing_works(&mut self) {
        self.troubles.writing = None;
    }

    /// Records that the access to Consul has changed, so an earlier problem may be over. A transaction may have this
    /// many operations; `None` means no access.
    pub(super) fn start_anew(&mut self, operations: Option<usize>) {
        self.capacity = Capacity::of_access(operations);
        self.invalidate();
        self.troubles = Troubles::default();
        self.is_read_only = false;
    }

    /// Returns whether Consul can be read and written, as far as is known, and whether the lock key is understood. A
    /// denied write counts until another transaction is not denied, even while there is nothing to write.
    pub(super) fn is_usable(&self) -> bool {
        let readable = self.reading.as_ref().is_none_or(Reading::is_readable);
        let may_write = self.capacity.operations().is_some() && !self.is_read_only;
        may_write && self.troubles.first().is_none() && readable
    }

    /// Invalidates the reading if this process or its machine has slept past the time when a running workload had to
    /// be suspended, because every answer that comes now was requested before. A new request has `patience` to be
    /// answered.
    pub(super) fn detect_sleep(&mut self, now: Moment, patience: Duration) {
        if self.deadline.is_some_and(|deadline| deadline + LATE < now) {
            self.invalidate();
            self.deadline = Some(now + patience);
        }
    }

    /// Returns whether there is no contender, and no lock key of a semaphore or of a mutex.
    pub(super) fn is_unused(&self) -> bool {
        self.reading.as_ref().is_some_and(|reading| {
            let lock = matches!(
                reading.lock(),
                Lock::Semaphore { .. } | Lock::Mutex { index: 1.., .. }
            );
            !lock && reading.contenders().next().is_none()
        })
    }

    /// Returns whether Consul may be used now: the queue has access to Consul, and does not pause after a failure.
    pub(super) fn may_use_consul(&self, now: Moment) -> bool {
        let pauses = self.troubles.due().any(|due| due > now);
        self.capacity.operations().is_some() && !pauses
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Returns a moment that is later than every one before.
    fn tick() -> Moment {
        static SECONDS: AtomicU64 = AtomicU64::new(1);
        Moment::from_boot(Duration::from_secs(SECONDS.fetch_add(1, Ordering::Relaxed)))
    }

    fn news(index: u64, sent: Moment) -> News {
        News {
            entries: consul::Entries::default(),
            index,
            sent,
            reset: false,
        }
    }

    fn known() -> Knowledge {
        let prefix: Prefix = "p".parse().unwrap();
        Knowledge {
            capacity: Capacity::of_access(Some(64)),
            ..Knowledge::new(prefix, Mode::Semaphore, Turns::default())
        }
    }

    fn now() -> Now {
        Now {
            moment: tick(),
            time: jiff::Timestamp::UNIX_EPOCH,
            jitter: 0.0,
        }
    }

    #[test]
    fn what_was_known_last_is_still_told_while_consul_is_away() {
        let mut known = known();
        let told = |known: &Knowledge| known.last_reading().map(|reading| reading.sent);
        assert_eq!(told(&known), None);
        let (before, after) = (tick(), tick());
        known.listed(Ok(news(9, before)), now());
        // Both attempts fail.
        for _ in 0..2 {
            known.listed(Err(consul::Error::NoToken), now());
            assert!(known.reading.is_none());
            assert_eq!(told(&known), Some(before));
        }
        known.listed(Ok(news(10, after)), now());
        assert_eq!(told(&known), Some(after));
    }

    #[test]
    fn a_key_that_api_lock_left_is_in_use_until_it_is_gone() {
        let mut known = known();
        known.mode = Mode::Mutex;
        let left = Entry {
            key: "p/.lock".into(),
            value: Vec::new(),
            flags: 0x2ddc_cbc0_58a5_0c18,
            session: None,
            lock_index: 1,
            create_index: 3,
            modify_index: 5,
        };
        known.listed(
            Ok(News {
                entries: vec![left].into(),
                ..news(9, tick())
            }),
            now(),
        );
        assert!(!known.is_unused());
        known.listed(Ok(news(10, tick())), now());
        assert!(known.is_unused());
    }

    #[test]
    fn while_the_watch_fails_nothing_is_read_beside_it() {
        let mut known = known();
        known.listed(Err(consul::Error::Gone), now());
        known.troubles = Troubles::default();
        assert!(known.watch_failed);
        assert!(!known.is_to_be_read(tick()));
        known.listed(Ok(news(9, tick())), now());
        assert!(!known.watch_failed && known.reading.is_some());
    }

    fn key(name: &str, session: Option<&str>, index: u64, value: &str) -> Entry {
        Entry {
            key: format!("p/{name}"),
            value: value.into(),
            flags: 0xe0f6_9a2b_aa41_4de0,
            session: session.map(Into::into),
            lock_index: 1,
            create_index: index,
            modify_index: index,
        }
    }

    fn lock(index: u64, holders: &str) -> Entry {
        let body = format!(r#"{{"Limit":9,"Holders":{holders}}}"#);
        key(".lock", None, index, &body)
    }

    /// Returns a transaction that grants `new` a slot and releases that of `old`, and its answer.
    fn hand_over(old: &str, new: &str, index: u64) -> (Transaction, Vec<Entry>) {
        let body = format!(r#"{{"Limit":9,"Holders":{{"{new}":true}}}}"#);
        let operations = vec![
            consul::Op::Lock {
                key: format!("p/{new}"),
                value: Vec::new(),
                flags: 0,
                session: new.into(),
            },
            consul::Op::Cas {
                key: "p/.lock".into(),
                value: body.into_bytes(),
                flags: 0xe0f6_9a2b_aa41_4de0,
                index: 1,
            },
            consul::Op::Delete {
                key: format!("p/{old}"),
            },
        ];
        let transaction = Transaction {
            operations,
            ..Transaction::default()
        };
        let answer = vec![
            key(new, Some(new), index, ""),
            key(".lock", None, index, ""),
        ];
        (transaction, answer)
    }

    #[test]
    fn what_others_wrote_is_seen_though_own_writes_are_quicker_than_any_listing() {
        let mut known = known();
        let brings = |entries: Vec<Entry>, index, sent| News {
            entries: entries.into(),
            ..news(index, sent)
        };
        let first = vec![lock(9, r#"{"a":true}"#), key("a", Some("a"), 8, "")];
        known.listed(Ok(brings(first.clone(), 9, tick())), now());
        // Each listing was requested before the last of our writes was answered, and shows none of them.
        let sent = tick();
        let (handed_over, answer) = hand_over("a", "b", 20);
        known.committed(&handed_over, &answer, tick(), now());
        let late = |more: &[Entry]| [&first, more].concat();
        known.listed(
            Ok(brings(late(&[key("f", Some("f"), 15, "")]), 15, sent)),
            now(),
        );
        let seen = |known: &Knowledge| {
            let reading = known.reading.as_ref().unwrap();
            let all = reading.contenders().map(|(session, _)| session.to_string());
            assert!(reading.holds(&"b".into()) && !reading.is_named(&"a".into()));
            all.collect::<Vec<_>>()
        };
        assert_eq!(seen(&known), ["b", "f"], "what was released stays so");
        // A dead foreign contender is deleted, in addition to one more of our writes.
        let sent = tick();
        let (again, answer) = hand_over("b", "b", 30);
        let again = Transaction {
            operations: again.operations[..2].to_vec(),
            ..again
        };
        known.committed(&again, &answer, tick(), now());
        let shown = vec![lock(20, r#"{"b":true}"#), key("b", Some("b"), 20, "")];
        known.listed(Ok(brings(shown, 22, sent)), now());
        assert_eq!(seen(&known), ["b"]);
        assert_eq!(known.own_writes.len(), 2, "until a listing shows them");
        let shown = vec![lock(30, r#"{"b":true}"#), key("b", Some("b"), 30, "")];
        known.listed(Ok(brings(shown, 31, sent)), now());
        assert_eq!(known.own_writes.len(), 0);
        assert_eq!(seen(&known), ["b"]);
    }

    #[test]
    fn a_listing_that_does_not_show_a_write_tells_nothing_once_the_write_is_in_doubt() {
        let mut known = known();
        let sent = tick();
        known.listed(Ok(news(9, sent)), now());
        let (handed_over, answer) = hand_over("a", "b", 20);
        known.committed(&handed_over, &answer, tick(), now());
        known.invalidate();
        known.listed(Ok(news(10, sent)), now());
        assert!(known.reading.is_none());
        known.listed(Ok(news(20, sent)), now());
        assert!(known.reading.is_some());
    }

    #[test]
    fn a_listing_from_before_a_write_of_which_nothing_was_heard_tells_nothing() {
        let mut known = known();
        let sent = tick();
        known.listed(Ok(news(9, sent)), now());
        let (handed_over, _) = hand_over("a", "b", 20);
        let lost = consul::Error::Unreachable {
            message: "no answer".into(),
            undecided: true,
        };
        known.transaction_failed(&handed_over, lost, now());
        known.listed(Ok(news(10, sent)), now());
        assert!(known.reading.is_none(), "it was asked for before");
        known.listed(Ok(news(10, tick())), now());
        assert!(known.reading.is_some());
    }

    #[test]
    fn a_listing_older_than_the_last_one_undoes_nothing() {
        let mut known = known();
        let (first, second) = (tick(), tick());
        known.listed(Ok(news(9, first)), now());
        known.listed(Ok(news(8, second)), now());
        assert_eq!(known.listed.index, 9);
        known.listed(Ok(news(7, tick() + Duration::from_nanos(1))), now());
        assert_eq!(known.listed.index, 7, "Consul forgot what was deleted");
    }
}
