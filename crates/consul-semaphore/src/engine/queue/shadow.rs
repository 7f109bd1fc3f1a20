//! Checks that a pass over all workloads and contenders gives the same result as one over those that have changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Facts, Queue};
use crate::{
    Evidence, LastProof, Observed, OwnContender, Phase, Plan, Reading, SessionState, Uid, Workload,
    engine::{Changes, Lookup, Owner, Reach, sessions::Sessions},
};
use consul_client::{SessionId, clock::Moment};

/// The state at the last pass, and the evidence of a check of all slots in each pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    seen: Option<Arc<Seen>>,
    evidence: Evidence,
}

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    started: BTreeMap<Uid, Arc<Workload>>,
    contending: BTreeMap<Uid, Option<Arc<Workload>>>,
    gone: BTreeSet<SessionId>,
}

impl Shadow {
    /// Takes over the record of an earlier process, as [`Queue::recall`] does.
    pub(super) fn recall(&mut self, last: Option<LastProof>) {
        self.evidence = Evidence::after(last);
    }

    /// Returns a lookup that also reports what has changed since the last pass, and nothing else.
    pub(super) fn tell_changes<'a, L: Lookup>(
        &mut self,
        sessions: &Sessions,
        lookup: &'a L,
    ) -> Telling<'a, L> {
        let owners = sessions.owners.values();
        let own = owners.filter_map(|owner| match owner {
            Owner::Own(identity) => Some(identity.uid.clone()),
            _ => None,
        });
        let contending = |uid: Uid| {
            let workload = lookup.contending(&[&uid]).pop().flatten();
            (uid, workload)
        };
        let bound = lookup.bound().into_iter();
        let seen = Seen {
            started: bound
                .map(|workload| (workload.uid.clone(), workload))
                .collect(),
            contending: own.map(contending).collect(),
            gone: sessions.gone(lookup).into_iter().collect(),
        };
        let changes = self.seen.as_ref().map(|before| {
            let earlier = before.started.keys().chain(before.contending.keys());
            let uids = earlier.chain(seen.started.keys().chain(seen.contending.keys()));
            let differs = |uid: &&Uid| {
                let of = |seen: &Seen| {
                    let started = seen.started.get(*uid).cloned();
                    (started, seen.contending.get(*uid).cloned())
                };
                of(before) != of(&seen)
            };
            Changes {
                workloads: uids.filter(differs).cloned().collect(),
                sessions: before.gone != seen.gone,
            }
        });
        self.seen = Some(Arc::new(seen));
        Telling { lookup, changes }
    }
}

/// A lookup that also reports changes.
pub(super) struct Telling<'a, L> {
    lookup: &'a L,
    changes: Option<Changes>,
}

impl<L: Lookup> Lookup for Telling<'_, L> {
    fn bound(&self) -> Vec<Arc<Workload>> {
        self.lookup.bound()
    }

    fn waiting(&self, reach: &Reach<'_>) -> Vec<Arc<Workload>> {
        self.lookup.waiting(reach)
    }

    fn workload(&self, uid: &Uid) -> Option<Arc<Workload>> {
        self.lookup.workload(uid)
    }

    fn contending(&self, uids: &[&Uid]) -> Vec<Option<Arc<Workload>>> {
        self.lookup.contending(uids)
    }

    fn touched(&self) -> BTreeSet<Uid> {
        self.lookup.touched()
    }

    fn life(&self, session: &SessionId) -> Option<SessionState> {
        self.lookup.life(session)
    }

    fn changes(&self) -> Option<Changes> {
        self.changes.clone()
    }

    fn contends(&self, uid: &Uid, session: Option<&SessionId>) -> Option<Arc<Workload>> {
        self.lookup
            .contending(&[uid])
            .pop()
            .flatten()
            .filter(|_| session.is_some())
    }
}

impl Queue {
    /// Panics unless a pass over all workloads and contenders gives the same plan, and the plan obeys the rules.
    pub(super) fn check(&mut self, facts: &Facts, plan: &Plan, lookup: &impl Lookup) {
        let all = Facts {
            now: facts.now,
            certain: facts.certain,
            ours: self.all_of_ours(facts, lookup),
            bound: self.all_bound(facts, lookup),
            steady: 0,
            waiting: facts.waiting.clone(),
            excluded: facts.excluded.clone(),
            brief: facts.brief.clone(),
            unsure: facts.unsure,
        };
        self.check_evidence(&all, lookup);
        let mut evidence = self.held.evidence.clone();
        evidence.unsettle_all(|_| None);
        let observed = Observed {
            evidence: &evidence,
            ..all.observed(self, None)
        };
        crate::model::check_plan(&observed, plan);
    }

    /// Returns all our contenders. A contender that the pass did not check must be steady.
    fn all_of_ours(&self, facts: &Facts, lookup: &impl Lookup) -> Vec<OwnContender> {
        let evidence = &self.held.evidence;
        let reading = self.knowledge.reading.as_ref().filter(|_| facts.certain);
        let contenders = reading.into_iter().flat_map(Reading::contenders);
        let mut looked_at = facts.ours.iter();
        let ours = contenders.filter_map(|(session, _)| {
            let Some(Owner::Own(identity)) = self.sessions.owners.get(session) else {
                return None;
            };
            if evidence.steady_by(session) == Some(&identity.uid) {
                return Some(OwnContender {
                    session: session.clone(),
                    identity: identity.clone(),
                    workload: lookup.contends(&identity.uid, Some(session)),
                    pods_gone: false,
                });
            }
            let next = looked_at.next();
            let ours = next.expect("all that are not steady are looked at");
            assert_eq!((&ours.session, &ours.identity), (session, identity));
            Some(ours.clone())
        });
        let ours = ours.collect();
        assert_eq!(looked_at.next(), None);
        ours
    }

    fn all_bound(&self, facts: &Facts, lookup: &impl Lookup) -> Vec<Arc<Workload>> {
        let evidence = &self.held.evidence;
        let all = lookup.bound().into_iter();
        let bound: BTreeMap<Uid, Arc<Workload>> = all
            .filter(|workload| self.settings.decides_about(workload))
            .map(|workload| (workload.uid.clone(), workload))
            .collect();
        let others = bound
            .values()
            .filter(|workload| evidence.steady_sessions(&workload.uid).next().is_none());
        assert!(
            others.eq(&facts.bound),
            "all that are not steady are looked at"
        );
        let steady = bound
            .keys()
            .map(|uid| evidence.steady_sessions(uid).count());
        assert_eq!(steady.sum::<usize>(), facts.steady);
        bound.into_values().collect()
    }

    fn check_evidence(&mut self, all: &Facts, lookup: &impl Lookup) {
        let lock_key = self.settings.prefix.lock_key();
        let runs = |workload: &&Workload| {
            workload.phase == Phase::Running && workload.started_at(&lock_key)
        };
        let running: Vec<&Workload> = all.bound.iter().map(AsRef::as_ref).filter(runs).collect();
        let reading = self.knowledge.reading.as_ref().filter(|_| all.certain);
        let (now, settings, shadow) = (all.now.moment, &self.settings, &mut self.shadow.evidence);
        let life = |session: &SessionId| lookup.life(session);
        shadow.observe(now, settings, &running, reading, &all.ours, life);
        for workload in running {
            let evidence = &self.held.evidence;
            let [kept, anew] = [evidence, &*shadow].map(|of| of.deadline(settings, workload));
            // A renewal while nothing could be read counts at the next check, and so does what a sleep puts off.
            let latest = shadow
                .latest_deadline(settings, workload, life)
                .max(evidence.put_off(workload));
            let left_alone = evidence.steady_sessions(&workload.uid).next().is_some()
                && kept.is_none_or(|kept| kept > now + settings.patience());
            // After a sleep either evidence may be the newer one, so either may have put its deadline off.
            let soon = |deadline: Option<Moment>| {
                deadline.is_some_and(|deadline| deadline <= now + settings.patience())
            };
            let slept = soon(kept) || soon(anew);
            let right = kept == anew || kept <= latest && (left_alone || kept > anew || slept);
            assert!(right, "{kept:?}, not {anew:?} to {latest:?}: {workload:?}");
        }
    }
}
