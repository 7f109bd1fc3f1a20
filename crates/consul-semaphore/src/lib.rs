//! The semaphore algorithm: from what was observed to what must be done.
//!
//! Except for [`holder`] and [`holding`] it is pure: no IO, no clock, no async. Time is an argument, and the result
//! is a [`Plan`] that says what to write to Consul and to workloads. It is wire-compatible with the guide
//! "Distributed semaphore" in Consul's documentation and with Consul's Go client.
//!
//! - [`settings`]: what a user asked for
//! - [`lock`]: the body of `.lock`
//! - [`reading`]: a prefix as it was read from Consul
//! - [`identity`]: the owner of a session
//! - [`workload`]: what is known of a workload, and the order of the queue
//! - [`limit`]: the three-way rule on limits
//! - [`fate`]: what happens to a contender of ours
//! - [`cooling`]: how long the slots of finished workloads stay held
//! - [`rate`]: how long the slots of a rate stay held, which counts starts
//! - [`turns`]: whose turn it is among all who wait at a prefix
//! - [`evidence`]: how long a running workload's slot counts as held
//! - [`mod@decide`]: a pass, which combines all of these
//! - [`mutex`]: what is remembered of a mutex, whose key does not say who waits for it
//! - [`engine`]: a queue as a whole, without IO: events in, actions out
//! - [`holder`]: slots for one program, with the engine and a Consul client
//! - [`plan`]: what a pass decides, as types that guarantee the right order

mod asked;
pub mod blocked;
mod compose;
pub mod cooling;
pub mod decide;
pub mod engine;
pub mod evidence;
pub mod fate;
pub mod holder;
pub mod holding;
pub mod identity;
mod key;
pub mod limit;
pub mod lock;
#[cfg(test)]
mod model;
pub mod mutex;
pub mod plan;
mod policy;
mod prefix;
pub mod rate;
pub mod reading;
#[cfg(test)]
mod samples;
mod seconds;
mod sequencer;
pub mod settings;
pub mod turns;
mod verbatim;
pub mod windows;
pub mod workload;

pub use asked::Asked;
pub use blocked::{Blocked, Interval};
pub use cooling::Cooldowns;
pub use decide::{AHEAD, OVERTAKEN, Observed, decide};
pub use evidence::{Evidence, SessionState};
pub use fate::OwnContender;
pub use identity::{Claim, Cluster, ContenderBody, Identity};
pub use key::{InvalidKey, Key};
pub use limit::{Agreement, Defence};
pub use lock::Lock;
pub use mutex::MutexMemory;
pub use plan::Plan;
pub use policy::{
    LONGEST_COOLDOWN, LONGEST_PERIOD, LONGEST_WAIT, LimitPolicy, Mode, OnContention, OnSlotLost,
    Period, ReplaceAfter, WaitTimeout,
};
pub use prefix::{InvalidPrefix, Prefix};
pub use rate::Starts;
pub use reading::{Deaths, Reading};
pub use seconds::{InvalidSeconds, Seconds};
pub use sequencer::Sequencer;
pub use settings::{Order, Reserved, Restrictions, Settings, WaitSettings};
pub use turns::Turns;
pub use workload::{
    CronJob, Granted, GrantedSlot, KindName, MOST_SEMAPHORES, MOST_SLOTS, Phase, Place, SlotId,
    SlotRequest, Traits, Uid, Wait, Workload, lock_key_of, lock_key_parts,
};
