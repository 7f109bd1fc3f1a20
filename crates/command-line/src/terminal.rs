//! Describes where the output goes: stdout, which may be a terminal, and stderr.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
};

/// Whether to use colour: on a terminal that supports it, unless `NO_COLOR` is set (<https://no-color.org>).
pub fn colour() -> bool {
    let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !unwanted && !dumb
}

/// Writes to stdout. Returns whether there is still a reader.
pub fn try_write(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prints a message for a person, on stderr.
pub fn message(words: &str) {
    // No foreign text may control the terminal.
    let seen = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    let words: String = words.chars().map(seen).collect();
    // If this can't be written, nobody reads it anyway.
    let _ = writeln!(io::stderr(), "{words}");
}
