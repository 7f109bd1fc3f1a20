//! The report at the end of a campaign, and the report of a violation.

use std::fmt::Write as _;

use crate::{
    judge::{Rule, Verdict, Violation},
    plan::Options,
    record::{Record, What},
};

/// How many seconds of the timeline are shown before and after a violation.
const BEFORE: f64 = 12.0;
const AFTER: f64 = 3.0;

/// The longest slice, in records.
const LONGEST: usize = 120;

/// A violation, with the seed and its slice of the timeline.
pub(crate) fn show(violation: &Violation, records: &[Record], options: &Options) -> String {
    let Violation {
        t,
        rule,
        prefix,
        text,
    } = violation;
    let mut shown = format!(
        "VIOLATION {rule:?} at {t:.3} s in {prefix}: {text}\n  SEED={} N={}\n",
        options.seed, options.faults
    );
    let slice: Vec<_> = records
        .iter()
        .filter(|record| {
            (t - BEFORE..t + AFTER).contains(&record.t) && concerns(&record.what, prefix)
        })
        .collect();
    // The end is what matters most.
    for record in &slice[slice.len().saturating_sub(LONGEST)..] {
        let line = serde_json::to_string(record).unwrap_or_default();
        // Writing to a string can't fail.
        let _ = writeln!(shown, "  {line}");
    }
    shown
}

fn concerns(what: &What, prefix: &str) -> bool {
    match what {
        What::Lock { prefix: of, .. }
        | What::Pod { prefix: of, .. }
        | What::Contender { prefix: of, .. }
        | What::Waits { prefix: of, .. }
        | What::Foreign { prefix: of, .. } => of == prefix,
        What::Job(job) => job.prefix == prefix,
        What::Fault { prefix: of, .. } => of.as_ref().is_none_or(|of| of == prefix),
        What::Write { path, .. } => {
            let name = prefix.rsplit('/').next().unwrap_or_default();
            path.contains(name)
        }
        What::Outage { .. } | What::ByHand { .. } | What::Drain | What::Rest { .. } => true,
        What::Bed { .. }
        | What::Semaphore(_)
        | What::Seen { .. }
        | What::Granted { .. }
        | What::Session { .. }
        | What::Made { .. }
        | What::Unwatched => false,
    }
}

/// The tables of a whole campaign, and its first violations.
pub(crate) fn report(verdict: &Verdict, records: &[Record], options: &Options) -> String {
    let mut text = format!(
        "\n| N = {}, seed {} | |\n|---|---|\n",
        options.faults, options.seed
    );
    let injected: usize = verdict.faults.values().map(|(hits, _)| hits).sum();
    let missed: usize = verdict.faults.values().map(|(_, misses)| misses).sum();
    let rows = [
        ("faults injected", injected.to_string()),
        ("faults that found nothing to hit", missed.to_string()),
        ("minutes", format!("{:.0}", verdict.seconds / 60.0)),
        (
            "workloads that ran",
            verdict
                .ran
                .iter()
                .map(|(kind, ran)| format!("{kind:?}: {ran}"))
                .collect::<Vec<_>>()
                .join(", "),
        ),
        ("slots granted to them", verdict.grants.to_string()),
        (
            "requests for several slots granted",
            verdict.requests.to_string(),
        ),
        (
            "slots of rates in which Jobs were started, and those judged",
            format!("{}, {}", verdict.starts.0, verdict.starts.1),
        ),
        (
            "slots taken by `consul lock`",
            verdict.foreign_grants.to_string(),
        ),
        (
            "revisions of `.lock`s judged",
            verdict.revisions.to_string(),
        ),
        ("violations", verdict.unsafe_count().to_string()),
        ("stuck slots", verdict.count(Rule::SlotStuck).to_string()),
        ("stuck Jobs", verdict.count(Rule::JobStuck).to_string()),
        (
            "allowed gaps: pods without a slot after a loss",
            verdict.gaps.to_string(),
        ),
        (
            "longest time over which a free slot was not used though a Job waited",
            format!("{:.1} s", verdict.unused),
        ),
        (
            "the same, outages included",
            format!("{:.1} s", verdict.unused_at_all),
        ),
        (
            "longest wait of a `consul lock`",
            format!("{:.1} s", verdict.foreign_wait),
        ),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text.push_str("\n| kind of fault | injected | nothing to hit |\n|---|---|---|\n");
    for (kind, (hits, misses)) in &verdict.faults {
        let _ = writeln!(text, "| {kind} | {hits} | {misses} |");
    }
    for violation in verdict.violations.iter().take(10) {
        let _ = writeln!(text, "\n{}", show(violation, records, options));
    }
    text
}
