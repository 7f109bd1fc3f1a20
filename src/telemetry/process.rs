//! Reads the resources of the process: memory, CPU time, file descriptors. They are named as in Prometheus' own
//! clients.
use std::{
    fmt, fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use rustix::time::{ClockId, clock_gettime};

/// The resources of the process, read from the system at each scrape. A value that can't be read is left out.
#[derive(Debug)]
pub(super) struct Process {
    /// Time at which the process started, in seconds since 1970.
    started: f64,
}

impl Process {
    /// Creates the collector of a process that has just started.
    #[expect(clippy::disallowed_methods, reason = "for people")]
    pub(super) fn new() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            started: started.unwrap_or_default().as_secs_f64(),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut tell = |name, unit, help, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
        };
        let (bytes, seconds) = (Some(&Unit::Bytes), Some(&Unit::Seconds));
        tell(
            "process_start_time",
            seconds,
            "When the process started, in seconds since 1970.",
            &ConstGauge::new(self.started),
        )?;
        tell(
            "process_cpu",
            seconds,
            "Processor time taken.",
            &ConstCounter::new(processor_time().as_secs_f64()),
        )?;
        if let Some(resident) = resident_bytes() {
            tell(
                "process_resident_memory",
                bytes,
                "Resident memory.",
                &ConstGauge::new(resident),
            )?;
        }
        if let Some(open) = open_files() {
            tell(
                "process_open_fds",
                None,
                "Open file descriptors.",
                &ConstGauge::new(open),
            )?;
        }
        Ok(())
    }
}

/// Returns the CPU time of all threads.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Returns `VmRSS:  12345 kB` of proc(5)'s `status`, in bytes.
fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn open_files() -> Option<i64> {
    i64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_the_process_takes() {
        assert!(Process::new().started > 1.7e9);
        assert!(processor_time() > Duration::ZERO);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
        assert!(open_files().is_some_and(|open| open > 2));
    }
}
