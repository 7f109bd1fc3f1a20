//! One sample of the figures.

use std::{collections::HashSet, fmt::Write as _, time::Duration};

use anyhow::{Context as _, Result};
use procfs::process::{FDTarget, Process};
use testbed::{Bed, Consul};

use super::jobs::Jobs;

/// The parent of all KV entries of the operator in Consul.
const ENTRIES: &str = "semaphores/";

/// One sample of the figures.
pub(super) struct Sample {
    /// Seconds since the load began.
    pub(super) seconds: f64,
    /// In the order of [`FIGURES`].
    pub(super) figures: [f64; FIGURES.len()],
}

/// A figure of each sample.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) nature: Nature,
}

/// How a figure may change over time.
#[derive(Clone, Copy)]
pub(super) enum Nature {
    /// It must not rise by more than this, whatever its size.
    Flat(f64),
    /// It counts events, so it must rise.
    Count,
    /// It is shown, but not judged.
    Shown,
}

/// The figures.
pub(super) const FIGURES: [Figure; 9] = [
    // Over an hour at three Jobs a second, a Job may leave at most about 150 bytes behind.
    figure("resident memory (MiB)", Nature::Flat(1.0)),
    figure("threads", Nature::Shown),
    figure("open descriptors", Nature::Flat(4.0)),
    figure("TCP connections", Nature::Flat(2.0)),
    figure("sessions in Consul", Nature::Flat(3.0)),
    figure("KV entries in Consul", Nature::Flat(3.0)),
    figure("Jobs in the cluster", Nature::Shown),
    figure("Jobs started", Nature::Count),
    figure("longest wait (s)", Nature::Shown),
];

const fn figure(name: &'static str, nature: Nature) -> Figure {
    Figure { name, nature }
}

impl Sample {
    /// The figures' names, as the header of a CSV file.
    pub(super) fn head() -> String {
        let names = FIGURES.iter().map(|figure| figure.name);
        let names: Vec<_> = ["seconds"].into_iter().chain(names).collect();
        names.join(",")
    }

    /// A line of a CSV file.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{:.1}", self.seconds);
        for figure in &self.figures {
            // Counts have no fraction.
            let digits = if figure.fract() == 0.0 { 0 } else { 2 };
            let _infallible = write!(line, ",{figure:.digits$}");
        }
        line
    }
}

/// Samples the operator's process and its state in Consul. Its descriptors can be seen only with the capability
/// `CAP_SYS_PTRACE`, because the operator keeps its memory to itself.
pub(super) struct Sampler {
    operator: Process,
    consul: Consul,
}

impl Sampler {
    pub(super) async fn new(bed: &Bed) -> Result<Self> {
        let ids = bed.operator().ids().await;
        let [id, _guard] = ids.context("the operator does not run")?;
        Ok(Self {
            operator: Process::new(i32::try_from(id)?)?,
            consul: bed.consul().clone(),
        })
    }

    /// Takes one sample, this long after the load began.
    pub(super) async fn take(&self, after: Duration, jobs: &Jobs) -> Result<Sample> {
        let status = self.operator.status().context("the operator has ended")?;
        let resident = status.vmrss.context("the operator has ended")?;
        let sessions = self.consul.try_get("session/list").await?;
        let sessions = sessions.as_array().map_or(0, Vec::len);
        let entries = self.consul.try_list(ENTRIES).await?;
        Ok(Sample {
            seconds: after.as_secs_f64(),
            figures: [
                count(usize::try_from(resident)?) / 1024.0,
                count(usize::try_from(status.threads)?),
                count(
                    self.operator
                        .fd_count()
                        .context("CAP_SYS_PTRACE is needed")?,
                ),
                count(self.connections()?),
                count(sessions),
                count(entries.len()),
                count(jobs.there()),
                count(jobs.started()),
                jobs.longest_wait().as_secs_f64(),
            ],
        })
    }

    /// How many TCP connections the operator has, without the sockets on which it listens.
    fn connections(&self) -> Result<usize> {
        let mut own = HashSet::new();
        for descriptor in self.operator.fd()? {
            // A descriptor may be closed while this iterates.
            if let Ok(descriptor) = descriptor
                && let FDTarget::Socket(inode) = descriptor.target
            {
                own.insert(inode);
            }
        }
        let all = [self.operator.tcp()?, self.operator.tcp6()?].concat();
        let connections = all.iter().filter(|socket| {
            socket.state != procfs::net::TcpState::Listen && own.contains(&socket.inode)
        });
        Ok(connections.count())
    }
}

fn count(things: usize) -> f64 {
    u32::try_from(things).map_or(f64::INFINITY, f64::from)
}
