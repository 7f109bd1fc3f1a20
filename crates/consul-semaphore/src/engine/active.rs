//! Selects the contenders and workloads that a pass checks: those that have changed, and those that were not at rest.
//! The other holders are steady, and are kept with the [`Evidence`] for their slots.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Lookup, Owner, held::SlotsHeld, knowledge::Knowledge, sessions::Sessions};
use crate::{
    Evidence, Excluded, Identity, OwnContender, Reading, Settings, Uid, Workload, reading::Changed,
};
use consul_client::SessionId;

/// Contenders and workloads that a pass checks.
#[derive(Clone, Debug)]
pub(super) struct Active {
    /// Whether it is unknown what has changed since the last pass.
    all: bool,
    /// Contenders of ours.
    pub(super) contenders: BTreeMap<SessionId, Arc<Identity>>,
    /// Workloads that were started here.
    pub(super) bound: BTreeMap<Uid, Arc<Workload>>,
    /// Contenders of others.
    pub(super) foreign: BTreeSet<SessionId>,
    /// Sessions that Consul reported as gone since the last check of a reading.
    pub(super) gone: BTreeSet<SessionId>,
}

impl Default for Active {
    fn default() -> Self {
        Self {
            all: true,
            contenders: BTreeMap::new(),
            bound: BTreeMap::new(),
            foreign: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }
}

impl Active {
    /// Marks everything as possibly changed since the last pass.
    pub(super) fn look_at_all(&mut self) {
        self.all = true;
    }

    /// Adds the workloads and sessions that have changed, and the workloads that are `due`, so that this pass checks
    /// them. Returns whether it is known what has changed, so that the others need no check.
    pub(super) fn note_changes(
        &mut self,
        due: impl IntoIterator<Item = Uid>,
        evidence: &mut Evidence,
        knowledge: &mut Knowledge,
        sessions: &Sessions,
        lookup: &impl Lookup,
    ) -> bool {
        let changes = lookup.changes();
        let is_known = changes.is_some();
        let Some(changes) = changes.filter(|_| !self.all) else {
            evidence.unsettle_all(|session| lookup.life(session));
            let bound = lookup.bound().into_iter();
            self.bound = bound
                .map(|workload| (workload.uid.clone(), workload))
                .collect();
            self.gone = sessions.gone(lookup).into_iter().collect();
            self.all = false;
            if let Some(reading) = &mut knowledge.reading {
                reading.forget_what_changed();
            }
            return is_known;
        };
        let mut active: Vec<Uid> = due.into_iter().chain(changes.workloads).collect();
        if changes.sessions {
            let gone = sessions.gone(lookup);
            active.extend(gone.iter().filter_map(|id| evidence.steady_by(id)).cloned());
            self.gone.extend(gone);
        }
        for uid in active {
            self.unsettle(evidence, &uid, lookup);
            match lookup.started(&uid) {
                Some(workload) => drop(self.bound.insert(uid, workload)),
                None => drop(self.bound.remove(&uid)),
            }
        }
        is_known
    }

    /// Makes every pass check a workload and its contenders again.
    fn unsettle(&mut self, evidence: &mut Evidence, uid: &Uid, lookup: &impl Lookup) {
        for ours in evidence.unsettle(uid, |session| lookup.life(session)) {
            let OwnContender {
                session,
                identity,
                workload,
                ..
            } = ours;
            let workload = workload.map(|workload| (uid.clone(), workload));
            self.bound.extend(workload);
            self.contenders.insert(session, identity);
        }
    }

    /// Adds the contenders that have changed since the last check of a reading.
    pub(super) fn note_contenders(
        &mut self,
        evidence: &mut Evidence,
        knowledge: &mut Knowledge,
        sessions: &Sessions,
        lookup: &impl Lookup,
    ) {
        self.gone.clear();
        let Some(reading) = &mut knowledge.reading else {
            return;
        };
        let changed = reading.take_changed();
        let Changed::Only(changed) = changed else {
            return self.find_contenders(evidence, reading, sessions, lookup);
        };
        let mut left = BTreeSet::new();
        for session in changed {
            if let Some(uid) = evidence.steady_by(&session).cloned() {
                self.unsettle(evidence, &uid, lookup);
            }
            let owner = reading
                .contender(&session)
                .and_then(|_| sessions.owners.get(&session));
            if owner == Some(&Owner::Foreign) {
                self.foreign.insert(session.clone());
            } else {
                self.foreign.remove(&session);
            }
            if let Some(Owner::Own(identity)) = owner {
                // All contenders of a workload are checked together.
                self.unsettle(evidence, &identity.uid, lookup);
                self.contenders.insert(session, identity.clone());
            } else if let Some(identity) = self.contenders.remove(&session) {
                left.insert(identity.uid.clone());
            }
        }
        for identity in self.contenders.values() {
            left.remove(&identity.uid);
        }
        for uid in left {
            if evidence.steady_sessions(&uid).next().is_none() {
                lookup.contends(&uid, None);
            }
        }
    }

    /// Finds all contenders from scratch.
    fn find_contenders(
        &mut self,
        evidence: &mut Evidence,
        reading: &Reading,
        sessions: &Sessions,
        lookup: &impl Lookup,
    ) {
        let steady = evidence.unsettle_all(|session| lookup.life(session));
        let workloads = steady.into_iter().filter_map(|ours| ours.workload);
        self.bound
            .extend(workloads.map(|workload| (workload.uid.clone(), workload)));
        let Self {
            contenders,
            foreign,
            ..
        } = self;
        contenders.clear();
        foreign.clear();
        for (session, _) in reading.contenders() {
            match sessions.owners.get(session) {
                Some(Owner::Own(identity)) => {
                    contenders.insert(session.clone(), identity.clone());
                }
                Some(Owner::Foreign) => drop(foreign.insert(session.clone())),
                Some(Owner::Neighbour | Owner::Ended) | None => {}
            }
        }
        let uids = contenders.values().map(|identity| &identity.uid);
        lookup.contending(&uids.collect::<Vec<_>>());
    }

    /// Returns the contenders of ours to check, each with its workload.
    pub(super) fn ours(&self, lookup: &impl Lookup) -> Vec<OwnContender> {
        let contenders = self.contenders.iter();
        contenders
            .map(|(session, identity)| OwnContender {
                session: session.clone(),
                identity: identity.clone(),
                workload: lookup.contends(&identity.uid, Some(session)),
                pods_gone: false,
            })
            .collect()
    }

    /// Returns whether a workload has one of the contenders.
    pub(super) fn contends(&self, workload: &Uid) -> bool {
        let mut contenders = self.contenders.values();
        contenders.any(|own| own.uid == *workload)
    }

    /// Returns the workloads that were started here and about which there is anything to decide.
    pub(super) fn decided_about(
        &self,
        settings: &Settings,
    ) -> impl Iterator<Item = &Arc<Workload>> {
        let bound = self.bound.values();
        bound.filter(|workload| settings.decides_about(workload))
    }

    /// Returns the contenders of ours, except those of steady workloads.
    pub(super) fn own_contenders(&self) -> impl Iterator<Item = (&SessionId, &Identity)> {
        let contenders = self.contenders.iter();
        contenders.map(|(session, identity)| (session, &**identity))
    }

    /// Stops checking contenders about which there is nothing to decide, together with their workloads.
    pub(super) fn settle(
        &mut self,
        ours: &mut Vec<OwnContender>,
        held: &mut SlotsHeld,
        reading: &Reading,
        settings: &Settings,
        excluded: &Excluded,
    ) {
        let lock_key = settings.prefix.lock_key();
        let is_at_rest = |own: &&OwnContender| {
            let uid = &own.identity.uid;
            own.runs_as_granted(&lock_key)
                && reading.holds(&own.session)
                && held.cooldowns.end(&own.session).is_none()
                && !excluded.busy.contains(uid)
                && self.bound.get(uid) == own.workload.as_ref()
        };
        let (at_rest, others): (Vec<&OwnContender>, Vec<_>) = ours.iter().partition(is_at_rest);
        if at_rest.is_empty() {
            return;
        }
        let others: BTreeSet<&Uid> = others.into_iter().map(|own| &own.identity.uid).collect();
        let mut of_workload: BTreeMap<Uid, Vec<OwnContender>> = BTreeMap::new();
        for own in at_rest {
            let uid = &own.identity.uid;
            if !others.contains(uid) {
                of_workload
                    .entry(uid.clone())
                    .or_default()
                    .push(own.clone());
            }
        }
        of_workload.retain(|uid, contenders| {
            contenders.sort_by_key(|own| own.identity.ordinal);
            let is_steady = held.evidence.settle(settings, contenders);
            if is_steady {
                for own in contenders {
                    self.contenders.remove(&own.session);
                }
                self.bound.remove(uid);
            }
            is_steady
        });
        ours.retain(|own| !of_workload.contains_key(&own.identity.uid));
    }
}
