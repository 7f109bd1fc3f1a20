//! Serves the table of kinds: rows in a `ConfigMap`, which is read again whenever it changes. The operator serves the
//! kind of a new row, follows a changed row, and handles a deleted row like a kind whose definition was deleted. A
//! wrong row is reported, and its last correct version stays in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::{
    Api, ResourceExt as _,
    runtime::watcher::{self, Event},
};
use tokio::task::JoinSet;

use super::{
    Context,
    events::Reason,
    watches::{Unsynced, next, watch_workloads},
    watching::Watching,
};
use crate::{
    admission,
    manifests::Source,
    schema, streamed,
    telemetry::{Health, Metrics},
    watch_scope::WatchScope,
};
use consul_semaphore_workload::{Kind, Table as Rows};

/// The table of kinds, before the operator reads it.
pub(super) struct KindTable {
    namespace: String,
    name: String,
    health: Health,
    metrics: Metrics,
}

impl KindTable {
    /// Prepares the watch of the table in this namespace and with this name. The operator is not ready before the
    /// table is listed.
    pub(super) fn begin(
        namespace: &str,
        name: &str,
        health: &Health,
        metrics: &Metrics,
    ) -> (Self, Watching) {
        let scope = WatchScope::Namespace(namespace.into());
        let watching = Watching::begin("configmaps", &scope, health, metrics);
        let this = Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            health: health.clone(),
            metrics: metrics.clone(),
        };
        (this, watching)
    }

    /// Serves the kinds of the table in these scopes, for as long as this replica leads.
    pub(super) async fn run(
        self,
        context: Arc<Context>,
        scopes: Vec<(WatchScope, Unsynced)>,
        mut watching: Watching,
    ) {
        let namespace = self.namespace.clone();
        let api = |client| Api::<ConfigMap>::namespaced(client, &namespace);
        let this_one = format!("metadata.name={}", self.name);
        let config = watcher::Config::default().fields(&this_one);
        let mut events = std::pin::pin!(streamed::watch(&context.client, api, config));
        let mut serving = Serving {
            table: self,
            context,
            scopes: scopes.iter().map(|(scope, _)| scope.clone()).collect(),
            kinds: BTreeMap::new(),
            mistakes: BTreeMap::new(),
        };
        let (mut first, mut listed) = (Some(scopes), None);
        while let Some(event) = next(&mut events, &mut watching).await {
            match event {
                Event::Init => listed = None,
                Event::InitApply(map) => listed = Some(map),
                Event::InitDone => serving.read(listed.take(), first.take()).await,
                Event::Apply(map) => serving.read(Some(map), None).await,
                Event::Delete(_) => serving.read(None, None).await,
            }
        }
    }
}

/// Returns whether the operator goes on serving a kind unchanged: either its row is the same as before, or its row is
/// wrong now and no other row describes the kind.
fn stays(entry: &str, kind: &Kind, rows: &Rows) -> bool {
    rows.kinds.get(entry).map_or_else(
        || {
            let mut others = rows.kinds.values();
            rows.mistakes.contains_key(entry) && !others.any(|other| other.is_alike(kind))
        },
        |now| now == kind,
    )
}

/// The kinds of the table that the operator serves.
struct Serving {
    table: KindTable,
    context: Arc<Context>,
    scopes: Vec<WatchScope>,
    /// Kinds by the names of their entries, each with its watches. The watches end when this map is dropped.
    kinds: BTreeMap<String, (Kind, JoinSet<()>)>,
    /// Mistakes in entries that were reported already.
    mistakes: BTreeMap<String, String>,
}

impl Serving {
    /// Applies the current table. `first` has, for each scope, what the operator waits for at the start.
    async fn read(&mut self, map: Option<ConfigMap>, first: Option<Vec<(WatchScope, Unsynced)>>) {
        let map = map.unwrap_or_default();
        let data = map.data.clone().unwrap_or_default();
        let rows = Rows::read(&data, &self.context.shared.served.kinds);
        let goes = |(entry, (kind, _)): &(&String, &(Kind, _))| !stays(entry, kind, &rows);
        let leaving = self.kinds.iter().filter(goes);
        let gone: Vec<String> = leaving.map(|(entry, _)| entry.clone()).collect();
        let renewed: BTreeSet<_> = rows.kinds.values().map(Kind::name).collect();
        for entry in gone {
            self.let_go(&entry, |kind| !renewed.contains(&kind.name()))
                .await;
        }
        self.report(&map, rows.mistakes);
        for (entry, kind) in rows.kinds {
            if !self.kinds.contains_key(&entry) {
                self.serve(entry, kind, first.as_deref().unwrap_or_default());
            }
        }
    }

    fn report(&mut self, map: &ConfigMap, mistakes: BTreeMap<String, String>) {
        let KindTable {
            namespace, name, ..
        } = &self.table;
        for (entry, why) in &mistakes {
            if self.mistakes.get(entry) == Some(why) {
                continue;
            }
            let note = format!("the row {entry} is left out: {why}");
            tracing::warn!(configmap = %format_args!("{namespace}/{name}"), "{note}");
            let about = ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("ConfigMap".into()),
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                uid: map.uid(),
                ..ObjectReference::default()
            };
            let events = &self.context.shared.events;
            events.emit(about, Reason::InvalidKind, note);
        }
        self.mistakes = mistakes;
    }

    /// Ends the watches of a kind. If the operator does not serve the kind any more, the index forgets its workloads;
    /// those that hold slots keep them until they have ended and none of their pods is left.
    async fn let_go(&mut self, entry: &str, is_gone: impl Fn(&Kind) -> bool) {
        let Some((kind, mut watches)) = self.kinds.remove(entry) else {
            return;
        };
        watches.shutdown().await;
        tracing::info!(entry, kind = %kind.name(), "a row of the table has changed or is gone");
        if is_gone(&kind) {
            self.context.workloads.served().end(&kind);
            for scope in &self.scopes {
                self.context.index.list_begins(&kind.name(), scope);
                self.context.index.list_ends(&kind.name(), scope);
            }
        }
    }

    fn serve(&mut self, entry: String, kind: Kind, first: &[(WatchScope, Unsynced)]) {
        tracing::info!(entry, kind = %kind.name(), "serving a kind of the table");
        self.context.shared.known.learn(kind.clone());
        self.context.workloads.served().begin(&kind);
        let KindTable {
            health, metrics, ..
        } = &self.table;
        let mut watches = JoinSet::new();
        let client = self.context.client.clone();
        watches.spawn(schema::report(client.clone(), vec![kind.clone()]));
        watches.spawn(admission::report(client, vec![kind.clone()]));
        for (place, scope) in self.scopes.iter().enumerate() {
            let plural = &kind.resource().plural;
            let watching = Watching::begin_later(plural, scope, health, metrics)
                .of(Source::Row(plural.clone()));
            let unsynced = first
                .get(place)
                .map(|(_, unsynced)| unsynced.another(&kind));
            let context = self.context.clone();
            watches.spawn(watch_workloads(
                context,
                kind.clone(),
                scope.clone(),
                watching,
                unsynced,
            ));
        }
        self.kinds.insert(entry, (kind, watches));
    }
}

#[cfg(test)]
mod tests {
    use consul_semaphore_workload::Kinds;

    use super::*;

    fn row(kind: &str) -> String {
        let plural = kind.to_lowercase();
        format!(
            "{{ apiVersion: example.com/v1, kind: {kind}, plural: {plural}s, pods: {{ labels: ['run={{uid}}'] }}, life: {{
                hold: {{ path: spec.suspend, held: true }},
                suspended: [{{ condition: Suspended }}], finished: [{{ condition: Done }}] }} }}"
        )
    }

    fn rows(rows: &[(&str, String)]) -> Rows {
        let entries = rows.iter();
        let data = entries.map(|(entry, text)| ((*entry).to_owned(), text.clone()));
        Rows::read(&data.collect(), &Kinds::default())
    }

    #[test]
    fn a_kind_is_served_as_its_row_was_until_a_right_row_describes_it() {
        let before = rows(&[("a", row("Run"))]);
        let kind = &before.kinds["a"];
        let changed = row("Run").replace("Done", "Over");
        let wrong = "kind: Run".to_owned();
        for (now, expected) in [
            (vec![("a", row("Run"))], true),
            (vec![("a", changed.clone())], false),
            (vec![], false),
            (vec![("a", wrong.clone())], true),
            (vec![("a", wrong.clone()), ("b", row("Other"))], true),
            (vec![("a", wrong.clone()), ("b", changed.clone())], false),
            (vec![("a", wrong), ("b", row("Run"))], false),
            // Two correct rows describe the same kind: the first one counts.
            (vec![("a", row("Run")), ("b", changed)], true),
        ] {
            assert_eq!(stays("a", kind, &rows(&now)), expected, "{now:?}");
        }
    }
}
