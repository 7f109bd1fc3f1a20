//! Checks whether the schemas of the kinds in a cluster have the fields by which workloads are held. The API server
//! silently drops fields that a schema does not have: a workload of an older version would then run without a slot.

use std::{collections::HashMap, fmt, time::Duration};

use consul_client::text::one_line;
use consul_semaphore_workload::{Kind, Needed};
use http::Request;
use kube::Client;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

/// Time limit for the answer about one kind when the operator starts.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(30);

/// Length to which an error is cut, in characters.
const LONGEST_ERROR: usize = 300;

/// The answer of a cluster's schema of a kind about a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldFinding {
    pub(crate) kind: Kind,
    pub(crate) needed: Needed,
    pub(crate) standing: FieldState,
}

/// Whether the schema has the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldState {
    /// The schema has the field, or takes any field.
    There,
    /// The schema lacks the field, so the API server drops it.
    Missing,
    /// The cluster does not have the kind.
    NoKind,
    /// The operator could not find out whether the field is there, for this reason.
    Unknown(String),
}

impl fmt::Display for FieldFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            needed,
            standing,
        } = self;
        let (path, kind) = (&needed.path, kind.name());
        match standing {
            FieldState::There => write!(f, "the schema has {path}"),
            FieldState::Missing if needed.holds => write!(
                f,
                "a {kind} can't be held: the schema has no {path}, so it runs without a slot"
            ),
            FieldState::Missing => write!(
                f,
                "the schema has no {path}, so this version is older than tested"
            ),
            FieldState::NoKind => write!(
                f,
                "the cluster has no {kind}: the operator serves this kind as soon as it is installed"
            ),
            FieldState::Unknown(why) => {
                write!(f, "can't find out whether the schema has {path}: {why}")
            }
        }
    }
}

impl FieldFinding {
    /// Returns what to do about the finding.
    pub(crate) fn advice(&self) -> Option<String> {
        let Self { kind, needed, .. } = self;
        let is_missing = self.standing == FieldState::Missing;
        is_missing.then(|| match &needed.since {
            Some(version) => format!("install {version} or a later one"),
            None => format!(
                "correct the field life.hold.path in the row of {}",
                kind.name()
            ),
        })
    }

    fn log(&self) {
        let kind = self.kind.name();
        match (&self.standing, self.advice()) {
            (FieldState::Missing, Some(advice)) => tracing::warn!(%kind, "{self}: {advice}"),
            (FieldState::Unknown(_), _) => tracing::info!(%kind, "{self}"),
            _ => tracing::debug!(%kind, "{self}"),
        }
    }
}

/// Reads the schemas of these kinds and logs what is missing.
pub(crate) async fn report(client: Client, kinds: Vec<Kind>) {
    for kind in &kinds {
        for finding in look(&client, kind, SCHEMA_TIMEOUT).await {
            finding.log();
        }
    }
}

/// Reads what a cluster's schema says about the fields that a kind needs. It never fails. Every user may read the
/// schema.
pub(crate) async fn look(client: &Client, kind: &Kind, patience: Duration) -> Vec<FieldFinding> {
    let needed = kind.needed();
    if needed.is_empty() {
        return Vec::new();
    }
    let resource = kind.resource();
    let path = format!("/openapi/v3/apis/{}/{}", resource.group, resource.version);
    let text = async {
        let request = Request::get(path).body(Vec::new()).map_err(|error| {
            kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error))
        })?;
        client.request_text(request).await
    };
    let read = timeout(patience, text).await;
    let standing = |needed: &Needed| match &read {
        Err(_) => FieldState::Unknown("the API server did not answer in time".to_owned()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => FieldState::NoKind,
        Ok(Err(error)) => FieldState::Unknown(one_line(&error.to_string(), LONGEST_ERROR)),
        Ok(Ok(document)) => in_document(document, kind, &needed.path),
    };
    let findings = needed.into_iter().map(|needed| FieldFinding {
        kind: kind.clone(),
        standing: standing(&needed),
        needed,
    });
    findings.collect()
}

/// An `OpenAPI` document, as far as this module needs it.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    components: Components<'a>,
}

#[derive(Deserialize)]
struct Components<'a> {
    #[serde(borrow)]
    schemas: HashMap<String, &'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Schema<'a> {
    #[serde(rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<GroupVersionKind>,
    #[serde(borrow)]
    properties: HashMap<String, &'a RawValue>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
    #[serde(borrow, rename = "additionalProperties")]
    additional: Option<&'a RawValue>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    keeps_unknown: bool,
}

#[derive(Deserialize)]
struct GroupVersionKind {
    group: String,
    version: String,
    kind: String,
}

/// Returns whether the schema of this kind has a field, as in `spec.suspend`. The path does not name steps into a
/// list.
fn in_document(document: &str, kind: &Kind, path: &str) -> FieldState {
    let unknown =
        |error: serde_json::Error| FieldState::Unknown(one_line(&error.to_string(), LONGEST_ERROR));
    let document: Document<'_> = match serde_json::from_str(document) {
        Ok(document) => document,
        Err(error) => return unknown(error),
    };
    let resource = kind.resource();
    let is_it = |names: &GroupVersionKind| {
        let GroupVersionKind {
            group,
            version,
            kind,
        } = names;
        (&resource.group, &resource.version, &resource.kind) == (group, version, kind)
    };
    let mut schemas = document.components.schemas.values();
    let schema = schemas.find_map(|schema| {
        let schema: Schema<'_> = serde_json::from_str(schema.get()).ok()?;
        schema.kinds.iter().any(is_it).then_some(schema)
    });
    match schema.map(|schema| has(schema, path)) {
        None => FieldState::NoKind,
        Some(Ok(true)) => FieldState::There,
        Some(Ok(false)) => FieldState::Missing,
        Some(Err(error)) => unknown(error),
    }
}

fn has(mut schema: Schema<'_>, path: &str) -> serde_json::Result<bool> {
    for field in path.split('.') {
        while let Some(items) = schema.items {
            schema = serde_json::from_str(items.get())?;
        }
        let Some(next) = schema.properties.get(field) else {
            let additional = schema.additional.map(RawValue::get);
            return Ok(schema.keeps_unknown || additional.is_some_and(|value| value != "false"));
        };
        schema = serde_json::from_str(next.get())?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kind(plural: &str) -> Kind {
        let mut all = Kind::all().into_iter();
        all.find(|kind| kind.resource().plural == plural).unwrap()
    }

    /// Returns the document of a group with `SparkApplication`, whose spec has this schema.
    fn document(spec: &Value) -> String {
        let names = json!([{
            "group": "sparkoperator.k8s.io", "version": "v1beta2", "kind": "SparkApplication",
        }]);
        json!({ "components": { "schemas": {
            "io.k8s.apimachinery.ObjectMeta": { "type": "object" },
            "io.k8s.sparkoperator.v1beta2.SparkApplication": {
                "x-kubernetes-group-version-kind": names,
                "type": "object",
                "properties": { "metadata": { "allOf": [{ "$ref": "#" }] }, "spec": spec },
            },
        } } })
        .to_string()
    }

    #[test]
    fn a_field_is_there_unless_the_api_server_drops_it() {
        let spark = kind("sparkapplications");
        let [needed] = &*spark.needed() else {
            panic!("{:?}", spark.needed());
        };
        assert_eq!((&*needed.path, needed.holds), ("spec.suspend", true));
        let of = |spec: Value| in_document(&document(&spec), &spark, "spec.suspend");
        let without = json!({ "type": "object", "properties": { "mode": { "type": "string" } } });
        assert_eq!(of(without.clone()), FieldState::Missing, "before 2.4");
        let mut with = without.clone();
        with["properties"]["suspend"] = json!({ "type": "boolean" });
        assert_eq!(of(with), FieldState::There);
        let mut any = without;
        any["x-kubernetes-preserve-unknown-fields"] = true.into();
        assert_eq!(of(any), FieldState::There);
        assert_eq!(
            of(json!({ "additionalProperties": false })),
            FieldState::Missing
        );
        assert_eq!(
            of(json!({ "additionalProperties": { "type": "string" } })),
            FieldState::There
        );
        let other = in_document(&document(&json!({})), &kind("rayjobs"), "spec.suspend");
        assert_eq!(other, FieldState::NoKind);
        let broken = in_document("{", &spark, "spec.suspend");
        assert!(matches!(broken, FieldState::Unknown(_)));
    }

    #[test]
    fn a_field_of_the_items_of_a_list_is_found() {
        let jobs = json!({
            "type": "array",
            "items": { "type": "object", "properties": { "dependsOn": { "type": "array" } } },
        });
        let spec = json!({ "type": "object", "properties": { "replicatedJobs": jobs } });
        let spark = kind("sparkapplications");
        let of = |path: &str| in_document(&document(&spec), &spark, path);
        assert_eq!(of("spec.replicatedJobs.dependsOn"), FieldState::There);
        assert_eq!(of("spec.replicatedJobs.groupName"), FieldState::Missing);
    }

    #[test]
    fn what_is_missing_is_said_with_the_version_to_install() {
        let spark = kind("sparkapplications");
        let needed = spark.needed().remove(0);
        let finding = |standing| FieldFinding {
            kind: spark.clone(),
            needed: needed.clone(),
            standing,
        };
        let missing = finding(FieldState::Missing);
        assert_eq!(
            missing.to_string(),
            "a SparkApplication can't be held: the schema has no spec.suspend, so it runs without a slot"
        );
        let advice = missing.advice();
        assert_eq!(
            advice.as_deref(),
            Some("install Spark operator 2.4 or a later one")
        );
        assert_eq!(finding(FieldState::There).advice(), None);
    }
}
