//! Whole journeys of Jobs, on a real Kubernetes and a real Consul. One file per journey; they share one bed and run
//! concurrently, each in its own namespace.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]
#![expect(
    clippy::many_single_char_names,
    reason = "the Jobs of a story are a, b and c"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "a user's clock tells what time it is"
)]

mod access_of_the_operator;
mod annotation;
mod bad_annotations;
mod consul_address;
mod consul_away;
mod consul_policy;
mod consul_token;
mod cooldown;
mod copied;
mod cron;
mod crowd;
mod deleted;
mod deletion;
mod elsewhere_in_consul;
mod examples;
mod fair;
mod few_operations;
mod few_watches;
mod finalizer_refused;
mod full_queue;
mod hand_over;
mod hold;
mod hostile;
mod kept;
mod keyed;
mod large_lock;
mod late_semaphore;
mod limit_changes;
mod limit_conflict;
mod lock_conflict;
mod login;
mod lost_slot;
mod made_again;
mod managed;
mod mistaken;
mod mutex;
mod names;
mod no_ttl;
mod not_started;
mod one_prefix;
mod only_its_namespaces;
mod other_clients;
mod paused;
mod priority;
mod program;
mod rates;
mod restart;
mod several;
mod several_lost;
mod several_pods;
mod several_together;
mod skip;
mod slot_names;
mod status;
mod suspended;
mod tenants;
mod traces;
mod ttl_after_finished;
mod two_operators_by_label;
mod two_operators_of_one_semaphore;
mod unsuspended;
mod unwritable;
mod waits;
mod windows;
