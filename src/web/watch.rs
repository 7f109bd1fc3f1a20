//! Watches the `ConsulSemaphores`, and updates the picture.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    core::DeserializeGuard,
    runtime::watcher::{self, Event},
};

use tokio::time::sleep;

use super::{
    Shared,
    picture::{Picture, SemaphoreName},
    view::View,
};
use crate::streamed;
use consul_client::{clock, text::one_line};
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus, SemaphoreSelector,
    scope::{Namespaces, Scope},
};

/// Length to which an error is cut, in characters.
const LONGEST_ERROR: usize = 400;

/// Time without an event after which a failed watch counts as working again, because no event says that nothing has
/// changed.
const WORKS_AGAIN_AFTER: Duration = Duration::from_mins(2);

type Semaphores = Api<DeserializeGuard<ConsulSemaphore>>;

/// Returns the API for the semaphores of a namespace, or of all.
fn semaphores(client: Client, namespace: Option<&str>) -> Semaphores {
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

/// One watch, over all namespaces or one of them.
pub(super) struct Watch {
    client: Client,
    namespace: Option<String>,
    selector: SemaphoreSelector,
    picture: Arc<Shared>,
    /// Semaphores seen so far in the current list.
    listed: BTreeSet<SemaphoreName>,
    /// Whether everything was listed once.
    synced: bool,
    /// Whether the watch has failed since then, without a later event.
    fails: bool,
}

/// Returns the watches that together cover this part of the cluster.
pub(super) fn over(scope: &Scope, client: &Client, picture: &Arc<Shared>) -> Vec<Watch> {
    let namespaces: Vec<Option<String>> = match &scope.namespaces {
        Namespaces::All => vec![None],
        Namespaces::Only(names) => names.iter().cloned().map(Some).collect(),
    };
    let watch = |namespace: Option<String>| {
        let watch = Watch {
            client: client.clone(),
            namespace,
            selector: scope.semaphores.clone(),
            picture: picture.clone(),
            listed: BTreeSet::new(),
            synced: false,
            fails: false,
        };
        // This comes before the first reader, so that nobody takes an empty list for a complete one.
        watch.awaits("being listed");
        watch
    };
    namespaces.into_iter().map(watch).collect()
}

impl Watch {
    /// Runs the watch, and never returns.
    pub(super) async fn run(mut self) {
        let namespace = self.namespace.clone();
        let api = move |client| semaphores(client, namespace.as_deref());
        let watched = streamed::watch(&self.client, api, watcher::Config::default());
        let mut events = std::pin::pin!(watched);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = sleep(WORKS_AGAIN_AFTER), if self.fails => {
                    self.works();
                    continue;
                }
            };
            match event {
                Some(Ok(event)) => self.on_event(event),
                Some(Err(error)) => {
                    // The controller's own watch logs what is wrong with both.
                    tracing::debug!(%error, "starting the page's watch again");
                    self.fails = self.synced;
                    let why = one_line(&error.to_string(), LONGEST_ERROR);
                    self.awaits(&format!("the watch fails, trying again: {why}"));
                }
                None => return,
            }
        }
    }

    /// Returns the title of the watch, for people.
    fn title(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("ConsulSemaphores in {namespace}"),
            None => "ConsulSemaphores".to_owned(),
        }
    }

    fn on_event(&mut self, event: Event<DeserializeGuard<ConsulSemaphore>>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(semaphore) => {
                let name = name_of(&semaphore);
                if self.put(&name, semaphore) {
                    self.listed.insert(name);
                }
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.paint(|picture, watch| {
                    for name in picture.names(watch.namespace.as_deref()) {
                        if !listed.contains(&name) {
                            picture.remove(&name);
                        }
                    }
                    true
                });
                self.synced = true;
                self.works();
            }
            Event::Apply(semaphore) => {
                let name = name_of(&semaphore);
                self.put(&name, semaphore);
                self.works();
            }
            Event::Delete(semaphore) => {
                let name = name_of(&semaphore);
                self.paint(|picture, _| picture.remove(&name));
                self.works();
            }
        }
    }

    /// Notes that everything was listed, and that changes arrive.
    fn works(&mut self) {
        self.fails = false;
        self.paint(|picture, watch| picture.knows(&watch.title()));
    }

    /// Notes that the watch is incomplete.
    fn awaits(&self, why: &str) {
        self.paint(|picture, watch| {
            picture.awaits(&watch.title(), why);
            true
        });
    }

    /// Puts a semaphore into the picture, and returns whether it is shown. A semaphore that can't be read, or belongs
    /// to another operator, is not shown.
    fn put(
        &self,
        name: &SemaphoreName,
        DeserializeGuard(read): DeserializeGuard<ConsulSemaphore>,
    ) -> bool {
        let semaphore = read.ok().filter(|it| self.selector.matches(it.labels()));
        let none = ConsulSemaphoreStatus::default();
        self.paint(|picture, _| match &semaphore {
            Some(semaphore) => {
                let view = View::of(semaphore, &none);
                picture.put(name, &view, clock::time().as_second())
            }
            None => picture.remove(name),
        });
        semaphore.is_some()
    }

    /// Changes the picture, and wakes the readers if something changed.
    fn paint(&self, change: impl FnOnce(&mut Picture, &Self) -> bool) {
        self.picture
            .send_if_modified(|picture| change(picture, self));
    }
}

fn name_of(object: &impl Resource) -> SemaphoreName {
    let metadata = object.meta();
    SemaphoreName {
        namespace: metadata.namespace.as_deref().unwrap_or_default().into(),
        name: metadata.name.as_deref().unwrap_or_default().into(),
    }
}
