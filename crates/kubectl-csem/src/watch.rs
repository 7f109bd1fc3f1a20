//! The command `watch`. Watches of the API server keep its output up to date.

use std::{
    fmt::{Debug, Write as _},
    io,
    pin::pin,
    time::Duration,
};

use consul_client::clock;
use consul_semaphore_workload::Kind;
use futures::{
    StreamExt as _,
    stream::{BoxStream, SelectAll, select_all},
};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    cluster::ClusterClient,
    failure::{Failure, ResourceKind},
    terminal::{self, Screen},
    view::{changes::ReportedState, recorded::REPORTER},
    world::{Update, WatchTarget, World},
};

/// The time that the first lists may take.
const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval in which changes are shown. Changes within one interval are shown together.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// The duration of one watch, in seconds. A connection that broke silently is noticed by then.
const WATCH_SECONDS: u32 = 60;

pub(crate) async fn watch(cluster: &ClusterClient, target: &WatchTarget) -> Result<(), Failure> {
    let mut ends = WatchEndSignals::new()?;
    let mut resized = listen(SignalKind::window_change())?;
    let mut update = streams(cluster, target);
    let mut world = World::new(target.clone());
    {
        let first = pin!(timeout(
            FIRST_LISTS_TIMEOUT,
            first_lists(&mut world, &mut update)
        ));
        tokio::select! {
            listed = first => listed.unwrap_or_else(|_| Err(Failure::silent(FIRST_LISTS_TIMEOUT)))?,
            () = ends.come() => return Ok(()),
        }
    }
    if let Some(name) = target.semaphore.as_ref().filter(|_| !world.has_semaphore()) {
        let namespace = &cluster.namespace;
        let message = format!("there is no ConsulSemaphore {name} in the namespace {namespace}");
        return Err(Failure::not_there(message));
    }

    let mut output = WatchOutput::open(target.semaphore.is_some())?;
    let mut beat = interval(REDRAW_INTERVAL);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut changed, mut second) = (true, 0);
    loop {
        tokio::select! {
            biased;
            () = ends.come() => break,
            _ = beat.tick() => {
                let now = clock::time();
                // Ages are shown in seconds, so the output is drawn again every second.
                if changed || now.as_second() != second {
                    (changed, second) = (false, now.as_second());
                    if !output.show(&world, now)? {
                        return Ok(());
                    }
                }
            }
            next = update.next() => match next {
                Some(next) => {
                    world.take(next, clock::time())?;
                    changed = true;
                }
                None => break,
            },
            _ = resized.recv() => changed = true,
        }
    }
    output.close(&world)
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::impossible(format!("can't listen for signals: {error}")))
}

/// The signals that end the watch, so that it can restore the terminal: Ctrl-C, Ctrl-\, SIGTERM, and the end of the
/// terminal.
struct WatchEndSignals {
    signals: [Signal; 4],
    /// The signal of Ctrl-Z, which is ignored because it would leave the shell on this screen.
    _stop: Signal,
}

impl WatchEndSignals {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            signals: [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::quit())?,
                listen(SignalKind::hangup())?,
            ],
            _stop: listen(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
        })
    }

    async fn come(&mut self) {
        let [interrupt, terminate, quit, hang_up] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = quit.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}

/// Applies updates until each watch has received its list or has failed.
async fn first_lists(world: &mut World, update: &mut Streams) -> Result<(), Failure> {
    while !world.is_complete()
        && let Some(next) = update.next().await
    {
        world.take(next, clock::time())?;
    }
    Ok(())
}

type Streams = SelectAll<BoxStream<'static, Update>>;

fn streams(cluster: &ClusterClient, target: &WatchTarget) -> Streams {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let semaphores = cluster.semaphores(target.namespace.as_deref());
    let Some(name) = &target.semaphore else {
        let config = watcher::Config {
            label_selector: target.selector.clone(),
            ..config
        };
        let all = watched(
            semaphores,
            config,
            ResourceKind::Semaphores,
            Update::Semaphore,
        );
        return select_all([all]);
    };
    let this_one = config.clone().fields(&format!("metadata.name={name}"));
    let from_operator = config
        .clone()
        .fields(&format!("reportingComponent={REPORTER}"));
    select_all([
        watched(
            semaphores,
            this_one,
            ResourceKind::Semaphores,
            Update::Semaphore,
        ),
        watched(
            cluster.jobs(),
            config,
            ResourceKind::Workloads(Kind::Job),
            Update::Job,
        ),
        watched(
            cluster.events(),
            from_operator,
            ResourceKind::Events,
            Update::Noted,
        ),
    ])
}

fn watched<K>(
    api: Api<K>,
    config: watcher::Config,
    what: ResourceKind,
    update: fn(Box<Event<K>>) -> Update,
) -> BoxStream<'static, Update>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, config)
        .default_backoff()
        .map(move |event| match event {
            Ok(event) => update(Box::new(event)),
            Err(error) => Update::Failed(what.clone(), error),
        })
        .boxed()
}

/// A screen on a terminal, or else one line for each change.
enum WatchOutput {
    Screen(Screen),
    Lines {
        details: bool,
        before: ReportedState,
        gaps: Vec<String>,
    },
}

impl WatchOutput {
    fn open(details: bool) -> Result<Self, Failure> {
        if terminal::has_screen() {
            return Ok(Self::Screen(Screen::open().map_err(cant_write)?));
        }
        Ok(Self::Lines {
            details,
            before: ReportedState::default(),
            gaps: Vec::new(),
        })
    }

    /// Shows the current state, and returns whether there is still a reader.
    fn show(&mut self, world: &World, now: jiff::Timestamp) -> Result<bool, Failure> {
        match self {
            Self::Screen(screen) => {
                screen.draw(&world.text(now)).map_err(cant_write)?;
                Ok(true)
            }
            Self::Lines {
                details,
                before,
                gaps,
            } => {
                let new_gaps = world.gaps(now);
                for gap in new_gaps.iter().filter(|gap| !gaps.contains(gap)) {
                    terminal::message(gap);
                }
                *gaps = new_gaps;
                let state = world.reported_state();
                let lines = state.since(before, *details);
                *before = state;
                let mut text = String::new();
                for line in &lines {
                    // Writing to a string can't fail.
                    let _ = writeln!(text, "{now:.0} {line}");
                }
                terminal::try_write(&text).map_err(cant_write)
            }
        }
    }

    /// Prints the last output to the normal screen, where it can be read and scrolled back to.
    fn close(self, world: &World) -> Result<(), Failure> {
        match self {
            Self::Screen(screen) => {
                drop(screen);
                terminal::print(&world.text(clock::time()))
            }
            Self::Lines { .. } => Ok(()),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn cant_write(error: io::Error) -> Failure {
    Failure::impossible(format!("can't write to stdout: {error}"))
}
