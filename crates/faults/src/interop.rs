//! One prefix shared by everything that uses Consul: hand-overs among the Jobs of two clusters, Consul's Go client,
//! `consul lock`, `exec`, and programs with the library and the Python package. All of them write through the doors, which
//! record every revision of `.lock`. The judge is that of the campaign, with a timeline for each cluster: the revisions
//! of an etcd, which order the events in Kubernetes, are valid in one cluster only.

mod turns;

use std::{
    cmp::Reverse, collections::BTreeMap, fmt::Write as _, fs, path::PathBuf, time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::batch::v1;
use kube::{ResourceExt as _, api::ListParams};
use serde_json::json;
use testbed::{Bed, Namespace, Operator, Proxy, SlotClient};
use tokio::time::sleep;

pub use self::turns::{Turns, turns};

use crate::{
    consul_record::{ConsulReader, LockBook},
    door,
    judge::{Verdict, Violation, judge},
    observer::{Observer, Observers, POD_LABEL, prefix_of},
    record::{Place, Semaphore, What, WorkloadKind, Writer},
    timeline::Timeline,
};

const NAMESPACE: &str = "interop";
const SEMAPHORE: &str = "shared";
const LIMIT: u32 = 3;

/// How many Jobs each cluster has queued and running.
const LINE: usize = 8;

/// How long a program, or a Job, holds its slot.
const HOLD: Duration = Duration::from_millis(50);

/// How often to check whether to create more Jobs.
const LOOK: Duration = Duration::from_millis(300);

/// The longest time without a single hand-over. After that, something is stuck.
const STUCK: Duration = Duration::from_mins(2);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many hand-overs to wait for.
    pub hand_overs: usize,
    /// How long a program that has had a slot waits before it asks again. Consul's own programs ignore the queue, so
    /// without a pause the fast ones would starve the others.
    pub rest: Duration,
    /// Where the timelines are written.
    pub folder: PathBuf,
    /// The operator binary of the cluster `east`, if it differs from that of `west`.
    pub east_operator: Option<PathBuf>,
    /// A Python that has the package, if programs of Python take part.
    pub python: Option<PathBuf>,
}

/// The result.
#[derive(Debug)]
pub struct Outcome {
    /// The verdict on each cluster's timeline, by the cluster's name.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// How long each kind of contender waited, and which others overtook it.
    pub turns: BTreeMap<String, Turns>,
    /// Output of foreign programs other than grants and releases.
    pub errors: Vec<String>,
}

impl Outcome {
    /// Whether nothing was violated, no contender was overtaken against the rule, and no program reported an error.
    pub fn is_good(&self) -> bool {
        let fair = self.turns.values().all(|turns| turns.overtaken.is_empty());
        fair && self.violations().next().is_none() && self.errors.is_empty()
    }

    /// How many slots were handed over.
    pub fn hand_overs(&self) -> usize {
        self.turns.values().map(|turns| turns.waits.len()).sum()
    }

    fn violations(&self) -> impl Iterator<Item = (&str, &Violation)> {
        let all = self.verdicts.iter();
        all.flat_map(|(name, verdict)| verdict.violations.iter().map(move |it| (*name, it)))
    }

    /// A report for people.
    pub fn report(&self) -> String {
        let verdict = self.verdicts.first().map(|(_, verdict)| verdict);
        let (revisions, seconds) = verdict.map_or((0, 0.0), |it| (it.revisions, it.seconds));
        let mut text = format!(
            "{} hand-overs, {revisions} revisions of .lock, {seconds:.0} s\n\n{HEAD}\n",
            self.hand_overs()
        );
        for (kind, turns) in &self.turns {
            let _infallible = writeln!(text, "{}", row(kind, turns));
        }
        let (violations, errors) = (self.violations().count(), self.errors.len());
        let _infallible = write!(
            text,
            "\n{violations} violations, {errors} errors of programs\n"
        );
        for (cluster, violation) in self.violations() {
            let _infallible = writeln!(text, "{cluster}: {violation:?}");
        }
        for (t, overtaking) in self.turns.values().flat_map(|turns| &turns.overtaken) {
            let _infallible = writeln!(text, "at {t:.3} s: {overtaking}");
        }
        for error in &self.errors {
            let _infallible = writeln!(text, "{error}");
        }
        text
    }
}

const HEAD: &str = "\
| kind | hand-overs | wait p50 | p99 | longest | starved | passed by | passed over | overtaken |
|---|---|---|---|---|---|---|---|---|";

fn row(kind: &str, turns: &Turns) -> String {
    let mut waits = turns.waits.clone();
    waits.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let wait = waits.get(waits.len().saturating_sub(1) * percent / 100);
        wait.map_or("-".to_owned(), |wait| format!("{wait:.2} s"))
    };
    format!(
        "| {kind} | {} | {} | {} | {} | {:.2} s | {} | {} | {} |",
        waits.len(),
        at(50),
        at(99),
        at(100),
        turns.starved,
        turns.passed_by,
        turns.passed_over,
        turns.overtaken.len()
    )
}

/// One of the clusters, and its operator.
struct Cluster {
    name: &'static str,
    bed: Bed,
    team: Namespace,
    operator: Operator,
    timeline: Timeline,
    /// The operator's door to Consul.
    _door: Proxy,
}

/// Starts everything, waits for the wanted number of hand-overs, and judges.
pub async fn run(options: &Options) -> Result<Outcome> {
    fs::create_dir_all(&options.folder)?;
    let west = Bed::builder().without_operator().try_start().await?;
    let east = Bed::builder().with_consul_of(&west).without_operator();
    let east = east.try_start().await?;
    let consul = vec![west.consul().address().to_owned()];
    let reader = ConsulReader::at(consul.clone(), None)?;
    let prefix = prefix_of(NAMESPACE, SEMAPHORE);

    let mut clocks = Vec::new();
    for (name, bed) in [("west", &west), ("east", &east)] {
        let path = options.folder.join(format!("{name}.jsonl"));
        // Do not continue an earlier run.
        let _none = fs::remove_file(&path);
        let timeline = Timeline::open(&path)?;
        begin(&timeline, &prefix);
        let kubernetes = bed.kubernetes().context("the bed has no Kubernetes")?;
        clocks.push((kubernetes.etcd().clone(), timeline));
    }
    let book = LockBook::of_clusters(reader.clone(), clocks.clone());
    let mut clusters = Vec::new();
    let mut observers = Vec::new();
    for ((name, bed), (_, timeline)) in [("west", &west), ("east", &east)].into_iter().zip(&clocks)
    {
        observers.push(Observers {
            timeline: timeline.clone(),
            observers: vec![
                Observer::of_kubernetes(bed.client(), &[WorkloadKind::Job], timeline),
                Observer::of_lock(&reader, &prefix, timeline),
            ],
        });
        let door = door::to_consul(&consul, Writer::Operator, timeline, &book);
        let door = door.start().await?;
        let program = options.east_operator.clone().filter(|_| name == "east");
        clusters.push(Cluster::start(name, program, bed.clone(), door, timeline).await?);
    }
    let timeline = &clocks[0].1;
    let door = door::to_consul(&consul, Writer::Foreign, timeline, &book);
    let door = door.start().await?;
    let programs = programs(&west, &prefix, &door.url(), options)?;

    let timelines: Vec<_> = clocks.iter().map(|(_, timeline)| timeline).collect();
    let load = clusters.iter().map(|cluster| cluster.load(&timelines));
    tokio::select! {
        ended = try_join_all(load) => bail!("the load ended: {ended:?}"),
        done = hand_overs(timeline, options) => done?,
    }
    // The shutdown at the end is not judged.
    drop(observers);
    let mut errors: Vec<_> = programs.iter().flat_map(SlotClient::errors).collect();
    for ended in join_all(programs.iter().map(SlotClient::try_stop)).await {
        errors.extend(ended.err().map(|error| format!("{error:#}")));
    }
    for cluster in &clusters {
        cluster.operator.stop().await;
    }
    let mut verdicts = Vec::new();
    for cluster in &clusters {
        let (records, failed) = cluster.timeline.records();
        if let Some(failed) = failed {
            bail!("the timeline could not be written: {failed}");
        }
        verdicts.push((cluster.name, judge(&records, f64::INFINITY)));
    }
    Ok(Outcome {
        verdicts,
        turns: turns(&timeline.records().0),
        errors,
    })
}

fn begin(timeline: &Timeline, prefix: &str) {
    timeline.push(What::Bed {
        seed: 0,
        faults: 0,
        workloads: false,
    });
    timeline.push(What::Semaphore(Semaphore {
        prefix: prefix.to_owned(),
        limit: LIMIT.into(),
        ttl: Some(120.0),
        lock_delay: 15.0,
        goes_on: false,
        period: None,
    }));
}

impl Cluster {
    async fn start(
        name: &'static str,
        program: Option<PathBuf>,
        bed: Bed,
        door: Proxy,
        timeline: &Timeline,
    ) -> Result<Self> {
        let address = [("CONSUL_HTTP_ADDR", door.url())];
        let mut operator = bed.another_operator(name, ["--cluster-name", name], address);
        if let Some(program) = program {
            operator = operator.with_program(program);
        }
        operator.try_start().await?;
        let team = bed.namespace_named(NAMESPACE).await;
        let semaphore = team.semaphore(SEMAPHORE).limit(LIMIT.into());
        semaphore.try_create().await?;
        Ok(Self {
            name,
            bed,
            team,
            operator,
            timeline: timeline.clone(),
            _door: door,
        })
    }

    /// Keeps the cluster's queue at the wanted length.
    async fn load(&self, timelines: &[&Timeline]) -> Result<()> {
        let jobs = self.team.api::<v1::Job>();
        let label = json!({ "spec": { "template": { "metadata": { "labels": { POD_LABEL: SEMAPHORE } } } } });
        let hold = format!("{}ms", HOLD.as_millis());
        let mut number = 0;
        loop {
            let there = jobs.list(&ListParams::default()).await?.items;
            let done = |job: &v1::Job| {
                job.status
                    .as_ref()
                    .is_some_and(|it| it.completion_time.is_some())
            };
            let unfinished = there.iter().filter(|job| !done(job)).count();
            for _ in unfinished..LINE {
                number += 1;
                let job = self.team.job(&format!("job-{number}")).semaphore(SEMAPHORE);
                let job = job.runs(&hold).ttl_after_finished(1).with(label.clone());
                let job = job.try_create().await?.get().await;
                let job = job.context("the Job is gone")?;
                for timeline in timelines {
                    timeline.push(What::Made {
                        cluster: self.name.to_owned(),
                        place: place(&job),
                    });
                }
            }
            if let Some(status) = self.operator.exit_status().await {
                bail!(
                    "the operator of {} ended: {status}",
                    self.bed.folder().path().display()
                );
            }
            sleep(LOOK).await;
        }
    }
}

/// The place of a new Job in the queue.
fn place(job: &v1::Job) -> Place {
    let created = job.metadata.creation_timestamp.as_ref();
    Place {
        lost: Reverse(false),
        priority: Reverse(0),
        since: created.map_or(0, |created| created.0.as_second()),
        name: job.name_any(),
        uid: job.uid().unwrap_or_default(),
    }
}

/// Starts the programs. The start of a program's name is its kind.
fn programs(bed: &Bed, prefix: &str, door: &str, options: &Options) -> Result<Vec<SlotClient>> {
    let go = (1..=3).map(|number| bed.go_semaphore(&format!("go-{number}"), prefix, LIMIT));
    let cli = (1..=3).map(|number| bed.consul_lock(&format!("cli-{number}"), prefix, LIMIT));
    let exec = (1..=2).map(|number| bed.exec(&format!("exec-{number}"), prefix, LIMIT));
    let library = (1..=2).map(|number| bed.library(&format!("library-{number}"), prefix, LIMIT));
    let python = options.python.iter().flat_map(|python| {
        (1..=2).map(move |number| bed.python(python, &format!("python-{number}"), prefix, LIMIT))
    });
    let all = go.chain(cli).chain(exec).chain(library).chain(python);
    let all = all.map(|program| program.through(door).hold(HOLD).rest(options.rest));
    all.map(|program| program.times(0).try_start()).collect()
}

/// Waits for the wanted number of hand-overs, and prints its progress now and then.
async fn hand_overs(timeline: &Timeline, options: &Options) -> Result<()> {
    let wanted = options.hand_overs;
    let (mut last, mut reported) = (0, 0);
    let mut since = timeline.now();
    loop {
        sleep(LOOK).await;
        let seen = timeline.look(|view| view.hand_overs);
        // Also wait for the slowest kind, unless it does not take part at all.
        if seen >= wanted && (seen >= 20 * wanted || all_had_one(timeline, options)) {
            return Ok(());
        }
        if seen >= reported + wanted / 10 {
            reported = seen;
            #[expect(clippy::print_stderr, reason = "progress, for the one who runs it")]
            {
                let seconds = timeline.now();
                eprintln!("{seen} of {wanted} hand-overs after {seconds:.0} s");
            }
        }
        if seen > last {
            (last, since) = (seen, timeline.now());
        } else if timeline.now() - since > STUCK.as_secs_f64() {
            bail!("no hand-over for {} s, after {seen}", STUCK.as_secs());
        }
    }
}

/// Whether each kind has had a slot.
fn all_had_one(timeline: &Timeline, options: &Options) -> bool {
    let turns = turns::turns(&timeline.records().0);
    let had = |kind| turns.get(kind).is_some_and(|turns| !turns.waits.is_empty());
    let kinds = ["cli", "east", "exec", "go", "library", "west"];
    let python = options.python.iter().map(|_| "python");
    kinds.into_iter().chain(python).all(had)
}
