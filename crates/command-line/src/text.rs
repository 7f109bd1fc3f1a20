//! Makes words with a tone, and lines of such words.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use consul_client::text::one_line;
use unicode_width::UnicodeWidthStr as _;

/// Number of characters of a foreign text that are shown: more than the longest message of a condition has.
const LONGEST_FOREIGN_TEXT: usize = 2048;

/// The tone of a word, which its colour shows where there is colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// The word has no particular tone.
    #[default]
    Plain,
    /// The word is part of a heading.
    Strong,
    /// The word is of less importance.
    Dim,
    /// The word describes something that is as it should be.
    Good,
    /// The word describes something that is not yet known, or worth a check.
    Doubt,
    /// The word describes something that is not as it should be.
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().bold(),
            Self::Dim => Style::new().dimmed(),
            Self::Good => Style::new().fg_color(Some(AnsiColor::Green.into())),
            Self::Doubt => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
            Self::Bad => Style::new().fg_color(Some(AnsiColor::Red.into())),
        }
    }
}

/// A piece of a line. Its text moves no cursor and ends no line, because control characters are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    text: String,
    tone: Tone,
}

impl Span {
    /// Makes a piece with this tone.
    pub fn new(tone: Tone, text: impl AsRef<str>) -> Self {
        Self {
            text: one_line(text.as_ref(), LONGEST_FOREIGN_TEXT),
            tone,
        }
    }

    /// Makes a piece without a tone.
    pub fn plain(text: impl AsRef<str>) -> Self {
        Self::new(Tone::Plain, text)
    }

    /// Returns the span with more text at its end, in the same tone.
    #[must_use]
    pub fn followed_by(mut self, text: &str) -> Self {
        self.text.push_str(&one_line(text, LONGEST_FOREIGN_TEXT));
        self
    }

    /// Whether the span has no text.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the width of the text in columns of a terminal.
    pub fn width(&self) -> usize {
        self.text.width()
    }

    /// Returns as much of the span as fits into `columns`, with an ellipsis in place of the remainder.
    fn cut(&self, columns: usize) -> Self {
        if self.width() <= columns {
            return self.clone();
        }
        let room = columns.saturating_sub(1);
        let mut text = String::new();
        for c in self.text.chars() {
            text.push(c);
            // The width of the text is not the sum of its characters' widths, because some modify the one before.
            if text.width() > room {
                text.pop();
                break;
            }
        }
        if columns > 0 {
            text.push('…');
        }
        Self {
            text,
            tone: self.tone,
        }
    }

    fn write(&self, out: &mut String, colour: bool) {
        let written = if colour && self.tone != Tone::Plain {
            let style = self.tone.style();
            write!(out, "{style}{}{style:#}", self.text)
        } else {
            write!(out, "{}", self.text)
        };
        debug_assert!(written.is_ok(), "a string takes everything");
    }
}

/// A line of spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(pub Vec<Span>);

impl Line {
    /// Makes a line with a single piece.
    pub fn of(tone: Tone, text: impl AsRef<str>) -> Self {
        Self(vec![Span::new(tone, text)])
    }

    /// Returns as much of the line as fits into `columns`.
    #[must_use]
    pub fn cut(&self, columns: usize) -> Self {
        let mut room = columns;
        let mut spans = Vec::new();
        for span in &self.0 {
            let whole = span.width() <= room;
            let cut = span.cut(room);
            room = room.saturating_sub(cut.width());
            spans.push(cut);
            if !whole {
                break;
            }
        }
        Self(spans)
    }

    /// Returns the text of the line, without a newline.
    pub fn render(&self, colour: bool) -> String {
        let mut out = String::new();
        for span in &self.0 {
            span.write(&mut out, colour);
        }
        out
    }
}

/// A text of several lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The lines, in order.
    pub lines: Vec<Line>,
}

impl Text {
    /// Adds a line.
    pub fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Adds lines.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.lines.extend(lines);
    }

    /// Adds an empty line and a heading.
    pub fn heading(&mut self, title: impl AsRef<str>) {
        self.push(Line::default());
        self.push(Line::of(Tone::Strong, title));
    }

    /// Returns the whole text, with a newline after each line.
    pub fn render(&self, colour: bool) -> String {
        let lines = self.lines.iter();
        lines.map(|line| line.render(colour) + "\n").collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colour_is_only_where_it_is_asked_for() {
        let line = Line(vec![Span::new(Tone::Bad, "False"), Span::plain(" x")]);
        assert_eq!(line.render(false), "False x");
        assert_eq!(line.render(true), "\u{1b}[31mFalse\u{1b}[0m x");
    }

    #[test]
    fn a_line_is_cut_where_it_does_not_fit() {
        let line = Line(vec![Span::plain("abc"), Span::plain("defg")]);
        assert_eq!(line.cut(7).render(false), "abcdefg");
        assert_eq!(line.cut(6).render(false), "abcde…");
        assert_eq!(line.cut(3).render(false), "abc");
        assert_eq!(line.cut(2).render(false), "a…");
        assert_eq!(Line::of(Tone::Plain, "漢字").cut(3).render(false), "漢…");
        assert_eq!(line.cut(0).render(false), "");
    }

    proptest! {
        /// Any foreign text takes one line, stays in its columns, and can't control the terminal.
        #[test]
        fn any_text_stays_in_its_place(text: String, more: String, columns in 0..40_usize) {
            let line = Line(vec![Span::plain(text), Span::plain(more)]).cut(columns);
            let shown = line.render(false);
            prop_assert!(!shown.chars().any(char::is_control), "{:?}", shown);
            let width: usize = line.0.iter().map(Span::width).sum();
            prop_assert!(width <= columns, "{:?} in {}", shown, columns);
        }
    }
}
