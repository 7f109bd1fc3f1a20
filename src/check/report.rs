//! Defines the report: lines, each with an outcome and advice.

use std::fmt::{self, Display, Formatter, Write as _};

use serde::Serialize;

use consul_client::text::one_line;

/// The greatest length of a message and of a piece of advice, in characters, because they may repeat foreign messages.
const LONGEST_TEXT: usize = 1000;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The checked item is as it should be.
    Ok,
    /// The state of the checked item is unknown.
    Unknown,
    /// The checked item works, but somebody should know about its state.
    Warning,
    /// The checked item does not work.
    Failed,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Ok, Self::Warning, Self::Failed, Self::Unknown];

    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }

    /// Returns the ANSI colour of the outcome on a terminal.
    const fn colour(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Unknown => "36",
            Self::Warning => "33",
            Self::Failed => "31",
        }
    }
}

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// Consul, and what the operator's token may do there.
    Consul,
    /// The API server, and what the operator may do there.
    Kubernetes,
    /// The semaphore to check.
    Semaphore,
}

impl Area {
    const fn word(self) -> &'static str {
        match self {
            Self::Consul => "consul",
            Self::Kubernetes => "kubernetes",
            Self::Semaphore => "semaphore",
        }
    }
}

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The area that the line belongs to.
    pub area: Area,
    /// The name of the check.
    pub what: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The facts that were seen.
    pub message: String,
    /// The advice, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}

impl Line {
    pub(super) fn new(
        area: Area,
        what: impl Into<String>,
        outcome: Outcome,
        message: impl Display,
    ) -> Self {
        Self {
            area,
            what: one_line(&what.into(), LONGEST_TEXT),
            outcome,
            message: one_line(&message.to_string(), LONGEST_TEXT),
            todo: None,
        }
    }

    /// Adds advice to the line.
    pub(super) fn todo(self, todo: impl Display) -> Self {
        let todo = one_line(&todo.to_string(), LONGEST_TEXT);
        Self {
            todo: Some(todo),
            ..self
        }
    }
}

/// All lines, in the order of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// The lines.
    pub lines: Vec<Line>,
}

impl CheckReport {
    /// Whether something does not work.
    pub fn failed(&self) -> bool {
        self.count(Outcome::Failed) > 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        let lines = self.lines.iter();
        lines.filter(|line| line.outcome == outcome).count()
    }

    /// Returns the report as JSON, for programs.
    pub fn json(&self) -> String {
        // Writing cannot fail, because there are only strings.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// Returns the report as text, for people.
    pub fn text(&self, coloured: bool) -> String {
        let widths = self.lines.iter().map(|line| line.what.chars().count());
        let widest = widths.max().unwrap_or_default();
        let mut text = String::new();
        for line in &self.lines {
            let shown = AlignedLine {
                line,
                widest,
                coloured,
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{shown}");
        }
        let counts = Outcome::ALL.map(|of| format!("{} {}", self.count(of), of.word()));
        let _ = writeln!(text, "{}", counts.join(", "));
        text
    }
}

/// A line in its columns.
struct AlignedLine<'a> {
    line: &'a Line,
    widest: usize,
    coloured: bool,
}

impl Display for AlignedLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Line {
            area,
            what,
            outcome,
            message,
            todo,
        } = self.line;
        let (word, area) = (outcome.word(), area.word());
        if self.coloured {
            write!(f, "\x1b[{}m{word:8}\x1b[0m", outcome.colour())?;
        } else {
            write!(f, "{word:8}")?;
        }
        write!(f, "{area:11}{what:0$}  {message}", self.widest)?;
        if let Some(todo) = todo {
            write!(f, "\n{:8}{:11}{:4$}  -> {}", "", "", "", todo, self.widest)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CheckReport {
        CheckReport {
            lines: vec![
                Line::new(Area::Consul, "leader", Outcome::Ok, "10.0.0.1:8300"),
                Line::new(
                    Area::Kubernetes,
                    "jobs.batch",
                    Outcome::Failed,
                    "may not\npatch",
                )
                .todo("kubectl apply -k config/rbac"),
            ],
        }
    }

    #[test]
    fn lines_stand_in_columns_with_what_to_do_below() {
        let expected = "\
ok      consul     leader      10.0.0.1:8300
failed  kubernetes jobs.batch  may not patch
                               -> kubectl apply -k config/rbac
1 ok, 0 warning, 1 failed, 0 unknown
";
        assert_eq!(report().text(false), expected);
    }

    #[test]
    fn colour_changes_nothing_but_the_colour() {
        let coloured = report().text(true);
        assert!(coloured.contains("\x1b[31mfailed  \x1b[0m"), "{coloured}");
        let mut plain = coloured;
        for colour in ["\x1b[31m", "\x1b[32m", "\x1b[0m"] {
            plain = plain.replace(colour, "");
        }
        assert_eq!(plain, report().text(false));
    }

    #[test]
    fn programs_read_the_same() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        let expected = serde_json::json!({ "lines": [
            { "area": "consul", "what": "leader", "outcome": "ok", "message": "10.0.0.1:8300" },
            {
                "area": "kubernetes", "what": "jobs.batch", "outcome": "failed",
                "message": "may not patch", "todo": "kubectl apply -k config/rbac",
            },
        ] });
        assert_eq!(json, expected);
    }

    #[test]
    fn one_failure_is_a_failure() {
        assert!(report().failed() && !CheckReport::default().failed());
    }
}
