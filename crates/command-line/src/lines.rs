//! A log with one line for each event, whatever text from others it contains.

use std::io::{self, Write};

/// Writes each event, which is passed in one piece with a line end, as one line. Other control characters in it are
/// escaped, as in source code.
pub(super) struct OneLine<W> {
    pub(super) to: W,
    /// Whether escape sequences for colours are kept. Those in the events' text are already escaped when the text is
    /// formatted.
    pub(super) colours: bool,
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event).map(|()| event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let (line, end) = match event.strip_suffix(b"\n") {
            Some(line) => (line, "\n"),
            None => (event, ""),
        };
        let text = String::from_utf8_lossy(line);
        let breaks = |c: char| c.is_control() && !(self.colours && c == '\u{1b}');
        if !text.contains(breaks) && !text.contains(LINE_ENDS) {
            return self.to.write_all(event);
        }
        let mut escaped = String::with_capacity(text.len() + 16);
        for c in text.chars() {
            if breaks(c) || LINE_ENDS.contains(&c) {
                escaped.extend(c.escape_default());
            } else {
                escaped.push(c);
            }
        }
        escaped.push_str(end);
        self.to.write_all(escaped.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Characters that end a line in some programs, but are not control characters.
const LINE_ENDS: [char; 2] = ['\u{2028}', '\u{2029}'];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(event: &str, colours: bool) -> String {
        let mut line = OneLine {
            to: Vec::new(),
            colours,
        };
        line.write_all(event.as_bytes()).unwrap();
        String::from_utf8(line.to).unwrap()
    }

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(written("plain ä\n", false), "plain ä\n");
        assert_eq!(
            written("job=a\n2026 INFO forged\r\u{1b}[2J\n", false),
            "job=a\\n2026 INFO forged\\r\\u{1b}[2J\n"
        );
        assert_eq!(
            written("\u{1b}[2mdim\u{1b}[0m\n", true),
            "\u{1b}[2mdim\u{1b}[0m\n"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_one_line(text: String, colours: bool) {
            let line = written(&format!("{text}\n"), colours);
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert!(line.ends_with('\n') && !line.contains('\r'));
        }
    }
}
