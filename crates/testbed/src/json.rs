//! Merges JSON as merge patches do.
use serde_json::Value;

/// Merges as in RFC 7396: objects field by field, null removes, everything else replaces.
pub(crate) fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    target.remove(&name);
                } else {
                    merge(target.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (target, Value::Object(patch)) => {
            *target = Value::Object(serde_json::Map::new());
            merge(target, Value::Object(patch));
        }
        (target, patch) => *target = patch,
    }
}

/// Whether all of `part` is in `whole`. Fields that `part` does not name may have any value. A list must have as many
/// elements as the one in `part`, and each must contain its counterpart.
pub(crate) fn contains(whole: &Value, part: &Value) -> bool {
    match part {
        Value::Object(fields) => fields
            .iter()
            .all(|(name, value)| contains(&whole[name], value)),
        Value::Array(elements) => whole.as_array().is_some_and(|whole| {
            whole.len() == elements.len() && whole.iter().zip(elements).all(|(w, p)| contains(w, p))
        }),
        _ => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_as_the_rfc_does() {
        let mut target = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        merge(
            &mut target,
            json!({ "a": { "b": null, "e": { "f": 3, "g": null } }, "d": [2] }),
        );
        assert_eq!(
            target,
            json!({ "a": { "c": 2, "e": { "f": 3 } }, "d": [2] })
        );
    }

    #[test]
    fn contains_what_is_named() {
        let whole = json!({ "held": 2, "inner": { "a": 1, "b": 2 } });
        assert!(contains(&whole, &json!({ "held": 2, "inner": { "a": 1 } })));
        assert!(!contains(&whole, &json!({ "waiting": 0 })));
        let whole = json!({ "queue": [{ "job": "a", "position": 1 }] });
        assert!(contains(&whole, &json!({ "queue": [{ "job": "a" }] })));
        assert!(!contains(&whole, &json!({ "queue": [{ "job": "b" }] })));
        assert!(!contains(&whole, &json!({ "queue": [] })));
    }
}
