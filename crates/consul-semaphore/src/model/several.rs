//! Several semaphores at once: workloads that ask for slots of two or three of them, for two slots of one, and for
//! both, with single ones beside them.
//!
//! The parts of the world are those of the worlds with one semaphore. Here the engine has several, the operators are
//! one or two, and every call of theirs may be lost, late or repeated:
//!
//! - [`outside`]: Consul, workloads and semaphores, and what must be true at every moment and of every write
//! - [`operator`]: a process with an engine
//! - [`world`]: everything that can happen, and how it comes to rest
//! - [`rest`]: what must be true then
//! - [`script`]: random scripts, and crowds of small workloads around large ones
//! - [`search`]: every order of events in the smallest worlds
//! - [`flaws`]: flawed algorithms, and the rules that they break

mod flaws;
mod operator;
mod outside;
mod rest;
mod script;
mod search;
mod world;

use proptest::prelude::*;

use self::script::{crowd, script};
use super::config;

proptest! {
    #![proptest_config(config(300))]

    /// Whatever happens: no semaphore has more holders than its limit, a request is granted and started whole or not
    /// at all, nobody waits for slots that it could have, everybody is served in the end, and then all slots are free.
    #[test]
    fn all_or_nothing_whatever_happens(script in script()) {
        script.run(None);
    }

    /// However many small workloads keep coming, a large one is served within a bounded number of hand-overs.
    #[test]
    fn no_large_request_starves(crowd in crowd()) {
        crowd.run(None);
    }
}
