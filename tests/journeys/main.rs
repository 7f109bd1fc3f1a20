//! Whole journeys of Jobs, on a real Kubernetes and a real Consul. One file a journey; they share
//! one bed and run side by side, each in a namespace of its own.

mod helpers;

mod access_of_the_operator;
mod deletion;
mod hand_over;
mod late_semaphore;
mod limit_changes;
mod one_prefix;
mod paused;
