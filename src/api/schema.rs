//! How doc comments become the text that `kubectl explain` shows.

use schemars::{Schema, transform::transform_subschemas};

/// Makes one line of every paragraph of every description: `kubectl explain` breaks long lines
/// itself, and keeps the breaks of the source beside its own.
pub(super) fn join_lines(schema: &mut Schema) {
    if let Some(serde_json::Value::String(description)) = schema.get_mut("description") {
        let paragraphs: Vec<_> = description
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect();
        *description = paragraphs.join("\n\n");
    }
    transform_subschemas(&mut join_lines, schema);
}
