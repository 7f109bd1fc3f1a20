//! Whether an operator reports, judged by its Lease and by what it has written.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::age::age;

/// The name of the operator's Lease, unless its `--lease-name` is another one.
pub(crate) const LEASE_NAME: &str = "consul-semaphore-operator";

/// The namespace of the operator, if it is installed as the docs say.
pub(crate) const OPERATOR_NAMESPACE: &str = "consul-semaphore-system";

/// The operator's name as a manager of fields. It does not depend on the name of the Lease.
const FIELD_MANAGER: &str = "consul-semaphore-operator";

/// The duration of a Lease that does not say it, in seconds.
const DEFAULT_LEASE_SECONDS: i32 = 15;

/// Returns when an operator last changed one of these objects, according to the managed fields.
pub(crate) fn last_write<'a>(
    objects: impl IntoIterator<Item = &'a ObjectMeta>,
) -> Option<Timestamp> {
    let entries = objects
        .into_iter()
        .flat_map(|object| &object.managed_fields);
    let by_operator = entries
        .flatten()
        .filter(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER));
    by_operator
        .filter_map(|entry| Some(entry.time.as_ref()?.0))
        .max()
}

/// Returns a line that says since when no operator reports; `None` if an operator reports, or if no Lease can tell.
///
/// An operator that has written something (`written`) after all Leases had ended does not use a Lease. The Leases then
/// belong to an earlier operator and say nothing about this one.
pub(crate) fn silence(
    leases: &[Lease],
    written: Option<Timestamp>,
    now: Timestamp,
) -> Option<String> {
    let specs = leases.iter().filter_map(|lease| lease.spec.as_ref());
    let renewed: Vec<(Timestamp, &LeaseSpec)> = specs
        .filter_map(|spec| Some((spec.renew_time.as_ref()?.0, spec)))
        .collect();
    if renewed.iter().any(|(_, spec)| !is_over(spec, now)) {
        return None;
    }
    let ended = renewed.iter().map(|(time, spec)| *time + patience(spec));
    if written > ended.max() {
        return None;
    }
    let last = renewed.iter().map(|(time, _)| *time).max()?;
    let age = age(Some(last), now);
    Some(format!(
        "no operator has reported for {age}: the status may be out of date"
    ))
}

/// Returns the time after which a Lease that is not renewed is over: twice its duration.
fn patience(spec: &LeaseSpec) -> SignedDuration {
    let seconds = spec.lease_duration_seconds.unwrap_or(DEFAULT_LEASE_SECONDS);
    SignedDuration::from_secs(i64::from(seconds)).saturating_mul(2)
}

/// Whether the Lease was released, or not renewed for two of its durations.
fn is_over(spec: &LeaseSpec, now: Timestamp) -> bool {
    let released = spec.holder_identity.as_deref().is_none_or(str::is_empty);
    let renewed = spec.renew_time.as_ref().map(|time| time.0);
    let late = renewed.is_some_and(|time| now.duration_since(time) > patience(spec));
    released || late
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::view::samples::now;

    fn lease(holder: &str, renewed: &str) -> Lease {
        from_value(json!({
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed },
        }))
        .unwrap()
    }

    #[test]
    fn one_that_renews_its_lease_reports() {
        assert_eq!(silence(&[], None, now()), None);
        assert_eq!(silence(&[Lease::default()], None, now()), None);
        let fresh = lease("a", "2026-01-01T00:29:31.000000Z");
        let old = lease("a", "2026-01-01T00:10:00.000000Z");
        assert_eq!(silence(std::slice::from_ref(&fresh), None, now()), None);
        assert_eq!(silence(&[old, fresh], None, now()), None);
        // The clocks of two machines differ.
        let ahead = lease("a", "2026-01-01T00:31:00.000000Z");
        assert_eq!(silence(&[ahead], None, now()), None);
    }

    #[test]
    fn one_that_is_gone_does_not() {
        let said = |length: &str| {
            Some(format!(
                "no operator has reported for {length}: the status may be out of date"
            ))
        };
        let late = lease("a", "2026-01-01T00:18:00.000000Z");
        assert_eq!(
            silence(std::slice::from_ref(&late), None, now()),
            said("12m")
        );
        let released = lease("", "2026-01-01T00:29:55.000000Z");
        assert_eq!(silence(&[late, released], None, now()), said("5s"));
    }

    #[test]
    fn what_was_written_after_the_lease_is_of_an_operator_without_one() {
        let late = lease("a", "2026-01-01T00:18:00.000000Z");
        let said = |manager: &str, time: &str| {
            let object = from_value(json!({ "managedFields": [
                { "manager": "kubectl-edit", "time": "2026-01-01T00:29:00Z" },
                { "manager": manager, "time": time },
            ] }));
            let written = last_write([&object.unwrap()]);
            silence(std::slice::from_ref(&late), written, now())
        };
        assert_eq!(said(FIELD_MANAGER, "2026-01-01T00:18:31Z"), None);
        // The holder of the Lease wrote this before the Lease had ended.
        assert!(said(FIELD_MANAGER, "2026-01-01T00:18:05Z").is_some());
        assert!(said("kubectl", "2026-01-01T00:29:00Z").is_some());
    }
}
