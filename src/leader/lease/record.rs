//! The rules of an election by a Lease, without IO: the same as those of Kubernetes' own programs,
//! so that the record reads the same in every tool.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};

use crate::clock::Moment;

/// The Lease as this replica last saw it, and since when it has not changed, by its own clock.
///
/// The record's own times are another machine's and say nothing here. That they change is the sign
/// of life.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sighting {
    /// `None` where there is none.
    pub(super) lease: Option<Lease>,
    since: Moment,
    /// It was there when this process began.
    first: bool,
}

impl Sighting {
    /// What is known now, after a look.
    pub(super) fn after(before: Option<Self>, lease: Option<Lease>, now: Moment) -> Self {
        let spec = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.spec.clone());
        match before {
            // A label that somebody changes is no sign of life.
            Some(before) if spec(&before.lease) == spec(&lease) => Self { lease, ..before },
            before => Self {
                lease,
                since: now,
                first: before.is_none(),
            },
        }
    }

    /// Who holds the Lease.
    pub(super) fn holder(&self) -> Option<&str> {
        let spec = self.lease.as_ref()?.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref();
        holder.filter(|holder| !holder.is_empty())
    }

    /// When this replica may take it, if nothing changes until then. `claim` is what it wrote when
    /// it last tried to, `usual` the length of a lease that does not say how long it is.
    ///
    /// A record of its own name that was there when the process began is its own from before a
    /// restart, so it need not wait for itself to run out. One that comes later is of another
    /// process that was given the same name.
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

    /// Whether the record is what this replica wrote when it took the Lease, renewed or not.
    pub(super) fn is_held_by(&self, identity: &str, claim: Option<&MicroTime>) -> bool {
        let spec = self.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let acquired = spec.and_then(|spec| spec.acquire_time.as_ref());
        self.holder() == Some(identity) && claim.is_some() && acquired == claim
    }

    /// The Lease in this replica's hands. Written back it names the version that was seen, so it is
    /// refused when anybody has written it since.
    pub(super) fn taken(&self, identity: &str, length: Duration, now: &MicroTime) -> Lease {
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

    /// The Lease with another sign of life.
    pub(super) fn renewed(&self, now: &MicroTime) -> Lease {
        let mut lease = self.lease.clone().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        spec.renew_time = Some(now.clone());
        lease
    }

    /// The Lease in nobody's hands.
    pub(super) fn given_back(&self, now: &MicroTime) -> Lease {
        let mut lease = self.renewed(now);
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.acquire_time = Some(now.clone());
        spec.lease_duration_seconds = Some(1);
        lease
    }
}
