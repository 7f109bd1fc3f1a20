//! Shows semaphores as they are in Consul: who holds their slots, and who waits.
//!
//! | file | subject |
//! |---|---|
//! | `find` | the semaphores below a prefix |
//! | `text` | semaphores as text |
//! | `changes` | what changed between two readings |
//! | `watch` | changes as they come |
//! | `release` | a slot that is taken from its holder |
//! | `failure` | exit codes |

mod changes;
mod failure;
mod find;
mod release;
mod text;
mod watch;

use command_line::{
    terminal::{colour, message, try_write},
    text::Text,
};
use consul_client::{Client, clock};
use consul_semaphore::{Prefix, Usage};
use serde::Serialize;

pub(crate) use self::{failure::InspectFailure, release::release, watch::watch};

/// Format in which the answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerFormat {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

/// Runs `list`, which prints the semaphores below a prefix, or all semaphores.
pub(crate) async fn list(
    client: &Client,
    below: Option<&Prefix>,
    format: AnswerFormat,
) -> Result<(), InspectFailure> {
    let found = find::find(client, below).await?;
    for note in &found.notes {
        message(note);
    }
    let all: Vec<_> = found.all.iter().map(|found| &found.summary).collect();
    match format {
        AnswerFormat::Json => json(&all),
        AnswerFormat::Text if all.is_empty() => {
            let below = below.map_or_else(String::new, |prefix| format!(" below {prefix}/"));
            message(&format!("there are no semaphores{below}"));
            Ok(())
        }
        AnswerFormat::Text => print(&text::list(&all)),
    }
}

/// Runs `show`, which prints one semaphore with its holders and waiting contenders.
pub(crate) async fn show(
    client: &Client,
    prefix: &Prefix,
    format: AnswerFormat,
) -> Result<(), InspectFailure> {
    let usage = Usage::read(client, prefix.clone()).await?;
    if usage.is_unused() {
        return Err(InspectFailure::Nobody(prefix.clone()));
    }
    match format {
        AnswerFormat::Json => json(&usage),
        AnswerFormat::Text => print(&text::show(&usage, clock::time())),
    }
}

fn json(value: &impl Serialize) -> Result<(), InspectFailure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| InspectFailure::Output(error.into()))?;
    write(&(text + "\n"))
}

fn print(text: &Text) -> Result<(), InspectFailure> {
    write(&text.render(colour()))
}

/// Writes to stdout. A reader that closes the pipe early, as `head` does, is not a failure.
fn write(text: &str) -> Result<(), InspectFailure> {
    try_write(text).map(drop).map_err(InspectFailure::Output)
}
