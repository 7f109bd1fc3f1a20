//! The commands `list` and `show`, which read once.

use std::collections::HashSet;

use consul_client::clock;
use consul_semaphore_api::{ConsulSemaphore, to_yaml};
use consul_semaphore_workload::{KIND, TrackedWorkload};
use jiff::Timestamp;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::json;

use crate::{
    around::{Around, operator_silence, without_semaphore},
    cli::OutputFormat,
    cluster::{ClusterClient, ListedItems},
    failure::Failure,
    terminal,
    view::{
        document::SemaphoreDocument,
        item::{self, Item},
        list::{self, Columns},
        operator::last_write,
        queue::QueueView,
        recorded::recent,
        show::{self, SemaphoreDetails},
        text::{Line, Text, Tone},
    },
};

/// The number of Jobs in the queue, of Jobs outside it, and of events that are shown. The wide and machine-readable
/// formats show more.
pub(crate) const SHOWN_JOBS: usize = 50;
pub(crate) const SHOWN_JOBS_WIDE: usize = 5_000;
pub(crate) const SHOWN_EVENTS: usize = 10;
const SHOWN_EVENTS_WIDE: usize = 100;

pub(crate) async fn list(
    cluster: &ClusterClient,
    all_namespaces: bool,
    selector: Option<&str>,
    output: Option<OutputFormat>,
) -> Result<(), Failure> {
    let namespace = cluster.reach(all_namespaces).await?;
    let ListedItems { mut items, cut } = cluster
        .list_semaphores(namespace.as_deref(), selector)
        .await?;
    let written = last_write(items.iter().map(|item| &item.metadata));
    items.iter_mut().for_each(without_managers);
    if cut {
        terminal::message(&format!(
            "these are the first {}: there are more",
            items.len()
        ));
    }
    if output.is_some_and(is_for_programs) {
        let all = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items });
        return document(&all, output);
    }
    let notes = notes(
        cluster,
        namespace.as_deref(),
        &items,
        written,
        selector.is_none() && !cut,
    )
    .await;
    if items.is_empty() {
        let place = namespace.map_or_else(
            || "in any namespace".to_owned(),
            |name| format!("in the namespace {name}"),
        );
        let labels = selector.map_or(String::new(), |labels| {
            format!(" with the labels {labels:?}")
        });
        terminal::message(&format!("there are no ConsulSemaphores {place}{labels}"));
        return terminal::print(&notes);
    }
    let read: Vec<Item> = items.iter().map(Item::read).collect();
    let columns = Columns {
        namespace: namespace.is_none(),
        wide: output == Some(OutputFormat::Wide),
    };
    let mut text = list::list(&read, columns, clock::time());
    text.extend(notes.lines);
    terminal::print(&text)
}

/// Returns the lines below the list. `written` says when an operator last changed one of the semaphores. `all` says
/// that these are all semaphores of the namespace, or of all namespaces.
async fn notes(
    cluster: &ClusterClient,
    namespace: Option<&str>,
    items: &[DynamicObject],
    written: Option<Timestamp>,
    all: bool,
) -> Text {
    let missing = async {
        if all {
            without_semaphore(cluster, namespace, items).await
        } else {
            None
        }
    };
    let (silence, missing) = tokio::join!(operator_silence(cluster, written), missing);
    let lines = silence.into_iter().chain(missing);
    let mut text = Text::default();
    text.extend(lines.map(|line| Line::of(Tone::Doubt, line)));
    text
}

pub(crate) async fn show(
    cluster: &ClusterClient,
    name: &str,
    output: Option<OutputFormat>,
) -> Result<(), Failure> {
    let (mut object, semaphore) = cluster.readable(name).await?;
    let around = Around::read(cluster, &object.metadata).await?;
    without_managers(&mut object);
    let (places, events) = match output {
        None => (SHOWN_JOBS, SHOWN_EVENTS),
        Some(_) => (SHOWN_JOBS_WIDE, SHOWN_EVENTS_WIDE),
    };
    let queue = around.queue(&semaphore, places);
    let names = names(&semaphore, &queue, &around.workloads);
    let events = recent(&around.recorded, name, &names, events);
    let shown = SemaphoreDetails {
        semaphore: &semaphore,
        queue: &queue,
        events: &events,
        gaps: &around.gaps,
    };
    if output.is_some_and(is_for_programs) {
        return document(&SemaphoreDocument::of(&object, &shown), output);
    }
    terminal::print(&show::show(&shown, clock::time()))
}

/// Returns the workloads that events may be about, each by its kind and name: workloads that wait, hold a slot, or have
/// asked for one.
pub(crate) fn names(
    semaphore: &ConsulSemaphore,
    queue: &QueueView,
    workloads: &[TrackedWorkload],
) -> HashSet<(String, String)> {
    let namespace = semaphore.metadata.namespace.as_deref().unwrap_or_default();
    let waiting = queue
        .places
        .iter()
        .map(|place| (place.kind.clone(), place.name.clone()));
    let asking = workloads.iter().map(|workload| {
        let name = workload.workload.name.to_string();
        (KIND.to_owned(), name)
    });
    let holders = item::status(semaphore).holders;
    let holding = holders.into_iter().filter_map(|listed| {
        let holder = listed.holder;
        // Only workloads have a namespace.
        let here = holder.namespace.as_deref() == Some(namespace);
        here.then_some((holder.kind?, holder.name?))
    });
    waiting.chain(asking).chain(holding).collect()
}

pub(crate) fn is_for_programs(output: OutputFormat) -> bool {
    matches!(output, OutputFormat::Json | OutputFormat::Yaml)
}

pub(crate) fn document(what: &impl Serialize, output: Option<OutputFormat>) -> Result<(), Failure> {
    let written = if output == Some(OutputFormat::Yaml) {
        to_yaml(what).map_err(|error| error.to_string())
    } else {
        serde_json::to_string_pretty(what)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string())
    };
    terminal::write(&written.map_err(Failure::impossible)?)
}

/// Removes the managed fields, which are of no use here. kubectl leaves them out, too.
fn without_managers(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// Returns the name of an object as kubectl writes it in messages.
pub(crate) fn title(object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    format!("consulsemaphore.consul-semaphore.io/{name}")
}
