//! One rule, one test: the facts that it needs, and the plan that follows.

use std::time::Duration;

use super::*;
use crate::{
    consul::{Entry, Listing},
    semaphore::{job::Granted, lock::SEMAPHORE_FLAGS, samples},
};

mod lost;

/// The facts of a pass. Every test starts from a semaphore of two free slots that agrees with
/// Consul, and changes what it is about.
struct Facts {
    settings: Settings,
    applied: Vec<u32>,
    defence: Defence,
    fenced: bool,
    entries: Vec<Entry>,
    deaths: Deaths,
    evidence: Evidence,
    ours: Vec<Ours>,
    bound: Vec<Job>,
    line: Vec<Job>,
    sessions: BTreeMap<Uid, SessionId>,
    busy: BTreeSet<Uid>,
    barred: BTreeSet<Uid>,
    immovable: BTreeSet<Uid>,
    operations: usize,
}

/// When the prefix was read, when Jobs were seen in the usual case (before), and the present.
const READ: u64 = 10;
const NOW: u64 = 20;

fn second(since: u64) -> Moment {
    Moment::from_boot(Duration::from_secs(since))
}

impl Facts {
    fn new(limit: u32, holders: &[&str]) -> Self {
        let mut facts = Self {
            settings: samples::settings(limit),
            applied: vec![limit],
            defence: Defence::default(),
            fenced: true,
            entries: Vec::new(),
            deaths: Deaths::default(),
            evidence: Evidence::default(),
            ours: Vec::new(),
            bound: Vec::new(),
            line: Vec::new(),
            sessions: BTreeMap::new(),
            busy: BTreeSet::new(),
            barred: BTreeSet::new(),
            immovable: BTreeSet::new(),
            operations: 64,
        };
        facts.lock(limit, holders);
        facts
    }

    /// Consul's `.lock`.
    fn lock(&mut self, limit: u32, holders: &[&str]) -> &mut Self {
        let holders: BTreeMap<_, _> = holders.iter().map(|holder| (*holder, true)).collect();
        let body = serde_json::json!({ "Limit": limit, "Holders": holders });
        self.raw_lock(&body.to_string())
    }

    fn raw_lock(&mut self, value: &str) -> &mut Self {
        self.entries.retain(|entry| entry.key != samples::LOCK_KEY);
        self.entry(samples::LOCK_KEY, None, value)
    }

    fn entry(&mut self, key: &str, session: Option<&str>, value: &str) -> &mut Self {
        self.entries.push(Entry {
            key: key.into(),
            value: value.into(),
            flags: SEMAPHORE_FLAGS,
            session: session.map(Into::into),
            lock_index: 1,
            create_index: 3,
            modify_index: 5,
        });
        self
    }

    /// Somebody else's live contender.
    fn contender(&mut self, session: &str) -> &mut Self {
        self.entry(&format!("p/{session}"), Some(session), "")
    }

    /// A live contender of ours.
    fn ours(&mut self, session: &str, job: &Job, pods_gone: bool) -> &mut Self {
        self.contender(session);
        let mut ours = samples::ours(session, Some(job.clone()));
        ours.identity.job = job.name.to_string();
        ours.identity.uid = job.uid.clone();
        ours.pods_gone = pods_gone;
        self.ours.push(ours);
        self
    }

    fn bound(&mut self, job: Job) -> &mut Self {
        self.bound.push(job);
        self
    }

    fn line(&mut self, jobs: &[Job]) -> &mut Self {
        self.line.extend_from_slice(jobs);
        self.line.sort_by_key(Job::place);
        self
    }

    fn session(&mut self, uid: &str, session: &str) -> &mut Self {
        self.sessions.insert(uid.into(), session.into());
        self
    }

    fn reading(&self) -> Reading {
        let listing = Listing {
            entries: self.entries.clone(),
            index: 5,
            sent: second(READ),
            reset: false,
        };
        Reading::new(self.settings.prefix.clone(), listing)
    }

    fn decide(&self) -> Plan {
        self.decide_on(Some(&self.reading()))
    }

    fn decide_without_consul(&self) -> Plan {
        self.decide_on(None)
    }

    fn decide_on(&self, reading: Option<&Reading>) -> Plan {
        decide(&Observed {
            now: second(NOW),
            time: jiff::Timestamp::UNIX_EPOCH,
            settings: &self.settings,
            applied: &self.applied,
            defence: self.defence,
            fenced: self.fenced,
            reading,
            deaths: &self.deaths,
            evidence: &self.evidence,
            ours: &self.ours,
            bound: &self.bound,
            line: &self.line,
            sessions: &self.sessions,
            busy: &self.busy,
            barred: &self.barred,
            immovable: &self.immovable,
            closed: false,
            operations: self.operations,
        })
    }
}

/// A Job that was never started.
fn waiting(name: &str) -> Job {
    samples::job(name, Standing::Idle, None, None)
}

/// A Job that runs, started in the slot of this session.
fn running(name: &str, session: &str) -> Job {
    samples::job(name, Standing::Running, Some(session), Some(session))
}

/// A Job that was started in the slot of this session and is suspended, with no pod left.
fn stopped(name: &str, session: &str) -> Job {
    samples::job(name, Standing::Idle, Some(session), Some(session))
}

fn granted(plan: &Plan) -> Vec<&str> {
    let grants = plan.transaction.iter().flat_map(|t| &t.grants);
    grants.map(|grant| grant.job.uid.as_ref()).collect()
}

fn released(plan: &Plan) -> Vec<&str> {
    let releases = plan.transaction.iter().flat_map(|t| &t.releases);
    releases.map(|release| release.session.as_ref()).collect()
}

fn asks_sessions(plan: &Plan) -> Vec<&str> {
    plan.sessions.iter().map(|job| job.uid.as_ref()).collect()
}

/// The `.lock` that the plan writes.
fn written(plan: &Plan) -> serde_json::Value {
    let operations = plan.transaction.iter().flat_map(|t| &t.operations);
    let mut values = operations.filter_map(|operation| match operation {
        Op::Cas { key, value, .. } if key == samples::LOCK_KEY => Some(value),
        _ => None,
    });
    values
        .next()
        .map(|value| serde_json::from_slice(value).unwrap())
        .unwrap_or_default()
}

#[test]
fn as_many_as_fit_are_granted_at_once() {
    let mut facts = Facts::new(2, &[]);
    facts.line(&[waiting("a"), waiting("b"), waiting("c")]);
    facts.session("a", "sa").session("b", "sb");
    let plan = facts.decide();
    assert_eq!(granted(&plan), ["a", "b"]);
    assert_eq!(asks_sessions(&plan), ["c"], "made ahead");
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 2, "Holders": {"sa": true, "sb": true}})
    );
}

#[test]
fn a_hand_over_is_one_transaction() {
    let done = samples::job(
        "a",
        Standing::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &done, false).bound(done);
    facts.line(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 1, "Holders": {"sb": true}})
    );
}

#[test]
fn nobody_is_passed_while_its_session_is_being_made() {
    let mut facts = Facts::new(1, &[]);
    facts.line(&[waiting("a"), waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(granted(&plan), [""; 0]);
    assert_eq!(asks_sessions(&plan), ["a"]);
}

#[test]
fn nobody_is_passed_even_while_there_is_room_for_both() {
    let mut facts = Facts::new(2, &[]);
    facts.line(&[waiting("a"), waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert!(plan.transaction.is_none(), "{plan:?}");
    assert_eq!(asks_sessions(&plan), ["a"]);
    facts.session("a", "sa");
    assert_eq!(granted(&facts.decide()), ["a", "b"], "in one write");
}

#[test]
fn one_that_cannot_be_started_blocks_nobody() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &waiting("a"), false);
    facts.line(&[waiting("a"), waiting("b")]).session("b", "sb");
    facts.barred.insert("a".into());
    // Another replica may be about to start it: it is told first.
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec![], vec![]));
    assert_eq!(plan.starts, []);
    let [told] = &plan.give_backs[..] else {
        panic!("{plan:?}")
    };
    assert_eq!((told.session.as_ref(), told.hold), ("sa", false));

    let told = samples::job("a", Standing::Idle, None, Some("sa"));
    facts.ours.clear();
    facts.ours("sa", &told, true);
    facts.line = vec![told, waiting("b")];
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
}

#[test]
fn one_that_cannot_even_be_told_blocks_nobody_either() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &waiting("a"), false);
    facts.line(&[waiting("a"), waiting("b")]).session("b", "sb");
    facts.barred.insert("a".into());
    facts.immovable.insert("a".into());
    let plan = facts.decide();
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec!["b"]));
    assert_eq!(plan.give_backs, []);
}

#[test]
fn a_slot_is_not_released_while_its_job_is_written_to() {
    // Another PATCH that would start it may still be on its way.
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &waiting("a"), false).line(&[waiting("a")]);
    facts.barred.insert("a".into());
    facts.busy.insert("a".into());
    assert_eq!(released(&facts.decide()), [""; 0]);
}

#[test]
fn a_job_that_the_operator_suspended_waits_first_in_line() {
    // Somebody took its session out of Holders; its contender lives.
    let lost = samples::job("b", Standing::Idle, Some("sb"), None);
    let mut facts = Facts::new(1, &[]);
    facts
        .ours("sb", &lost, false)
        .bound(lost.clone())
        .line(&[waiting("a"), lost])
        .session("a", "sa");
    let plan = facts.decide();
    assert_eq!(plan.give_backs, []);
    assert_eq!(granted(&plan), ["b"]);
}

#[test]
fn a_user_s_suspension_is_a_hold_even_if_the_slot_was_lost() {
    // Its slot was swapped for another session's while its user suspended it.
    let job = stopped("a", "old");
    for holders in [&["new"][..], &[]] {
        let mut facts = Facts::new(1, holders);
        facts.ours("new", &job, true).bound(job.clone());
        let plan = facts.decide();
        assert_eq!(plan.transaction, None, "{holders:?}");
        assert!(plan.give_backs[0].hold, "{holders:?}");
    }
}

#[test]
fn a_contender_without_a_slot_goes_only_if_it_still_has_none() {
    let mut gone = waiting("a");
    gone.hold = true;
    let mut facts = Facts::new(1, &[]);
    facts.ours("sa", &gone, false);
    let transaction = facts.decide().transaction.unwrap();
    let delete = Op::DeleteCas {
        key: "p/sa".into(),
        index: 5,
    };
    assert_eq!(transaction.operations, [delete]);
}

#[test]
fn a_job_that_runs_in_another_semaphores_slot_is_not_renamed() {
    // Each of the two would name its own session, and wake the other, for ever.
    let mut elsewhere = running("a", "other");
    elsewhere.granted = Some(Granted {
        lock_key: "elsewhere/.lock".into(),
        session: "other".into(),
    });
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &elsewhere, false).bound(elsewhere);
    assert_eq!(facts.decide().renames, []);
}

#[test]
fn a_session_with_a_contender_is_never_surplus() {
    // The answer to its grant was lost, so it still counts as made ahead.
    let job = running("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &job, false).bound(job).session("a", "sa");
    assert_eq!(facts.decide().surplus, []);
}

#[test]
fn a_user_s_suspension_is_a_hold() {
    let job = stopped("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &job, true).bound(job.clone()).line(&[job]);
    let plan = facts.decide();
    assert_eq!(plan.transaction, None, "the PATCH comes before the release");
    assert!(plan.give_backs[0].hold);
}

#[test]
fn a_cut_short_start_is_completed() {
    let mut facts = Facts::new(1, &["sa"]);
    facts.ours("sa", &waiting("a"), false).line(&[waiting("a")]);
    let plan = facts.decide();
    assert_eq!(plan.starts[0].slot.session(), &"sa".into());
    assert_eq!(plan.starts[0].slot.fencing_token(), 5);
}

#[test]
fn a_limit_is_recorded_before_it_is_written() {
    let mut facts = Facts::new(3, &[]);
    facts.settings.limit = 5;
    facts.line(&[waiting("a")]).session("a", "sa");
    let plan = facts.decide();
    assert_eq!(plan.record, Some(vec![3, 5]));
    assert_eq!(plan.transaction, None);

    facts.applied = vec![3, 5];
    let plan = facts.decide();
    assert_eq!(plan.record, None);
    assert_eq!(
        written(&plan),
        serde_json::json!({"Limit": 5, "Holders": {"sa": true}})
    );

    facts.lock(5, &[]);
    assert_eq!(facts.decide().applied, [5]);
}

#[test]
fn a_limit_is_forgotten_only_when_no_write_of_it_can_come_any_more() {
    // It was to be 3, the answer to that write was lost, and the spec says 5 again.
    let mut facts = Facts::new(5, &[]);
    facts.applied = vec![5, 3];
    facts.fenced = false;
    let plan = facts.decide();
    assert_eq!(plan.agreement, Some(Agreement::Agreed));
    assert_eq!(plan.applied, [5, 3]);
    let written = plan.transaction.expect("the lock is written");
    assert!(written.writes_lock() && written.limit.is_none());

    facts.fenced = true;
    let plan = facts.decide();
    assert_eq!((plan.applied.clone(), plan.transaction), (vec![5], None));
}

#[test]
fn a_foreign_limit_stops_grants_and_nothing_else() {
    let done = samples::job(
        "a",
        Standing::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(3, &[]);
    facts.lock(7, &["sa"]).ours("sa", &done, false);
    facts.line(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(plan.agreement, Some(Agreement::Conflict { theirs: 7 }));
    assert_eq!((released(&plan), granted(&plan)), (vec!["sa"], vec![]));
    assert_eq!(written(&plan)["Limit"], 7);
}

#[test]
fn what_is_not_understood_is_left_alone() {
    let done = samples::job(
        "a",
        Standing::Finished { at_rest: true },
        Some("sa"),
        Some("sa"),
    );
    let mut facts = Facts::new(1, &[]);
    facts.raw_lock("not json").ours("sa", &done, false);
    facts.line(&[waiting("b")]).session("b", "sb");
    let transaction = facts.decide().transaction.unwrap();
    let delete = Op::DeleteCas {
        key: "p/sa".into(),
        index: 5,
    };
    assert_eq!(transaction.operations, [delete], "only the contender goes");
}

#[test]
fn a_dead_holder_rests_for_the_lock_delay() {
    let mut facts = Facts::new(1, &["dead"]);
    facts.settings.lock_delay = Duration::from_secs(15);
    assert_eq!(facts.decide().wake, Some(second(NOW + 15)));

    let listing = Listing {
        entries: facts.entries.clone(),
        index: 5,
        sent: second(READ),
        reset: false,
    };
    let reading = Reading::new(facts.settings.prefix.clone(), listing);
    facts.deaths.observe(&reading, second(NOW - 15));
    let plan = facts.decide();
    assert_eq!(plan.wake, None);
    let transaction = plan.transaction.unwrap();
    assert_eq!(transaction.prunes, ["dead".into()]);
    let check = Op::CheckNotExists {
        key: "p/dead".into(),
    };
    assert_eq!(transaction.operations[0], check);
}

#[test]
fn a_semaphore_that_is_deleted_removes_its_lock_unless_others_use_it() {
    let mut facts = Facts::new(1, &[]);
    facts.settings.terminating = true;
    let plan = facts.decide();
    let delete = Op::DeleteCas {
        key: samples::LOCK_KEY.into(),
        index: 5,
    };
    assert_eq!(plan.transaction.unwrap().operations, [delete]);
    assert!(!plan.finished);

    facts.contender("foreign");
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert!(plan.finished);

    facts.entries.clear();
    assert!(facts.decide().finished);
}

#[test]
fn a_semaphore_that_is_deleted_lets_running_jobs_finish() {
    let job = running("a", "sa");
    let mut facts = Facts::new(1, &["sa"]);
    facts.settings.terminating = true;
    facts.ours("sa", &job, false).bound(job);
    facts.line(&[waiting("b")]).session("b", "sb");
    let plan = facts.decide();
    assert_eq!(plan.transaction, None);
    assert!(!plan.finished);
    assert_eq!(plan.surplus, ["b".into()]);
}
