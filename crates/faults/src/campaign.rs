//! A campaign from start to verdict.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

pub use crate::plan::Options;

use crate::{
    judge::{Verdict, judge},
    kinds::{self, ActiveFault, Planned},
    load::{self, Load, SEMAPHORES},
    observer::{Observer, Observers},
    picture, plan, planted,
    record::{JobState, Phase, Record, What},
    report,
    timeline::{self, Timeline},
    world::{CALL, NAMESPACE, World},
};

/// How often it prints its progress, and how often it judges what it has seen so far.
const PROGRESS: Duration = Duration::from_secs(15);
const JUDGE: Duration = Duration::from_mins(1);

/// How late a watch may be, in seconds. Younger records are judged in the next round.
const LATE: f64 = 15.0;

/// After this many faults that hit everything comes a pause without any: liveness can be checked only while nothing
/// is down.
const QUIET_EVERY: usize = 10;
const QUIET: Duration = Duration::from_secs(40);

/// How far other faults may run ahead, in the plan, of those that hit everything.
const AHEAD: usize = 12;

/// How long everything may take to settle at the end.
const REST: Duration = Duration::from_mins(5);

/// Runs a campaign, or the remainder of one, and returns the verdict on all of it.
pub async fn run(options: &Options) -> Result<Verdict> {
    std::fs::create_dir_all(&options.folder)?;
    let file = options.folder.join("timeline.jsonl");
    let timeline = Timeline::open(&file)?;
    let (earlier, _) = timeline.records();
    // An earlier part that was killed could not record this itself.
    timeline.push(What::Unwatched);
    let done = done_before(&earlier, options)?;
    say(&format!(
        "campaign of {} faults, seed {}; timeline {}",
        options.faults,
        options.seed,
        file.display()
    ));
    let world = Arc::new(
        Box::pin(World::start(&timeline, options.workloads))
            .await
            .context("starting the bed")?,
    );
    create_namespace(&world).await?;
    let planted = planted::prove(&world).await?;
    say(&format!("planted and caught: {planted}"));

    timeline.push(What::Bed {
        seed: options.seed,
        faults: options.faults,
        workloads: options.workloads,
    });
    let mut watches = Observers {
        timeline: timeline.clone(),
        observers: vec![Observer::of_kubernetes(
            &world.kubernetes.client,
            world.kinds,
            &timeline,
        )],
    };
    for semaphore in &SEMAPHORES {
        timeline.push(What::Semaphore(semaphore.record(NAMESPACE)));
        semaphore.create(&world, NAMESPACE).await?;
        let watch = Observer::of_lock(&world.consul.reader, &semaphore.prefix(), &timeline);
        watches.observers.push(watch);
    }
    let load = Arc::new(Load::default());
    let tasks = load::start(&world, &load, options.seed);
    let plan = plan::plan(options);
    let rest: Vec<_> = plan
        .into_iter()
        .filter(|fault| !done.contains(&fault.id))
        .collect();
    let outcome = strike_all(&world, &load, rest, options).await;

    load.end();
    if outcome.is_ok() {
        timeline.push(What::Drain);
        say("no more faults; all must come to rest now");
        come_to_rest(&world).await?;
    }
    for task in tasks {
        task.abort();
    }
    drop(watches);
    let verdict = conclude(options)?;
    if outcome.is_err() || !verdict.violations.is_empty() {
        // Keeps the bed's folder, with the logs of all servers.
        std::fs::write(world.folder().join("keep"), "")?;
        say(&format!(
            "the servers' logs are kept in {}",
            world.folder().display()
        ));
    }
    outcome?;
    if let (_, Some(error)) = timeline.records() {
        bail!("the timeline could not be written: {error}");
    }
    Ok(verdict)
}

/// Judges the timeline in the folder, and writes the report and the picture beside it.
pub fn conclude(options: &Options) -> Result<Verdict> {
    let records = timeline::read(&options.folder.join("timeline.jsonl"))?;
    let verdict = judge(&records, f64::MAX);
    let text = report::report(&verdict, &records, options);
    std::fs::write(options.folder.join("report.md"), &text)?;
    std::fs::write(
        options.folder.join("picture.svg"),
        picture::draw(&records, &verdict),
    )?;
    say(&text);
    Ok(verdict)
}

/// The faults whose end an earlier part of this campaign recorded.
fn done_before(records: &[Record], options: &Options) -> Result<BTreeSet<usize>> {
    let mut done = BTreeSet::new();
    for record in records {
        match &record.what {
            What::Bed {
                seed,
                faults,
                workloads,
            } if (*seed, *faults, *workloads)
                != (options.seed, options.faults, options.workloads) =>
            {
                bail!(
                    "{} is of seed {seed} and {faults} faults, and other workloads than Jobs: {workloads}; it can't be \
                     gone on with",
                    options.folder.display()
                )
            }
            What::Fault {
                id,
                phase: Phase::Ends | Phase::Misses,
                ..
            } => {
                done.insert(*id);
            }
            _ => {}
        }
    }
    Ok(done)
}

async fn create_namespace(world: &World) -> Result<()> {
    let namespaces = Api::<Namespace>::all(world.kubernetes.client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    timeout(CALL, namespaces.create(&PostParams::default(), &namespace)).await??;
    Ok(())
}

/// Runs all faults, in about the order of the plan. Faults of one semaphore run one after another. Faults of
/// different semaphores, and those that hit everything, run in parallel.
async fn strike_all(
    world: &Arc<World>,
    load: &Arc<Load>,
    rest: Vec<Planned>,
    options: &Options,
) -> Result<()> {
    let total = rest.len();
    let done = Arc::new(AtomicUsize::new(0));
    // Faults that hit everything are the slowest, so the others wait for them.
    let pace = watch::Sender::new(0);
    let mut lanes: Vec<Vec<Planned>> = vec![Vec::new(); SEMAPHORES.len() + 1];
    for fault in rest {
        let lane = fault.semaphore.unwrap_or(SEMAPHORES.len());
        lanes[lane].push(fault);
    }
    let lanes = lanes.into_iter().enumerate().map(|(at, lane)| {
        let (world, load, done, pace) = (world.clone(), load.clone(), done.clone(), pace.clone());
        async move {
            let hits_all = at == SEMAPHORES.len();
            for (number, fault) in lane.into_iter().enumerate() {
                if hits_all {
                    pace.send_replace(fault.id);
                } else {
                    let near = |at: &usize| fault.id <= at.saturating_add(AHEAD);
                    pace.subscribe().wait_for(near).await?;
                }
                let mut rng = Rng::with_seed(!fault.seed);
                sleep(Duration::from_millis(rng.u64(500..3000))).await;
                if hits_all && number > 0 && number % QUIET_EVERY == 0 {
                    sleep(QUIET).await;
                }
                ActiveFault::new(&world, &load, &fault).run().await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            if hits_all {
                pace.send_replace(usize::MAX);
            }
            anyhow::Ok(())
        }
    });
    let progress = tell_progress(world.clone(), done.clone(), total, options.clone());
    tokio::select! {
        outcome = futures::future::try_join_all(lanes) => outcome.map(drop),
        never = progress => never,
    }
}

/// Prints the progress, and violations as soon as they are seen.
async fn tell_progress(
    world: Arc<World>,
    done: Arc<AtomicUsize>,
    total: usize,
    options: Options,
) -> Result<()> {
    let start = Instant::now();
    let mut judged = Instant::now();
    let mut facts = 0;
    loop {
        sleep(PROGRESS).await;
        let done = done.load(Ordering::Relaxed);
        let seconds = start.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "numbers of faults are small")]
        let (rate, left) = (done as f64 / seconds, (total - done) as f64);
        let left = if done == 0 {
            f64::NAN
        } else {
            left / rate / 60.0
        };
        say(&format!(
            "{done} of {total} faults, {:.1} a minute, {left:.1} min left, {facts} violations",
            rate * 60.0
        ));
        if judged.elapsed() >= JUDGE {
            judged = Instant::now();
            let (records, _) = world.timeline.records();
            let until = world.timeline.now() - LATE;
            let verdict = tokio::task::spawn_blocking(move || (judge(&records, until), records));
            let (verdict, records) = verdict.await?;
            for violation in verdict.violations.iter().skip(facts) {
                say(&report::show(violation, &records, &options));
            }
            facts = verdict.violations.len();
        }
    }
}

/// Waits until no Job is left and no slot is held. Whatever is left at the timeout is reported.
async fn come_to_rest(world: &World) -> Result<()> {
    let start = Instant::now();
    loop {
        let (held, unfinished, holders) = world.timeline.look(|view| {
            let jobs: Vec<_> = view.jobs.values().cloned().collect();
            let held: Vec<_> = jobs
                .iter()
                .filter(|job| job.state == JobState::Held)
                .cloned()
                .collect();
            let unfinished = jobs
                .iter()
                .filter(|job| job.state != JobState::Finished)
                .count();
            let holders: usize = view.locks.values().map(|body| body.holders().len()).sum();
            (held, unfinished, holders)
        });
        let (sessions, contenders) = left_in_consul(world).await.unwrap_or((1, 1));
        let at_rest = unfinished + holders + sessions + contenders == 0;
        if at_rest || start.elapsed() > REST {
            world.timeline.push(What::Rest {
                sessions,
                contenders,
            });
            return Ok(());
        }
        for job in held {
            // It may have changed in the meantime. The next round tries again.
            let _later = kinds::jobs::release(world, &job).await;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Counts the operator's sessions and the contender keys. A session that never expires, or that of a rate, is destroyed
/// minutes after somebody deleted its contender, so this does not wait for it.
async fn left_in_consul(world: &World) -> Result<(usize, usize)> {
    let keys = world.consul.reader.json("kv/semaphores/?recurse").await?;
    let keys = keys.as_array().into_iter().flatten();
    // A key that no session has locked is not a contender: somebody freed it.
    let contenders: BTreeSet<_> = keys.filter_map(|key| key["Session"].as_str()).collect();
    let sessions = world.consul.reader.json("session/list").await?;
    let sessions = sessions.as_array().into_iter().flatten();
    let ours = sessions.filter(|session| {
        let expires = session["TTL"] == "10s";
        let stands = session["ID"]
            .as_str()
            .is_some_and(|id| contenders.contains(id));
        session["Node"] == *world.consul.node && (expires || stands)
    });
    Ok((ours.count(), contenders.len()))
}

#[expect(
    clippy::print_stdout,
    reason = "what a program says to the one who runs it"
)]
fn say(text: &str) {
    println!("{text}");
}
