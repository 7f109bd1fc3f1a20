//! How doc comments become the text that `kubectl explain` shows.

use schemars::{Schema, transform::transform_subschemas};
use serde_json::Value;

/// Makes plain text of every description, which is Markdown in the source. Each paragraph becomes one line, because
/// `kubectl explain` wraps lines itself and keeps existing breaks. Backticks are removed, because it shows them.
pub(super) fn plain_descriptions(schema: &mut Schema) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        let text = description.replace('`', "");
        let paragraphs: Vec<_> = text
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect();
        *description = paragraphs.join("\n\n");
    }
    transform_subschemas(&mut plain_descriptions, schema);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_at_every_depth_become_plain_text() {
        let mut schema = schemars::json_schema!({
            "description": "One `line`\nand another.\n\nA paragraph.",
            "properties": { "description": { "description": "Deeper\nstill.", "default": "a\nb" } },
        });
        plain_descriptions(&mut schema);
        let plain = schemars::json_schema!({
            "description": "One line and another.\n\nA paragraph.",
            "properties": { "description": { "description": "Deeper still.", "default": "a\nb" } },
        });
        assert_eq!(schema, plain);
    }
}
