//! Builds semaphores from the choices of a program.

mod kinds;

use std::{marker::PhantomData, num::NonZeroU32, path::Path, sync::Arc, time::Duration};

use tokio::{runtime::Handle, sync::watch};

pub use self::kinds::{Held, Ordered};
use super::{Semaphore, SharedData};
use crate::{
    InvalidPrefix, LONGEST_COOLDOWN, LONGEST_PERIOD, Mode, OnSlotLost, Prefix, Reserved,
    Restrictions,
    evidence::LATE,
    holder::{
        HolderKind, HolderSettings, InvalidRequest, Notice, Request, SessionSettings, SlotsOf,
    },
    identity::name_of,
    windows::{NeverOpens, WindowSpec, Windows},
};
use consul_client::{Client, clock};

/// The greatest limit, because Consul's values and transactions have no room for many more holders.
const GREATEST_LIMIT: u32 = 5000;

/// The most windows of a semaphore.
const MOST_WINDOWS: usize = 20;

/// The longest name of a node.
const LONGEST_NODE_NAME: usize = 63;

/// The time that the work may take to end, by default.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// The node that owns the sessions, if no token limits who may end them.
const DEFAULT_NODE: &str = "consul-semaphore";

/// Builds a [`Semaphore`], or with another `K` a [`Mutex`](super::Mutex) or a [`Rate`](super::Rate), which have only the
/// choices that make sense for them.
///
/// The methods about a semaphore ([`limit`](Self::limit), [`mutex`](Self::mutex), [`rate`](Self::rate),
/// [`slots`](Self::slots), [`window`](Self::window), [`reserve`](Self::reserve)) apply to the semaphore that was named
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
pub struct Builder<K = Semaphore> {
    consul: Client,
    /// The semaphores, at least one.
    semaphores: Vec<SemaphoreChoices>,
    names: HolderNames,
    priority: i32,
    fair: bool,
    must_exist: bool,
    times: Times,
    on_notice: Arc<dyn Fn(Notice) + Send + Sync>,
    kind: PhantomData<fn() -> K>,
}

/// The choices for one of the semaphores.
#[derive(Clone)]
struct SemaphoreChoices {
    prefix: String,
    mode: Mode,
    limit: Option<u32>,
    period: Option<Duration>,
    slots: u32,
    windows: Vec<WindowSpec>,
    reserved: Option<Reserved>,
}

/// The names of the holder in Consul.
#[derive(Clone, Default)]
struct HolderNames {
    host: Option<String>,
    program: Option<String>,
    node: SessionNode,
}

/// The owner of the sessions in Consul.
#[derive(Clone, Default)]
enum SessionNode {
    /// The node that is meant for this, if that harms nobody.
    #[default]
    Usual,
    /// An external node. Nothing but the TTL ends its sessions.
    External(String),
    /// The node of the agent on this machine.
    Agent,
}

/// The times of a session and of the work.
#[derive(Clone)]
struct Times {
    ttl: Duration,
    lock_delay: Duration,
    cooldown: Duration,
    grace: Option<Duration>,
}

/// The error of choices with which no semaphore can be built. The text says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSemaphore {
    /// The prefix is not valid.
    #[error(transparent)]
    Prefix(#[from] InvalidPrefix),
    /// The slots can never be granted.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// No limit was given, so nothing says how many slots the semaphore has.
    #[error(
        "{0} has no limit: set limit to the number of slots, which must be the same for all users of the prefix, or use \
         mutex for the lock of `consul lock -n 1`"
    )]
    NoLimit(Prefix),
    /// The limit is greater than what fits into Consul.
    #[error("the limit of {prefix} is {limit}: set at most {GREATEST_LIMIT}")]
    Limit {
        /// The semaphore.
        prefix: Prefix,
        /// The limit that was given.
        limit: u32,
    },
    /// The number of slots is zero.
    #[error("the request is for 0 slots of {0}: set slots to at least 1, or leave slots out")]
    NoSlots(Prefix),
    /// A window never opens, so the semaphore would never grant a slot.
    #[error("a window of {prefix} never opens: {why}")]
    Window {
        /// The semaphore.
        prefix: Prefix,
        /// The reason why the window never opens.
        why: NeverOpens,
    },
    /// The semaphore has too many windows.
    #[error("{0} has more than {MOST_WINDOWS} windows: combine some of them into one schedule")]
    Windows(Prefix),
    /// A time is not possible.
    #[error("{what} is {given:?}: set whole seconds, from {least} to {most}")]
    Time {
        /// The method whose time it is.
        what: &'static str,
        /// The time that was given.
        given: Duration,
        /// The least possible number of seconds.
        least: u64,
        /// The greatest possible number of seconds.
        most: u64,
    },
    /// The grace is so long that the work could still run when others have its slot.
    #[error(
        "grace is {given:?}: the slot stays held for the TTL of {ttl:?} after the last answer of Consul, and the work must \
         end within that time: set a grace of at most {longest:?}, or a longer ttl"
    )]
    Grace {
        /// The grace that was given.
        given: Duration,
        /// The TTL of the session.
        ttl: Duration,
        /// The longest possible grace.
        longest: Duration,
    },
    /// A cooldown was given for a rate, whose slots stay held for its period in any case.
    #[error(
        "cooldown: the slots of a rate stay held for its period anyway, so leave the cooldown or the rate out"
    )]
    CooldownOfRate,
    /// The text is no name of a node.
    #[error(
        "the node {0:?} is not valid: use 1 to {LONGEST_NODE_NAME} letters, digits, '.', '_' or '-', and not only dots"
    )]
    Node(String),
    /// No node was named although there is a token. Anybody who may end sessions of the node may end this program's.
    #[error(
        "node: a token that may write a node's sessions can end all of them: name one node for all programs that may end \
         each other's work, such as \"team-a\", and give the token the rules node \"team-a\" {{ policy = \"write\" }} and \
         session \"team-a\" {{ policy = \"write\" }}"
    )]
    NoNode,
    /// There is no agent whose node could own the sessions.
    #[error(
        "agent_checks: Consul's address is not on this machine, so it may be the address of a server, whose checks say \
         nothing about this machine: leave agent_checks out, or use the address of an agent on this machine"
    )]
    NoAgent,
    /// There is no runtime for the tasks.
    #[error(
        "there is no tokio runtime here: build the semaphore inside a runtime, for example under #[tokio::main]"
    )]
    NoRuntime,
}

impl SemaphoreChoices {
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
        if limit > GREATEST_LIMIT {
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

/// The kind of the semaphore that was named last, and how many of its slots are taken.
impl Builder {
    /// Sets the number of slots, 1 to 5000. It must be the same for all who use the prefix.
    pub fn limit(self, limit: u32) -> Self {
        self.choose(|semaphore| semaphore.limit = Some(limit))
    }

    /// Makes the semaphore a lock with one slot, `<prefix>/.lock`: the lock of `consul lock -n 1`, and of `api.Lock` in
    /// Consul's Go client. A lock alone is a [`Mutex`](super::Mutex).
    pub fn mutex(self) -> Self {
        self.choose(|semaphore| semaphore.mode = Mode::Mutex)
    }

    /// Makes the semaphore count starts: at most `limit` slots are granted in any `period`, whole seconds from 1 to 12
    /// hours. Both must be the same for all who use the prefix. A slot that is dropped stays held until its period is
    /// over; see [`Semaphore::all_released`]. A rate alone is a [`Rate`](super::Rate).
    pub fn rate(self, limit: u32, period: Duration) -> Self {
        self.counting_starts(limit, period)
    }

    /// Sets how many slots of the semaphore are taken together (default: 1).
    pub fn slots(self, slots: u32) -> Self {
        self.choose(|semaphore| semaphore.slots = slots)
    }

    /// Names another semaphore. Slots of all semaphores are granted in one transaction, or none. A call that waits
    /// holds nothing. At most 8 semaphores and 50 slots are possible.
    pub fn and(mut self, prefix: impl Into<String>) -> Self {
        self.semaphores.push(SemaphoreChoices::new(prefix.into()));
        self
    }

    /// Builds the semaphore. This asks Consul nothing, and must be called in a tokio runtime, which runs the tasks of
    /// the slots.
    ///
    /// # Errors
    /// The error says which of the choices is not possible.
    pub fn build(self) -> Result<Semaphore, InvalidSemaphore> {
        self.semaphore()
    }
}

/// Choices for slots that are held while work runs.
impl<K: Held> Builder<K> {
    /// Sets how long a slot stays held after the work, 0 s (default) to 24 h. If the program ends earlier, the slot
    /// stays held for two TTLs at most.
    pub fn cooldown(mut self, cooldown: Duration) -> Self {
        self.times.cooldown = cooldown;
        self
    }

    /// Sets how long a session outlives its last renewal, 10 s to 24 h (default: 60 s). A program that was killed keeps
    /// its slot for so long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.times.ttl = ttl;
        self
    }

    /// Sets how long the work takes at most to end once [`Slot::lost`](super::Slot::lost) has returned: at most half of
    /// the TTL less a second (default: 10 s, or the most that is possible if that is less).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.times.grace = Some(grace);
        self
    }
}

/// Choices about the order.
impl<K: Ordered> Builder<K> {
    /// Sets the priority (default: 0). Higher priorities are served first, also among the Jobs of operators on the same
    /// prefix.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets whether slots are granted by priority and age among all who wait at the prefix (default), or go to the
    /// fastest.
    pub fn fair_order(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Reserves the last free slots, so that this program does not get them unless its priority is at least
    /// `min_priority`. Other programs know nothing of the reservation.
    pub fn reserve(self, slots: u32, min_priority: i32) -> Self {
        let reserved = Reserved {
            slots,
            min_priority,
        };
        self.choose(|semaphore| semaphore.reserved = Some(reserved))
    }
}

/// Choices for every kind.
impl<K> Builder<K> {
    pub(super) fn new(consul: Client, prefix: String) -> Self {
        Self {
            consul,
            semaphores: vec![SemaphoreChoices::new(prefix)],
            names: HolderNames::default(),
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
            kind: PhantomData,
        }
    }

    /// Adds a window. Slots are granted only while a window is open. Other programs know nothing of the windows.
    pub fn window(self, window: WindowSpec) -> Self {
        self.choose(|semaphore| semaphore.windows.push(window))
    }

    /// Makes a request for a slot fail if nobody uses the prefix at that time, instead of making a new semaphore. This
    /// is meant for a prefix that is easily mistyped. Only a `ConsulSemaphore`, or a program of Consul's own kind,
    /// keeps a semaphore that nobody uses: programs with this library remove it with its last slot.
    pub fn must_exist(mut self) -> Self {
        self.must_exist = true;
        self
    }

    /// Sets how long the slot of a dead holder is not granted to this program, 0 s to 60 s (default: 15 s).
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.times.lock_delay = lock_delay;
        self
    }

    /// Sets the name of this host in Consul, for people (default: the host's own name). Characters that are not allowed
    /// in names are replaced.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.names.host = Some(host.into());
        self
    }

    /// Sets the name of this program in Consul, for people (default: the name of its file).
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.names.program = Some(program.into());
        self
    }

    /// Sets the external node in Consul that owns the sessions, which end only by their TTL (default:
    /// `consul-semaphore`). The node is registered if it is not there. With a token the node must be named, because
    /// everybody who may write the sessions of a node can end all of them.
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.names.node = SessionNode::External(node.into());
        self
    }

    /// Makes the sessions belong to the node of the agent on this machine, instead of [`node`](Self::node), so that
    /// they end with the agent's checks, too. Slots of a dead machine are then free some seconds after gossip has
    /// noticed the death, and not after the TTL. But a network that fails for a moment, or an agent that restarts
    /// without its data, ends the sessions of programs that still run: they lose their slots at once.
    pub fn agent_checks(mut self) -> Self {
        self.names.node = SessionNode::Agent;
        self
    }

    /// Sets the function that is called with what happens, such as that others hold the slots, or that Consul can't be
    /// used. The function must not block, because no session is renewed meanwhile. If it panics, the notice is lost,
    /// and nothing else. By default notices are logged with `tracing`.
    pub fn on_notice(mut self, on_notice: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        self.on_notice = Arc::new(on_notice);
        self
    }

    fn counting_starts(self, limit: u32, period: Duration) -> Self {
        self.choose(|semaphore| {
            semaphore.limit = Some(limit);
            semaphore.period = Some(period);
        })
    }

    fn choose(mut self, change: impl FnOnce(&mut SemaphoreChoices)) -> Self {
        if let Some(semaphore) = self.semaphores.last_mut() {
            change(semaphore);
        }
        self
    }

    /// Builds the semaphore that every kind is made of.
    fn semaphore(self) -> Result<Semaphore, InvalidSemaphore> {
        let semaphores = self.semaphores.into_iter().map(SemaphoreChoices::checked);
        let request = Request::new(semaphores.collect::<Result<_, _>>()?)?;
        request.check_reach(self.priority)?;
        let rates = request.semaphores().iter();
        let only_rates = rates.clone().all(|of| of.period.is_some());
        let (grace, times) = (self.times.grace()?, self.times);
        if only_rates && !times.cooldown.is_zero() {
            return Err(InvalidSemaphore::CooldownOfRate);
        }
        let node = self.names.node(&self.consul)?;
        let runtime = Handle::try_current().map_err(|_none| InvalidSemaphore::NoRuntime)?;
        let settings = HolderSettings {
            request,
            priority: self.priority,
            fair: self.fair,
            wait: true,
            must_exist: self.must_exist,
            kind: HolderKind::Program,
            host: self.names.host(),
            program: self.names.program(),
            session: SessionSettings {
                node,
                ttl: times.ttl,
                lock_delay: times.lock_delay,
            },
            cooldown: times.cooldown,
            on_slot_lost: OnSlotLost::Suspend,
            grace,
        };
        Ok(Semaphore(Arc::new(SharedData {
            settings,
            consul: self.consul,
            on_notice: self.on_notice,
            runtime,
            tasks: watch::Sender::new(0),
        })))
    }
}

impl HolderNames {
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
            SessionNode::External(node) => {
                let is_name = node.len() <= LONGEST_NODE_NAME
                    && name_of(node) == *node
                    && node.bytes().any(|byte| byte != b'.');
                let node = node.clone();
                if is_name {
                    Ok(Some(node))
                } else {
                    Err(InvalidSemaphore::Node(node))
                }
            }
            SessionNode::Agent if consul.is_local() => Ok(None),
            SessionNode::Agent => Err(InvalidSemaphore::NoAgent),
            SessionNode::Usual if consul.has_token() => Err(InvalidSemaphore::NoNode),
            SessionNode::Usual => Ok(Some(DEFAULT_NODE.to_owned())),
        }
    }
}

impl Times {
    /// Returns how long the work may take to end, after a check of all times.
    fn grace(&self) -> Result<Duration, InvalidSemaphore> {
        let ttl = self.ttl;
        check_time("ttl", ttl, 10, 86_400)?;
        check_time("lock_delay", self.lock_delay, 0, 60)?;
        check_time("cooldown", self.cooldown, 0, LONGEST_COOLDOWN)?;
        // The work is asked to end a second early, and must have ended by the end of the TTL.
        let longest = (ttl / 2).saturating_sub(LATE);
        match self.grace {
            Some(given) if given > longest => Err(InvalidSemaphore::Grace {
                given,
                ttl,
                longest,
            }),
            given => Ok(given.unwrap_or(DEFAULT_GRACE.min(longest))),
        }
    }
}

/// Checks that a time is in whole seconds, because Consul stores it so, and in its range.
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

/// Logs a notice, if the program does not set another function.
fn log(notice: Notice) {
    match notice {
        Notice::Trouble { error, holding } => {
            tracing::warn!(%error, holding, "Consul can't be used: trying again");
        }
        Notice::StillHeld(error) => tracing::warn!(%error, "a slot is not released"),
        notice => tracing::debug!(?notice, "about a slot"),
    }
}
