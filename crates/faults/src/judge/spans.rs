//! Periods during which something was down.

use std::collections::BTreeMap;

use crate::record::{Part, Record, What};

/// Periods, in order and without overlaps.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Vec<(f64, f64)>);

impl Spans {
    pub(super) fn of(mut spans: Vec<(f64, f64)>) -> Self {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64)> = Vec::new();
        for (from, to) in spans {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    /// The union of both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied().collect())
    }

    /// How many seconds between `from` and `to` are outside all of them.
    pub(super) fn clear(&self, from: f64, to: f64) -> f64 {
        let covered: f64 = self
            .0
            .iter()
            .map(|(begin, end)| (end.min(to) - begin.max(from)).max(0.0))
            .sum();
        (to - from).max(0.0) - covered
    }

    /// Whether any of them overlaps the time between `from` and `to`.
    pub(super) fn touches(&self, from: f64, to: f64) -> bool {
        self.0.iter().any(|(begin, end)| *begin < to && *end > from)
    }

    /// The last end of a period between `from` and `to`.
    pub(super) fn last_end(&self, from: f64, to: f64) -> Option<f64> {
        let mut ends = self.0.iter().rev().map(|(_, end)| *end);
        ends.find(|end| *end > from && *end <= to)
    }
}

/// What was down, and when.
#[derive(Default)]
pub(super) struct Outages(BTreeMap<Part, Spans>);

/// The longest pause between tries, which grows while something is down (`consul_client::Backoff`; the Job controller
/// and kwok have their own).
const LONGEST_PAUSE: f64 = 30.0;

/// How long it may take to catch up on what could not be done.
const CATCH_UP: f64 = 5.0;

/// Restarts that are no further apart follow each other.
const IN_A_ROW: f64 = 8.0;

impl Outages {
    pub(super) fn of(records: &[Record]) -> Self {
        let end = records.last().map_or(0.0, |record| record.t);
        let mut open: BTreeMap<Part, (usize, f64)> = BTreeMap::new();
        let mut spans: BTreeMap<Part, Vec<(f64, f64)>> = BTreeMap::new();
        for record in records {
            let What::Outage { part, away } = &record.what else {
                continue;
            };
            let (depth, since) = open.entry(part.clone()).or_insert((0, record.t));
            if *away {
                if *depth == 0 {
                    *since = record.t;
                }
                *depth += 1;
            } else if *depth == 1 {
                spans
                    .entry(part.clone())
                    .or_default()
                    .push((*since, record.t));
                *depth = 0;
            } else {
                *depth = depth.saturating_sub(1);
            }
        }
        for (part, (depth, since)) in open {
            if depth > 0 {
                spans.entry(part).or_default().push((since, end));
            }
        }
        let spans = spans.into_iter();
        Self(
            spans
                .map(|(part, spans)| (part, Spans::of(spans)))
                .collect(),
        )
    }

    /// When it was down.
    pub(super) fn of_part(&self, part: &Part) -> Spans {
        self.0.get(part).cloned().unwrap_or_default()
    }

    /// The semaphores whose grants were down.
    pub(super) fn grants(&self) -> Vec<Part> {
        let parts = self.0.keys();
        parts
            .filter(|part| matches!(part, Part::Grants(_)))
            .cloned()
            .collect()
    }

    /// The same periods, each extended by the pause until the next try and by some seconds to catch up. The pause
    /// between tries doubles, so it is no longer than the outage was. An operator that was stopped or restarted has
    /// no such pause, and restarts that follow each other give it no more time than the first one.
    pub(super) fn with_recovery(&self, part: &Part) -> Spans {
        let is_operator = matches!(part, Part::Operator | Part::Frozen);
        let mut last_end = f64::NEG_INFINITY;
        let spans = self.of_part(part).0.into_iter().map(|(from, to)| {
            let in_a_row = is_operator && from - last_end < IN_A_ROW;
            last_end = to;
            let pause = if is_operator {
                0.0
            } else {
                (to - from).min(LONGEST_PAUSE)
            };
            let catch_up = if in_a_row { 0.0 } else { CATCH_UP };
            (from, to + pause + catch_up)
        });
        Spans::of(spans.collect())
    }
}
