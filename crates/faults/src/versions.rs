//! The versions of Kubernetes objects as the operator's door shows them. They can go back, as they do when etcd is
//! restored from a backup. Then a watch from an earlier version has expired, and a write that names one is a
//! conflict.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::body::Bytes;
use serde_json::Value;
use testbed::Call;

/// By how much versions go back at once: more than a campaign ever writes.
const STEP: u64 = 1_000_000;

/// How often they can go back.
const STEPS: u64 = 1_000;

/// How a version is written in an object.
const FIELD: &[u8] = b"\"resourceVersion\":\"";

/// How a version is written in a query.
const PARAMETER: &str = "resourceVersion=";

/// A version that no object has any more.
const LONG_AGO: u64 = 1;

/// The offset that is currently added to each version.
#[derive(Clone)]
pub(crate) struct Versions(Arc<AtomicU64>);

/// The offset at the time of a request.
#[derive(Clone, Copy)]
pub(crate) struct Added(u64);

impl Versions {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(STEP * STEPS)))
    }

    /// From now on, all versions are lower than any that was shown before.
    pub(crate) fn go_back(&self) {
        self.0.fetch_sub(STEP, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Added {
        Added(self.0.load(Ordering::Relaxed))
    }
}

impl Added {
    /// A request with the API server's own versions; `None` if it starts at a version that no longer exists.
    pub(crate) fn subtract_offset(self, call: Call) -> Option<Call> {
        let parameters = call.query.split('&');
        let parameters: Option<Vec<String>> = parameters
            .map(|parameter| self.taken_off_parameter(parameter))
            .collect();
        let meant = |version| self.meant(version).unwrap_or(LONG_AGO);
        let body = in_patch(&call.body, meant).unwrap_or_else(|| in_objects(&call.body, meant));
        Some(Call {
            query: parameters?.join("&"),
            body: body.into(),
            ..call
        })
    }

    fn taken_off_parameter(self, parameter: &str) -> Option<String> {
        let Some(version) = parameter
            .strip_prefix(PARAMETER)
            .and_then(|version| version.parse().ok())
        else {
            return Some(parameter.to_owned());
        };
        Some(format!("{PARAMETER}{}", self.meant(version)?))
    }

    /// The API server's own version. A request for any version says 0, which stays 0.
    fn meant(self, shown: u64) -> Option<u64> {
        let meant = shown.checked_sub(self.0).filter(|meant| *meant < STEP);
        if shown == 0 { Some(0) } else { meant }
    }

    /// An answer, or whole lines of one, with the versions that the operator sees.
    pub(crate) fn add_offset(self, answer: &[u8]) -> Bytes {
        in_objects(answer, |version| version + self.0).into()
    }
}

/// Replaces the version in a JSON Patch; `None` if it is none.
fn in_patch(json: &[u8], exchange: impl Fn(u64) -> u64) -> Option<Vec<u8>> {
    if json.first() != Some(&b'[') {
        return None;
    }
    let mut operations: Vec<Value> = serde_json::from_slice(json).ok()?;
    for operation in &mut operations {
        let names_it = operation["path"] == "/metadata/resourceVersion";
        let version = operation["value"]
            .as_str()
            .and_then(|text| text.parse().ok());
        if let Some(version) = version.filter(|_| names_it) {
            operation["value"] = exchange(version).to_string().into();
        }
    }
    serde_json::to_vec(&operations).ok()
}

/// Replaces each version in the JSON of objects.
fn in_objects(json: &[u8], exchange: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut exchanged = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.windows(FIELD.len()).position(|part| part == FIELD) {
        let (before, after) = rest.split_at(at + FIELD.len());
        exchanged.extend_from_slice(before);
        let digits = after
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (version, after) = after.split_at(digits);
        match std::str::from_utf8(version)
            .ok()
            .and_then(|version| version.parse().ok())
        {
            Some(version) => exchanged.extend_from_slice(exchange(version).to_string().as_bytes()),
            None => exchanged.extend_from_slice(version),
        }
        rest = after;
    }
    exchanged.extend_from_slice(rest);
    exchanged
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::*;

    fn asked(target: &str, body: &str) -> Call {
        Call::new(Method::GET, target, body.to_owned())
    }

    #[test]
    fn what_was_shown_is_understood() {
        let added = Versions::new().now();
        let object = br#"{"metadata":{"resourceVersion":"42","name":"a"}}"#;
        let shown = added.add_offset(object);
        assert_eq!(
            shown,
            r#"{"metadata":{"resourceVersion":"1000000042","name":"a"}}"#
        );
        let shown = String::from_utf8(shown.to_vec()).unwrap();
        let path = "/jobs?watch=true&resourceVersion=1000000042&resourceVersionMatch=NotOlderThan";
        let meant = added.subtract_offset(asked(path, &shown)).unwrap();
        assert_eq!(
            meant.target(),
            "/jobs?watch=true&resourceVersion=42&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(meant.body, object.as_slice());
        let any = added
            .subtract_offset(asked("/jobs?resourceVersion=0", ""))
            .unwrap();
        assert_eq!(any.target(), "/jobs?resourceVersion=0");
    }

    #[test]
    fn a_json_patch_names_the_version_that_was_meant() {
        let body = |version: &str| {
            let version = format!(
                r#"{{"op":"replace","path":"/metadata/resourceVersion","value":"{version}"}}"#
            );
            format!(r#"[{version},{{"op":"add","path":"/spec/value","value":"1000000042"}}]"#)
        };
        let versions = Versions::new();
        let meant = |shown| {
            let call = versions
                .now()
                .subtract_offset(asked("/jobsets/a", &body(shown)));
            call.unwrap().body
        };
        assert_eq!(meant("1000000042"), body("42").as_bytes());
        versions.go_back();
        assert_eq!(
            meant("1000000042"),
            body("1").as_bytes(),
            "it is a conflict"
        );
    }

    #[test]
    fn what_was_shown_before_they_went_back_has_expired_and_is_a_conflict() {
        let versions = Versions::new();
        let shown = versions.now().add_offset(br#"{"resourceVersion":"900"}"#);
        versions.go_back();
        let later = versions.now().add_offset(br#"{"resourceVersion":"901"}"#);
        assert_eq!(later, r#"{"resourceVersion":"999000901"}"#);
        assert!(
            versions
                .now()
                .subtract_offset(asked("/jobs?resourceVersion=1000000900", ""))
                .is_none()
        );
        let shown = String::from_utf8(shown.to_vec()).unwrap();
        let patch = versions
            .now()
            .subtract_offset(asked("/jobs/a", &shown))
            .unwrap();
        assert_eq!(patch.body, r#"{"resourceVersion":"1"}"#);
    }
}
