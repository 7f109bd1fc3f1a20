//! Planted violations of a millisecond, and cases that are not violations. Times are given in seconds; each record
//! increments etcd's revision.

use std::collections::BTreeSet;

use super::*;
use crate::record::{Body, Job, JobState, Part, Semaphore, Writer};

const PREFIX: &str = "semaphores/faults/db";

/// A timeline built record by record.
#[derive(Clone)]
struct Story {
    records: Vec<Record>,
    t: f64,
    revision: u64,
    index: u64,
    /// What its Jobs ask for, if that is more than one slot.
    asks: BTreeMap<String, usize>,
}

impl Story {
    fn of(limit: u64, goes_on: bool) -> Self {
        Self::with_ttl(Some(10.0), limit, goes_on)
    }

    fn with_ttl(ttl: Option<f64>, limit: u64, goes_on: bool) -> Self {
        let mut story = Self {
            records: Vec::new(),
            t: 100.0,
            revision: 0,
            index: 0,
            asks: BTreeMap::new(),
        };
        story.push(What::Bed { seed: 1, faults: 1 });
        story.push(What::Semaphore(Semaphore {
            prefix: PREFIX.to_owned(),
            limit,
            ttl,
            lock_delay: 1.0,
            goes_on,
        }));
        story
    }

    fn push(&mut self, what: What) -> &mut Self {
        self.records.push(Record { t: self.t, what });
        self
    }

    fn after(&mut self, seconds: f64) -> &mut Self {
        self.t += seconds;
        self
    }

    fn lock_with(&mut self, writer: Writer, limit: u64, jobs: &[&str], dead: &[&str]) -> &mut Self {
        for uid in jobs {
            self.push(What::Contender {
                prefix: PREFIX.to_owned(),
                session: format!("session-{uid}"),
                uid: (*uid).to_owned(),
            });
        }
        let sessions = |uids: &[&str]| -> BTreeSet<_> {
            uids.iter().map(|uid| format!("session-{uid}")).collect()
        };
        self.index += 1;
        let body = Body::Semaphore {
            index: self.index,
            limit,
            holders: sessions(jobs),
        };
        let (before, after) = (self.revision, self.revision);
        self.push(What::Lock {
            prefix: PREFIX.to_owned(),
            writer,
            before,
            after,
            body,
            dead: sessions(dead),
        })
    }

    /// The operator writes these holders into a limit of 1.
    fn holds(&mut self, jobs: &[&str]) -> &mut Self {
        self.lock_with(Writer::Operator, 1, jobs, &[])
    }

    /// Another program takes all slots away.
    fn takes_all(&mut self) -> &mut Self {
        self.lock_with(Writer::Fault, 1, &[], &[])
    }

    fn pod(&mut self, uid: &str, alive: bool) -> &mut Self {
        self.revision += 1;
        let rv = self.revision;
        self.pod_at(uid, alive, rv)
    }

    fn pod_at(&mut self, uid: &str, alive: bool, rv: u64) -> &mut Self {
        self.push(What::Pod {
            pod: format!("{uid}-pod"),
            prefix: PREFIX.to_owned(),
            uid: uid.to_owned(),
            rv,
            alive,
            grace: 2.0,
        })
    }

    fn job(&mut self, uid: &str, state: JobState) -> &mut Self {
        self.revision += 1;
        let rv = self.revision;
        self.push(What::Job(Job {
            uid: uid.to_owned(),
            name: uid.to_owned(),
            prefix: PREFIX.to_owned(),
            asks: self.asks.clone(),
            rv,
            state,
            session: None,
        }))
    }

    fn outage(&mut self, part: Part, away: bool) -> &mut Self {
        self.push(What::Outage { part, away })
    }

    fn rules(&self) -> Vec<Rule> {
        let verdict = judge(&self.records, f64::MAX);
        let violations = verdict.violations.into_iter();
        violations.map(|violation| violation.rule).collect()
    }
}

/// A Job that runs in its slot.
fn running() -> Story {
    running_in(Story::of(1, false))
}

fn running_in(mut story: Story) -> Story {
    story.job("a", JobState::Waiting).holds(&["a"]);
    story.job("a", JobState::Running).pod("a", true);
    story
}

#[test]
fn a_whole_life_in_order_is_right() {
    let mut story = running();
    story.after(5.0).pod("a", false);
    story.job("a", JobState::Finished).holds(&[]);
    assert_eq!(story.rules(), []);
}

#[test]
fn a_holder_too_many_for_a_millisecond_is_seen() {
    let mut story = Story::of(1, false);
    story
        .holds(&["a"])
        .holds(&["a", "b"])
        .after(0.001)
        .holds(&["a"]);
    assert_eq!(story.rules(), [Rule::OverLimit]);
}

#[test]
fn a_limit_that_is_lowered_evicts_nobody() {
    let mut story = Story::of(2, false);
    let two = ["a", "b"];
    story.lock_with(Writer::Operator, 2, &two, &[]);
    story.lock_with(Writer::Operator, 1, &two, &[]);
    assert_eq!(story.rules(), []);
    story.lock_with(Writer::Operator, 1, &["a", "c"], &[]);
    assert_eq!(
        story.rules(),
        [Rule::OverLimit],
        "one goes and one comes, and there are two"
    );
}

#[test]
fn a_pod_without_a_slot_for_a_millisecond_is_seen() {
    let mut story = Story::of(1, false);
    story
        .job("a", JobState::Running)
        .pod("a", true)
        .after(0.001)
        .pod("a", false);
    assert_eq!(story.rules(), [Rule::WithoutSlot]);
}

#[test]
fn a_slot_given_back_a_revision_too_early_is_seen() {
    let mut story = running();
    story.holds(&[]).after(0.001).pod("a", false);
    assert_eq!(story.rules(), [Rule::ReleasedTooEarly]);
}

#[test]
fn a_watch_that_is_late_makes_no_violation() {
    let mut story = running();
    // The pod ended at revision 4. The operator saw that and released the slot. The watch shows it later.
    story.revision += 1;
    let ended = story.revision;
    story.holds(&[]).after(3.0).pod_at("a", false, ended);
    assert_eq!(story.rules(), []);
}

#[test]
fn after_a_loss_the_job_is_suspended_soon_and_its_pods_then_have_their_time() {
    let mut story = running();
    story.takes_all().after(5.0).pod("a", false);
    assert_eq!(story.rules(), []);
    let mut story = running();
    story
        .takes_all()
        .after(5.0)
        .job("a", JobState::Stopping)
        .after(60.0)
        .pod("a", false);
    assert_eq!(story.rules(), []);
    let mut story = running();
    story.takes_all().after(9.0).pod("a", false);
    assert_eq!(story.rules(), [Rule::GapTooLong]);
}

#[test]
fn the_job_controller_may_see_late_that_a_start_was_taken_back() {
    let mut story = Story::of(1, false);
    story.job("a", JobState::Waiting).holds(&["a"]).takes_all();
    story.job("a", JobState::Running).after(1.0);
    story.job("a", JobState::Waiting);
    story.pod("a", true).after(2.0).pod("a", false);
    story.job("a", JobState::Waiting);
    assert_eq!(story.rules(), []);
    story.pod("a", true);
    assert_eq!(story.rules(), [Rule::WithoutSlot], "once");
}

#[test]
fn a_slot_had_again_at_once_ends_the_gap() {
    let mut story = running();
    story
        .takes_all()
        .after(2.0)
        .holds(&["a"])
        .after(60.0)
        .pod("a", false);
    story.job("a", JobState::Finished).holds(&[]);
    assert_eq!(story.rules(), []);
}

#[test]
fn while_the_operator_is_away_nothing_can_be_done_about_a_loss() {
    let mut story = running();
    story.outage(Part::Frozen, true).takes_all().after(40.0);
    story.outage(Part::Frozen, false).after(5.0).pod("a", false);
    assert_eq!(story.rules(), []);
}

#[test]
fn an_outage_of_consul_gives_the_ttl_less_the_grace_period_and_no_more() {
    let lost = |seconds| {
        let mut story = running();
        story
            .outage(Part::Consul, true)
            .takes_all()
            .after(seconds)
            .pod("a", false);
        story.outage(Part::Consul, false);
        story.rules()
    };
    assert_eq!(lost(12.0), []);
    assert_eq!(lost(14.0), [Rule::GapTooLong]);
}

#[test]
fn a_session_that_never_expires_is_lost_by_consuls_word_alone() {
    let lost = |unread, read| {
        let mut story = running_in(Story::with_ttl(None, 1, false));
        story.outage(Part::Consul, true).takes_all().after(unread);
        story.outage(Part::Consul, false).after(read);
        story.pod("a", false);
        story.rules()
    };
    assert_eq!(
        lost(300.0, 70.0),
        [],
        "half a minute until it is asked again"
    );
    assert_eq!(lost(300.0, 90.0), [Rule::GapTooLong]);
}

#[test]
fn a_consul_without_its_data_has_taken_all_slots() {
    let again = |seconds| {
        let mut story = running();
        let (before, after) = (story.revision, story.revision);
        story.outage(Part::Consul, true).push(What::Lock {
            prefix: PREFIX.to_owned(),
            writer: Writer::Fault,
            before,
            after,
            body: Body::Absent,
            dead: BTreeSet::new(),
        });
        // Indexes start again from zero.
        story.index = 0;
        story.outage(Part::Consul, false).after(seconds);
        story.holds(&["a"]).after(1.0).pod("a", false);
        story.job("a", JobState::Finished).holds(&[]);
        story.rules()
    };
    assert_eq!(again(8.0), []);
    assert_eq!(again(20.0), [Rule::GapTooLong]);
}

#[test]
fn with_continue_a_job_goes_on_without_its_slot_but_is_not_started_without_one() {
    let mut story = Story::of(1, true);
    story
        .holds(&["a"])
        .job("a", JobState::Running)
        .pod("a", true);
    story.takes_all().after(100.0).pod("a", false);
    assert_eq!(story.rules(), []);
    story.pod("b", true);
    assert_eq!(story.rules(), [Rule::WithoutSlot]);
}

#[test]
fn what_was_made_to_run_by_hand_is_suspended_soon() {
    let by_hand = |seconds| {
        let mut story = Story::of(1, false);
        // A pass over its semaphore waits for Consul.
        story.outage(Part::Consul, true);
        story.job("a", JobState::Waiting);
        story.revision += 1;
        let rv = story.revision;
        story.push(What::ByHand {
            uid: "a".to_owned(),
            rv,
        });
        story
            .job("a", JobState::Running)
            .pod("a", true)
            .after(seconds)
            .pod("a", false);
        story.job("a", JobState::Waiting);
        story
    };
    assert_eq!(by_hand(3.0).rules(), [Rule::JobStuck; 0]);
    assert_eq!(by_hand(6.0).rules(), [Rule::GapTooLong]);
    let mut twice = by_hand(3.0);
    twice.pod("a", true);
    assert_eq!(twice.rules(), [Rule::WithoutSlot], "an excuse counts once");
}

#[test]
fn a_patch_must_not_start_a_job_long_after_its_slot_was_lost() {
    let mut story = Story::of(1, false);
    story.job("a", JobState::Waiting).holds(&["a"]);
    story.outage(Part::Frozen, true);
    story.lock_with(Writer::Foreign, 1, &[], &["a"]).after(25.0);
    story
        .outage(Part::Frozen, false)
        .job("a", JobState::Running);
    assert_eq!(story.rules(), [Rule::StartedTooLate]);
}

#[test]
fn a_dead_holder_that_is_pruned_was_lost_and_not_given_back() {
    let mut story = running();
    story
        .lock_with(Writer::Operator, 1, &[], &["a"])
        .after(1.0)
        .pod("a", false);
    assert_eq!(story.rules(), []);
}

#[test]
fn a_slot_of_a_job_that_is_gone_must_be_free_soon() {
    let mut story = running();
    story
        .pod("a", false)
        .job("a", JobState::Finished)
        .after(20.0)
        .holds(&[]);
    assert_eq!(story.rules(), [Rule::SlotStuck]);
    let mut story = running();
    story.pod("a", false).outage(Part::Operator, true);
    story.job("a", JobState::Finished).after(20.0);
    story.outage(Part::Operator, false).after(1.0).holds(&[]);
    assert_eq!(story.rules(), [], "at its next start");
}

#[test]
fn a_job_must_not_wait_beside_a_free_slot() {
    let mut story = Story::of(1, false);
    story
        .holds(&[])
        .job("a", JobState::Waiting)
        .after(40.0)
        .holds(&["a"]);
    assert_eq!(story.rules(), [Rule::JobStuck]);
}

#[test]
fn a_revision_that_the_proxy_does_not_know_makes_the_observer_doubtful() {
    let mut story = Story::of(1, false);
    let seen = |index| What::Seen {
        prefix: PREFIX.to_owned(),
        index,
    };
    story.holds(&["a"]).push(seen(1));
    // The proxy has not recorded it yet.
    story.push(seen(2));
    assert_eq!(story.rules(), []);
    let mut known = story.clone();
    known.holds(&[]);
    assert_eq!(known.rules(), []);
    story.index = 2;
    story.holds(&[]);
    assert_eq!(story.rules(), [Rule::Unseen]);
}

#[test]
fn what_nobody_watches_is_not_judged() {
    let mut story = running();
    story.push(What::Unwatched).holds(&[]);
    // On the next bed, violations are planted first.
    story.push(What::Unwatched).pod("planted", true);
    story.push(What::Bed { seed: 1, faults: 1 });
    assert_eq!(story.rules(), []);
}

#[test]
fn what_is_left_at_the_end_is_stuck() {
    let mut story = running();
    story.push(What::Rest {
        sessions: 0,
        contenders: 0,
    });
    assert_eq!(story.rules(), [Rule::JobStuck, Rule::SlotStuck]);
}

const OTHER: &str = "semaphores/faults/licenses";

impl Story {
    /// Its Jobs ask for a slot here and two elsewhere.
    fn asking_for_three() -> Self {
        let mut story = Self::of(3, false);
        story.push(What::Semaphore(Semaphore {
            prefix: OTHER.to_owned(),
            limit: 3,
            ttl: Some(10.0),
            lock_delay: 1.0,
            goes_on: false,
        }));
        story.asks = [(PREFIX.to_owned(), 1), (OTHER.to_owned(), 2)].into();
        story
    }

    /// These sessions of the Job `a` hold slots there from now on, and were granted them at this raft index.
    fn grant_at(&mut self, prefix: &str, sessions: &[&str], index: u64) -> &mut Self {
        for session in sessions {
            self.push(What::Contender {
                prefix: prefix.to_owned(),
                session: (*session).to_owned(),
                uid: "a".to_owned(),
            });
        }
        self.index += 1;
        let body = Body::Semaphore {
            index: self.index,
            limit: 3,
            holders: sessions
                .iter()
                .map(|session| (*session).to_owned())
                .collect(),
        };
        let (before, after) = (self.revision, self.revision);
        self.push(What::Lock {
            prefix: prefix.to_owned(),
            writer: Writer::Operator,
            before,
            after,
            body,
            dead: BTreeSet::new(),
        });
        for session in sessions {
            self.push(What::Granted {
                prefix: prefix.to_owned(),
                session: (*session).to_owned(),
                index,
            });
        }
        self
    }

    fn ends(&mut self) -> &mut Self {
        self.after(100.0).push(What::Drain)
    }
}

/// A Job that was granted its three slots and runs.
fn running_in_three() -> Story {
    let mut story = Story::asking_for_three();
    story.job("a", JobState::Waiting);
    story
        .grant_at(PREFIX, &["s0"], 7)
        .grant_at(OTHER, &["s1", "s2"], 7);
    story.job("a", JobState::Running).pod("a", true);
    story
}

#[test]
fn a_request_that_is_granted_at_one_index_is_right() {
    let mut story = running_in_three();
    story
        .after(5.0)
        .pod("a", false)
        .job("a", JobState::Finished);
    story
        .grant_at(OTHER, &[], 0)
        .grant_at(PREFIX, &[], 0)
        .ends();
    assert_eq!(story.rules(), []);
}

/// For example after somebody replaced a `.lock` whose contender stayed.
#[test]
fn a_session_that_is_granted_a_slot_twice_has_two_grants() {
    let mut story = Story::asking_for_three();
    story.job("a", JobState::Waiting);
    for (sessions, index) in [(["s1", "s2"], 7), (["s3", "s4"], 9)] {
        story
            .grant_at(PREFIX, &["s0"], index)
            .grant_at(OTHER, &sessions, index);
        story
            .after(0.001)
            .grant_at(PREFIX, &[], 0)
            .grant_at(OTHER, &[], 0)
            .after(1.0);
    }
    story.ends();
    assert_eq!(story.rules(), []);
}

#[test]
fn a_request_that_is_granted_in_part_is_seen() {
    for (here, there, at) in [
        // One slot too few at one lock key; a part missing; and in two transactions.
        (&["s0"][..], &["s1"][..], 7),
        (&[], &["s1", "s2"], 7),
        (&["s0"], &[], 7),
        (&["s0"], &["s1", "s2"], 8),
    ] {
        let mut story = Story::asking_for_three();
        story.job("a", JobState::Waiting);
        story.grant_at(PREFIX, here, 7).grant_at(OTHER, there, at);
        story
            .after(0.001)
            .grant_at(PREFIX, &[], 0)
            .grant_at(OTHER, &[], 0);
        story.ends();
        let rules = story.rules();
        assert!(!rules.is_empty(), "{here:?} {there:?} {at}");
        assert!(
            rules.iter().all(|rule| *rule == Rule::GrantedInPart),
            "{rules:?}"
        );
    }
}

#[test]
fn a_running_job_may_have_a_lost_part_again() {
    let mut story = running_in_three();
    story.lock_with(Writer::Fault, 3, &[], &[]).after(1.0);
    story
        .grant_at(PREFIX, &["s3"], 9)
        .after(5.0)
        .pod("a", false);
    story.job("a", JobState::Finished).grant_at(PREFIX, &[], 0);
    story.grant_at(OTHER, &[], 0).ends();
    assert_eq!(story.rules(), []);
}

#[test]
fn one_slot_of_two_that_is_missing_while_pods_run_is_a_loss() {
    let mut story = running_in_three();
    story.after(5.0).grant_at(OTHER, &["s1"], 7);
    assert_eq!(story.rules(), [Rule::ReleasedTooEarly]);
}

#[test]
fn what_lost_a_part_before_it_ran_gives_the_others_back() {
    let mut story = Story::asking_for_three();
    story.job("a", JobState::Waiting);
    story
        .grant_at(PREFIX, &["s0"], 7)
        .grant_at(OTHER, &["s1", "s2"], 7);
    story.lock_with(Writer::Fault, 3, &[], &[]);
    let mut soon = story.clone();
    soon.after(10.0).grant_at(OTHER, &[], 0).ends();
    assert_eq!(soon.rules(), []);
    story.after(60.0).grant_at(OTHER, &[], 0).ends();
    assert_eq!(story.rules(), [Rule::PartKept]);
}

#[test]
fn a_free_slot_may_be_kept_for_a_larger_request_but_not_for_long() {
    for (larger, seconds, expected) in [
        (false, 29.0, vec![]),
        (false, 31.0, vec![Rule::JobStuck]),
        (true, 31.0, vec![]),
        (true, 121.0, vec![Rule::JobStuck]),
    ] {
        let mut story = Story::asking_for_three();
        if larger {
            story.job("large", JobState::Waiting);
        }
        story.asks.clear();
        story.job("a", JobState::Waiting).after(seconds);
        story.grant_at(PREFIX, &["s0", "s1", "s2"], 9);
        assert_eq!(story.rules(), expected, "{larger} {seconds}");
    }
}
