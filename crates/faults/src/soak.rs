//! A long steady load: the operator's use of resources, and what it keeps in Consul, must stay constant.
//!
//! The bed can carry the load forever, so whatever grows is a leak and not a longer queue. All judged figures come
//! from the system, from Consul and from the API server, and none from the operator itself.

mod jobs;
mod load;
mod plot;
mod sample;
mod verdict;

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use testbed::Bed;
use tokio::{
    signal,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

pub use self::verdict::Verdict;

use self::{
    load::Load,
    sample::{Sample, Sampler},
};

/// The time between two samples.
const PERIOD: Duration = Duration::from_secs(5);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the load runs.
    pub time: Duration,
    /// Where the figures and their picture are written.
    pub folder: PathBuf,
}

/// Starts everything, runs it for its time or until Ctrl-C, ends it, and judges what was seen.
pub async fn run(options: &Options) -> Result<Verdict> {
    fs::create_dir_all(&options.folder)?;
    let bed = Bed::builder().try_start().await?;
    let load = Load::start(&bed).await?;
    let mut samples = Vec::new();
    tokio::select! {
        looked = look(&bed, &load, options, &mut samples) => looked?,
        ended = load.make_jobs() => ended?,
        interrupted = signal::ctrl_c() => interrupted?,
    }
    let seen = load.end().await?;
    bed.end().await?;
    fs::write(options.folder.join("soak.svg"), plot::draw(&samples))?;
    Verdict::of(&samples, seen)
}

/// Takes samples again and again, and writes each at once.
async fn look(bed: &Bed, load: &Load, options: &Options, samples: &mut Vec<Sample>) -> Result<()> {
    let looker = Sampler::new(bed).await?;
    let mut table = table(&options.folder.join("soak.csv"))?;
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let start = Instant::now();
    while start.elapsed() < options.time {
        ticks.tick().await;
        let taken = timeout(PERIOD * 4, looker.take(start.elapsed(), &load.jobs)).await;
        let sample = taken.context("looking takes too long")??;
        writeln!(table, "{}", sample.line())?;
        samples.push(sample);
    }
    Ok(())
}

/// The file of the figures, with their names on its first line.
fn table(path: &Path) -> Result<File> {
    let mut table = File::create(path)?;
    writeln!(table, "{}", Sample::head())?;
    Ok(table)
}
