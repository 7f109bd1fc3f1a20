//! Figures, and the table that they are shown in.

use std::time::Duration;

/// What a ratio must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At most this many times the floor.
    AtMost(f64),
    /// At least this many times the peer.
    AtLeast(f64),
    /// It is only shown.
    None,
}

impl Goal {
    fn is_met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(ratio <= most),
            Self::AtLeast(least) => Some(ratio >= least),
            Self::None => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {most}"),
            Self::AtLeast(least) => format!("≥ {least}"),
            Self::None => "–".into(),
        }
    }
}

/// A row of the table: the figures of ours and of what it is compared with, one for each run.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    what: String,
    unit: &'static str,
    ours: Vec<f64>,
    /// Empty if ours is only compared with a number: the ratio is then to 1.
    other: Vec<f64>,
    against: String,
    goal: Goal,
    /// Whether a larger figure is better.
    rate: bool,
    /// Whether the goal is about ours, and not about the ratio.
    goal_is_ours: bool,
}

impl Row {
    /// Figures where less is better, such as times: one of ours and one of the other for each run.
    pub(crate) fn of(
        what: impl Into<String>,
        unit: &'static str,
        ours: Vec<f64>,
        (against, other): (&str, Vec<f64>),
        goal: Goal,
    ) -> Self {
        Self {
            what: what.into(),
            unit,
            ours,
            other,
            against: against.into(),
            goal,
            rate: false,
            goal_is_ours: false,
        }
    }

    /// Figures without a comparison: the goal is about the figures themselves.
    pub(crate) fn alone(
        what: impl Into<String>,
        unit: &'static str,
        ours: Vec<f64>,
        goal: Goal,
    ) -> Self {
        Self::of(what, unit, ours, ("", Vec::new()), goal)
    }

    /// The ratio is how many times faster ours is: the other's figure divided by ours.
    #[must_use]
    pub(crate) fn how_many_times_faster(mut self) -> Self {
        self.rate = true;
        self
    }

    /// The goal is about our figure itself: the other is only shown beside it.
    #[must_use]
    pub(crate) fn goal_for_itself(mut self) -> Self {
        self.goal_is_ours = true;
        self
    }

    /// The ratio of each run.
    fn ratios(&self) -> Vec<f64> {
        if self.other.is_empty() {
            return self.ours.clone();
        }
        let pairs = self.ours.iter().zip(&self.other);
        let ratio = |(ours, other): (&f64, &f64)| {
            if self.rate {
                other / ours
            } else {
                ours / other
            }
        };
        pairs.map(ratio).collect()
    }

    /// The row in Markdown.
    fn line(&self) -> String {
        let (ours, ratios) = (Spread::of(&self.ours), Spread::of(&self.ratios()));
        let judged = if self.goal_is_ours { &ours } else { &ratios };
        let verdict = match self.goal.is_met(judged.median) {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        let (other, ratio) = if self.other.is_empty() {
            ("–".to_owned(), "–".to_owned())
        } else {
            let other = Spread::of(&self.other).with(self.unit);
            (format!("{}: {other}", self.against), ratios.with(""))
        };
        format!(
            "| {} | {} | {other} | {ratio} | {} | {verdict} |",
            self.what,
            ours.with(self.unit),
            self.goal.text(),
        )
    }
}

/// Prints the head of the table.
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
pub(crate) fn print_head() {
    println!(
        "| what | ours | floor or peer, same run | ratio | goal | met |\n|---|---|---|---|---|---|"
    );
}

/// Prints these rows of the table.
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
pub(crate) fn print(rows: &[Row]) {
    for row in rows {
        println!("{}", row.line());
    }
}

/// The median of several runs, with the minimum and the maximum.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
    runs: usize,
}

impl Spread {
    fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self {
            least: at(0),
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            most: at(last),
            runs: sorted.len(),
        }
    }

    fn with(&self, unit: &str) -> String {
        let space = if unit.is_empty() { "" } else { " " };
        let median = short(self.median);
        if self.runs < 2 {
            return format!("{median}{space}{unit}");
        }
        let (least, most) = (short(self.least), short(self.most));
        format!("{median}{space}{unit} ({least}–{most})")
    }
}

/// Rounded to three significant digits.
fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// The times of one run, in ms: p50 and p99.
pub(crate) struct Times {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Times {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |share: usize| {
            let index = (times.len() * share / 100).min(times.len().saturating_sub(1));
            let time = times.get(index);
            time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        };
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

/// Two rows, p50 and p99, of the runs' times.
pub(crate) fn rows_of_times(
    what: &str,
    ours: &[Times],
    (against, other): (&str, &[Times]),
    goal: Goal,
) -> Vec<Row> {
    let row = |share: &str, figure: fn(&Times) -> f64| {
        let of = |times: &[Times]| times.iter().map(figure).collect();
        let what = format!("{what}, {share}");
        Row::of(what, "ms", of(ours), (against, of(other)), goal)
    };
    vec![row("p50", |times| times.p50), row("p99", |times| times.p99)]
}
