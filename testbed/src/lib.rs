//! Real servers for tests, demo and benchmarks.
