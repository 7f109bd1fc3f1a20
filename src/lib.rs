//! Kubernetes Jobs wait for, hold and give back the slots of a Consul semaphore.
pub mod api;
pub mod clock;
pub mod consul;
pub mod controller;
pub mod semaphore;
pub mod telemetry;
