//! Remembers what the API server refused to do to workloads, and decides what follows: for each workload, and for all
//! of them when the refusals have nothing to do with the workload.

use std::{collections::BTreeMap, time::Duration};

use super::{Now, message::Write};
use crate::{Excluded, Uid, holding::Setback};
use consul_client::clock::Moment;

/// Time for which the API server may still apply a request that it has not answered: the API server's own limit for a
/// request.
const API_REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// Time for which a workload that can't be changed at all is left alone. It is long compared with the time for which
/// the workload keeps a slot before the operator knows that.
const LEAVE_UNCHANGEABLE_FOR: Duration = Duration::from_mins(10);

/// Number of refused starts in a row after which the workloads do not count as the cause.
const MOST_REFUSED_STARTS: u32 = 3;

/// A workload that could not be written to.
#[derive(Clone, Debug)]
struct FailedWrite {
    setback: Setback,
    why: WriteFailure,
}

/// The reason why a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteFailure {
    /// Another program had changed the workload.
    Conflict,
    /// The write has no answer.
    Unanswered,
    Refused(Refused),
    /// Consul refuses the transaction that would grant the workload all its slots, because the transaction has too
    /// many bytes.
    TooLarge,
}

impl WriteFailure {
    fn refused(self) -> Option<Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Conflict | Self::Unanswered | Self::TooLarge => None,
        }
    }
}

/// The writes to a workload that the API server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// The API server refuses to start the workload.
    Start,
    /// The API server has refused since this moment to let the workload give its slot back, and perhaps refused to
    /// start the workload before.
    GiveBack(Moment),
    /// The API server has refused to let the workload give its slot back for so long that no start sent before can
    /// still be in flight, not even one that another replica sent.
    Everything,
}

impl Refused {
    /// Returns what the API server refuses after it has refused this write, too.
    fn after(before: Option<Self>, write: &Write, now: Moment) -> Option<Self> {
        match (write, before) {
            (Write::Start(_), _) => Some(Self::Start),
            (Write::GiveBack(_), None | Some(Self::Start)) => Some(Self::GiveBack(now)),
            (Write::GiveBack(_), Some(Self::GiveBack(since)))
                if since + API_REQUEST_TIMEOUT <= now =>
            {
                Some(Self::Everything)
            }
            // Other writes than a start fail, too, so the start is not the only one that the API server refuses.
            (Write::Fail(_) | Write::RecordWait(_), Some(Self::Start)) => None,
            (_, before) => before,
        }
    }
}

/// The state in which no workload is started for now.
#[derive(Clone, Debug)]
struct Closed {
    /// Pause until the next workload may be tried, or the permission is checked again.
    setback: Setback,
    /// Message of the API server.
    message: String,
    /// Whether the operator lacks the permission to write to any workload. Then no workload is tried until the
    /// operator has the permission.
    forbidden: bool,
}

/// The workloads that could not be written to, and whether any can be started.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteRefusals {
    troubles: BTreeMap<Uid, FailedWrite>,
    /// Number of starts that were refused in a row.
    in_a_row: u32,
    closed: Option<Closed>,
}

impl WriteRefusals {
    /// Returns the workloads that are left alone for now, or can't be started.
    pub(super) fn excluded(&self, now: Moment) -> Excluded {
        let mut excluded = Excluded::default();
        for (uid, trouble) in &self.troubles {
            let waits = trouble.setback.until > now;
            match trouble.why.refused() {
                None if waits && trouble.why == WriteFailure::TooLarge => {
                    excluded.barred.insert(uid.clone());
                }
                None | Some(Refused::GiveBack(_)) if waits => {
                    excluded.busy.insert(uid.clone());
                }
                Some(Refused::Start) if waits => {
                    excluded.barred.insert(uid.clone());
                }
                Some(Refused::GiveBack(_)) => {
                    excluded.barred.insert(uid.clone());
                }
                Some(Refused::Everything) if waits => {
                    excluded.barred.insert(uid.clone());
                    excluded.immovable.insert(uid.clone());
                }
                _ => {}
            }
        }
        excluded
    }

    /// Whether a workload is left alone for now. A workload that only can't be started is not left alone: the
    /// operator may make it fail, or record its wait.
    pub(super) fn is_troubled(&self, workload: &Uid, now: Moment) -> bool {
        self.troubles
            .get(workload)
            .filter(|trouble| trouble.why != WriteFailure::Refused(Refused::Start))
            .is_some_and(|trouble| trouble.setback.until > now)
    }

    /// Returns the workloads that are left alone for now, and those that the API server refuses to start.
    pub(super) fn troubled(&self, now: Moment) -> impl Iterator<Item = &Uid> {
        let troubles = self.troubles.iter().filter(move |(_, trouble)| {
            trouble.setback.until > now || trouble.why.refused().is_some()
        });
        troubles.map(|(uid, _)| uid)
    }

    /// Whether the API server has refused a write to this workload, so that it can't be started until that write is
    /// retried.
    pub(super) fn refuses_start(&self, workload: &Uid) -> bool {
        let trouble = self.troubles.get(workload);
        trouble.is_some_and(|trouble| trouble.why.refused().is_some())
    }

    /// Whether no workload is started for now, because several starts in a row were refused or all starts would be
    /// refused.
    pub(super) fn is_closed(&self, now: Moment) -> bool {
        let closed = self.closed.as_ref();
        closed.is_some_and(|closed| closed.forbidden || closed.setback.until > now)
    }

    /// Whether to ask the API server again if the operator may write to workloads.
    pub(super) fn is_to_ask(&self, now: Moment) -> bool {
        let closed = self.closed.as_ref();
        closed.is_some_and(|closed| closed.forbidden && closed.setback.until <= now)
    }

    /// Records the answer to the question whether the operator may write to workloads. Missing permission is held
    /// against no workload: once the permission is granted, all workloads are as before, in the same order.
    pub(super) fn answered(&mut self, may_write: Option<bool>, now: Now) {
        match (may_write, &mut self.closed) {
            (Some(false), Some(closed)) => {
                closed.setback =
                    Setback::with_jitter(Some(&closed.setback), now.moment, now.jitter);
            }
            // The answer is unknown: a start will show it.
            (None, Some(closed)) => closed.forbidden = false,
            (_, closed) => {
                *closed = None;
                self.in_a_row = 0;
                self.troubles.clear();
            }
        }
    }

    /// Returns the message with which the API server refused several starts in a row, or a write that the operator
    /// may not make.
    pub(crate) fn message(&self) -> Option<&str> {
        let closed = self.closed.as_ref();
        closed.map(|closed| closed.message.as_str())
    }

    /// Returns the moments at which something is retried.
    pub(crate) fn due(&self) -> impl Iterator<Item = Moment> {
        let workloads = self.troubles.values().map(|trouble| trouble.setback.until);
        workloads.chain(self.closed.iter().map(|closed| closed.setback.until))
    }

    /// Records a successful write.
    pub(super) fn done(&mut self, write: &Write) {
        let uid = &write.target().uid;
        match self.troubles.get_mut(uid) {
            // A workload that has given its slot back is not started again at once.
            Some(trouble)
                if trouble.why.refused().is_some() && matches!(write, Write::GiveBack(_)) =>
            {
                trouble.why = WriteFailure::Refused(Refused::Start);
            }
            _ => drop(self.troubles.remove(uid)),
        }
        if matches!(write, Write::Start(_)) {
            self.in_a_row = 0;
            self.closed = None;
        }
    }

    /// Records a write that came too late: the workload has changed, and the API server may accept what it refused
    /// before. A program that changes the workload all the time causes one try after another, so these tries have
    /// pauses, too.
    pub(super) fn lost_race(&mut self, uid: &Uid, now: Now) {
        let before = self
            .troubles
            .remove(uid)
            .filter(|before| before.why == WriteFailure::Conflict);
        let setback = Setback::outrun_with_jitter(
            before.as_ref().map(|before| &before.setback),
            now.moment,
            now.jitter,
        );
        let why = WriteFailure::Conflict;
        self.troubles
            .insert(uid.clone(), FailedWrite { setback, why });
    }

    /// Records which workloads have contenders here. A workload without a contender has nothing to give back, for
    /// example because the write that gave the slot back was applied although it had no answer. No later write would
    /// show that.
    pub(super) fn contend(&mut self, contends: impl Fn(&Uid) -> bool) {
        for (uid, trouble) in &mut self.troubles {
            let keeps_slot = matches!(trouble.why, WriteFailure::Refused(Refused::GiveBack(_)));
            if keeps_slot && !contends(uid) {
                trouble.why = WriteFailure::Refused(Refused::Start);
            }
        }
    }

    /// Forgets all workloads but these.
    pub(super) fn retain(&mut self, matters: impl Fn(&Uid) -> bool) {
        self.troubles.retain(|uid, _| matters(uid));
    }

    /// Records a refused write. If every start is refused, there is no point in trying all workloads one after
    /// another. A write that the operator has no permission for closes the queue, whichever write it is, even if it
    /// was sent before the permission came back: then the operator asks about the permission again, and the refusal
    /// is held against no workload.
    pub(super) fn refused(&mut self, write: &Write, message: String, forbidden: bool, now: Now) {
        self.failed(write, true, now);
        let starts = matches!(write, Write::Start(_));
        if starts {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
        let asks = self.closed.as_ref().is_some_and(|closed| closed.forbidden);
        if !asks && (forbidden || starts && self.in_a_row >= MOST_REFUSED_STARTS) {
            let before = self.closed.as_ref().map(|closed| &closed.setback);
            self.closed = Some(Closed {
                setback: Setback::with_jitter(before, now.moment, now.jitter),
                message,
                forbidden,
            });
        }
    }

    /// Records that Consul refuses to grant a workload all its slots in one transaction, because of the transaction's
    /// size. The size may change with the number of holders. Returns whether the refusal is news.
    pub(super) fn too_large(&mut self, uid: &Uid, now: Now) -> bool {
        let before = self.troubles.get(uid);
        let news = before.is_none_or(|before| before.why != WriteFailure::TooLarge);
        let before = before.map(|before| &before.setback);
        let setback = Setback::with_jitter(before, now.moment, now.jitter);
        let why = WriteFailure::TooLarge;
        self.troubles
            .insert(uid.clone(), FailedWrite { setback, why });
        news
    }

    /// Records a write that was not done. A write that was not refused may still be applied.
    pub(super) fn failed(&mut self, write: &Write, refused: bool, now: Now) {
        let before = self.troubles.get(&write.target().uid);
        let mut setback =
            Setback::with_jitter(before.map(|before| &before.setback), now.moment, now.jitter);
        let known = before.and_then(|before| before.why.refused());
        let refused = match write {
            write if refused => Refused::after(known, write, now.moment),
            // Without an answer, it is unknown whether the API server refuses the write.
            Write::Start(_) | Write::Fail(_) | Write::RecordWait(_) => None,
            _ => known,
        };
        if refused == Some(Refused::Everything) {
            setback.until = now.moment + LEAVE_UNCHANGEABLE_FOR;
        }
        let why = refused.map_or(WriteFailure::Unanswered, WriteFailure::Refused);
        let trouble = FailedWrite { setback, why };
        self.troubles.insert(write.target().uid.clone(), trouble);
    }
}

/// State that tests compare.
#[cfg(test)]
impl WriteRefusals {
    /// Returns how often writes to a workload failed, and the last reason; and how many starts were refused in a row.
    pub(crate) fn history(&self, uid: &Uid) -> impl std::hash::Hash + use<> {
        let trouble = self.troubles.get(uid).map(|trouble| {
            let why = match trouble.why {
                WriteFailure::Conflict => 0,
                WriteFailure::Unanswered => 1,
                WriteFailure::Refused(Refused::Start) => 2,
                WriteFailure::Refused(Refused::GiveBack(_)) => 3,
                WriteFailure::Refused(Refused::Everything) => 4,
                WriteFailure::TooLarge => 5,
            };
            (trouble.setback.attempts(), why)
        });
        (trouble, self.in_a_row, self.closed.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        KindName,
        plan::{GiveBack, HeldSlot, Start, Target},
        samples::entry,
    };

    fn at(moment: Moment) -> Now {
        Now {
            moment,
            time: jiff::Timestamp::UNIX_EPOCH,
            jitter: 0.5,
        }
    }

    fn target() -> Target {
        Target {
            kind: KindName::default(),
            name: "a".into(),
            uid: Uid::from("a"),
            version: "1".into(),
        }
    }

    fn start() -> Write {
        let slot = HeldSlot::new("s".into(), &entry("p/s", Some("s"), ""), b"");
        Write::Start(Start::new(target(), vec![slot]).unwrap())
    }

    fn give_back() -> Write {
        Write::GiveBack(GiveBack {
            workload: target(),
            sessions: vec!["s".into()],
            hold: false,
            began: None,
        })
    }

    #[test]
    fn a_workload_that_cannot_be_changed_keeps_its_slot_until_no_start_can_come() {
        let first = Moment::from_boot(Duration::from_secs(100));
        let again = |before, now| Refused::after(before, &give_back(), now);
        let told = again(Some(Refused::Start), first);
        assert_eq!(told, Some(Refused::GiveBack(first)));
        let later = first + Duration::from_secs(59);
        assert_eq!(again(told, later), told);
        assert_eq!(
            again(told, first + API_REQUEST_TIMEOUT),
            Some(Refused::Everything)
        );
        // The user suspended the workload, or this process has just begun.
        assert_eq!(again(None, later), Some(Refused::GiveBack(later)));
    }

    #[test]
    fn what_is_withheld_follows_from_what_was_refused() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let excluded = |why, at| {
            let trouble = FailedWrite {
                setback: Setback::after(None, now),
                why,
            };
            let refusals = WriteRefusals {
                troubles: BTreeMap::from([("a".into(), trouble)]),
                ..WriteRefusals::default()
            };
            let Excluded {
                busy,
                barred,
                immovable,
            } = refusals.excluded(at);
            (busy.len(), barred.len(), immovable.len())
        };
        let later = now + Duration::from_hours(1);
        let refused = WriteFailure::Refused;
        for (why, soon, then) in [
            (WriteFailure::Conflict, (1, 0, 0), (0, 0, 0)),
            (WriteFailure::Unanswered, (1, 0, 0), (0, 0, 0)),
            (refused(Refused::Start), (0, 1, 0), (0, 0, 0)),
            (refused(Refused::GiveBack(now)), (1, 0, 0), (0, 1, 0)),
            (refused(Refused::Everything), (0, 1, 1), (0, 0, 0)),
        ] {
            assert_eq!(excluded(why, now), soon, "{why:?}");
            assert_eq!(excluded(why, later), then, "{why:?}, later");
        }
    }

    /// The write to the workload had no answer but was applied, or the workload's slot was lost: no other write to
    /// the workload clears the refusal.
    #[test]
    fn what_has_nothing_to_give_back_any_more_can_be_started_after_its_pause() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let (uid, later) = (Uid::from("a"), now + Duration::from_hours(1));
        let mut refusals = WriteRefusals::default();
        let setback = Setback::after(None, now);
        let why = WriteFailure::Refused(Refused::Start);
        refusals
            .troubles
            .insert(uid.clone(), FailedWrite { setback, why });
        refusals.failed(&give_back(), true, at(now));
        refusals.failed(&give_back(), false, at(now));
        assert!(refusals.excluded(later).barred.contains(&uid));
        refusals.contend(|_| true);
        assert!(refusals.excluded(later).barred.contains(&uid));
        refusals.contend(|_| false);
        assert!(refusals.excluded(now).barred.contains(&uid));
        assert!(refusals.excluded(later).barred.is_empty());
    }

    #[test]
    fn who_is_outrun_again_and_again_pauses_ever_longer_but_not_the_first_time() {
        let mut now = Moment::from_boot(Duration::from_secs(100));
        let uid = Uid::from("a");
        let mut refusals = WriteRefusals::default();
        refusals.failed(&give_back(), true, at(now));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            refusals.lost_race(&uid, at(now));
            let until = refusals.due().max().unwrap();
            assert_eq!(
                refusals.excluded(now).busy.contains(&uid),
                until > now,
                "it is left alone until then"
            );
            assert!(refusals.excluded(until).busy.is_empty());
            pauses.push(until.since(now));
            now = until;
        }
        assert!(pauses[0].is_zero(), "{pauses:?}");
        assert!(pauses[1..].iter().all(|pause| !pause.is_zero()));
        assert!(pauses[11] > Duration::from_secs(1), "{pauses:?}");

        refusals.done(&give_back());
        refusals.lost_race(&uid, at(now));
        assert!(refusals.excluded(now).busy.is_empty(), "the first again");
    }

    #[test]
    fn that_all_starts_are_forbidden_is_held_against_no_workload() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let setback = Setback::after(None, now);
        let why = WriteFailure::Refused(Refused::Everything);
        let mut refusals = WriteRefusals::default();
        refusals.refused(&start(), "no".to_owned(), true, at(now));
        refusals
            .troubles
            .insert("a".into(), FailedWrite { setback, why });

        // The closure ends when the API server says so, however long that takes.
        let later = now + Duration::from_hours(1);
        assert!(refusals.is_closed(later) && refusals.is_to_ask(later));
        refusals.answered(Some(false), at(later));
        assert!(refusals.is_closed(later) && !refusals.is_to_ask(later));
        assert!(!refusals.excluded(now).barred.is_empty());
        refusals.answered(Some(true), at(later));
        assert!(!refusals.is_closed(later));
        assert!(refusals.excluded(now).barred.is_empty());
        assert_eq!(refusals.message(), None);
    }

    /// The answer to a write can come after the one to a later question.
    #[test]
    fn what_was_forbidden_until_just_now_is_held_against_no_workload() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let mut refusals = WriteRefusals::default();
        refusals.refused(&start(), "no".to_owned(), true, at(now));
        refusals.answered(Some(true), at(now));
        refusals.refused(&give_back(), "no".to_owned(), true, at(now));

        let later = now + Duration::from_hours(1);
        assert!(refusals.is_closed(later) && refusals.is_to_ask(later));
        // The workload could give its slot back in the meantime. No other workload gets the slot before the answer.
        refusals.done(&give_back());
        assert!(refusals.is_closed(later));
        refusals.answered(Some(true), at(later));
        assert!(!refusals.is_closed(later) && refusals.excluded(now).barred.is_empty());
    }

    /// Otherwise there would be no answer while writes are refused.
    #[test]
    fn a_refusal_does_not_put_off_the_question_whether_all_are_forbidden() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let mut refusals = WriteRefusals::default();
        refusals.refused(&start(), "no".to_owned(), true, at(now));
        let asked = refusals.closed.clone().unwrap().setback.until;
        refusals.refused(&give_back(), "no".to_owned(), true, at(asked));
        assert!(refusals.is_to_ask(asked));
    }

    #[test]
    fn refusals_of_some_workloads_close_nothing_for_long() {
        let now = Moment::from_boot(Duration::from_secs(100));
        let mut refusals = WriteRefusals::default();
        for _ in 1..MOST_REFUSED_STARTS {
            refusals.refused(&start(), "no".to_owned(), false, at(now));
            refusals.refused(&give_back(), "no".to_owned(), false, at(now));
            assert!(!refusals.is_closed(now));
        }
        refusals.refused(&start(), "no".to_owned(), false, at(now));
        assert!(refusals.is_closed(now));
        let later = now + Duration::from_mins(2);
        assert!(!refusals.is_closed(later) && !refusals.is_to_ask(later));
    }
}
