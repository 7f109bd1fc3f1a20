use std::collections::BTreeSet;

use jiff::Timestamp;

use super::*;
use crate::{
    Phase, SessionState, Workload,
    engine::{Reach, sessions::MOST_SESSIONS_MADE_AT_ONCE},
    plan::{SessionRequest, Target},
    samples,
};
use consul_client::{Behavior, Listing, Session};

/// A store with one running workload, and the time at which the workload's session was last renewed.
struct Store {
    workload: Arc<Workload>,
    life: SessionState,
}

impl Lookup for Store {
    fn bound(&self) -> Vec<Arc<Workload>> {
        vec![self.workload.clone()]
    }

    fn waiting(&self, _reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        Vec::new()
    }

    fn workload(&self, _uid: &Uid) -> Option<Arc<Workload>> {
        Some(self.workload.clone())
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        uids.iter().map(|uid| self.workload(uid)).collect()
    }

    fn touched(&self) -> BTreeSet<Uid> {
        BTreeSet::new()
    }

    fn life(&self, _session: &SessionId) -> Option<SessionState> {
        Some(self.life)
    }
}

fn at(moment: Moment) -> Now {
    Now {
        moment,
        time: Timestamp::UNIX_EPOCH,
        jitter: 0.0,
    }
}

/// Returns a prefix in which `s` holds the only slot, as it was read at `sent`.
fn held(sent: Moment) -> Listing {
    let body = r#"{"Limit":1,"Holders":{"s":true}}"#;
    Listing {
        entries: vec![
            samples::entry("p/.lock", None, body),
            samples::entry("p/s", Some("s"), ""),
        ]
        .into(),
        index: 9,
        sent,
        reset: false,
    }
}

fn make_session(queue: &mut Queue, request: &SessionRequest) {
    let Queue {
        settings,
        sessions,
        calls,
        ..
    } = queue;
    sessions.make(request, settings, calls);
}

/// Returns the requested calls.
fn calls(queue: &mut Queue) -> Vec<(CallId, Call)> {
    std::iter::from_fn(|| queue.next_action())
        .filter_map(|action| match action {
            Action::Call(id, call) => Some((id, call)),
            _ => None,
        })
        .collect()
}

#[test]
fn nobody_is_suspended_while_news_of_its_slot_waits_behind_a_call() {
    let ttl = Duration::from_secs(100);
    let settings = Settings {
        ttl: Some(ttl),
        ..samples::settings(1)
    };
    let workload = Arc::new(samples::workload("a", Phase::Running, Some("s"), Some("s")));
    let start = Moment::from_boot(Duration::from_secs(1000));
    let life = |sent| SessionState::Renewed { sent, ttl };
    let mut store = Store {
        workload: workload.clone(),
        life: life(start),
    };
    let name = settings
        .identity(&Target::from(&workload), 0)
        .session_name();
    let mut queue = Queue::new(settings, vec![1], Defence::default());
    queue.handle(Event::Access(Some(64)), at(start), &store);
    for _ in 0..2 {
        queue.pass(at(start), &store);
        for (id, call) in calls(&mut queue) {
            let answer = match call {
                Call::Read { .. } => Answer::Listing(Ok(held(start))),
                _ => Answer::Resolved(Ok(vec![Session {
                    id: "s".into(),
                    name: name.clone(),
                    node: "k8s-c".into(),
                    ttl: Some(ttl),
                    lock_delay: Duration::ZERO,
                    behavior: Behavior::Delete,
                    create_index: 1,
                }])),
            };
            queue.handle(Event::Answered(id, answer), at(start), &store);
        }
    }
    queue.pass(at(start), &store);
    let deadline = queue.knowledge.deadline.expect("it runs");

    // Just before the deadline the prefix is read again, and that takes long; the watch brings a proof.
    let read = deadline.before(Duration::from_millis(100));
    queue.knowledge.invalidate();
    queue.pass(at(read), &store);
    assert!(matches!(calls(&mut queue)[..], [(_, Call::Read { .. })]));
    store.life = life(read);
    let news = Event::Listed(Ok(held(read).into()));
    queue.handle(news, at(read), &store);
    for late in [0, 300, 500] {
        queue.pass(at(deadline + Duration::from_millis(late)), &store);
        let asked = calls(&mut queue);
        assert!(asked.is_empty(), "after {late} ms: {asked:?}");
    }
    assert!(queue.knowledge.deadline > Some(deadline));
}

fn unlocks(operations: usize) -> Transaction {
    let operation = consul::Op::Delete {
        key: "p/s".to_owned(),
    };
    Transaction {
        operations: vec![operation; operations],
        ..Transaction::default()
    }
}

#[test]
fn a_transaction_with_too_many_bytes_makes_only_its_own_queue_send_fewer_operations() {
    let start = Moment::from_boot(Duration::from_secs(1000));
    let workload = Arc::new(samples::workload("a", Phase::Idle, None, None));
    let store = Store {
        workload,
        life: SessionState::Gone,
    };
    let mut queue = Queue::new(samples::settings(1), vec![1], Defence::default());
    queue.handle(Event::Access(Some(128)), at(start), &store);
    let too_large = |queue: &mut Queue, operations| {
        let refused = Err(consul::Error::TooLarge("too many bytes".into()));
        queue.transacted(&unlocks(operations), start, refused, at(start), &store);
    };
    too_large(&mut queue, 65);
    // Consul accepts more operations from other queues. This event must not undo the caution of this queue.
    queue.handle(Event::Capacity(128), at(start), &store);
    assert_eq!(queue.operations(), Some(64));
    assert!(queue.trouble().is_none(), "it tries again with fewer");
    too_large(&mut queue, 64);
    assert!(queue.trouble().is_some(), "one value is too large");
    queue.handle(Event::Access(Some(128)), at(start), &store);
    assert_eq!(queue.operations(), Some(128));
}

#[test]
fn what_is_too_much_to_keep_is_not_kept() {
    let start = Moment::from_boot(Duration::from_secs(1000));
    let workload = Arc::new(samples::workload("a", Phase::Idle, None, None));
    let store = Store {
        workload,
        life: SessionState::Gone,
    };
    let knows = |error: consul::Error| {
        let mut queue = Queue::new(samples::settings(1), vec![1], Defence::default());
        queue.handle(Event::Access(Some(64)), at(start), &store);
        let listed = Event::Listed(Ok(held(start).into()));
        queue.handle(listed, at(start), &store);
        queue.handle(Event::Listed(Err(error)), at(start), &store);
        assert!(queue.trouble().is_some());
        queue.last_reading().is_some()
    };
    assert!(knows(consul::Error::NoToken), "it is shown meanwhile");
    assert!(!knows(consul::Error::PrefixTooLarge(1)));
    assert!(!knows(consul::Error::AnswerTooLarge(1)));
}

/// Only some sessions are made at once, because each call waits in memory for the calls before it.
#[test]
fn only_some_sessions_are_made_at_once_however_many_slots_are_free() {
    let start = Moment::from_boot(Duration::from_secs(1000));
    let workload = Arc::new(samples::workload("a", Phase::Idle, None, None));
    let store = Store {
        workload: workload.clone(),
        life: SessionState::Gone,
    };
    let mut queue = Queue::new(samples::settings(200), vec![200], Defence::default());
    let ask_for_all = |queue: &mut Queue| {
        for ordinal in 0..200 {
            make_session(
                queue,
                &SessionRequest {
                    workload: Target::from(&workload),
                    ordinal,
                    ahead: false,
                },
            );
        }
        calls(queue)
    };
    let first = ask_for_all(&mut queue);
    assert_eq!(first.len(), MOST_SESSIONS_MADE_AT_ONCE);
    assert!(ask_for_all(&mut queue).is_empty());
    // The answers make room for the next sessions, whether the sessions were made or not.
    let unanswered = consul::Error::Unreachable {
        message: "no answer".into(),
        undecided: true,
    };
    for ((id, _), made) in first.into_iter().zip([Ok("s".into()), Err(unanswered)]) {
        let answer = Answer::SessionMade(made);
        queue.handle(Event::Answered(id, answer), at(start), &store);
    }
    assert_eq!(ask_for_all(&mut queue).len(), 2);
}

/// Such a transaction does not check `.lock`, so it may come late and bring the session back to life when it is a dead
/// holder.
#[test]
fn a_session_that_may_have_joined_without_an_answer_ends() {
    let now = at(Moment::from_boot(Duration::from_secs(1000)));
    let workload = Arc::new(samples::workload("a", Phase::Idle, None, None));
    let store = Store {
        workload: workload.clone(),
        life: SessionState::Endless,
    };
    let ended_after = |result: Result<Vec<Entry>, consul::Error>| {
        let settings = Settings {
            namespace: crate::identity::NONE.to_owned(),
            ..samples::settings(1)
        };
        let mut queue = Queue::new(settings, vec![1], Defence::default());
        queue.handle(Event::Access(Some(64)), now, &store);
        make_session(
            &mut queue,
            &SessionRequest {
                workload: Target::from(&workload),
                ordinal: 0,
                ahead: true,
            },
        );
        for (id, _) in calls(&mut queue) {
            let answer = Answer::SessionMade(Ok("s".into()));
            queue.handle(Event::Answered(id, answer), now, &store);
        }
        assert!(queue.sessions.unused.contains(&"s".into()));
        let transaction = Arc::new(Transaction {
            operations: vec![consul::Op::Lock {
                key: "p/s".to_owned(),
                value: Vec::new(),
                flags: 0,
                session: "s".into(),
            }],
            joins: vec!["s".into()],
            ..Transaction::default()
        });
        let (id, _) = queue.await_transaction(&transaction, now);
        assert!(queue.sessions.unused.is_empty(), "it was sent");
        let sent = now.moment;
        let answer = Answer::Transacted { sent, result };
        queue.handle(Event::Answered(id, answer), now, &store);
        std::iter::from_fn(|| queue.next_action())
            .any(|action| matches!(action, Action::Destroy(session) if session == "s".into()))
    };
    let unreachable = |undecided| consul::Error::Unreachable {
        message: "no answer".into(),
        undecided,
    };
    assert!(ended_after(Err(unreachable(true))));
    assert!(!ended_after(Err(unreachable(false))), "it was not sent");
    assert!(!ended_after(Err(consul::Error::Conflict(Vec::new()))));
    assert!(!ended_after(Ok(Vec::new())));
}
