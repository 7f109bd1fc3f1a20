//! Keeps the facts that a Workload of Kueue does not contain, but that decide what it means: which admission checks
//! are the operator's, and what the owner of the Workload says.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use tokio::sync::watch;

use consul_client::clock::Moment;
use consul_semaphore::Uid;
use consul_semaphore_workload::{
    Kind, Object, TrackedWorkload,
    kueue::{Beside, Earlier, Owner, owner},
};

/// The namespace and the name of a Workload.
pub(crate) type Name = (String, String);

/// The facts about all Workloads of Kueue and their owners; clones share one state.
#[derive(Clone, Debug)]
pub(crate) struct Owners {
    known: Arc<Mutex<HashMap<Uid, KnownOwner>>>,
    /// Names of the operator's admission checks; `None` until they are listed.
    checks: watch::Sender<Option<Arc<BTreeSet<String>>>>,
}

#[derive(Debug)]
struct KnownOwner {
    owner: Owner,
    workload: Name,
    /// Annotations of the owner; `None` until they were read.
    annotations: Option<BTreeMap<String, String>>,
    /// Slots in which the Workload runs, or ran last.
    earlier: Earlier,
    /// Whether to ask the pods of the Workload for these slots.
    looks_back: bool,
    /// Whether the Workload is finished.
    is_over: bool,
}

impl Default for Owners {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            checks: watch::Sender::new(None),
        }
    }
}

impl Owners {
    /// Forgets everything, because no watch of Kueue's objects keeps it current.
    pub(crate) fn forget_all(&self) {
        self.checks.send_replace(None);
        mem::take(&mut *self.known.lock());
    }

    /// Sets the names of the operator's admission checks.
    pub(crate) fn set_checks(&self, names: &BTreeSet<String>) {
        self.checks.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(names);
            if is_new {
                *known = Some(Arc::new(names.clone()));
            }
            is_new
        });
    }

    /// Returns the names of the operator's admission checks, as they change.
    pub(crate) fn checks(&self) -> watch::Receiver<Option<Arc<BTreeSet<String>>>> {
        self.checks.subscribe()
    }

    /// Puts the known facts about its owner beside a Workload.
    pub(crate) fn pair(&self, object: &mut Object) {
        let mut beside = Beside {
            checks: self.checks.borrow().clone().unwrap_or_default(),
            ..Beside::default()
        };
        // An object of one namespace has this uid, but a Workload of any namespace may name it.
        let namespace = object.metadata.namespace.as_deref();
        if let Ok(Owner { uid, .. }) = owner(object)
            && let Some(known) = self.known.lock().get(&uid)
            && namespace == Some(&*known.workload.0)
        {
            beside.annotations = known.annotations.clone().unwrap_or_default();
            beside.earlier.clone_from(&known.earlier);
        }
        object.beside = Some(Arc::new(beside));
    }

    /// Returns what the operator keeps of a Workload that was received at `seen`.
    ///
    /// # Errors
    /// Fails if the object is not a Workload.
    pub(crate) fn track(
        &self,
        object: &mut Object,
        seen: Moment,
    ) -> serde_json::Result<Option<TrackedWorkload>> {
        self.pair(object);
        let tracked = TrackedWorkload::read_object(&Kind::KueueWorkload, object, seen)?;
        self.remember(object, tracked.as_ref());
        Ok(tracked)
    }

    /// Remembers the slots of a Workload, because Kueue resets what a grant wrote into it.
    fn remember(&self, object: &Object, tracked: Option<&TrackedWorkload>) {
        let Ok(Owner { uid, .. }) = owner(object) else {
            return;
        };
        let is_reset = tracked.is_some_and(|tracked| tracked.shape.is_reset());
        let granted = tracked.and_then(|tracked| tracked.workload.granted.clone());
        let reported = tracked.map_or(&[][..], |tracked| &tracked.workload.reported);
        let namespace = object.metadata.namespace.as_deref();
        if let Some(known) = self.known.lock().get_mut(&uid)
            && namespace == Some(&*known.workload.0)
            && !is_reset
        {
            match (granted, &known.earlier) {
                (Some(granted), _) => known.earlier = Earlier::of(granted, reported),
                (None, Earlier::Slots { .. }) => known.earlier = Earlier::Unknown,
                (None, Earlier::Unknown | Earlier::Nothing) => {}
            }
        }
    }

    /// Notes that a Workload has this owner; `looks_back` says whether to ask its pods in which slots they run.
    /// Returns whether everything that has to be read beside the Workload is known.
    pub(crate) fn note(&self, workload: &Name, owner: &Owner, looks_back: bool) -> bool {
        let mut all = self.known.lock();
        let known = all.entry(owner.uid.clone()).or_insert_with(|| KnownOwner {
            owner: owner.clone(),
            workload: workload.clone(),
            annotations: None,
            earlier: Earlier::Unknown,
            looks_back: false,
            is_over: false,
        });
        if known.workload.0 != workload.0 {
            // One of the two Workloads names an owner that is not its own. Reading the owner shows which one.
            return false;
        }
        known.workload.clone_from(workload);
        known.looks_back = looks_back;
        known.is_over = false;
        known.annotations.is_some() && !looks_back
    }

    /// Returns whether to ask the pods of the Workload of this owner in which slots they run.
    pub(crate) fn looks_back(&self, uid: &Uid) -> bool {
        let all = self.known.lock();
        all.get(uid).is_some_and(|known| known.looks_back)
    }

    /// Notes the annotations of an owner in this namespace that was read, unless a watch has shown them since;
    /// `earlier` has the slots that its pods name, if they were asked.
    pub(crate) fn read(
        &self,
        uid: &Uid,
        namespace: &str,
        annotations: BTreeMap<String, String>,
        earlier: Option<Earlier>,
    ) {
        if let Some(known) = self.known.lock().get_mut(uid) {
            if known.workload.0 != namespace {
                namespace.clone_into(&mut known.workload.0);
                known.annotations = None;
                known.earlier = Earlier::Unknown;
            }
            known.annotations.get_or_insert(annotations);
            if let Some(earlier) = earlier.filter(|_| known.earlier == Earlier::Unknown) {
                known.earlier = earlier;
            }
        }
    }

    /// Forgets the annotations of an owner, because its Workload is finished.
    pub(crate) fn is_over(&self, uid: &Uid) {
        if let Some(known) = self.known.lock().get_mut(uid) {
            known.annotations = None;
            known.is_over = true;
        }
    }

    /// Returns whether this is the Workload of the owner with this uid.
    pub(crate) fn is_of(&self, uid: &Uid, workload: &Name) -> bool {
        let all = self.known.lock();
        let known = all.get(uid);
        known.is_some_and(|known| known.workload == *workload)
    }

    /// Notes the annotations that an owner has now. Returns its Workload if the annotations have changed.
    pub(crate) fn says(&self, uid: &Uid, annotations: BTreeMap<String, String>) -> Option<Name> {
        let mut all = self.known.lock();
        let known = all.get_mut(uid).filter(|known| !known.is_over)?;
        let before = known.annotations.replace(annotations);
        (before != known.annotations).then(|| known.workload.clone())
    }

    /// Forgets a Workload that was deleted. Returns whether it was the Workload of this owner.
    pub(crate) fn forget(&self, uid: &Uid, workload: &Name) -> bool {
        let mut all = self.known.lock();
        let known = all.get(uid);
        let is_its = known.is_some_and(|known| known.workload == *workload);
        if is_its {
            all.remove(uid);
        }
        is_its
    }

    /// Returns the owner with this uid.
    pub(crate) fn owner(&self, uid: &Uid) -> Option<Owner> {
        self.known.lock().get(uid).map(|known| known.owner.clone())
    }

    /// Returns the reference to the owner for events, because its user made the owner, and not the Workload.
    pub(crate) fn reference(&self, namespace: &str, uid: &Uid) -> Option<ObjectReference> {
        let Owner { kind, name, .. } = self.owner(uid)?;
        Some(ObjectReference {
            api_version: Some(kind.resource().api_version),
            kind: Some(kind.name().to_string()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_string()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use consul_semaphore::Granted;
    use consul_semaphore_workload::kueue::Asked;
    use serde_json::json;

    use super::*;

    const ASKS: &str = "consul-semaphore.io/semaphore";

    fn workload(state: &str, message: &str) -> Object {
        let object = json!({
            "metadata": {
                "name": "job-a", "namespace": "batch", "uid": "w", "resourceVersion": "7",
                "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u", "controller": true,
                }],
            },
            "status": {
                "conditions": [{ "type": "QuotaReserved", "status": "True" }],
                "admissionChecks": [{
                    "name": "slots", "state": state, "message": message,
                    "podSetUpdates": [{ "name": "main", "annotations": {
                        "consul-semaphore.io/granted-to": "u",
                        "consul-semaphore.io/lock-key": "p/s",
                        "consul-semaphore.io/session": "s",
                    } }],
                }],
            },
        });
        serde_json::from_value(object).unwrap()
    }

    fn known() -> (Owners, Name, Owner) {
        let (owners, name) = (Owners::default(), ("batch".to_owned(), "job-a".to_owned()));
        owners.set_checks(&["slots".to_owned()].into());
        let owner = owner(&workload("Pending", "")).unwrap();
        assert!(!owners.note(&name, &owner, false));
        (owners, name, owner)
    }

    fn asks(semaphore: &str) -> BTreeMap<String, String> {
        [(ASKS.to_owned(), semaphore.to_owned())].into()
    }

    #[test]
    fn what_a_watch_tells_is_newer_than_what_was_read_meanwhile() {
        let (owners, name, owner) = known();
        assert_eq!(owners.says(&owner.uid, asks("new")), Some(name.clone()));
        owners.read(&owner.uid, "batch", asks("old"), None);
        assert_eq!(owners.says(&owner.uid, asks("new")), None, "it is no news");
        assert!(owners.note(&name, &owner, false));
        let tracked = owners.track(&mut workload("Pending", ""), Moment::default());
        assert_eq!(tracked.unwrap().unwrap().workload.asked(), "new");
        assert_eq!(owners.says(&"other".into(), asks("new")), None);
    }

    #[test]
    fn one_that_names_an_owner_in_another_namespace_gets_nothing_of_it() {
        let (owners, name, owner) = known();
        owners.read(&owner.uid, "batch", asks("db"), None);
        let forged = ("elsewhere".to_owned(), "job-a".to_owned());
        assert!(!owners.note(&forged, &owner, false), "it is not its owner");
        let mut object = workload("Pending", "");
        object.metadata.namespace = Some(forged.0.clone());
        assert_eq!(owners.track(&mut object, Moment::default()).unwrap(), None);
        assert!(!owners.is_of(&owner.uid, &forged));
        assert!(
            owners.note(&name, &owner, false),
            "it stays the other one's"
        );

        // The news of the owner came first.
        let late = Owners::default();
        late.note(&forged, &owner, false);
        assert!(!late.note(&name, &owner, false));
        late.read(&owner.uid, "batch", asks("db"), None);
        assert!(late.note(&name, &owner, false) && late.is_of(&owner.uid, &name));
    }

    const RESET: &str = "Reset to Pending after eviction. Previously: ";

    #[test]
    fn an_evicted_one_is_known_to_have_run_until_it_is_forgotten() {
        let (owners, name, owner) = known();
        owners.read(&owner.uid, "batch", asks("db"), None);
        let track = |state, message: &str| {
            let tracked = owners.track(&mut workload(state, message), Moment::default());
            tracked.unwrap().unwrap().workload
        };
        assert!(track("Pending", "").was_never_granted());
        let granted = track("Ready", "sessions t").granted.clone();
        let evicted = track("Pending", &format!("{RESET}Ready"));
        assert_eq!((&evicted.granted, evicted.lost()), (&granted, false));
        assert_eq!(evicted.reported, ["t".into()]);
        let lost = track("Pending", &format!("{RESET}Retry"));
        assert_eq!((&lost.granted, lost.lost()), (&granted, true));
        // The Workload was told that it may wait again.
        assert_eq!(track("Pending", "sessions t").granted, None);
        let about = owners.reference("batch", &owner.uid).unwrap();
        assert_eq!(
            (about.kind.as_deref(), about.name.as_deref()),
            (Some("Job"), Some("a"))
        );
        assert!(!owners.forget(&owner.uid, &("batch".to_owned(), "another".to_owned())));
        assert!(owners.owner(&owner.uid).is_some());
        assert!(owners.forget(&owner.uid, &name));
        assert!(owners.owner(&owner.uid).is_none());
    }

    /// The operator was started after the eviction.
    #[test]
    fn of_one_that_was_evicted_unseen_the_pods_say_in_which_slots_they_run() {
        let reset = || workload("Pending", &format!("{RESET}Retry"));
        for found in [Earlier::Nothing, Earlier::of(Granted::by("p/s", "s"), &[])] {
            let (owners, name, owner) = known();
            let mut object = reset();
            assert_eq!(owners.track(&mut object, Moment::default()).unwrap(), None);
            let asked = Asked::of(&object).unwrap().unwrap();
            assert!(asked.looks_back() && !asked.waits());
            assert!(!owners.note(&name, &owner, true) && owners.looks_back(&owner.uid));
            owners.read(&owner.uid, "batch", BTreeMap::new(), Some(found.clone()));
            let mut object = reset();
            let tracked = owners.track(&mut object, Moment::default()).unwrap();
            let asked = Asked::of(&object).unwrap().unwrap();
            assert!(!asked.looks_back(), "once");
            let is_gone = found == Earlier::Nothing;
            assert_eq!((tracked.is_none(), asked.waits()), (is_gone, is_gone));
        }
    }

    #[test]
    fn nothing_is_kept_beyond_a_term_or_for_what_is_finished() {
        let (owners, name, owner) = known();
        owners.read(&owner.uid, "batch", asks("db"), None);
        owners.is_over(&owner.uid);
        assert_eq!(owners.says(&owner.uid, asks("new")), None);
        assert!(!owners.note(&name, &owner, false));
        owners.forget_all();
        assert!(owners.owner(&owner.uid).is_none() && owners.checks().borrow().is_none());
    }
}
