//! Checks that no two slots of what runs have the same index.

use std::collections::{BTreeMap, BTreeSet};

use super::{sight::Sight, workloads::Object};
use crate::{Uid, workload::GrantedSlot};

/// The judge of the indices at one lock key.
#[derive(Clone, Debug, Default)]
pub(super) struct IndexJudge {
    /// The workloads that run although `Holders` has once not listed one of their slots. That slot may have been given
    /// to another workload, and its index with it. That a pass gives nobody the index of what it sees running is
    /// checked for each plan: see [`rules`](super::rules).
    displaced: BTreeSet<Uid>,
}

impl IndexJudge {
    /// At every moment: no two slots of what runs, or has pods, have the same index, as long as `Holders` lists them.
    pub(super) fn look<'a>(
        &mut self,
        lock_key: &str,
        sight: &Sight,
        in_need: impl Iterator<Item = &'a Object>,
    ) {
        let before = std::mem::take(&mut self.displaced);
        let mut told = BTreeMap::new();
        for object in in_need {
            if before.contains(&object.uid) || !is_listed(object, lock_key, sight) {
                self.displaced.insert(object.uid.clone());
                continue;
            }
            for index in slots_at(object, lock_key).filter_map(|(slot, _)| slot.index) {
                let other = told.insert(index, &object.uid);
                let uid = &object.uid;
                assert_eq!(other, None, "{uid} was given index {index}, too");
            }
        }
    }

    /// Whether the index of this workload may have been given to another one.
    pub(super) fn is_displaced(&self, uid: &Uid) -> bool {
        self.displaced.contains(uid)
    }
}

/// The slots in which a workload was started at a lock key, each with its position among all of them.
fn slots_at<'a>(
    object: &'a Object,
    lock_key: &str,
) -> impl Iterator<Item = (&'a GrantedSlot, usize)> {
    let granted = object.granted.iter().flat_map(|granted| &granted.slots);
    let slots = granted.zip(0..);
    slots.filter(move |(slot, _)| *slot.lock_key == *lock_key)
}

/// Whether `Holders` lists each slot of a workload: by the session that was granted it, or by the one that its
/// annotation names, dead or alive, or by as many live sessions of the workload as it has slots. A dead holder does not
/// count once its workload has finished, because an operator that starts then can't find out its index.
fn is_listed(object: &Object, lock_key: &str, sight: &Sight) -> bool {
    let Some(body) = sight.body.as_ref().filter(|_| !object.finished()) else {
        return sight.held_by(&object.uid).len() >= slots_at(object, lock_key).count();
    };
    let mut slots = slots_at(object, lock_key);
    let each = slots.all(|(slot, position)| {
        let reported = object.reported.get(position);
        body.holds(reported.unwrap_or(&slot.session)) || body.holds(&slot.session)
    });
    each || sight.held_by(&object.uid).len() >= slots_at(object, lock_key).count()
}
