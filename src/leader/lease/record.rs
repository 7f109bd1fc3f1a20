//! Has the rules of an election by a Lease, without IO. They are the rules of Kubernetes' own programs, so that the
//! record reads the same in every tool.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

use consul_client::clock::Moment;

/// The Lease as this replica last saw it, and the moment since which it has not changed, by this replica's clock.
///
/// The record's times come from another machine and mean nothing here. A change of them is the sign of life.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseSighting {
    /// The Lease; `None` if it does not exist.
    pub(super) lease: Option<Lease>,
    since: Moment,
    /// Whether the Lease existed when this process started.
    first: bool,
}

impl LeaseSighting {
    /// Returns the state after a read.
    pub(super) fn after(before: Option<Self>, lease: Option<Lease>, now: Moment) -> Self {
        let spec = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.spec.clone());
        match before {
            // A change of a label is not a sign of life.
            Some(before) if spec(&before.lease) == spec(&lease) => Self { lease, ..before },
            before => Self {
                lease,
                since: now,
                first: before.is_none(),
            },
        }
    }

    /// Returns the name of the Lease's holder.
    pub(super) fn holder(&self) -> Option<&str> {
        let spec = self.lease.as_ref()?.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref();
        holder.filter(|holder| !holder.is_empty())
    }

    /// Returns the moment at which this replica may take the Lease, if nothing changes until then. `claim` is the
    /// acquire time that this replica wrote when it last tried to take the Lease, `usual` the length of a lease that
    /// does not state its own.
    ///
    /// A record with this replica's name that existed when the process started is from before a restart, so the
    /// replica need not wait for the lease to run out. A later record belongs to another process with the same name.
    pub(super) fn free_at(
        &self,
        identity: &str,
        claim: Option<&MicroTime>,
        usual: Duration,
    ) -> Moment {
        let Some(holder) = self.holder() else {
            return Moment::default();
        };
        let own = holder == identity && self.first;
        if own || self.is_held_by(identity, claim) {
            return Moment::default();
        }
        let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let length = seconds.and_then(|seconds| seconds.try_into().ok());
        self.since + length.map_or(usual, Duration::from_secs)
    }

    /// Returns whether the record is the one that this replica wrote when it took the Lease, renewed or not.
    pub(super) fn is_held_by(&self, identity: &str, claim: Option<&MicroTime>) -> bool {
        let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let acquired = spec.and_then(|spec| spec.acquire_time.as_ref());
        self.holder() == Some(identity) && claim.is_some() && acquired == claim
    }

    /// Returns the Lease with this replica as the holder. The write names the version that was seen, so the API
    /// server refuses it if anybody has written the Lease since.
    ///
    /// If this replica has the Lease already, by its `claim`, the claim stays. A renewal whose answer was lost may
    /// still arrive before this write, and the replica must then recognize it as its own.
    pub(super) fn taken(
        &self,
        identity: &str,
        claim: Option<&MicroTime>,
        length: Duration,
        now: &MicroTime,
    ) -> Lease {
        if self.is_held_by(identity, claim) {
            return self.renewed(now);
        }
        let mut lease = self.lease.clone().unwrap_or_default();
        let changes = self.holder() != Some(identity);
        let spec = lease.spec.take().unwrap_or_default();
        let transitions = spec.lease_transitions.unwrap_or(0);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: i32::try_from(length.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now.clone()),
            lease_transitions: Some(transitions.saturating_add(changes.into())),
            ..spec
        });
        lease
    }

    /// Returns the Lease with another sign of life.
    pub(super) fn renewed(&self, now: &MicroTime) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        spec.renew_time = Some(now.clone());
        lease
    }

    /// Returns the Lease without a holder.
    pub(super) fn given_back(&self, now: &MicroTime) -> Lease {
        let mut lease = self.renewed(now);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.acquire_time = Some(now.clone());
        spec.lease_duration_seconds = Some(1);
        lease
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    const LENGTH: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn time(second: i64) -> MicroTime {
        MicroTime(Timestamp::from_second(second).unwrap())
    }

    /// Returns a Lease of `holder`, taken at one second of the holder's clock and renewed at another.
    fn lease(holder: &str, taken: i64, renewed: i64) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                acquire_time: Some(time(taken)),
                renew_time: Some(time(renewed)),
                lease_duration_seconds: Some(20),
                lease_transitions: Some(3),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    fn first(lease: Option<Lease>, now: Moment) -> LeaseSighting {
        LeaseSighting::after(None, lease, now)
    }

    #[test]
    fn what_nobody_holds_is_free_at_once() {
        let released = Some(lease("", 5, 5));
        for free in [None, Some(Lease::default()), released] {
            let seen = first(free, at(100));
            assert_eq!(seen.free_at("me", None, LENGTH), Moment::default());
        }
    }

    #[test]
    fn a_lease_expires_by_our_clock_from_when_it_was_first_seen() {
        // The holder claims to have renewed it long ago, but its clock may be wrong.
        let seen = first(Some(lease("other", 1, 2)), at(100));
        assert_eq!(seen.free_at("me", None, LENGTH), at(120));
        let seen = LeaseSighting::after(Some(seen), Some(lease("other", 1, 2)), at(110));
        assert_eq!(seen.free_at("me", None, LENGTH), at(120));
    }

    #[test]
    fn a_renewal_extends_the_lease_and_a_label_does_not() {
        let seen = first(Some(lease("other", 1, 2)), at(100));
        let mut labelled = lease("other", 1, 2);
        labelled.metadata.resource_version = Some("7".to_owned());
        let seen = LeaseSighting::after(Some(seen), Some(labelled), at(105));
        assert_eq!(seen.free_at("me", None, LENGTH), at(120));
        let version = seen
            .lease
            .as_ref()
            .unwrap()
            .metadata
            .resource_version
            .clone();
        assert_eq!(version.as_deref(), Some("7"), "the next write names it");
        // A renewal by a clock that was set back counts, too.
        let seen = LeaseSighting::after(Some(seen), Some(lease("other", 1, 1)), at(110));
        assert_eq!(seen.free_at("me", None, LENGTH), at(130));
    }

    #[test]
    fn a_lease_that_does_not_say_how_long_it_is_has_our_length() {
        let mut lease = lease("other", 1, 2);
        lease.spec.as_mut().unwrap().lease_duration_seconds = None;
        let seen = first(Some(lease), at(100));
        assert_eq!(seen.free_at("me", None, LENGTH), at(115));
    }

    #[test]
    fn our_own_from_before_a_restart_is_free_at_once() {
        let seen = first(Some(lease("me", 1, 2)), at(100));
        assert_eq!(seen.free_at("me", None, LENGTH), Moment::default());
        // Another process with this name renews the Lease, so it is alive, and is not this one.
        let seen = LeaseSighting::after(Some(seen), Some(lease("me", 1, 3)), at(102));
        assert_eq!(seen.free_at("me", None, LENGTH), at(122));
        // A Lease that appears later belongs to another process, too.
        let seen = first(Some(lease("other", 1, 2)), at(100));
        let seen = LeaseSighting::after(Some(seen), Some(lease("me", 9, 9)), at(103));
        assert_eq!(seen.free_at("me", None, LENGTH), at(123));
    }

    #[test]
    fn a_lease_whose_acquisition_got_no_answer_is_ours() {
        let seen = first(Some(lease("other", 1, 2)), at(100));
        let claim = time(50);
        let seen = LeaseSighting::after(Some(seen), Some(lease("me", 50, 50)), at(121));
        assert!(seen.is_held_by("me", Some(&claim)));
        assert_eq!(seen.free_at("me", Some(&claim), LENGTH), Moment::default());
        assert!(!seen.is_held_by("me", Some(&time(51))));
        assert!(!seen.is_held_by("me", None));
        assert!(!seen.is_held_by("other", Some(&claim)));
    }

    #[test]
    fn a_renewal_that_arrives_after_the_lead_was_lost_is_ours() {
        let seen = first(None, at(100));
        let claim = time(50);
        let ours = LeaseSighting::after(Some(seen), Some(lease("me", 50, 50)), at(101));
        // This replica takes the Lease again, and the abandoned renewal arrives first.
        let again = ours.taken("me", Some(&claim), LENGTH, &time(61)).spec;
        let claim = again.and_then(|spec| spec.acquire_time);
        let late = LeaseSighting::after(Some(ours), Some(lease("me", 50, 60)), at(112));
        assert_eq!(
            late.free_at("me", claim.as_ref(), LENGTH),
            Moment::default()
        );
    }

    #[test]
    fn it_is_taken_renewed_and_given_back_as_kubernetes_does() {
        let mut before = lease("other", 1, 2);
        before.metadata.resource_version = Some("41".to_owned());
        let seen = first(Some(before), at(0));
        let taken = seen.taken("me", None, LENGTH, &time(60));
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("41"));
        let spec = taken.spec.clone().unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("me"));
        assert_eq!(spec.lease_duration_seconds, Some(15));
        assert_eq!(spec.lease_transitions, Some(4));
        assert_eq!(
            (spec.acquire_time, spec.renew_time),
            (Some(time(60)), Some(time(60)))
        );

        let seen = LeaseSighting::after(Some(seen), Some(taken), at(1));
        let renewed = seen.renewed(&time(62)).spec.unwrap();
        assert_eq!(
            (renewed.acquire_time, renewed.renew_time),
            (Some(time(60)), Some(time(62)))
        );
        let again = seen.taken("me", None, LENGTH, &time(70)).spec.unwrap();
        assert_eq!(again.lease_transitions, Some(4), "it has not changed hands");

        let given = first(Some(seen.given_back(&time(63))), at(2));
        assert_eq!(given.holder(), None);
        assert_eq!(given.free_at("other", None, LENGTH), Moment::default());
    }
}
