//! A crash point with its own namespace, and how work gets to it.

use std::collections::BTreeSet;

use consul_semaphore_operator::crash::Point;
use serde_json::json;
use testbed::{Bed, Job, LimitWatch, Namespace, SEMAPHORE_FLAGS, Semaphore, eventually, same};

/// How work gets to a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Two Jobs use one slot, one after the other.
    Work,
    /// The same, and the slot cools after each of them.
    Cooldown,
    /// The same, in a slot of another semaphore, too.
    Together,
    /// A Job waits for too long behind one that runs.
    Timeout,
    /// A running Job loses its slot, and gets it again.
    Loss,
    /// A running Job loses its slot, and is suspended.
    LossAndSuspension,
    /// A running Job is suspended by its user.
    Stop,
    /// Two Jobs wait behind a dead holder.
    DeadHolder,
    /// The semaphore is deleted when its Jobs are done.
    Deletion,
    /// A running Job asks for a semaphore that does not exist.
    Stray,
}

/// The only place that defines this: a point without a way does not compile.
fn way(point: Point) -> Way {
    match point {
        Point::NodeRegistered
        | Point::SessionMade
        | Point::LimitRecorded
        | Point::LimitWritten
        | Point::StatusWritten
        | Point::Granted
        | Point::StartAllowed
        | Point::Started
        | Point::EventWritten
        | Point::Released
        | Point::SessionDestroyed
        | Point::FinalizerAdded => Way::Work,
        Point::Cooling => Way::Cooldown,
        Point::GrantedTogether => Way::Together,
        Point::WaitEnded => Way::Timeout,
        Point::Regranted | Point::Renamed => Way::Loss,
        Point::Suspended => Way::LossAndSuspension,
        Point::Stopped => Way::Stray,
        Point::GivenBack => Way::Stop,
        Point::Pruned => Way::DeadHolder,
        Point::LockUnused | Point::LockRemoved => Way::Deletion,
    }
}

/// Whether the work at a point is done for no namespace.
fn is_shared(point: Point) -> bool {
    matches!(point, Point::NodeRegistered | Point::SessionDestroyed)
}

/// A scene: a semaphore with one slot, and its Jobs `a` and `b`.
pub(crate) struct Scene {
    pub(crate) point: Point,
    team: Namespace,
    db: Semaphore,
    observer: LimitWatch,
}

/// A slot that another program has taken.
pub(crate) struct Taken {
    session: String,
    /// The pods that existed at that time.
    pods: BTreeSet<String>,
}

impl Taken {
    pub(crate) async fn give_back(&self, bed: &Bed, scene: &Scene) {
        let prefix = scene.db.lock_prefix();
        bed.consul().give_back(&prefix, &self.session).await;
    }
}

impl Scene {
    pub(crate) async fn new(bed: &Bed, point: Point) -> Self {
        let team = bed.namespace(point.name()).await;
        let policy = match way(point) {
            Way::LossAndSuspension => "Suspend",
            _ => "Reacquire",
        };
        let cooldown = match way(point) {
            Way::Cooldown => "2s",
            _ => "0s",
        };
        let db = team.semaphore("db").limit(1).spec(json!({
            "onSlotLost": policy,
            "cooldown": cooldown,
            "session": { "ttl": "20s", "lockDelay": "1s" },
        }));
        let observer = bed.watch_limit(&db.lock_prefix()).await;
        Self {
            point,
            team,
            db,
            observer,
        }
    }

    /// The text that arms its point.
    pub(crate) fn place(&self) -> String {
        let namespace = if is_shared(self.point) {
            ""
        } else {
            self.team.name()
        };
        format!("{}@{namespace}", self.point.name())
    }

    fn way(&self) -> Way {
        way(self.point)
    }

    fn job(&self, name: &str) -> Job {
        self.team.job(name).semaphore("db")
    }

    /// Where its Jobs need a slot, too.
    fn other(&self) -> Option<Semaphore> {
        let other = self.team.semaphore("other").limit(2);
        let other = other.spec(json!({ "session": { "ttl": "20s", "lockDelay": "1s" } }));
        (self.way() == Way::Together).then_some(other)
    }

    /// Creates the initial objects.
    pub(crate) async fn begin(&self, bed: &Bed) {
        match self.way() {
            Way::Work | Way::Cooldown | Way::Deletion => {
                self.db.clone().create().await;
                self.job("a").create().await;
                self.job("b").create().await;
            }
            Way::Together => {
                self.db.clone().create().await;
                if let Some(other) = self.other() {
                    other.create().await;
                }
                for name in ["a", "b"] {
                    self.team.job(name).semaphore("db, other:2").create().await;
                }
            }
            Way::Timeout => {
                self.db.clone().create().await;
                self.job("a").priority(1).runs("1h").create().await;
                self.team.job("a").is_running().await;
                let b = self.job("b");
                b.annotation("consul-semaphore.io/wait-timeout", "1s")
                    .create()
                    .await;
            }
            Way::Loss | Way::LossAndSuspension | Way::Stop => {
                self.db.clone().create().await;
                self.job("a").priority(1).runs("1h").create().await;
                self.job("b").create().await;
            }
            Way::DeadHolder => {
                let key = format!("{}/.lock", self.db.lock_prefix());
                let dead = "00000000-0000-0000-0000-000000000000";
                let body = json!({ "Limit": 1, "Holders": { dead: true } }).to_string();
                bed.consul().put(&key, SEMAPHORE_FLAGS, body).await;
                self.db.clone().create().await;
                self.job("a").create().await;
                self.job("b").create().await;
            }
            Way::Stray => {
                self.job("a").unsuspended().runs("1h").create().await;
            }
        }
    }

    /// Lets the work continue to the point.
    pub(crate) async fn gets_to_its_point(&self, bed: &Bed) {
        let (a, b) = (self.team.job("a"), self.team.job("b"));
        match self.way() {
            Way::Work
            | Way::Cooldown
            | Way::Together
            | Way::Timeout
            | Way::DeadHolder
            | Way::Stray => {}
            Way::Loss | Way::LossAndSuspension => {
                a.is_running().await;
                let session = a.session().await.expect("it runs in a slot");
                bed.consul().destroy_session(&session).await;
            }
            Way::Stop => {
                a.is_running().await;
                a.suspend().await;
            }
            Way::Deletion => {
                a.is_complete().await;
                b.is_complete().await;
                self.db.delete().await;
            }
        }
    }

    /// While the operator sleeps and Consul has ended its session, another program sees a dead holder and takes the
    /// slot. `None` if no slot was held.
    pub(crate) async fn slot_is_taken(&self, bed: &Bed) -> Option<Taken> {
        let (consul, prefix) = (bed.consul(), self.db.lock_prefix());
        if consul.holders(&prefix).await.is_empty() {
            return None;
        }
        let key = format!("{prefix}/.lock");
        let free = json!({ "Limit": 1, "Holders": {} }).to_string();
        consul.put(&key, SEMAPHORE_FLAGS, free).await;
        let session = consul.take_slot(&prefix, 1).await;
        Some(Taken {
            session,
            pods: self.pods().await,
        })
    }

    /// Waits until nothing runs beside the program that has the slot, and checks that nothing was started meanwhile.
    pub(crate) async fn nothing_runs(&self, taken: &Taken) {
        eventually("the operator is awake and has looked", || async {
            let late = self.job("late").try_create().await;
            drop(late);
            let events = self.team.job("late").events().await;
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some("SlotWaiting"))
        })
        .await;
        let what = format!("nothing runs at {}", self.point.name());
        eventually(&what, || async {
            same(self.observer.seen().jobs, BTreeSet::new())
        })
        .await;
        let started: Vec<_> = self.pods().await.difference(&taken.pods).cloned().collect();
        assert_eq!(started, [""; 0], "started without a slot");
    }

    async fn pods(&self) -> BTreeSet<String> {
        let jobs = [self.team.job("a"), self.team.job("b")];
        let mut names = BTreeSet::new();
        for job in jobs {
            names.extend(job.pods().await.iter().map(kube::ResourceExt::name_any));
        }
        names
    }

    /// Every Job completes, the limit was kept all the time, and nothing is left.
    pub(crate) async fn comes_to_its_end(&self, bed: &Bed) {
        let a = self.team.job("a");
        match self.way() {
            Way::Work | Way::Cooldown | Way::Together | Way::DeadHolder | Way::Deletion => {}
            Way::Loss | Way::LossAndSuspension => a.finish().await,
            Way::Timeout => {
                a.finish().await;
                let b = self.team.job("b");
                b.is_failed().await;
                assert!(b.pods().await.is_empty(), "it failed without a pod");
            }
            Way::Stop => {
                a.is_on_hold().await;
                a.annotate("consul-semaphore.io/hold", None).await;
                a.finish().await;
            }
            Way::Stray => {
                a.is_suspended().await;
                self.db.clone().create().await;
                a.finish().await;
            }
        }
        let failed = (self.way() == Way::Timeout).then_some("b");
        for name in self.team.jobs().await {
            if failed != Some(&*name) {
                self.team.job(&name).is_complete().await;
            }
        }
        if self.way() != Way::Deletion {
            self.db.delete().await;
        }
        self.db.is_gone().await;
        if let Some(other) = self.other() {
            other.delete().await;
            other.is_gone().await;
        }
        self.nothing_is_left(bed).await;

        let seen = self.observer.seen();
        let name = self.point.name();
        assert!(seen.peak_holders <= 1, "{name}: {seen:?}");
        assert!(seen.peak_jobs <= 1, "{name}: {seen:?}");
        assert_eq!(self.observer.errors(), Vec::<String>::new());
    }

    /// Waits until nothing of it is left in Consul: no lock, no contender, no session.
    async fn nothing_is_left(&self, bed: &Bed) {
        let what = format!("nothing of {} is left in Consul", self.point.name());
        eventually(&what, || async {
            let entries = bed
                .consul()
                .list(&format!("{}/", self.db.lock_prefix()))
                .await;
            let keys: Vec<_> = entries.into_iter().map(|entry| entry.key).collect();
            let sessions = crate::sessions(bed, self.team.name()).await;
            same((keys, sessions), (Vec::new(), Vec::new()))
        })
        .await;
    }
}
