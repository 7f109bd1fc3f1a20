//! Whole journeys of Jobs, on a real Kubernetes and a real Consul. One file a journey; they share
//! one bed and run side by side, each in a namespace of its own.

mod hand_over;
