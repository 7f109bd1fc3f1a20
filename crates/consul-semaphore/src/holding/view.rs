//! What is seen of Consul: the prefix, and what is in the way.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{Setback, own_writes::OwnWrites};
use crate::{Deaths, Lock, Mode, MutexMemory, Prefix, Reading, Turns, plan::Transaction};
use consul_client::{self as consul, Client, Entry, Listing, clock::Moment};

/// Why Consul can't be used now.
#[derive(Debug)]
pub struct Trouble {
    pub error: consul::Error,
    /// Since when there has been trouble of any kind.
    pub since: Moment,
    /// Whether reading works, and only writing does not.
    writing: bool,
    pub setback: Setback,
}

/// What a watch brought of one lock key and the keys beside it.
#[derive(Clone, Debug)]
pub struct News {
    /// What is below the prefix.
    pub entries: Arc<Vec<Entry>>,
    /// The index that it was read at.
    pub index: u64,
    /// When the request for it was sent.
    pub sent: Moment,
    /// Whether the index went back since the answer before.
    pub reset: bool,
}

impl From<Listing> for News {
    fn from(listing: Listing) -> Self {
        Self {
            entries: Arc::new(listing.entries),
            index: listing.index,
            sent: listing.sent,
            reset: listing.reset,
        }
    }
}

/// The part of Consul that a lock key lives in, as it is seen. `W` is a way there.
pub struct View<W> {
    /// For whom it is looked at, for the log.
    semaphore: String,
    /// The way there; `None` while there is none, so that nothing is read or written.
    pub home: Option<W>,
    prefix: Prefix,
    mode: Mode,
    /// The prefix as Consul last showed it; `None` while that is in doubt.
    pub reading: Option<Reading>,
    /// The last listing that it follows from.
    listed: Listed,
    /// What was written here and no listing has shown yet.
    own_writes: OwnWrites,
    /// Whether the watch failed last. It goes on by itself, with and without waiting for changes, and
    /// what it brings is for all who share it: beside it nobody reads the prefix on his own.
    blind: bool,
    /// What is in the way, if anything is.
    pub trouble: Option<Trouble>,
    /// When dead holders were first seen dead.
    pub deaths: Deaths,
    /// What its key does not say of a mutex.
    pub mutex: MutexMemory,
    /// Whose turn it is among those who wait.
    pub turns: Turns,
    /// How often in a row somebody else was faster.
    conflicts: u32,
    /// Whether Consul's index went back.
    pub went_back: bool,
    /// When a running Job is to be suspended if nothing is heard of its slot: no call outlasts it.
    pub deadline: Option<Moment>,
    /// Turns to call Consul, which several views may share.
    pub calls: Arc<Semaphore>,
}

/// Where in Consul's history a listing is.
#[derive(Clone, Copy, Default)]
struct Listed {
    index: u64,
    received: Moment,
}

/// How many keys may have been written here that no listing shows: then the watch has brought nothing for
/// very long, and the prefix is read beside it.
const UNLISTED: usize = 10_000;

/// What a call may take, however soon a running Job is to be suspended: less than what would make the
/// next pass believe that it has slept.
const LEAST: Duration = Duration::from_millis(500);

impl<W: AsRef<Client>> View<W> {
    /// Nothing is known of this prefix yet.
    pub fn new(
        semaphore: String,
        home: Option<W>,
        prefix: Prefix,
        mode: Mode,
        turns: Turns,
    ) -> Self {
        Self {
            semaphore,
            home,
            prefix,
            mode,
            reading: None,
            listed: Listed::default(),
            own_writes: OwnWrites::default(),
            blind: false,
            trouble: None,
            deaths: Deaths::default(),
            mutex: MutexMemory::default(),
            turns,
            conflicts: 0,
            went_back: false,
            deadline: None,
            calls: Arc::new(Semaphore::new(1)),
        }
    }

    /// Makes a call of Consul, at the longest until a running Job is to be suspended.
    pub async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, consul::Error>>,
    ) -> Result<T, consul::Error> {
        // The turns are never closed: without one nothing would be asked any more.
        let Some(deadline) = self.deadline else {
            let _turn = self.calls.acquire().await;
            return call.await;
        };
        let end = Instant::now() + deadline.since(Moment::now()).max(LEAST);
        let late = "no answer before a running Job must be suspended";
        let Ok(_turn) = timeout_at(end, self.calls.acquire()).await else {
            return Err(consul::Error::NotSent(late.into()));
        };
        timeout_at(end, call).await.unwrap_or_else(|_| {
            Err(consul::Error::Unreachable {
                message: late.into(),
                undecided: true,
            })
        })
    }

    /// Takes what the watch brought: news, unless what is known is newer.
    pub fn hear(&mut self, brought: Result<News, consul::Error>) {
        let news = match brought {
            Ok(news) => news,
            Err(error) => {
                self.blind = true;
                return self.read_failed(error);
            }
        };
        self.blind = false;
        // A prefix's index also goes back by itself, when Consul forgets what was deleted. What was
        // asked after the last answer is newer for sure.
        let newer = news.index >= self.listed.index || news.sent > self.listed.received;
        if !newer && !news.reset {
            return;
        }
        if news.reset {
            self.went_back = true;
            self.own_writes.clear();
        }
        if let Some(known) = &mut self.reading
            && known.shows(&news.entries)
        {
            known.confirm(news.sent);
            self.note_listing(news.index, news.sent);
            return self.reading_works();
        }
        self.accept(Listing {
            entries: news.entries.to_vec(),
            index: news.index,
            sent: news.sent,
            reset: news.reset,
        });
    }

    /// Reads the prefix now, if nothing is known of it and nothing is in the way.
    pub async fn look(&mut self) {
        if self.reading.is_some() || self.blind || self.is_blocked() {
            return;
        }
        let Some(home) = &self.home else {
            return;
        };
        let folder = self.prefix.folder();
        match self.in_time(home.as_ref().list(&folder)).await {
            Ok(listing) => self.accept(listing),
            Err(error) => self.read_failed(error),
        }
    }

    /// Has the prefix read again before anything else is decided on it.
    pub fn doubt(&mut self) {
        self.reading = None;
    }

    /// Takes a listing over. What it does not show yet of what was written here stays as it is known:
    /// a prefix with thousands of holders is written to more often than it can be listed.
    fn accept(&mut self, listing: Listing) {
        self.note_listing(listing.index, listing.sent);
        let mut reading = Reading::new(self.prefix.clone(), self.mode, listing);
        if !self.own_writes.is_empty() {
            let Some(known) = &self.reading else {
                // What was written is not known any more: only a later listing can tell.
                return;
            };
            reading = reading.with_own(known, self.own_writes.keys());
        }
        self.know(reading);
        self.reading_works();
    }

    fn note_listing(&mut self, index: u64, sent: Moment) {
        self.own_writes.listed(index, sent);
        self.listed = Listed {
            index,
            received: Moment::now(),
        };
    }

    fn reading_works(&mut self) {
        if self
            .trouble
            .as_ref()
            .is_some_and(|trouble| !trouble.writing)
        {
            tracing::debug!(semaphore = %self.semaphore, "Consul can be read again");
            self.trouble = None;
        }
    }

    /// Takes over what a transaction of ours wrote.
    pub(super) fn committed(&mut self, transaction: &Transaction, answer: &[Entry], sent: Moment) {
        self.conflicts = 0;
        self.writing_works();
        for grant in &transaction.grants {
            self.mutex.took(&grant.session, Moment::now());
        }
        if let Some(reading) = self.reading.take() {
            let keys = transaction.written_keys();
            self.own_writes.add(keys, answer, Moment::now());
            self.know(reading.after(&transaction.operations, answer, sent));
        }
        if self.own_writes.len() > UNLISTED {
            self.doubt();
        }
    }

    /// Goes by this from now on.
    fn know(&mut self, reading: Reading) {
        let now = Moment::now();
        self.deaths.observe(&reading, now);
        self.mutex.observe(&reading, now);
        self.turns.observe(&reading, now);
        self.reading = Some(reading);
    }

    /// Somebody else was faster: the prefix is read again, after a pause that grows with every time
    /// in a row. It stays short: each of these times somebody had what he wanted, so nobody feeds a
    /// storm, and whoever pauses for long never gets a slot beside programs that ask again at once.
    pub(super) async fn outrun(&mut self) {
        self.doubt();
        self.conflicts = self.conflicts.saturating_add(1);
        let longest = Duration::from_millis(5) * self.conflicts.min(4);
        tokio::time::sleep(longest.mul_f64(fastrand::f64())).await;
    }

    /// The mutex rests, because its last holder died: it is tried again after a pause.
    pub(super) fn delayed(&mut self) {
        self.mutex.delay(Moment::now(), fastrand::f64());
    }

    /// The prefix, or what belongs to it, can't be read.
    pub fn read_failed(&mut self, error: consul::Error) {
        // Nothing is granted in doubt.
        self.doubt();
        self.failed(error, false);
    }

    /// A write failed. If it may have been done all the same, that is looked up, not guessed.
    pub fn write_failed(&mut self, error: consul::Error) {
        if error.may_have_been_applied() {
            self.doubt();
        }
        self.failed(error, true);
    }

    fn failed(&mut self, error: consul::Error, writing: bool) {
        let (before, now) = (self.trouble.as_ref(), Moment::now());
        if before.is_none() {
            let what = if writing { "written to" } else { "read" };
            // The overseer tells of it as what it means to the semaphore.
            tracing::debug!(semaphore = %self.semaphore, %error, "Consul can't be {what}");
        }
        self.trouble = Some(Trouble {
            error,
            since: before.map_or(now, |before| before.since),
            writing,
            setback: Setback::after(before.map(|before| &before.setback), now),
        });
    }

    /// Consul can be written to again, or nothing is left to write.
    pub fn writing_works(&mut self) {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.writing) {
            self.trouble = None;
        }
    }

    /// Whether there is nothing that anybody takes part in, or that says who does.
    pub fn is_unused(&self) -> bool {
        self.reading.as_ref().is_some_and(|reading| {
            let lock = matches!(
                reading.lock(),
                Lock::Semaphore { .. } | Lock::Mutex { index: 1.., .. }
            );
            !lock && reading.contenders().next().is_none()
        })
    }

    /// How many operations a transaction may have.
    pub fn capacity(&self) -> usize {
        let home = self.home.as_ref();
        home.map_or(0, |home| home.as_ref().transaction_capacity())
    }

    /// Whether Consul is left in peace for now.
    pub fn is_blocked(&self) -> bool {
        let trouble = self.trouble.as_ref();
        self.home.is_none() || trouble.is_some_and(|trouble| trouble.setback.until > Moment::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(index: u64, sent: Moment) -> News {
        News {
            entries: Arc::default(),
            index,
            sent,
            reset: false,
        }
    }

    fn view() -> View<Client> {
        let prefix: Prefix = "p".parse().unwrap();
        View::new(
            "batch/db".into(),
            None,
            prefix,
            Mode::Semaphore,
            Turns::default(),
        )
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_when_a_job_must_be_suspended_and_is_undecided() {
        let mut view = view();
        view.deadline = Some(Moment::now());
        let answer: Result<(), _> = view.in_time(std::future::pending()).await;
        assert!(answer.unwrap_err().may_have_been_applied());
        assert_eq!(view.in_time(std::future::ready(Ok(1))).await, Ok(1));
    }

    #[tokio::test]
    async fn a_call_that_has_no_turn_before_that_was_not_sent() {
        let mut view = view();
        view.deadline = Some(Moment::now());
        let calls = view.calls.clone();
        let _others = calls.acquire().await.unwrap();
        let answer: Result<(), _> = view.in_time(std::future::pending()).await;
        assert!(!answer.unwrap_err().may_have_been_applied());
    }

    #[test]
    fn a_key_that_api_lock_left_is_in_use_until_it_is_gone() {
        let mut view = view();
        view.mode = Mode::Mutex;
        let left = Entry {
            key: "p/.lock".into(),
            value: Vec::new(),
            flags: 0x2ddc_cbc0_58a5_0c18,
            session: None,
            lock_index: 1,
            create_index: 3,
            modify_index: 5,
        };
        view.hear(Ok(News {
            entries: vec![left].into(),
            ..news(9, Moment::now())
        }));
        assert!(!view.is_unused());
        view.hear(Ok(news(10, Moment::now())));
        assert!(view.is_unused());
    }

    #[tokio::test]
    async fn while_the_watch_fails_nothing_is_read_beside_it() {
        let mut view = view();
        view.hear(Err(consul::Error::Gone));
        view.trouble = None;
        assert!(view.blind);
        view.look().await;
        view.hear(Ok(news(9, Moment::now())));
        assert!(!view.blind && view.reading.is_some());
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

    /// A transaction that grants `new` a slot and releases that of `old`, and its answer.
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
        let mut view = view();
        let brings = |entries: Vec<Entry>, index, sent| News {
            entries: entries.into(),
            ..news(index, sent)
        };
        let first = vec![lock(9, r#"{"a":true}"#), key("a", Some("a"), 8, "")];
        view.hear(Ok(brings(first.clone(), 9, Moment::now())));
        // Each listing was asked for before the last of our writes was answered, and shows none of them.
        let sent = Moment::now();
        let (handed_over, answer) = hand_over("a", "b", 20);
        view.committed(&handed_over, &answer, Moment::now());
        let late = |more: &[Entry]| [&first, more].concat();
        view.hear(Ok(brings(late(&[key("f", Some("f"), 15, "")]), 15, sent)));
        let seen = |view: &View<Client>| {
            let reading = view.reading.as_ref().unwrap();
            let all = reading.contenders().map(|(session, _)| session.to_string());
            assert!(reading.holds(&"b".into()) && !reading.is_named(&"a".into()));
            all.collect::<Vec<_>>()
        };
        assert_eq!(seen(&view), ["b", "f"], "what was released stays so");
        // Somebody else's dead contender goes, beside one more of our writes.
        let sent = Moment::now();
        let (again, answer) = hand_over("b", "b", 30);
        let again = Transaction {
            operations: again.operations[..2].to_vec(),
            ..again
        };
        view.committed(&again, &answer, Moment::now());
        let shown = vec![lock(20, r#"{"b":true}"#), key("b", Some("b"), 20, "")];
        view.hear(Ok(brings(shown, 22, sent)));
        assert_eq!(seen(&view), ["b"]);
        assert_eq!(view.own_writes.len(), 2, "until a listing shows them");
        let shown = vec![lock(30, r#"{"b":true}"#), key("b", Some("b"), 30, "")];
        view.hear(Ok(brings(shown, 31, sent)));
        assert_eq!(view.own_writes.len(), 0);
        assert_eq!(seen(&view), ["b"]);
    }

    #[test]
    fn a_listing_that_does_not_show_a_write_tells_nothing_once_the_write_is_in_doubt() {
        let mut view = view();
        let sent = Moment::now();
        view.hear(Ok(news(9, sent)));
        let (handed_over, answer) = hand_over("a", "b", 20);
        view.committed(&handed_over, &answer, Moment::now());
        view.doubt();
        view.hear(Ok(news(10, sent)));
        assert!(view.reading.is_none());
        view.hear(Ok(news(20, sent)));
        assert!(view.reading.is_some());
    }

    #[test]
    fn a_listing_older_than_the_last_one_undoes_nothing() {
        let mut view = view();
        let (first, second) = (Moment::now(), Moment::now());
        view.hear(Ok(news(9, first)));
        view.hear(Ok(news(8, second)));
        assert_eq!(view.listed.index, 9);
        view.hear(Ok(news(7, Moment::now() + Duration::from_nanos(1))));
        assert_eq!(view.listed.index, 7, "Consul forgot what was deleted");
    }
}
