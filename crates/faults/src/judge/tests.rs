//! Planted violations of a millisecond, and cases that are not violations. Times are given in seconds; each record
//! increments etcd's revision.

use std::collections::BTreeSet;

use super::*;
use crate::{
    kinds::KINDS,
    record::{Body, Job, JobState, Part, Semaphore, Start, WorkloadKind, Writer},
};

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
        story.push(What::Bed {
            seed: 1,
            faults: 1,
            workloads: false,
        });
        story.push(What::Semaphore(Semaphore {
            prefix: PREFIX.to_owned(),
            limit,
            ttl,
            lock_delay: 1.0,
            goes_on,
            period: None,
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
        self.job_with(uid, state, None)
    }

    fn job_with(&mut self, uid: &str, state: JobState, start: Option<Start>) -> &mut Self {
        self.revision += 1;
        let rv = self.revision;
        self.push(What::Job(Job {
            kind: WorkloadKind::Job,
            uid: uid.to_owned(),
            name: uid.to_owned(),
            prefix: PREFIX.to_owned(),
            asks: self.asks.clone(),
            rv,
            state,
            session: None,
            start,
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
fn a_restart_in_an_outage_of_consul_gives_no_more_time() {
    let restarted = |seconds| {
        let mut story = running();
        story.outage(Part::Consul, true).takes_all();
        story.outage(Part::Operator, true).after(1.0);
        story.outage(Part::Operator, false).after(seconds);
        story.outage(Part::Operator, true).after(1.0);
        story.outage(Part::Operator, false).after(seconds);
        story.pod("a", false).outage(Part::Consul, false);
        story.rules()
    };
    assert_eq!(restarted(10.0), [], "the time to catch up does not count");
    assert_eq!(restarted(45.0), [Rule::GapTooLong]);
}

#[test]
fn an_operator_that_is_restarted_again_and_again_has_no_more_time() {
    let restarted = |times| {
        let mut story = running();
        story.outage(Part::Consul, true).takes_all();
        for _ in 0..times {
            story.outage(Part::Operator, true).after(1.0);
            story.outage(Part::Operator, false).after(4.0);
        }
        story.pod("a", false).outage(Part::Consul, false);
        story.rules()
    };
    assert_eq!(restarted(3), []);
    assert_eq!(restarted(8), [Rule::GapTooLong]);
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
fn a_slot_is_not_stuck_while_the_machine_is_too_busy_to_answer() {
    let free_after = |busy| {
        let mut story = running();
        story.pod("a", false).job("a", JobState::Finished);
        story.outage(Part::Machine, true).after(busy);
        story.outage(Part::Machine, false).after(30.0).holds(&[]);
        story.rules()
    };
    assert_eq!(free_after(20.0), [], "it catches up for as long");
    assert_eq!(free_after(5.0), [Rule::SlotStuck]);
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
    story.push(What::Bed {
        seed: 1,
        faults: 1,
        workloads: false,
    });
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
            period: None,
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
/// A workload of another kind is judged as a Job is: a `JobSet` also waits while its last pods terminate.
#[test]
fn a_job_set_waits_and_rests_only_when_its_last_pod_has_ended() {
    let mut story = Story::of(2, false);
    story.lock_with(Writer::Operator, 2, &["a"], &[]);
    story.job("a", JobState::Running).pod("a", true);
    story
        .job("a", JobState::Stopping)
        .job("a", JobState::Waiting);
    story.after(40.0).pod("a", false).after(1.0);
    assert_eq!(story.rules(), [], "it can't have the free slot yet");
    let mut lost = running();
    lost.takes_all().job("a", JobState::Waiting);
    lost.after(40.0).pod("a", false).after(1.0);
    assert_eq!(lost.rules(), [], "its pods have their time");
    lost.pod("a", true);
    assert_eq!(lost.rules(), [Rule::WithoutSlot], "and no more");
}

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

impl Story {
    /// A rate: two starts in any ten seconds.
    fn of_a_rate() -> Self {
        let mut story = Self::of(2, false);
        for record in &mut story.records {
            if let What::Semaphore(semaphore) = &mut record.what {
                semaphore.period = Some(10.0);
            }
        }
        story
    }

    fn starts(&mut self, uid: &str) -> &mut Self {
        self.starts_as(uid, uid, 0.5)
    }

    /// The operator made the Job run, with this session in its template; the watch shows it `ago` seconds later.
    fn starts_as(&mut self, uid: &str, session: &str, ago: f64) -> &mut Self {
        let session = session.to_owned();
        self.job_with(uid, JobState::Running, Some(Start { session, ago }))
    }

    fn fault(&mut self, kind: &str, prefix: Option<&str>, phase: Phase) -> &mut Self {
        self.push(What::Fault {
            id: 1,
            kind: kind.to_owned(),
            prefix: prefix.map(str::to_owned),
            phase,
            note: String::new(),
        })
    }
}

#[test]
fn as_many_starts_in_a_period_as_the_limit_says_are_right() {
    let mut story = Story::of_a_rate();
    for round in 0..4 {
        // Their pods and slots are of no interest.
        story.starts(&format!("a{round}")).pod("a", true);
        story.starts(&format!("b{round}")).after(10.0);
    }
    assert_eq!(story.rules(), []);
    assert_eq!(judge(&story.records, f64::MAX).starts, (8, 8));
}

#[test]
fn a_start_too_many_in_a_period_is_seen() {
    let third_after = |seconds| {
        let mut story = Story::of_a_rate();
        story.starts("a").after(1.0).starts("b");
        story.after(seconds - 1.0).starts("c");
        story.rules()
    };
    assert_eq!(third_after(5.0), [Rule::OverRate]);
    assert_eq!(third_after(8.0), [Rule::OverRate]);
    // The API server cuts off the fraction of a second.
    assert_eq!(third_after(9.0), []);
    assert_eq!(third_after(10.0), []);
}

#[test]
fn the_time_of_a_start_is_that_of_the_api_server() {
    let mut story = Story::of_a_rate();
    story.starts("a").starts("b").after(30.0);
    // The watch is late, and a new listing shows an old version once more.
    story.starts_as("c", "c", 20.0).starts_as("d", "d", 20.0);
    assert_eq!(story.rules(), []);
    let again = story.records[2].clone();
    story.records.push(again);
    story.starts_as("e", "e", 12.0);
    assert_eq!(story.rules(), [Rule::OverRate]);
}

#[test]
fn a_start_after_a_suspension_is_a_start_and_a_change_of_a_running_job_is_none() {
    let mut story = Story::of_a_rate();
    story.starts("a").starts("b").starts("b").pod("b", true);
    story.job("a", JobState::Stopping).pod("b", false);
    assert_eq!(story.rules(), []);
    story.job("a", JobState::Waiting);
    assert_eq!(
        story.clone().starts_as("a", "s", 0.5).rules(),
        [Rule::OverRate]
    );
    assert_eq!(story.starts("a").rules(), [Rule::OverRate]);
}

#[test]
fn a_start_counts_once_for_each_slot_that_is_asked_for() {
    let mut story = Story::of_a_rate();
    story.asks = [(PREFIX.to_owned(), 2), (OTHER.to_owned(), 1)].into();
    story.starts("a").after(2.0);
    assert_eq!(story.rules(), []);
    story.asks.clear();
    story.starts("b");
    assert_eq!(story.rules(), [Rule::OverRate]);
}

#[test]
fn what_a_rate_promises_nothing_for_excuses_what_comes_next() {
    let third = |kind, prefix, seconds| {
        let mut story = Story::of_a_rate();
        story.fault(kind, prefix, Phase::Begins);
        story.after(1.0).fault(kind, prefix, Phase::Ends);
        story.after(seconds).starts("a").starts("b").starts("c");
        story.rules()
    };
    assert_eq!(third("session destroyed", Some(PREFIX), 1.0), []);
    assert_eq!(third("Consul's data lost", None, 1.0), []);
    assert_eq!(third("operator's wall clock jumps", None, 1.0), []);
    assert_eq!(
        third("session destroyed", Some(PREFIX), 60.0),
        [Rule::OverRate]
    );
    assert_eq!(
        third("session destroyed", Some(OTHER), 1.0),
        [Rule::OverRate]
    );
    assert_eq!(third("operator killed", None, 1.0), [Rule::OverRate]);
    for kind in rates::EXCEPTED {
        assert!(KINDS.iter().any(|known| known.name == kind), "{kind}");
    }
}

#[test]
fn a_greater_limit_holds_for_what_was_granted_under_it() {
    let third = |seconds| {
        let mut story = Story::of_a_rate();
        story.lock_with(Writer::Operator, 3, &[], &[]).after(1.0);
        story
            .lock_with(Writer::Operator, 2, &[], &[])
            .after(seconds);
        story.starts("a").starts("b").starts("c");
        story.rules()
    };
    assert_eq!(third(1.0), []);
    assert_eq!(third(60.0), [Rule::OverRate]);
}

#[test]
fn a_slot_of_a_rate_must_be_free_some_time_after_its_stamp() {
    let held = |seconds| {
        let mut story = Story::of_a_rate();
        story.holds(&["a"]).starts("a").after(2.0);
        story.pod("a", false).job("a", JobState::Finished);
        story.after(seconds).holds(&[]);
        story
    };
    assert_eq!(held(50.0).rules(), [], "its Job was done long before");
    assert_eq!(held(60.0).rules(), [Rule::SlotStuck]);
    let mut story = Story::of_a_rate();
    story.holds(&["a"]).starts("a").after(50.0);
    story.outage(Part::Operator, true).after(5.0);
    story.outage(Part::Operator, false).after(40.0).holds(&[]);
    assert_eq!(story.rules(), [], "it was restarted");
}

#[test]
fn a_session_of_a_rate_is_replaced_when_its_job_is_done() {
    let mut story = Story::of_a_rate();
    story.asks = [(PREFIX.to_owned(), 1), (OTHER.to_owned(), 1)].into();
    story.job("a", JobState::Waiting);
    story
        .grant_at(PREFIX, &["s0"], 7)
        .grant_at(OTHER, &["s1"], 7);
    story.starts("a").after(2.0).job("a", JobState::Finished);
    story.grant_at(OTHER, &[], 8).after(30.0);
    story.grant_at(PREFIX, &["s2"], 9).after(1.0);
    story.grant_at(PREFIX, &[], 10).ends();
    assert_eq!(story.rules(), []);
    story.grant_at(PREFIX, &["s3"], 11).ends();
    assert!(story.rules().contains(&Rule::GrantedInPart));
}

/// The Job gave its slots back before it was started, and the rate counted that start until the next one.
#[test]
fn a_job_may_be_granted_a_slot_of_a_rate_as_its_earlier_one_becomes_free() {
    let granted_again = |elsewhere: u64| {
        let mut story = Story::of_a_rate();
        story.asks = [(PREFIX.to_owned(), 1), (OTHER.to_owned(), 1)].into();
        story.job("a", JobState::Waiting);
        story
            .grant_at(OTHER, &["s1"], 7)
            .grant_at(PREFIX, &["s0"], 7);
        story.after(1.0).grant_at(OTHER, &[], 8).after(9.0);
        story
            .grant_at(OTHER, &["s2"], 9)
            .grant_at(PREFIX, &["s3"], elsewhere);
        story.starts("a").after(2.0).job("a", JobState::Finished);
        story.grant_at(OTHER, &[], 11).after(20.0);
        story.grant_at(PREFIX, &[], 12).ends();
        story.rules()
    };
    assert_eq!(granted_again(9), []);
    assert!(granted_again(10).contains(&Rule::GrantedInPart));
}

#[test]
fn the_operator_of_a_copy_writes_no_more_than_that_it_is_one() {
    let rules = |writer, path: &str| {
        let mut story = Story::of(1, false);
        story.push(What::Write {
            writer,
            method: "PUT".to_owned(),
            path: path.to_owned(),
            status: Some(403),
            lost: false,
            ms: 1,
        });
        story.rules()
    };
    for said in [
        "/apis/consul-semaphore.io/v1alpha1/namespaces/faults/consulsemaphores/one/status?force=true",
        "/apis/coordination.k8s.io/v1/namespaces/ops/leases/operator",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        "/apis/events.k8s.io/v1/namespaces/faults/events",
    ] {
        assert_eq!(rules(Writer::Copy, said), [], "{said}");
    }
    for done in [
        "/v1/txn",
        "/v1/session/renew/leases",
        "/v1/kv/semaphores/faults/events/.lock?cas=1",
        "/apis/batch/v1/namespaces/faults/jobs/one-1",
        "/apis/consul-semaphore.io/v1alpha1/namespaces/faults/consulsemaphores/one",
    ] {
        assert_eq!(rules(Writer::Copy, done), [Rule::CopyActs], "{done}");
        assert_eq!(rules(Writer::Operator, done), [], "{done}");
    }
}
