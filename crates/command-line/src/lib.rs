//! Holds what the programs of this workspace share on the command line.
//!
//! | module | subject |
//! |---|---|
//! | [`ConsulFlags`] | the address of Consul, and the token |
//! | [`logs`] | log lines on stderr, for people or for machines |
//! | [`age`], [`text`], [`table`] | durations, words with a tone, columns |
//! | [`terminal`] | where the output goes |
//! | [`memory`] | who may see the memory of a process that has tokens |
//!
//! The crate knows nothing about Kubernetes or semaphores.

pub mod age;
mod consul;
mod lines;
pub mod logs;
pub mod memory;
pub mod table;
pub mod terminal;
pub mod text;

use std::{
    env,
    io::{self, Write as _},
    panic, process,
};

use clap::error::{ContextKind, ContextValue};

pub use consul::{CONSUL_ENVIRONMENT, CONSUL_HEADING, ConsulFlags};

/// Returns the address of a page of the documentation, such as `"exec.md"`, for messages that say what to do. The address
/// is a literal.
#[macro_export]
macro_rules! page {
    ($file:literal) => {
        concat!(
            "https://github.com/consul-semaphore/consul-semaphore-operator/blob/main/docs/",
            $file
        )
    };
}

/// A panic in any task or thread ends the process: no work continues half done. Released builds abort by their
/// profile; this does the same in all others.
pub fn abort_on_panic() {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        process::abort();
    }));
}

/// Reads the process's arguments and environment; ends the process with help, or with an error that says what to do.
pub fn parse<C: clap::Parser>() -> C {
    C::try_parse().unwrap_or_else(|error| {
        // There is no other way to report an error that can't be written.
        let _ = error.print();
        if let Some(variable) = variable_at_fault::<C>(&error) {
            let _ = writeln!(
                io::stderr(),
                "\nThe value comes from the environment variable {variable}."
            );
        }
        process::exit(error.exit_code())
    })
}

/// The environment variable that a bad value came from, if it was not the command line.
fn variable_at_fault<C: clap::Parser>(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let mut cli = C::command();
    cli.build();
    let command = cli.find_subcommand(env::args_os().nth(1)?)?;
    let argument = command
        .get_arguments()
        .find(|argument| argument.to_string() == *shown)?;
    let flag = format!("--{}", argument.get_long()?);
    let mut words = env::args().skip(1);
    let on_command_line = words.any(|word| word.split('=').next() == Some(&flag));
    let variable = argument
        .get_env()
        .filter(|variable| env::var_os(variable).is_some())?;
    (!on_command_line).then(|| variable.to_string_lossy().into_owned())
}

/// A name that is valid in a Consul key, node or session: 1 to 63 of `[A-Za-z0-9._-]`, not only dots. For clap's
/// `value_parser`.
///
/// # Errors
/// The text is not such a name; the error says what is allowed.
pub fn name(text: &str) -> Result<String, String> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    if !(1..=63).contains(&text.len())
        || !text.chars().all(allowed)
        || text.chars().all(|character| character == '.')
    {
        return Err("use 1 to 63 letters, digits, '.', '_' or '-', and not only dots".to_owned());
    }
    Ok(text.to_owned())
}

/// Checks a log filter. Returns the text, because the parsed filter can't be cloned. For clap's `value_parser`.
///
/// # Errors
/// The filter can't be parsed; the error says what is allowed.
pub fn filter(text: &str) -> Result<String, String> {
    match logs::parse_filter(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!(
            "{error}; use a level such as info, or pairs such as info,kube=debug"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_stand_in_consul() {
        for good in ["prod-eu", "a", "K8s_1.2", &"x".repeat(63)] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a/b", "a b", "é", &"x".repeat(64)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
