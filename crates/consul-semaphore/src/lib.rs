//! Distributed semaphores in [Consul](https://developer.hashicorp.com/consul): a semaphore limits how many programs
//! do something at the same time, on however many machines.
//!
//! ```no_run
//! use consul_semaphore::{Semaphore, consul};
//!
//! # async fn migrate(fencing_token: u64) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN and so on.
//!     let consul = consul::Client::new(consul::Config::from_env()?)?;
//!     let db = Semaphore::builder(consul, "locks/db").limit(3).build()?;
//!
//!     // Waits for a slot, and ends the migration if the slot is lost.
//!     db.run(async |slot| migrate(slot.fencing_token()).await).await?
//! }
//! ```
//!
//! - [`Semaphore::run`] waits for a slot, runs work in it, and releases it.
//! - [`Semaphore::acquire`] waits; [`try_acquire`](Semaphore::try_acquire) and
//!   [`acquire_within`](Semaphore::acquire_within) don't, or not for long. A call that is dropped leaves nothing.
//! - [`Slot`] is held until it is dropped or released. Its session is renewed by a task.
//! - [`Semaphore::usage`] says who holds slots, who waits, and how many are free.
//! - [`Mutex`] and [`Rate`] are semaphores of a kind: a lock, and a limit on starts.
//! - [`Builder`] has slots of several semaphores at once, priorities, cooldowns, windows.
//! - [`NoSlot`] and [`InvalidSemaphore`] say what to do.
//!
//! The crate's folder `examples/` has a pool of workers, a migration, and a client that keeps to a rate.
//!
//! # What a slot guarantees
//!
//! At most `limit` slots are held, among all who use the prefix. No lock can stop work that goes on without one, so
//! this is up to you:
//!
//! - **End the work when [`Slot::lost`] says so**, within [`Builder::grace`]. [`Semaphore::run`] ends work that awaits. If
//!   Consul can't be reached, the slot is lost early enough for the work to end before anybody else can have the slot.
//!   If somebody destroys the session, the slot is lost at once. Programs with this crate, `consul-semaphore exec` and
//!   operators then take the slot after [their own lock-delay](Builder::lock_delay), but Go's client and
//!   `consul lock -n` take it at once. Only the lock-delay of a mutex is Consul's own, which holds for everybody.
//! - **Let the resource check [`Slot::fencing_token`]**, if it can: a machine that sleeps, or a process that is
//!   stopped, does not notice that its slot is lost.
//! - **Don't block the runtime.** The tasks that renew sessions run there. Work that uses the processor for long
//!   belongs in [`tokio::task::spawn_blocking`].
//!
//! If a program is killed, its slot stays taken for one to two times its TTL. A program that ends in order gives its
//! slots back if it waits for [`Slot::release`] or [`Semaphore::all_released`].
//!
//! The crate needs a [tokio](https://docs.rs/tokio) runtime with time and IO enabled, as `#[tokio::main]` has. The
//! handles can be awaited anywhere.
//!
//! # Beside others
//!
//! The format is that of `api.Semaphore` in Consul's Go client and of `consul lock -n`, so all of these can share a
//! prefix, with one limit. A [mutex](Mutex) is the lock of `consul lock -n 1`, and of `api.Lock` at
//! `<prefix>/.lock`. `consul-semaphore exec` and the Kubernetes operator are made of this crate. In contrast to Go's
//! client:
//!
//! - slots are granted by priority and age, and not to the fastest. Programs that know no order are let in: see
//!   `docs/protocol.md`
//! - `Slot::lost` is the `lostCh` of `Acquire`, but a failed request alone does not lose a slot
//! - there is a fencing token, and the holders of a prefix have names
//! - a dead holder is removed by any other that waits, after the lock-delay of that one
//!
//! Sessions belong to an external node, so nothing but their TTL ends them; [`Builder::agent_checks`] changes that. A
//! token needs `key_prefix "<prefix>/"`, `node "<node>"` and `session "<node>"`, each with `policy = "write"`, for the
//! [node](Builder::node) that it must name.
//!
//! # The parts
//!
//! Programs need nothing of what follows, which is what the operator is built of. Except for [`handle`], [`holder`]
//! and [`holding`] these modules are pure: no IO, no clock, no async. Time is an argument, and the result is a
//! [`Plan`] that says what to write to Consul and to workloads.
//!
//! - [`settings`]: what a user asked for
//! - [`lock`]: the body of `.lock`
//! - [`reading`]: a prefix as it was read from Consul
//! - [`identity`]: the owner of a session
//! - [`workload`]: what is known of a workload, and the order of the queue
//! - [`wait`]: what ends a workload's wait, and when that began
//! - [`limit`]: the three-way rule on limits
//! - [`fate`]: what happens to a contender of ours
//! - [`cooling`]: how long the slots of finished workloads stay held
//! - [`rate`]: how long the slots of a rate stay held, which counts starts
//! - [`turns`]: whose turn it is among all who wait at a prefix
//! - [`evidence`]: how long a running workload's slot counts as held
//! - [`last_proof`]: what a process leaves of that for the next one
//! - [`mod@decide`]: a pass, which combines all of these
//! - [`mutex`]: what is remembered of a mutex, whose key does not say who waits for it
//! - [`engine`]: a queue as a whole, without IO: events in, actions out
//! - [`usage`]: who holds slots, who waits and how many are free, for people and programs
//! - [`plan`]: what a pass decides, as types that guarantee the right order
//! - [`holder`]: slots for one program, with the engine and a Consul client
//! - [`handle`]: the holder in a task: what programs use

pub mod asked;
pub mod blocked;
mod compose;
pub mod cooling;
pub mod decide;
pub mod engine;
pub mod evidence;
pub mod fate;
pub mod handle;
pub mod holder;
pub mod holding;
pub mod identity;
pub mod key;
pub mod last_proof;
pub mod limit;
pub mod lock;
pub mod memory;
#[cfg(test)]
mod model;
pub mod mutex;
pub mod plan;
pub mod policy;
pub mod prefix;
pub mod rate;
pub mod reading;
#[cfg(test)]
mod samples;
pub mod seconds;
pub mod sequencer;
pub mod settings;
pub mod slot_index;
pub mod turns;
pub mod usage;
mod verbatim;
pub mod wait;
pub mod windows;
pub mod workload;

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use consul_client as consul;

pub use handle::{
    Builder, InvalidSemaphore, Mutex, NoSlot, PendingSlot, Rate, ReleaseError, RunError, Semaphore,
    Slot,
};
pub use holder::{AcquireError, Lost, Notice, StillHeld};
pub use prefix::Prefix;
pub use sequencer::Sequencer;
pub use usage::Usage;
pub use windows::WindowSpec;

// Short names of the modules' items, for the operator's crates.
#[doc(hidden)]
pub use {
    asked::Asked,
    blocked::{Blocked, Interval},
    cooling::Cooldowns,
    decide::{AHEAD, Excluded, MOST_OVERTAKEN, Observed, decide},
    evidence::{Evidence, SessionState},
    fate::OwnContender,
    identity::{Claim, Cluster, ContenderBody, ContenderName, Identity},
    key::{InvalidKey, Key},
    last_proof::{LastProof, LastProofs, Proved},
    limit::{Agreement, Defence},
    lock::Lock,
    memory::Memory,
    mutex::MutexMemory,
    plan::Plan,
    policy::{
        LONGEST_COOLDOWN, LONGEST_PERIOD, LONGEST_WAIT, LimitPolicy, Mode, OnContention,
        OnSlotLost, Period, ReplaceAfter, WaitTimeout,
    },
    prefix::InvalidPrefix,
    rate::Starts,
    reading::{Deaths, Reading},
    seconds::{InvalidSeconds, Seconds},
    settings::{Order, Reserved, Restrictions, Settings, WaitSettings},
    turns::Turns,
    wait::{InvalidWaitBegan, Termination, Wait, WaitBegan},
    workload::{
        CronJob, Granted, GrantedSlot, KindName, MOST_SEMAPHORES, MOST_SLOTS, Phase, Place, SlotId,
        SlotRequest, Traits, Uid, Workload, lock_key_of, lock_key_parts,
    },
};
