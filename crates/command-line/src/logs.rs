//! Writes logs to stderr, for people or for machines.
use std::io::{self, IsTerminal as _, Write};

use super::lines::OneLine;
use tracing_subscriber::{EnvFilter, filter::ParseError, fmt, prelude::*, util::TryInitError};

/// The default filter: lines of this program, and warnings of libraries, without kube's log of each failed call,
/// because this program logs the error that the call returns.
pub const DEFAULT_FILTER: &str = "info,kube=warn,kube_runtime::watcher=off,kube_client::client=off,\
     kube_client::client::tls=warn,hyper=warn,h2=warn,reqwest=warn,rustls=warn,tower=warn";

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people: time, level, target, message and fields; in colours on a terminal.
    #[default]
    Text,
    /// Lines for machines: one JSON object a line, with the event's fields at its top level.
    Json,
}

/// Parses a filter in the syntax of `RUST_LOG`: `info`, or `info,consul_semaphore_operator=debug`. An empty filter
/// means the default.
///
/// # Errors
/// The text is not a valid filter.
pub fn parse_filter(filter: &str) -> Result<EnvFilter, ParseError> {
    let filter = if filter.trim().is_empty() {
        DEFAULT_FILTER
    } else {
        filter
    };
    EnvFilter::builder().parse(filter)
}

/// Sends the process's logs to stderr.
///
/// # Errors
/// Logs of this process already go somewhere else.
pub fn init(format: LogFormat, filter: EnvFilter) -> Result<(), TryInitError> {
    init_to(format, filter, io::stderr)
}

/// Starts to log like [`init`], but through a writer of the program's own, which must write to stderr.
///
/// # Errors
/// Log lines of this process already go somewhere else.
pub fn init_to<W: Write + 'static>(
    format: LogFormat,
    filter: EnvFilter,
    stderr: impl Fn() -> W + Send + Sync + 'static,
) -> Result<(), TryInitError> {
    let registry = tracing_subscriber::registry().with(filter);
    let colours = format == LogFormat::Text && io::stderr().is_terminal();
    let to = move || OneLine {
        to: stderr(),
        colours,
    };
    let lines = fmt::layer().with_writer(to).with_ansi(colours);
    match format {
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true).with_current_span(false))
            .try_init(),
        LogFormat::Text => registry.with(lines).try_init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_filter_is_one() {
        let filter = parse_filter("").unwrap();
        assert!(filter.to_string().contains("kube=warn"), "{filter}");
    }

    #[test]
    fn an_unknown_level_is_refused() {
        assert!(parse_filter("info,kube=loud").is_err());
    }
}
