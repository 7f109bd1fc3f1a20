//! `list` and `show`: a single reading.

use std::collections::HashSet;

use consul_client::clock::{self, Moment};
use consul_semaphore_api::ConsulSemaphore;
use consul_semaphore_workload::{TrackedWorkload, WorkloadObject};
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::json;

use crate::{
    cli::Output,
    cluster::{Cluster, Listed},
    failure::{Failure, Kind},
    terminal,
    view::{
        document::Document,
        holder::{Kind as HolderKind, Who},
        item::{self, Item},
        list::{self, Columns},
        queue::{Queue, queue_of},
        recorded::{REPORTER, RecordedEvent, recent},
        show::{self, Shown},
    },
};

/// How many Jobs in the queue, Jobs outside it, and events are shown. The wide and machine-readable formats show
/// more.
pub(crate) const SHOWN: usize = 50;
const SHOWN_WIDE: usize = 5_000;
pub(crate) const EVENTS: usize = 10;
const EVENTS_WIDE: usize = 100;

pub(crate) async fn list(
    cluster: &Cluster,
    all_namespaces: bool,
    selector: Option<&str>,
    output: Option<Output>,
) -> Result<(), Failure> {
    let namespace = cluster.reach(all_namespaces).await?;
    let Listed { mut items, cut } = cluster
        .list_semaphores(namespace.as_deref(), selector)
        .await?;
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
    if items.is_empty() {
        let place = namespace.map_or_else(
            || "in any namespace".to_owned(),
            |name| format!("in the namespace {name}"),
        );
        let labels = selector.map_or(String::new(), |labels| {
            format!(" with the labels {labels:?}")
        });
        terminal::message(&format!("there are no ConsulSemaphores {place}{labels}"));
        return Ok(());
    }
    let read: Vec<Item> = items.iter().map(Item::read).collect();
    let columns = Columns {
        namespace: namespace.is_none(),
        wide: output == Some(Output::Wide),
    };
    terminal::print(&list::list(&read, columns, clock::time()))
}

pub(crate) async fn show(
    cluster: &Cluster,
    name: &str,
    output: Option<Output>,
) -> Result<(), Failure> {
    let (mut object, semaphore) = cluster.readable(name).await?;
    without_managers(&mut object);
    let around = Around::read(cluster, name).await?;
    let (places, events) = match output {
        None => (SHOWN, EVENTS),
        Some(_) => (SHOWN_WIDE, EVENTS_WIDE),
    };
    let queue = queue_of(&semaphore, &around.workloads, &around.recorded, places);
    let names = names(&semaphore, &queue, &around.workloads);
    let events = recent(&around.recorded, name, &names, events);
    let shown = Shown {
        semaphore: &semaphore,
        queue: &queue,
        events: &events,
        gaps: &around.gaps,
    };
    if output.is_some_and(is_for_programs) {
        return document(&Document::of(&object, &shown), output);
    }
    terminal::print(&show::show(&shown, clock::time()))
}

/// What belongs to a semaphore besides the object itself. Whatever the user may not read becomes a gap in the output.
struct Around {
    workloads: Vec<TrackedWorkload>,
    recorded: Vec<RecordedEvent>,
    gaps: Vec<String>,
}

impl Around {
    async fn read(cluster: &Cluster, name: &str) -> Result<Self, Failure> {
        let read = |job: WorkloadObject| {
            let workload = TrackedWorkload::read(&job, Moment::default());
            workload.filter(|workload| workload.names(name))
        };
        let from_operator = format!("reportingComponent={REPORTER}");
        let (jobs, events) = tokio::join!(
            cluster.list_jobs(read),
            cluster.list_events(&from_operator, |event| RecordedEvent::read(&event)),
        );
        let mut gaps = Vec::new();
        Ok(Self {
            workloads: unless_denied("Jobs", jobs, &mut gaps)?,
            recorded: unless_denied("events", events, &mut gaps)?,
            gaps,
        })
    }
}

fn unless_denied<T>(
    what: &str,
    listed: Result<Listed<T>, Failure>,
    gaps: &mut Vec<String>,
) -> Result<Vec<T>, Failure> {
    match listed {
        Ok(Listed { items, cut }) => {
            if cut {
                gaps.push(format!(
                    "there are so many {what} in the namespace that not all were looked at"
                ));
            }
            Ok(items)
        }
        Err(failure) if failure.kind == Kind::Denied => {
            gaps.push(gap(what, &failure.message));
            Ok(Vec::new())
        }
        Err(failure) => Err(failure),
    }
}

/// The line that replaces something that can't be shown.
pub(crate) fn gap(what: &str, why: &str) -> String {
    format!("what the {what} say is left out: {why}")
}

/// The Jobs that events may be about: those that wait, hold a slot, or have asked for one.
pub(crate) fn names(
    semaphore: &ConsulSemaphore,
    queue: &Queue,
    workloads: &[TrackedWorkload],
) -> HashSet<String> {
    let namespace = semaphore.metadata.namespace.as_deref().unwrap_or_default();
    let waiting = queue.places.iter().map(|place| place.job.clone());
    let asking = workloads
        .iter()
        .map(|workload| workload.workload.name.to_string());
    let holders = item::status(semaphore).holders;
    let holding = holders.iter().filter_map(|holder| {
        let who = Who::read(holder.holder.as_deref());
        let (place, job) = who.name.split_once('/')?;
        (who.kind == HolderKind::Job && place == namespace).then(|| job.to_owned())
    });
    waiting.chain(asking).chain(holding).collect()
}

fn is_for_programs(output: Output) -> bool {
    matches!(output, Output::Json | Output::Yaml)
}

fn document(what: &impl Serialize, output: Option<Output>) -> Result<(), Failure> {
    let written = if output == Some(Output::Yaml) {
        serde_yaml_ng::to_string(what).map_err(|error| error.to_string())
    } else {
        serde_json::to_string_pretty(what)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string())
    };
    terminal::write(&written.map_err(Failure::impossible)?)
}

/// Drops the managed fields, which are of no use here. kubectl leaves them out, too.
fn without_managers(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// An object as kubectl names it in messages.
pub(crate) fn title(object: &DynamicObject) -> String {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    format!("consulsemaphore.consul-semaphore.io/{name}")
}
