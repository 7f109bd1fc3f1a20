//! Writes the custom resource definition as released.

use super::{ConsulSemaphore, to_yaml};
use kube::CustomResourceExt;
use serde_saphyr::SerializeError;

const HEADER: &str = "\
# Generated from crates/api/src by `consul-semaphore-operator crd`: change the types there, not this file.
# To write it anew: UPDATE_CRDS=1 cargo test --test crd_drift
";

/// Returns the `CustomResourceDefinition` of [`ConsulSemaphore`] as a YAML document, ready for `kubectl apply`, with
/// a comment that says where it comes from.
pub fn crd_yaml() -> Result<String, SerializeError> {
    Ok(HEADER.to_owned() + &to_yaml(&ConsulSemaphore::crd())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    /// Returns every property of the schema, with its path.
    fn properties() -> Vec<(String, Map<String, Value>)> {
        fn collect(path: &str, schema: &Value, into: &mut Vec<(String, Map<String, Value>)>) {
            if let Some(items) = schema.get("items") {
                collect(path, items, into);
            }
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                let path = format!("{path}.{name}");
                collect(&path, property, into);
                into.push((path, property.as_object().expect("a schema").clone()));
            }
        }
        let crd = serde_json::to_value(ConsulSemaphore::crd()).expect("JSON");
        let mut all = Vec::new();
        collect(
            "",
            &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
            &mut all,
        );
        all
    }

    #[test]
    fn every_property_is_described() {
        for (path, property) in properties() {
            let description = property
                .get("description")
                .and_then(Value::as_str)
                .unwrap_or_default();
            assert!(
                description.ends_with(['.', ':']) && !description.contains('`'),
                "{path}: {description:?}"
            );
        }
    }

    #[test]
    fn every_format_is_one_that_kubernetes_knows() {
        for (path, property) in properties() {
            let format = property
                .get("format")
                .map(|format| format.as_str().expect("text"));
            assert!(
                matches!(format, None | Some("int32" | "int64" | "date-time")),
                "{path}: {format:?}"
            );
        }
    }

    /// The API server drops a null where the schema does not allow null, as if the field was not set. Where the
    /// schema allows null, it would be a value that can be added and removed.
    #[test]
    fn no_property_may_be_null() {
        let nullable = properties()
            .into_iter()
            .filter(|(_, property)| property.contains_key("nullable"));
        let paths: Vec<_> = nullable.map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [".status"],
            "kube makes that one nullable, and nothing depends on it"
        );
    }

    /// The API server estimates the cost of a rule from the length of its input.
    #[test]
    fn every_text_of_the_spec_is_bounded() {
        for (path, property) in properties()
            .into_iter()
            .filter(|(path, _)| path.starts_with(".spec"))
        {
            let bounded = property.contains_key("maxLength") || property.contains_key("enum");
            assert!(property["type"] != "string" || bounded, "{path}");
        }
    }
}
