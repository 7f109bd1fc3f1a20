//! Whether an operator reports, by its Lease.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

use super::age::age;

/// The name of the operator's Lease, unless its `--lease-name` is another one.
pub(crate) const LEASE: &str = "consul-semaphore-operator";

/// The namespace of the operator, if it is installed as the docs say.
pub(crate) const NAMESPACE: &str = "consul-semaphore-system";

/// How long a lease lasts that does not say so.
const USUAL: i32 = 15;

/// A line that says since when no operator reports; `None` if one does, or there is no Lease to tell.
pub(crate) fn silence(leases: &[Lease], now: Timestamp) -> Option<String> {
    let specs = leases.iter().filter_map(|lease| lease.spec.as_ref());
    let renewed: Vec<(Timestamp, bool)> = specs
        .filter_map(|spec| Some((spec.renew_time.as_ref()?.0, is_over(spec, now))))
        .collect();
    if renewed.iter().any(|(_, over)| !over) {
        return None;
    }
    let last = renewed.iter().map(|(time, _)| *time).max()?;
    let age = age(Some(last), now);
    Some(format!(
        "no operator has reported for {age}: the status may be out of date"
    ))
}

/// Whether the Lease was released, or not renewed for two of its durations.
fn is_over(spec: &LeaseSpec, now: Timestamp) -> bool {
    let released = spec.holder_identity.as_deref().is_none_or(str::is_empty);
    let seconds = spec.lease_duration_seconds.unwrap_or(USUAL);
    let length = SignedDuration::from_secs(i64::from(seconds));
    let renewed = spec.renew_time.as_ref().map(|time| time.0);
    let late = renewed.is_some_and(|time| now.duration_since(time) > length.saturating_mul(2));
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
        assert_eq!(silence(&[], now()), None);
        assert_eq!(silence(&[Lease::default()], now()), None);
        let fresh = lease("a", "2026-01-01T00:29:31.000000Z");
        let old = lease("a", "2026-01-01T00:10:00.000000Z");
        assert_eq!(silence(std::slice::from_ref(&fresh), now()), None);
        assert_eq!(silence(&[old, fresh], now()), None);
        // The clocks of two machines differ.
        let ahead = lease("a", "2026-01-01T00:31:00.000000Z");
        assert_eq!(silence(&[ahead], now()), None);
    }

    #[test]
    fn one_that_is_gone_does_not() {
        let said = |length: &str| {
            Some(format!(
                "no operator has reported for {length}: the status may be out of date"
            ))
        };
        let late = lease("a", "2026-01-01T00:18:00.000000Z");
        assert_eq!(silence(std::slice::from_ref(&late), now()), said("12m"));
        let released = lease("", "2026-01-01T00:29:55.000000Z");
        assert_eq!(silence(&[late, released], now()), said("5s"));
    }
}
