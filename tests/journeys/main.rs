//! Whole journeys of Jobs, on a real Kubernetes and a real Consul. One file a journey; they share
//! one bed and run side by side, each in a namespace of its own.

mod annotation;
mod copied;
mod cron;
mod crowd;
mod deleted;
mod hand_over;
mod hold;
mod made_again;
mod managed;
mod priority;
mod proof;
mod several_pods;
mod suspended;
mod ttl_after_finished;
mod unsuspended;
