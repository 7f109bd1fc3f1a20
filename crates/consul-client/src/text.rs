//! Text from others, made safe to show in a log, an event or a status.

/// The text as one line of at most this many characters. Line ends, control characters and changes of the direction of
/// writing become spaces; an ellipsis replaces what is cut off.
pub fn one_line(text: &str, most: usize) -> String {
    let shown = |c: char| if is_shown(c) { c } else { ' ' };
    let (kept, end) = if text.chars().nth(most).is_some() {
        (most.saturating_sub(1), Some('…'))
    } else {
        (most, None)
    };
    text.chars().take(kept).map(shown).chain(end).collect()
}

fn is_shown(c: char) -> bool {
    let formats = matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    !c.is_control() && !formats
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_can_be_read_stays() {
        assert_eq!(one_line("a b/ä-1 …", 99), "a b/ä-1 …");
        assert_eq!(
            one_line("a\r\nb\u{1b}[2J\u{202e}c\u{85}", 99),
            "a  b [2J c "
        );
        assert_eq!(one_line("äöü", 3), "äöü");
        assert_eq!(one_line("äöüx", 3), "äö…");
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_short_line(text: String, most in 1..99_usize) {
            let line = one_line(&text, most);
            prop_assert!(line.chars().count() <= most);
            prop_assert!(line.lines().count() <= 1 && !line.chars().any(char::is_control));
        }
    }
}
