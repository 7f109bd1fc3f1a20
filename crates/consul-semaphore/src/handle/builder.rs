//! What a program can choose of its semaphores and slots.

use std::{num::NonZeroU32, path::Path, sync::Arc, time::Duration};

use tokio::{runtime::Handle, sync::watch};

use super::{Semaphore, Shared};
use crate::{
    InvalidPrefix, LONGEST_COOLDOWN, LONGEST_PERIOD, Mode, OnSlotLost, Prefix, Reserved,
    Restrictions,
    evidence::LATE,
    holder::{HolderKind, InvalidRequest, Notice, Request, SessionSettings, Settings, SlotsOf},
    identity::name_of,
    windows::{NeverOpens, WindowSpec, Windows},
};
use consul_client::{Client, clock};

/// The greatest limit: Consul's values and transactions have no room for many more holders.
const MOST_SLOTS_OF_ONE: u32 = 5000;

/// The most windows of a semaphore.
const MOST_WINDOWS: usize = 20;

/// The longest name of a node.
const LONGEST_NODE: usize = 63;

/// How long the work may take to end, by default.
const GRACE: Duration = Duration::from_secs(10);

/// The node that owns the sessions, if no token limits who may end them.
const NODE: &str = "consul-semaphore";

/// Builds a [`Semaphore`].
///
/// What is said of a semaphore ([`limit`](Self::limit), [`mutex`](Self::mutex), [`rate`](Self::rate),
/// [`slots`](Self::slots), [`window`](Self::window), [`reserve`](Self::reserve)) is said of the one that was named
/// last. [`and`](Self::and) names another one, and each slot is then a slot of all of them:
///
/// ```no_run
/// # use consul_semaphore::{InvalidSemaphore, Semaphore, consul::Client};
/// # fn build(consul: Client) -> Result<Semaphore, InvalidSemaphore> {
/// // A slot of the database and two licenses, or nothing.
/// Semaphore::builder(consul, "locks/db")
///     .limit(1)
///     .and("licenses")
///     .limit(5)
///     .slots(2)
///     .build()
/// # }
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until it is built"]
pub struct Builder {
    consul: Client,
    /// At least one.
    parts: Vec<Part>,
    who: Who,
    priority: i32,
    fair: bool,
    must_exist: bool,
    times: Times,
    on_notice: Arc<dyn Fn(Notice) + Send + Sync>,
}

/// What is said of one of the semaphores.
#[derive(Clone)]
struct Part {
    prefix: String,
    mode: Mode,
    limit: Option<u32>,
    period: Option<Duration>,
    slots: u32,
    windows: Vec<WindowSpec>,
    reserved: Option<Reserved>,
}

/// What the holder is called.
#[derive(Clone, Default)]
struct Who {
    host: Option<String>,
    program: Option<String>,
    node: Node,
}

/// Who owns the sessions in Consul.
#[derive(Clone, Default)]
enum Node {
    /// The one that is meant for this, if that harms nobody.
    #[default]
    Usual,
    /// An external node: nothing but the TTL ends its sessions.
    External(String),
    /// That of the agent on this machine.
    Agent,
}

/// How long what takes.
#[derive(Clone)]
struct Times {
    ttl: Duration,
    lock_delay: Duration,
    cooldown: Duration,
    grace: Option<Duration>,
}

/// The semaphore can't be built as was asked. The text says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSemaphore {
    /// The prefix.
    #[error(transparent)]
    Prefix(#[from] InvalidPrefix),
    /// The slots can never be granted.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// Nothing says how many slots it has.
    #[error(
        "{0} has no limit: say with limit how many slots it has, the same for all who use the prefix, or with mutex \
         that it is the lock of `consul lock -n 1`"
    )]
    NoLimit(Prefix),
    /// More slots than fit into Consul.
    #[error("the limit of {prefix} is {limit}: give at most {MOST_SLOTS_OF_ONE}")]
    Limit {
        /// The semaphore.
        prefix: Prefix,
        /// The limit that was given.
        limit: u32,
    },
    /// No slots at all.
    #[error("no slots of {0} are asked for: give at least 1 to slots, or leave it out")]
    NoSlots(Prefix),
    /// It never grants a slot.
    #[error("a window of {prefix} never opens: {why}")]
    Window {
        /// The semaphore.
        prefix: Prefix,
        /// Why.
        why: NeverOpens,
    },
    /// Too many windows.
    #[error("{0} has more than {MOST_WINDOWS} windows: write some of them as one schedule")]
    Windows(Prefix),
    /// A time that is not possible.
    #[error("{what} is {given:?}: give whole seconds, from {least} to {most}")]
    Time {
        /// What it is the time of: the method.
        what: &'static str,
        /// The time that was given.
        given: Duration,
        /// The least possible number of seconds.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The work could still run when others have its slot.
    #[error(
        "grace is {given:?}: the slot outlives the last word of Consul by the TTL of {ttl:?}, and the work must have \
         ended by then: give {longest:?} at the most, or a longer ttl"
    )]
    Grace {
        /// The grace that was given.
        given: Duration,
        /// The TTL of the session.
        ttl: Duration,
        /// The longest possible grace.
        longest: Duration,
    },
    /// A slot of a rate stays held for its period in any case.
    #[error("cooldown: the slots of a rate stay held for its period anyway: leave one of them out")]
    CooldownOfRate,
    /// No name of a node.
    #[error(
        "the node {0:?}: give 1 to {LONGEST_NODE} letters, digits, '.', '_' or '-', not only dots"
    )]
    Node(String),
    /// Anybody who may end sessions of the node may end this program's.
    #[error(
        "node: a token that may write a node's sessions can end them all: name the node of those who may end each \
         other's work, such as \"team-a\", and give the token the rules node \"team-a\" {{ policy = \"write\" }} and \
         session \"team-a\" {{ policy = \"write\" }}"
    )]
    NoNode,
    /// There is no agent whose node could own the sessions.
    #[error(
        "agent_checks: Consul's address is not on this machine, so it may be that of a server, whose checks say nothing \
         of this machine: leave it out, or give the address of an agent here"
    )]
    NoAgent,
    /// There is nothing that could run its tasks.
    #[error("there is no tokio runtime here: build the semaphore in one, as below #[tokio::main]")]
    NoRuntime,
}

impl Part {
    fn new(prefix: String) -> Self {
        Self {
            prefix,
            mode: Mode::Semaphore,
            limit: None,
            period: None,
            slots: 1,
            windows: Vec::new(),
            reserved: None,
        }
    }

    fn checked(self) -> Result<SlotsOf, InvalidSemaphore> {
        let prefix: Prefix = self.prefix.parse()?;
        let limit = match (self.limit, self.mode) {
            (Some(limit), _) => limit,
            (None, Mode::Mutex) => 1,
            (None, Mode::Semaphore) => return Err(InvalidSemaphore::NoLimit(prefix)),
        };
        if limit > MOST_SLOTS_OF_ONE {
            return Err(InvalidSemaphore::Limit { prefix, limit });
        }
        if let Some(period) = self.period {
            check_time("the period of rate", period, 1, LONGEST_PERIOD)?;
        }
        let Some(slots) = NonZeroU32::new(self.slots) else {
            return Err(InvalidSemaphore::NoSlots(prefix));
        };
        if self.windows.len() > MOST_WINDOWS {
            return Err(InvalidSemaphore::Windows(prefix));
        }
        let windows = Windows::new(self.windows, clock::time());
        if let Some((_, why)) = windows.invalid().first() {
            let why = why.clone();
            return Err(InvalidSemaphore::Window { prefix, why });
        }
        let reserved = self.reserved;
        Ok(SlotsOf {
            prefix,
            mode: self.mode,
            period: self.period,
            limit,
            slots,
            restrictions: Restrictions { windows, reserved },
        })
    }
}

/// What is said of the semaphore that was named last.
impl Builder {
    /// How many slots it has, 1 to 5000: the same for all who use the prefix.
    pub fn limit(self, limit: u32) -> Self {
        self.part(|part| part.limit = Some(limit))
    }

    /// It is a lock with one slot, `<prefix>/.lock`: that of `consul lock -n 1`, and of `api.Lock` in Consul's Go client.
    pub fn mutex(self) -> Self {
        self.part(|part| part.mode = Mode::Mutex)
    }

    /// It counts starts: at most `limit` slots are granted in any `period`, whole seconds from 1 to 12 hours, which is
    /// the same for all who use the prefix. A slot that is dropped stays held until then; see
    /// [`Semaphore::all_released`].
    pub fn rate(self, limit: u32, period: Duration) -> Self {
        self.part(|part| {
            part.limit = Some(limit);
            part.period = Some(period);
        })
    }

    /// How many of its slots are taken together (default: 1).
    pub fn slots(self, slots: u32) -> Self {
        self.part(|part| part.slots = slots)
    }

    /// Slots are granted only while a window is open. Other programs know nothing of it. Call it again for several
    /// windows.
    pub fn window(self, window: WindowSpec) -> Self {
        self.part(|part| part.windows.push(window))
    }

    /// The last free slots are not for this program, unless it has this priority or a higher one. Other programs know
    /// nothing of it.
    pub fn reserve(self, slots: u32, min_priority: i32) -> Self {
        let reserved = Reserved {
            slots,
            min_priority,
        };
        self.part(|part| part.reserved = Some(reserved))
    }

    /// Names another semaphore: slots of all of them are granted in one transaction, or none. While it waits, it holds
    /// nothing. At most 8 semaphores and 50 slots.
    pub fn and(mut self, prefix: impl Into<String>) -> Self {
        self.parts.push(Part::new(prefix.into()));
        self
    }

    fn part(mut self, change: impl FnOnce(&mut Part)) -> Self {
        if let Some(part) = self.parts.last_mut() {
            change(part);
        }
        self
    }
}

/// What is said of all of them.
impl Builder {
    pub(super) fn new(consul: Client, prefix: String) -> Self {
        Self {
            consul,
            parts: vec![Part::new(prefix)],
            who: Who::default(),
            priority: 0,
            fair: true,
            must_exist: false,
            times: Times {
                ttl: Duration::from_mins(1),
                lock_delay: Duration::from_secs(15),
                cooldown: Duration::ZERO,
                grace: None,
            },
            on_notice: Arc::new(log),
        }
    }

    /// Higher priorities are served first (default: 0), also among the Jobs of operators on the same prefix.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Whether slots are granted by priority and age among all who wait at the prefix (default), or go to the fastest.
    pub fn fair_order(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Asking for a slot fails if nobody uses the prefix at that time, instead of making a new semaphore: for a prefix
    /// that is easily mistyped. Only a `ConsulSemaphore`, or a program of Consul's own kind, keeps a semaphore that
    /// nobody uses: programs with this library remove it with its last slot.
    pub fn must_exist(mut self) -> Self {
        self.must_exist = true;
        self
    }

    /// How long a slot stays held after the work, 0 s (default) to 24 h; at most for two TTLs if the program ends
    /// earlier.
    pub fn cooldown(mut self, cooldown: Duration) -> Self {
        self.times.cooldown = cooldown;
        self
    }

    /// How long a session outlives its last renewal, 10 s to 24 h (default: 60 s): so long a program that was killed
    /// keeps its slot.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.times.ttl = ttl;
        self
    }

    /// How long the slot of a dead holder is not granted to this program, 0 s to 60 s (default: 15 s).
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.times.lock_delay = lock_delay;
        self
    }

    /// How long the work takes at most to end once [`Slot::lost`](super::Slot::lost) has said so; less than half of the
    /// TTL (default: 10 s, or less).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.times.grace = Some(grace);
        self
    }

    /// What this host is called in Consul, for people (default: its name). Characters that are not allowed in names are
    /// replaced.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.who.host = Some(host.into());
        self
    }

    /// What this program is called there (default: its file's name).
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.who.program = Some(program.into());
        self
    }

    /// The external node in Consul that owns the sessions, which end only by their TTL (default: `consul-semaphore`). It
    /// is registered if it is not there. With a token it must be named: who may write the sessions of a node can end all
    /// of them.
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.who.node = Node::External(node.into());
        self
    }

    /// Instead of [`node`](Self::node): the sessions belong to the node of the agent on this machine, and end with its
    /// checks, too. Slots of a dead machine are then free some seconds after gossip has noticed it, and not after the
    /// TTL. But a network that fails for a moment, or an agent that restarts without its data, ends the sessions of
    /// programs that still run: they lose their slots at once.
    pub fn agent_checks(mut self) -> Self {
        self.who.node = Node::Agent;
        self
    }

    /// Is called with what happens: others hold the slots, Consul can't be used. It must not block: no session is renewed
    /// meanwhile. If it panics, that notice is lost, and nothing else. Default: it is logged with `tracing`.
    pub fn on_notice(mut self, on_notice: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        self.on_notice = Arc::new(on_notice);
        self
    }

    /// Builds it. This asks Consul nothing, and must be called in a tokio runtime, which runs the tasks of its slots.
    ///
    /// # Errors
    /// Something is not possible: the error says what is.
    pub fn build(self) -> Result<Semaphore, InvalidSemaphore> {
        let parts = self.parts.into_iter().map(Part::checked);
        let request = Request::new(parts.collect::<Result<_, _>>()?)?;
        request.check_reach(self.priority)?;
        let rates = request.semaphores().iter();
        let only_rates = rates.clone().all(|of| of.period.is_some());
        let (grace, times) = (self.times.grace()?, self.times);
        if only_rates && !times.cooldown.is_zero() {
            return Err(InvalidSemaphore::CooldownOfRate);
        }
        let node = self.who.node(&self.consul)?;
        let runtime = Handle::try_current().map_err(|_none| InvalidSemaphore::NoRuntime)?;
        let settings = Settings {
            request,
            priority: self.priority,
            fair: self.fair,
            wait: true,
            must_exist: self.must_exist,
            kind: HolderKind::Program,
            host: self.who.host(),
            program: self.who.program(),
            session: SessionSettings {
                node,
                ttl: times.ttl,
                lock_delay: times.lock_delay,
            },
            cooldown: times.cooldown,
            on_slot_lost: OnSlotLost::Suspend,
            grace,
        };
        Ok(Semaphore(Arc::new(Shared {
            settings,
            consul: self.consul,
            on_notice: self.on_notice,
            runtime,
            tasks: watch::Sender::new(0),
        })))
    }
}

impl Who {
    fn host(&self) -> String {
        match &self.host {
            Some(host) => name_of(host),
            None => name_of(&rustix::system::uname().nodename().to_string_lossy()),
        }
    }

    fn program(&self) -> String {
        let given = self.program.clone();
        let file = || std::env::current_exe().ok();
        let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
        given
            .or_else(|| file().as_deref().and_then(name))
            .unwrap_or_default()
    }

    fn node(&self, consul: &Client) -> Result<Option<String>, InvalidSemaphore> {
        match &self.node {
            Node::External(node) => {
                let is_name = node.len() <= LONGEST_NODE
                    && name_of(node) == *node
                    && node.bytes().any(|byte| byte != b'.');
                let node = node.clone();
                if is_name {
                    Ok(Some(node))
                } else {
                    Err(InvalidSemaphore::Node(node))
                }
            }
            Node::Agent if consul.is_local() => Ok(None),
            Node::Agent => Err(InvalidSemaphore::NoAgent),
            Node::Usual if consul.has_token() => Err(InvalidSemaphore::NoNode),
            Node::Usual => Ok(Some(NODE.to_owned())),
        }
    }
}

impl Times {
    /// How long the work takes to end, once the times are possible.
    fn grace(&self) -> Result<Duration, InvalidSemaphore> {
        let ttl = self.ttl;
        check_time("ttl", ttl, 10, 86_400)?;
        check_time("lock_delay", self.lock_delay, 0, 60)?;
        check_time("cooldown", self.cooldown, 0, LONGEST_COOLDOWN)?;
        // It is asked to end a second early, and must have ended by the end of the TTL.
        let longest = (ttl / 2).saturating_sub(LATE);
        match self.grace {
            Some(given) if given > longest => Err(InvalidSemaphore::Grace {
                given,
                ttl,
                longest,
            }),
            given => Ok(given.unwrap_or(GRACE.min(longest))),
        }
    }
}

/// Consul stores these times as whole seconds.
fn check_time(
    what: &'static str,
    given: Duration,
    least: u64,
    most: u64,
) -> Result<(), InvalidSemaphore> {
    let whole = given.subsec_nanos() == 0;
    if whole && (least..=most).contains(&given.as_secs()) {
        Ok(())
    } else {
        Err(InvalidSemaphore::Time {
            what,
            given,
            least,
            most,
        })
    }
}

/// What is reported if the program does not say how.
fn log(notice: Notice) {
    match notice {
        Notice::Trouble { error, holding } => {
            tracing::warn!(%error, holding, "Consul can't be used: trying again");
        }
        notice => tracing::debug!(?notice, "about a slot"),
    }
}
