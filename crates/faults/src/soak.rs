//! A steady load for long: what the operator takes, and what there is of it in Consul, stays as it is.
//!
//! The load is one that the bed carries for ever, so whatever grows is something that was left behind,
//! and no line that gets longer. What is judged are figures of the system's, of Consul's and of the API
//! server's: nothing that the operator says of itself.

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

/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long the load goes on.
    pub time: Duration,
    /// Where the figures and their picture go.
    pub folder: PathBuf,
}

/// Starts all of it, lets it go on for its time or until Ctrl-C, ends all of it, and judges what was seen.
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

/// Looks again and again, and writes down what it sees at once.
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

/// The file of the figures, with their names in its first line.
fn table(path: &Path) -> Result<File> {
    let mut table = File::create(path)?;
    writeln!(table, "{}", Sample::head())?;
    Ok(table)
}
