//! YAML for people: long texts stay on one line each, so that each can be found and compared.

use serde::Serialize;
use serde_saphyr::{SerializeError, ser_options};

/// A value as a YAML document.
///
/// # Errors
/// If its `Serialize` fails, or a key is a list or a map.
pub fn to_yaml(value: &impl Serialize) -> Result<String, SerializeError> {
    let unfolded = ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, unfolded)
}

#[cfg(test)]
mod tests {
    use hostile::json;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_long_text_stays_on_one_line() {
        let yaml = to_yaml(&[["word"; 100].join(" ")]).unwrap();
        assert_eq!(yaml.lines().count(), 1, "{yaml}");
    }

    proptest! {
        /// A terminal obeys control characters.
        #[test]
        fn what_is_written_is_printable_and_can_be_read_again(text in json()) {
            let Ok(value) = serde_json::from_str::<Value>(&text) else { return Ok(()) };
            let yaml = to_yaml(&value).unwrap();
            prop_assert!(!yaml.contains(|c: char| c.is_control() && c != '\n'), "{yaml:?}");
            let read: Value = serde_saphyr::from_str(&yaml).unwrap();
            prop_assert_eq!(read, value, "{}", yaml);
        }
    }
}
