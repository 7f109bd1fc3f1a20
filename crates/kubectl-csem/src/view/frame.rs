//! A text as the bytes for a terminal. The terminal shows the text at once and in place of the previous one.

use super::text::{Line, Text, Tone};

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// Switches to a separate screen without a cursor. The terminal keeps its content.
pub(crate) const OPEN_SCREEN: &str = "\u{1b}[?1049h\u{1b}[?25l";
/// Switches back to the previous content.
pub(crate) const CLOSE_SCREEN: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// Begins a frame at the upper left corner. Terminals that support this show the frame only once it is complete.
const BEGIN_FRAME: &str = "\u{1b}[?2026h\u{1b}[H";
/// Clears the rest of a line, in which a longer line may have been.
const REST_OF_LINE: &str = "\u{1b}[K";
/// Clears further lines of the previous frame, and ends the frame.
const END_FRAME: &str = "\u{1b}[J\u{1b}[?2026l";

/// Returns the bytes for a text. Nothing is cleared before it is rewritten, so nothing flickers. The last column stays
/// free, because terminals disagree about a cursor that waits there for the next line.
pub(crate) fn frame(text: &Text, size: Size, colour: bool) -> String {
    let columns = size.columns.saturating_sub(1).max(1);
    let lines: Vec<String> = fit(text, size.rows.max(1))
        .iter()
        .map(|line| line.cut(columns).render(colour) + REST_OF_LINE)
        .collect();
    format!("{BEGIN_FRAME}{}{END_FRAME}", lines.join("\r\n"))
}

/// Returns the lines that fit. If not all do, the last one says how many are missing.
fn fit(text: &Text, rows: usize) -> Vec<Line> {
    if text.lines.len() <= rows {
        return text.lines.clone();
    }
    let kept = rows - 1;
    let more = format!("… {} lines more", text.lines.len() - kept);
    let kept = text.lines[..kept].iter().cloned();
    kept.chain([Line::of(Tone::Dim, more)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[&str]) -> Text {
        let mut text = Text::default();
        text.extend(lines.iter().map(|line| Line::of(Tone::Plain, line)));
        text
    }

    #[test]
    fn each_line_takes_the_place_of_the_one_before() {
        let size = Size {
            columns: 5,
            rows: 2,
        };
        let shown = frame(&text(&["a", "bcdef"]), size, false);
        assert_eq!(
            shown,
            "\u{1b}[?2026h\u{1b}[Ha\u{1b}[K\r\nbcd…\u{1b}[K\u{1b}[J\u{1b}[?2026l"
        );
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let size = Size {
            columns: 40,
            rows: 2,
        };
        let shown = frame(&text(&["a", "b", "c"]), size, false);
        assert!(
            shown.contains("Ha\u{1b}[K\r\n… 2 lines more\u{1b}[K"),
            "{shown:?}"
        );
        assert!(!shown.contains('b') && !shown.ends_with('\n'));
    }

    #[test]
    fn nothing_is_cleared_before_it_is_written() {
        let size = Size {
            columns: 0,
            rows: 0,
        };
        let shown = frame(&text(&["a", "b"]), size, false);
        // A frame clears only to the end of a line and, at its end, to the end of the screen.
        let cleared = shown.matches("\u{1b}[K").count() + shown.matches("\u{1b}[J").count();
        assert_eq!(shown.matches("\u{1b}[").count(), cleared + 3, "{shown:?}");
        assert!(shown.starts_with("\u{1b}[?2026h\u{1b}[H"), "{shown:?}");
        assert_eq!(shown.matches('\n').count(), 0);
    }
}
