//! Speed and resource use, compared with a floor or a peer that is measured in the same run: the table of
//! `docs/performance.md`, which also says how each row is measured.
//!
//! `make bench` runs all of it; `make bench ROWS="hand-over burst"` runs some parts. `RUNS` says how often each
//! measurement is made (5): the table has the median, the minimum and the maximum.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark ends when something fails, and takes the time"
)]

mod burst;
mod connections;
mod consul_lock;
mod figures;
mod hand_over;
mod idle;
mod kueue;
mod load;
mod many_holders;
mod memory;
mod naive;
mod pass;
mod process;
mod raft;
mod raw;
mod renewals;
mod scale;
mod start_up;
mod timeline;

use std::pin::Pin;

use self::figures::Row;

/// A part of the table: its name, and what measures it this many times.
type Part = (
    &'static str,
    fn(usize) -> Pin<Box<dyn Future<Output = Vec<Row>>>>,
);

const PARTS: &[Part] = &[
    ("hand-over", |runs| Box::pin(hand_over::rows(runs))),
    ("hand-over-several", |runs| {
        Box::pin(hand_over::rows_of_several(runs))
    }),
    ("scale", |runs| Box::pin(scale::rows(runs))),
    ("keyed", |runs| Box::pin(scale::keyed_rows(runs))),
    ("burst", |runs| Box::pin(burst::rows(runs))),
    ("kueue", |runs| Box::pin(kueue::rows(runs))),
    ("consul-lock", |runs| Box::pin(consul_lock::rows(runs))),
    ("naive", |runs| Box::pin(naive::rows(runs))),
    ("raft", |runs| Box::pin(raft::rows(runs))),
    ("connections", |runs| Box::pin(connections::rows(runs))),
    ("idle", |runs| Box::pin(idle::rows(runs))),
    ("memory", |runs| Box::pin(memory::rows(runs))),
    ("memory-100k", |runs| {
        Box::pin(memory::rows_beside_others(runs))
    }),
    ("renewals", |runs| Box::pin(renewals::rows(runs))),
    ("start-up", |runs| Box::pin(start_up::rows(runs))),
    ("pass", |runs| Box::pin(pass::rows(runs))),
    ("limit-5000", |runs| Box::pin(many_holders::rows(runs))),
];

#[expect(clippy::print_stderr, reason = "it says what it is at")]
fn main() {
    let runs = std::env::var("RUNS").ok();
    let runs = runs.map_or(5, |runs| runs.parse().expect("RUNS is a number"));
    let wanted = std::env::var("ROWS").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split_whitespace().collect();
    if let Some(unknown) = wanted
        .iter()
        .find(|name| PARTS.iter().all(|(part, _)| part != *name))
    {
        let parts: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
        panic!("there is no part {unknown}: there are {}", parts.join(", "));
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    figures::print_head();
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.contains(name) {
            eprintln!("measuring: {name}");
            // At once: a part that fails takes nothing with it.
            figures::print(&runtime.block_on(part(runs)));
        }
    }
}
