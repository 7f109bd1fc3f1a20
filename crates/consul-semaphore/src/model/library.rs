//! Programs that use the library at the model's [Consul](super::served), over real connections: they acquire slots, stop
//! waiting at any moment, release and drop them, while answers are lost and sessions are ended by hand.
//!
//! At every write: never more holders than the limit, no slot is given back while its work goes on, and none is held
//! again that a program knows to be lost. While a program works and is not told otherwise, it has its slot. In the end
//! nothing is left of what was dropped, at whatever moment that was.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*};
use testbed::{Call, Fault, Proxy};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    config,
    served::{PREFIX, Served},
};
use crate::{ReleaseError, Semaphore, Slot};
use consul_client::{Client, Config, SessionId};

/// How long all of a story may take: beside a busy machine, too.
const PATIENCE: Duration = Duration::from_mins(10);

/// How often a program that works checks that it may.
const STEP: Duration = Duration::from_millis(5);

/// Longer than any story.
const COOLDOWN: Duration = Duration::from_hours(1);

/// What a program does next. All times are in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// The program waits for a slot, works in it, and releases it or drops it.
    Use { works: u64, releases: bool },
    /// The program works in a slot and releases it if it gets one at once, or in this time.
    Try(Option<u64>),
    /// The program stops waiting after this time.
    StopsWaiting(u64),
    /// The program does not look for this time, and drops what has come.
    NeverLooks(u64),
    /// The program does not look for this time after it was granted a slot, as Consul shows, and drops the slot.
    IsGrantedUnseen(u64),
}

/// How a call ends.
#[derive(Clone, Copy, Debug)]
enum CallEnd {
    Answered,
    AnswerLost,
    Refused,
    Late,
}

/// Programs that share a semaphore.
#[derive(Clone, Debug)]
struct Story {
    limit: u32,
    programs: Vec<Vec<Deed>>,
    /// What becomes of the calls, again and again in this order.
    fates: Vec<CallEnd>,
    /// After how long a session is ended by hand each time, and which one.
    taken: Vec<(u64, usize)>,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => (0..60_u64, any::<bool>()).prop_map(|(works, releases)| Deed::Use { works, releases }),
        1 => prop::option::of(0..80_u64).prop_map(Deed::Try),
        2 => (0..60_u64).prop_map(Deed::StopsWaiting),
        1 => (0..60_u64).prop_map(Deed::NeverLooks),
    ]
}

fn story() -> impl Strategy<Value = Story> {
    let fate = prop_oneof![
        16 => Just(CallEnd::Answered),
        1 => Just(CallEnd::AnswerLost),
        1 => Just(CallEnd::Refused),
        1 => Just(CallEnd::Late),
    ];
    let fates = prop_oneof![
        1 => Just(vec![CallEnd::Answered]),
        2 => vec(fate, 20..60),
    ];
    let taken = prop_oneof![1 => Just(Vec::new()), 1 => vec((5..100_u64, 0..8_usize), 1..5)];
    (1..4_u32, vec(vec(deed(), 1..5), 1..6), fates, taken).prop_map(
        |(limit, programs, fates, taken)| Story {
            limit,
            programs,
            fates,
            taken,
        },
    )
}

/// A program that is granted a slot again and again, and never looks at it.
fn never_looks() -> impl Strategy<Value = Story> {
    let deed = (0..20_u64).prop_map(Deed::IsGrantedUnseen);
    vec(deed, 1..4).prop_map(|deeds| Story {
        limit: 1,
        programs: vec![deeds],
        fates: vec![CallEnd::Answered],
        taken: Vec::new(),
    })
}

impl Story {
    /// Tells all of it, and checks every rule.
    async fn tell(self, cooldown: Duration) {
        let served = Served::new(usize::try_from(self.limit).unwrap());
        let proxy = served.start().await;
        let answered = self
            .fates
            .iter()
            .all(|fate| matches!(fate, CallEnd::Answered));
        meets(&proxy, self.fates);
        let mut semaphores = Vec::new();
        let mut programs = JoinSet::new();
        for deeds in self.programs {
            let semaphore = semaphore(&proxy, self.limit, cooldown);
            semaphores.push(semaphore.clone());
            let served = served.clone();
            programs.spawn(async move {
                for deed in deeds {
                    deed.run(&semaphore, &served, answered).await;
                }
            });
        }
        for (after, choice) in self.taken {
            sleep(Duration::from_millis(after)).await;
            served.take(choice);
        }
        while let Some(ended) = programs.join_next().await {
            ended.unwrap();
        }
        proxy.heal();
        for semaphore in semaphores {
            semaphore.all_released().await;
        }
        assert_eq!(served.broken(), Vec::<String>::new());
        let (holders, contenders, sessions) = served.left();
        assert!(holders.is_empty(), "{holders:?} are left in .lock");
        assert!(contenders.is_empty(), "{contenders:?} are left");
        // One whose answer was lost expires.
        assert!(sessions == 0 || !answered, "{sessions} sessions are left");
    }
}

/// The calls that do not wait for a change meet these fates.
fn meets(server: &Proxy, fates: Vec<CallEnd>) {
    let next = AtomicUsize::new(0);
    server.faults(move |call: &Call| {
        if call.is_blocking() {
            return None;
        }
        let next = next.fetch_add(1, Ordering::Relaxed);
        match fates[next % fates.len()] {
            CallEnd::Answered => None,
            CallEnd::AnswerLost => Some(Fault::AnswerLost),
            CallEnd::Refused => Some(Fault::Refused(500, "no")),
            CallEnd::Late => Some(Fault::Late(Duration::from_millis(80))),
        }
    });
}

fn semaphore(server: &Proxy, limit: u32, cooldown: Duration) -> Semaphore {
    let consul = Client::new(Config {
        addresses: vec![server.url().parse().unwrap()],
        ..Config::default()
    });
    let limited = Semaphore::builder(consul.unwrap(), PREFIX).limit(limit);
    let builder = limited.lock_delay(Duration::ZERO).cooldown(cooldown);
    builder.on_notice(|_| {}).build().unwrap()
}

impl Deed {
    async fn run(self, semaphore: &Semaphore, served: &Served, answered: bool) {
        let millis = Duration::from_millis;
        match self {
            Self::Use { works, releases } => {
                let slot = semaphore.acquire().await.unwrap();
                work(slot, millis(works), releases, served, answered).await;
            }
            Self::Try(within) => {
                let asked = match within {
                    Some(within) => semaphore.acquire_within(millis(within)).await,
                    None => semaphore.try_acquire().await,
                };
                if let Ok(slot) = asked {
                    work(slot, STEP, true, served, answered).await;
                }
            }
            Self::StopsWaiting(after) => {
                if let Ok(slot) = timeout(millis(after), semaphore.acquire()).await {
                    work(slot.unwrap(), STEP, false, served, answered).await;
                }
            }
            Self::NeverLooks(time) | Self::IsGrantedUnseen(time) => {
                let mut waits = pin!(semaphore.acquire());
                let asked = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_ready()));
                assert!(!asked.await, "nothing is known yet");
                if matches!(self, Self::IsGrantedUnseen(_)) {
                    while served.left().0.is_empty() {
                        sleep(STEP).await;
                    }
                }
                sleep(millis(time)).await;
            }
        }
    }
}

/// Works in a slot for so long, or until it is lost.
async fn work(slot: Slot, time: Duration, releases: bool, served: &Served, answered: bool) {
    let session = slot.session().clone();
    served.work_begins(&session);
    let works = async {
        let steps = time.as_millis() / STEP.as_millis();
        for _ in 0..=steps {
            if slot.is_lost() {
                return;
            }
            served.check_work(&session);
            sleep(STEP).await;
        }
    };
    tokio::select! {
        () = works => {}
        _lost = slot.lost() => {}
    }
    let lost = slot.is_lost();
    served.work_ends(&session, lost);
    assert!(!lost || slot.is_lost(), "what is lost stays lost");
    if !releases {
        return drop(slot);
    }
    match slot.release().await {
        Ok(()) => {
            let others_had_it = served.is_pruned(&session) && answered;
            assert!(
                !lost && !others_had_it,
                "{session} was lost, and its release does not say so"
            );
        }
        Err(ReleaseError::Lost(_)) => {
            assert!(served.is_taken(&session), "{session} was not lost");
        }
        Err(ReleaseError::StillHeld(why)) => assert!(!answered, "{why}"),
    }
}

/// Tells some stories at the same time.
fn tell(stories: Vec<Story>, cooldown: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let all = async {
        let mut told = JoinSet::new();
        for story in stories {
            told.spawn(story.tell(cooldown));
        }
        while let Some(story) = told.join_next().await {
            story.unwrap();
        }
    };
    let told = runtime.block_on(async { timeout(PATIENCE, all).await });
    assert!(told.is_ok(), "somebody waits for ever");
}

/// Stories take time, and few are tried to make one shorter.
fn few(cases: u32) -> ProptestConfig {
    ProptestConfig {
        max_shrink_iters: 20,
        ..config(cases)
    }
}

proptest! {
    #![proptest_config(few(4))]

    #[test]
    fn programs_keep_the_limit_and_leave_nothing(stories in vec(story(), 10)) {
        tell(stories, Duration::ZERO);
    }
}

proptest! {
    #![proptest_config(few(1))]

    /// A slot whose work never began does not cool down: else nobody would be granted it again.
    #[test]
    fn a_slot_that_nobody_looked_at_is_free_at_once(stories in vec(never_looks(), 10)) {
        tell(stories, COOLDOWN);
    }
}

/// A program far behind others whose contender was written without an answer, and whose session Consul ends only after
/// the program has read the prefix again.
#[test]
fn a_program_far_behind_whose_join_got_no_answer_contends_again() {
    const BEFORE: usize = 25;
    let story = async {
        let served = Served::new(1);
        let proxy = served.start().await;
        let mut waiting = JoinSet::new();
        let mut joins = || {
            let semaphore = semaphore(&proxy, 1, Duration::ZERO);
            waiting.spawn(async move { semaphore.acquire().await.unwrap() });
        };
        (0..BEFORE).for_each(|_| joins());
        while served.left().1.len() < BEFORE {
            sleep(STEP).await;
        }
        let ended = loses_a_join(&proxy);
        joins();
        let contends_again = || {
            let ended = ended.lock();
            let contenders = served.left().1;
            let is_gone = ended
                .as_ref()
                .is_some_and(|ended| !contenders.contains(ended));
            is_gone && contenders.len() == BEFORE + 1
        };
        while !contends_again() {
            sleep(STEP).await;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let told = runtime.block_on(async { timeout(PATIENCE, story).await });
    assert!(told.is_ok(), "it does not contend again");
}

/// The next transaction is carried out and not answered, and the session that is ended next is ended late. Returns that
/// session, once there is one.
fn loses_a_join(server: &Proxy) -> Arc<Mutex<Option<SessionId>>> {
    let (sent, ended) = (AtomicUsize::new(0), Arc::new(Mutex::new(None)));
    let seen = ended.clone();
    server.faults(move |call: &Call| {
        if call.path.ends_with("/txn") && sent.fetch_add(1, Ordering::Relaxed) == 0 {
            return Some(Fault::AnswerLost);
        }
        let (_, session) = call.path.split_once("/session/destroy/")?;
        let mut seen = seen.lock();
        let is_first = seen.is_none();
        seen.get_or_insert_with(|| SessionId::from(session));
        is_first.then_some(Fault::Late(Duration::from_millis(300)))
    });
    ended
}
