//! Whether the figures that must be flat are flat.

use std::{fmt::Write as _, ops::RangeInclusive};

use anyhow::{Result, ensure};

use super::{
    load::{Peak, Seen},
    sample::{FIGURES, Figure, Nature, Sample},
};

/// What fraction of the events in the second fifth must happen in the last fifth. If there are fewer, something is
/// stuck.
const PROGRESS: f64 = 0.5;

/// The least number of samples that allow a verdict.
const LEAST: usize = 10;

/// The verdict on a run.
pub struct Verdict {
    minutes: f64,
    trends: Vec<Trend>,
    seen: Seen,
}

/// A figure after the warm-up, and at the end.
struct Trend {
    figure: &'static Figure,
    second: f64,
    last: f64,
}

impl Verdict {
    /// Judges what was seen.
    pub(super) fn of(samples: &[Sample], seen: Seen) -> Result<Self> {
        let looks = samples.len();
        ensure!(looks >= LEAST, "{looks} looks say nothing: let it go on");
        let trend = |(place, figure)| {
            let [second, last] = fifths(samples).map(|fifth| {
                let figures = fifth.iter().map(|sample| sample.figures[place]);
                level(figure, figures.collect())
            });
            Trend {
                figure,
                second,
                last,
            }
        };
        Ok(Self {
            minutes: samples[looks - 1].seconds / 60.0,
            trends: FIGURES.iter().enumerate().map(trend).collect(),
            seen,
        })
    }

    /// Whether every figure that must be flat is flat, no limit was exceeded, and nothing reported an error.
    pub fn is_good(&self) -> bool {
        self.trends.iter().all(Trend::is_good)
            && self.seen.peaks.iter().all(Peak::is_good)
            && self.seen.errors.is_empty()
    }

    /// A report for people.
    pub fn report(&self) -> String {
        let mut text = format!("{:.1} minutes\n\n{TRENDS}\n", self.minutes);
        for trend in &self.trends {
            let _infallible = writeln!(text, "{}", trend.row());
        }
        let _infallible = writeln!(text, "\n{PEAKS}");
        for peak in &self.seen.peaks {
            let _infallible = writeln!(text, "{}", peak.row());
        }
        let _infallible = writeln!(text, "\n{} errors", self.seen.errors.len());
        for error in &self.seen.errors {
            let _infallible = writeln!(text, "{error}");
        }
        text
    }
}

const TRENDS: &str = "\
| median, or number | second fifth | last fifth | goal | met |
|---|---|---|---|---|";

const PEAKS: &str = "\
| most at once | holders | Jobs with pods | limit | met |
|---|---|---|---|---|";

impl Trend {
    /// The allowed range of the last fifth.
    fn goal(&self) -> RangeInclusive<f64> {
        match self.figure.nature {
            Nature::Flat(slack) => f64::NEG_INFINITY..=self.second + slack,
            Nature::Count => self.second * PROGRESS..=f64::INFINITY,
            Nature::Shown => f64::NEG_INFINITY..=f64::INFINITY,
        }
    }

    fn is_good(&self) -> bool {
        self.goal().contains(&self.last)
    }

    fn row(&self) -> String {
        let goal = self.goal();
        let (goal, met) = match self.figure.nature {
            Nature::Flat(_) => (format!("≤ {:.1}", goal.end()), yes(self.is_good())),
            Nature::Count => (format!("≥ {:.1}", goal.start()), yes(self.is_good())),
            Nature::Shown => ("–".to_owned(), ""),
        };
        let Self {
            figure,
            second,
            last,
        } = self;
        format!(
            "| {} | {second:.1} | {last:.1} | {goal} | {met} |",
            figure.name
        )
    }
}

impl Peak {
    fn is_good(&self) -> bool {
        self.holders <= self.limit && self.jobs <= self.limit
    }

    fn row(&self) -> String {
        // The pods of a single key are unknown, and so are the holders of all keys together.
        let seen = |most: usize| {
            if most == 0 {
                "–".to_owned()
            } else {
                most.to_string()
            }
        };
        format!(
            "| {} | {} | {} | {} | {} |",
            self.prefix,
            seen(self.holders),
            seen(self.jobs),
            self.limit,
            yes(self.is_good())
        )
    }
}

fn yes(good: bool) -> &'static str {
    if good { "yes" } else { "**no**" }
}

/// The second fifth and the last one. The first fifth is the warm-up.
pub(super) fn fifths<T>(all: &[T]) -> [&[T]; 2] {
    let fifth = all.len() / 5;
    [&all[fifth..fifth * 2], &all[all.len() - fifth..]]
}

/// The median of a figure; for a count, how much it rose.
fn level(figure: &Figure, mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (figures.first(), figures.last()) else {
        return f64::NAN;
    };
    match figure.nature {
        Nature::Count => most - least,
        Nature::Flat(_) | Nature::Shown => figures[figures.len() / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on an hour with these figures.
    fn hour(figures: impl Fn(f64) -> [f64; FIGURES.len()]) -> Verdict {
        let samples = (0..720_u32).map(|number| {
            let seconds = f64::from(number) * 5.0;
            Sample {
                seconds,
                figures: figures(seconds),
            }
        });
        let seen = Seen {
            peaks: Vec::new(),
            errors: Vec::new(),
        };
        Verdict::of(&samples.collect::<Vec<_>>(), seen).unwrap()
    }

    /// The figures that are not as they must be.
    fn bad(verdict: &Verdict) -> Vec<&str> {
        let bad = verdict.trends.iter().filter(|trend| !trend.is_good());
        bad.map(|trend| trend.figure.name).collect()
    }

    #[test]
    fn what_gets_warm_and_then_stays_is_flat() {
        let warm = |t: f64| 20.0 + 10.0 * (t / 300.0).min(1.0) + (t / 60.0).sin();
        let verdict = hour(|t| [warm(t), 5.0, 30.0, 9.0, 12.0, 14.0, 30.0, t * 3.0, 2.0]);
        assert_eq!(bad(&verdict), Vec::<&str>::new());
        assert!(verdict.is_good());
    }

    #[test]
    fn what_is_left_behind_is_found() {
        let verdict = hour(|t| [t / 60.0, 5.0, 30.0, 9.0, t / 60.0, 14.0, t, t * 3.0, t]);
        assert_eq!(
            bad(&verdict),
            ["resident memory (MiB)", "sessions in Consul"]
        );
    }

    #[test]
    fn what_is_stuck_is_not_good_however_flat_it_is() {
        let verdict = hour(|t| [20.0, 5.0, 30.0, 9.0, 12.0, 14.0, 30.0, t.min(2000.0), 2.0]);
        assert_eq!(bad(&verdict), ["Jobs started"]);
    }

    #[test]
    fn an_exceeded_limit_is_never_good() {
        let mut verdict = hour(|t| [20.0, 5.0, 30.0, 9.0, 12.0, 14.0, 30.0, t, 2.0]);
        verdict.seen.peaks.push(Peak {
            prefix: "p".into(),
            limit: 1,
            holders: 2,
            jobs: 1,
        });
        assert!(!verdict.is_good());
    }
}
