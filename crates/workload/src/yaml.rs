//! YAML that users write: the rows of kinds, and the manifests that contain them.

use consul_client::text::one_line;
use serde::Deserialize;
use serde_saphyr::{
    Error, Options, RenderOptions, SnippetMode, UserMessageFormatter, alias_limits, budget, options,
};

/// The number of values that a text may have, and the number of values that its aliases may add. A manifest of 32 rows
/// has fewer.
const MOST_VALUES: usize = 20_000;

/// The greatest depth of a value.
const MOST_DEPTH: usize = 32;

/// The greatest length of the message about a mistake, in characters.
const MOST_SAID: usize = 400;

/// Reads a document. The error is one line that says what is wrong, with the line and column.
pub(crate) fn parse<'text, T: Deserialize<'text>>(text: &'text str) -> Result<T, String> {
    serde_saphyr::from_str_with_options(text, bounded()).map_err(|error| said(&error))
}

/// Returns the options for YAML 1.2, in which `yes`, `0755` and `1_000` are texts. The expansion of aliases is bounded,
/// because otherwise a small text could become a large value.
fn bounded() -> Options {
    options! {
        budget: budget! { max_nodes: MOST_VALUES, max_events: 2 * MOST_VALUES, max_depth: MOST_DEPTH },
        alias_limits: alias_limits! { max_total_replayed_events: MOST_VALUES },
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        emit_comments: false,
        with_snippet: false,
    }
}

fn said(error: &Error) -> String {
    let mut options = RenderOptions::new(&UserMessageFormatter);
    options.snippets = SnippetMode::Off;
    one_line(&error.render_with_options(options), MOST_SAID)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Rule {
        #[expect(dead_code, reason = "only mistakes are read")]
        limit: u8,
    }

    #[test]
    fn a_mistake_is_said_in_one_line_with_its_place() {
        for (text, said) in [
            ("limit: many", "invalid u8 at line 1, column 8"),
            (
                "a: 1\n",
                "unknown field `a`, expected one of limit at line 1, column 1",
            ),
            ("{}", "missing field `limit` at line 1, column 1"),
            (
                "limit: 1\nlimit: 2",
                "duplicate mapping key `limit` is not allowed here at line 2, column 1",
            ),
            ("limit:\n  [1", "unclosed bracket '[' at line 2, column 3"),
            (
                "limit: 1\n---\nlimit: 2",
                "only single YAML document expected but multiple found at line 3, column 1",
            ),
        ] {
            assert_eq!(parse::<Rule>(text).unwrap_err(), said);
        }
    }

    #[test]
    fn a_small_text_does_not_become_a_large_value() {
        let ones = "1,".repeat(200);
        let bomb = format!("a: &a [{ones}]\nb: [{}]", "*a,".repeat(200));
        let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
        for text in [bomb, deep, format!("[{}]", "1,".repeat(MOST_VALUES))] {
            let why = parse::<Value>(&text).unwrap_err();
            assert!(why.contains("too large or too complex"), "{why}");
        }
        let alias = parse::<Value>("{ a: &a [1, 2], b: *a }").unwrap();
        assert_eq!(alias["b"], json!([1, 2]));
    }

    #[test]
    fn a_text_is_no_boolean_or_number_by_an_older_rule() {
        let read = parse::<Value>("[yes, off, y, 0755, 1_000, 12:30, true, 755]").unwrap();
        let expected = json!(["yes", "off", "y", "0755", "1_000", "12:30", true, 755]);
        assert_eq!(read, expected);
    }
}
