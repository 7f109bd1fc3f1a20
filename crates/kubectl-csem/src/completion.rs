//! Completion of the command line.
//!
//! kubectl runs an executable `kubectl_complete-csem` with the words after `kubectl csem`. The last of these words is
//! the one at the cursor. kubectl expects an answer in cobra's form: a candidate on each line, with a tab before its
//! description, and a last line with a directive. kubectl's own completion therefore works in every shell. The answer
//! comes from clap's description of the commands, and from names that are read from the cluster with the flags already
//! on the line.

mod names;

use std::{path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, Command};
use consul_client::text::one_line;
use tokio::time::timeout;

use self::names::{NameKind, names};
use crate::{
    cli::{ClusterFlags, CompletionShell, SEMAPHORE_TYPES},
    workload_name::kind_of,
};

/// The time to wait for names.
const NAMES_TIMEOUT: Duration = Duration::from_secs(3);

/// Cobra's directives: one completes files, the other allows nothing but the candidates.
const DIRECTIVE_FILES: u8 = 0;
const DIRECTIVE_NOTHING_ELSE: u8 = 4;

/// The words that may follow at the cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NextWords {
    /// Words of the command line itself, each with its description.
    words: Vec<(String, String)>,
    /// The kind of name that may follow.
    name: Option<NameKind>,
    /// The part of the word at the cursor that comes before the name, as in `--namespace=`.
    before: String,
    /// The kind of object before the name, in kubectl's form, as in `jobset/`.
    kind: String,
    /// Name of the command on the line.
    command: String,
    /// The connection with which names are read.
    connection: ClusterFlags,
    /// The arguments already on the line.
    given: Vec<String>,
}

/// The program that asks for completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionCaller {
    /// A shell asks through our own script, which replaces the whole word.
    Shell,
    /// kubectl asks. Its scripts add the part before a flag's value themselves.
    Kubectl,
}

/// Returns what may replace the last of these words.
pub(crate) fn next(command: &Command, words: &[String]) -> NextWords {
    let Some((last, before)) = words.split_last() else {
        return NextWords::default();
    };
    let mut command = command;
    let mut next = NextWords::default();
    let mut flag: Option<&Arg> = None;
    for word in before {
        if let Some(of) = flag.take() {
            next.connection.set(of, word);
        } else if word.starts_with('-') {
            flag = match find_flag(command, word) {
                Some((arg, None)) if takes_value(arg) => Some(arg),
                Some((arg, Some(value))) => {
                    next.connection.set(arg, value);
                    None
                }
                _ => None,
            };
        } else if let Some(found) = subcommand(command, word).filter(|_| next.given.is_empty()) {
            command = found;
            found.get_name().clone_into(&mut next.command);
        } else {
            next.given.push(word.clone());
        }
    }
    if let Some(flag) = flag {
        next.value_of(flag);
    } else if let Some((arg, Some(value))) = find_flag(command, last) {
        last[..last.len() - value.len()].clone_into(&mut next.before);
        next.value_of(arg);
    } else if last.starts_with('-') {
        next.words = flags(command);
    } else {
        next.words = subcommands(command);
        if let Some(arg) = command.get_positionals().nth(next.given.len()) {
            next.value_of(arg);
            next.kind_of(last);
        }
    }
    let before = next.before.clone();
    next.words
        .retain(|(word, _)| format!("{before}{word}").starts_with(last.as_str()));
    next
}

impl NextWords {
    fn value_of(&mut self, arg: &Arg) {
        let values = arg.get_possible_values();
        let offered = values.iter().filter(|value| !value.is_hide_set());
        self.words.extend(offered.map(|value| {
            let help = value.get_help().map(ToString::to_string);
            (value.get_name().to_owned(), help.unwrap_or_default())
        }));
        self.name = NameKind::of(arg);
    }

    /// Records the kind before the slash in the word, if it fits the expected name.
    fn kind_of(&mut self, word: &str) {
        let Some((type_, _)) = word.split_once('/') else {
            return;
        };
        let workload = match self.name {
            Some(NameKind::Workload(_)) => kind_of(type_).map(NameKind::Workload),
            _ => None,
        };
        let fits = match self.name {
            Some(NameKind::Semaphore) => SEMAPHORE_TYPES.contains(&type_),
            _ => workload.is_some(),
        };
        self.name = workload.or_else(|| self.name.take());
        if fits {
            self.kind = format!("{type_}/");
        }
    }

    /// Returns the answer: the known words and these names. `last` is the word at the cursor. Anybody can choose names,
    /// so names with a special meaning to a shell are left out.
    fn answer(&self, names: Vec<(String, String)>, last: &str, asker: CompletionCaller) -> String {
        let mut answer = String::new();
        let names = names
            .into_iter()
            .filter(|(name, _)| is_plain(name))
            .map(|(name, help)| (format!("{}{name}", self.kind), plainly(&help)));
        let all = self.words.iter().cloned().chain(names);
        for (word, help) in all {
            let word = format!("{}{word}", self.before);
            if word.starts_with(last) {
                let shown = match asker {
                    CompletionCaller::Shell => &word,
                    CompletionCaller::Kubectl => &word[self.before.len()..],
                };
                answer.push_str(shown);
                if !help.is_empty() {
                    answer.push('\t');
                    answer.push_str(&one_line(&help, 80));
                }
                answer.push('\n');
            }
        }
        let directive = if self.name == Some(NameKind::File) {
            DIRECTIVE_FILES
        } else {
            DIRECTIVE_NOTHING_ELSE
        };
        format!("{answer}:{directive}\n")
    }
}

/// Whether a name can be offered. Bash inserts it into the line unchanged, and kubectl's script for bash even expands
/// it before that. This program would take a leading hyphen for a flag.
fn is_plain(name: &str) -> bool {
    let in_front = name.bytes().next().unwrap_or(b'-');
    in_front != b'-' && name.bytes().all(is_harmless)
}

/// Whether a byte has no special meaning in any shell.
fn is_harmless(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._:/=@-".contains(&byte)
}

/// Returns the description of a name without anything that a shell might expand.
fn plainly(help: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c == ' ' || u8::try_from(c).is_ok_and(is_harmless);
    let shown = help.chars().map(|c| if plain(c) { c } else { '?' });
    shown.collect()
}

impl ClusterFlags {
    fn set(&mut self, arg: &Arg, value: &str) {
        match arg.get_id().as_str() {
            "kubeconfig" => self.kubeconfig = Some(PathBuf::from(value)),
            "context" => self.context = Some(value.to_owned()),
            "cluster" => self.cluster = Some(value.to_owned()),
            "user" => self.user = Some(value.to_owned()),
            "as_user" => self.as_user = Some(value.to_owned()),
            "as_group" => self.as_group.push(value.to_owned()),
            "namespace" => self.namespace = Some(value.to_owned()),
            _ => {}
        }
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Returns the flag that a word names, with its value if the value is in the same word.
fn find_flag<'c, 'w>(command: &'c Command, word: &'w str) -> Option<(&'c Arg, Option<&'w str>)> {
    let mut flags = command.get_arguments().filter(|arg| !arg.is_positional());
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        return flags
            .find(|arg| arg.get_long() == Some(name))
            .map(|arg| (arg, value));
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let flags: Vec<&Arg> = flags.collect();
    // One word can contain several flags. The last of them may take a value.
    loop {
        let short = letters.next()?;
        let arg = *flags.iter().find(|arg| arg.get_short() == Some(short))?;
        let rest = letters.as_str();
        if takes_value(arg) {
            let value = rest.strip_prefix('=').unwrap_or(rest);
            return Some((arg, Some(value).filter(|_| !rest.is_empty())));
        }
        if rest.is_empty() {
            return Some((arg, None));
        }
    }
}

fn subcommand<'c>(command: &'c Command, word: &str) -> Option<&'c Command> {
    command
        .get_subcommands()
        .find(|found| found.get_name() == word)
}

fn subcommands(command: &Command) -> Vec<(String, String)> {
    let shown = command
        .get_subcommands()
        .filter(|found| !found.is_hide_set());
    let help = |found: &Command| {
        found
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    shown
        .map(|found| (found.get_name().to_owned(), help(found)))
        .collect()
}

fn flags(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let help = |arg: &Arg| arg.get_help().map(ToString::to_string).unwrap_or_default();
    shown
        .flat_map(|arg| {
            let long = arg.get_long().map(|long| (format!("--{long}"), help(arg)));
            let short = arg
                .get_short()
                .map(|short| (format!("-{short}"), help(arg)));
            long.into_iter().chain(short)
        })
        .collect()
}

/// Returns the answer to a request for completion. Names that can't be read in time are left out, because a shell shows
/// no errors.
pub(crate) async fn answer(command: &Command, words: &[String], asker: CompletionCaller) -> String {
    let next = next(command, words);
    let names = match &next.name {
        Some(name) => {
            let names = timeout(NAMES_TIMEOUT, names(name, &next)).await;
            names.ok().flatten().unwrap_or_default()
        }
        None => Vec::new(),
    };
    let last = words.last().map_or("", String::as_str);
    next.answer(names, last, asker)
}

/// Returns the script with which a shell completes the word `kubectl-csem`.
pub(crate) fn script(shell: CompletionShell) -> &'static str {
    match shell {
        CompletionShell::Bash => include_str!("completion/bash"),
        CompletionShell::Zsh => include_str!("completion/zsh"),
        CompletionShell::Fish => include_str!("completion/fish"),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use consul_semaphore_workload::Kind;

    use super::*;
    use crate::cli::Cli;

    fn at(words: &[&str]) -> NextWords {
        let mut command = Cli::command();
        command.build();
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        next(&command, &words)
    }

    fn words(next: &NextWords) -> Vec<&str> {
        next.words.iter().map(|(word, _)| word.as_str()).collect()
    }

    #[test]
    fn commands_come_first() {
        let all = at(&[""]);
        assert_eq!(words(&all)[..3], ["list", "show", "why"]);
        assert!(
            !words(&all)
                .iter()
                .any(|word| word.starts_with('_') || word.starts_with('-'))
        );
        assert_eq!(words(&at(&["re"])), ["resume", "release"]);
    }

    #[test]
    fn an_argument_is_a_name_of_its_kind() {
        assert_eq!(at(&["show", ""]).name, Some(NameKind::Semaphore));
        assert_eq!(
            at(&["hold", "mig"]).name,
            Some(NameKind::Workload(Kind::Job))
        );
        let typed = at(&["why", "JobSets/tr"]);
        assert_eq!(
            (typed.name, typed.kind.as_str()),
            (Some(NameKind::Workload(Kind::JobSet)), "JobSets/")
        );
        assert_eq!(at(&["release", ""]).name, Some(NameKind::Semaphore));
        let session = at(&["release", "db", ""]);
        assert_eq!(
            (session.name, session.given),
            (Some(NameKind::Session), vec!["db".to_owned()])
        );
        assert_eq!(at(&["show", "db", ""]).name, None);
        assert_eq!(at(&["hold", "job/mig"]).kind, "job/");
        assert_eq!(at(&["hold", "csem/mig"]).kind, "");
        assert_eq!(at(&["pause", "csem/"]).kind, "csem/");
        assert_eq!(words(&at(&["completion", ""])), ["bash", "zsh", "fish"]);
    }

    #[test]
    fn flags_are_known_with_their_values() {
        assert!(words(&at(&["show", "--"])).contains(&"--output"));
        assert!(words(&at(&["show", "--"])).contains(&"--namespace"));
        assert!(!words(&at(&["show", "--"])).contains(&"--yes"));
        assert_eq!(words(&at(&["show", "-o", ""])), ["json", "yaml", "wide"]);
        assert_eq!(words(&at(&["list", "--output", "y"])), ["yaml"]);
        let inside = at(&["list", "--output=y"]);
        assert_eq!(
            (words(&inside), inside.before.as_str()),
            (vec!["yaml"], "--output=")
        );
        assert_eq!(at(&["show", "-n", ""]).name, Some(NameKind::Namespace));
        assert_eq!(at(&["show", "--context", ""]).name, Some(NameKind::Context));
        assert_eq!(at(&["show", "--kubeconfig", ""]).name, Some(NameKind::File));
    }

    #[test]
    fn the_cluster_is_asked_with_the_flags_of_the_line() {
        let next = at(&[
            "-n",
            "batch",
            "--context=prod",
            "show",
            "--kubeconfig",
            "k",
            "",
        ]);
        let connection = ClusterFlags {
            kubeconfig: Some("k".into()),
            context: Some("prod".to_owned()),
            namespace: Some("batch".to_owned()),
            ..ClusterFlags::default()
        };
        assert_eq!(
            (next.name, next.connection),
            (Some(NameKind::Semaphore), connection)
        );
        assert_eq!(
            at(&["list", "-A", "-nweb", ""])
                .connection
                .namespace
                .as_deref(),
            Some("web")
        );
    }

    #[test]
    fn the_answer_is_cobras() {
        let names = vec![
            ("db".to_owned(), "a\tb".to_owned()),
            ("partner".to_owned(), String::new()),
        ];
        assert_eq!(
            at(&["show", "d"]).answer(names.clone(), "d", CompletionCaller::Kubectl),
            "db\ta?b\n:4\n"
        );
        let flag = |asker| {
            let next = at(&["show", "--namespace=d"]);
            next.answer(names.clone(), "--namespace=d", asker)
        };
        assert_eq!(flag(CompletionCaller::Kubectl), "db\ta?b\n:4\n");
        assert_eq!(flag(CompletionCaller::Shell), "--namespace=db\ta?b\n:4\n");
        let with_kind = at(&["show", "csem/d"]);
        for asker in [CompletionCaller::Kubectl, CompletionCaller::Shell] {
            let answer = with_kind.answer(names.clone(), "csem/d", asker);
            assert_eq!(answer, "csem/db\ta?b\n:4\n");
        }
        let file = at(&["list", "--kubeconfig", ""]);
        assert_eq!(
            file.answer(Vec::new(), "", CompletionCaller::Kubectl),
            ":0\n"
        );
        assert_eq!(
            at(&[]).answer(Vec::new(), "", CompletionCaller::Kubectl),
            ":4\n"
        );
    }

    #[test]
    fn a_name_that_a_shell_could_take_for_something_else_is_not_offered() {
        let offered = |name: &str, help: &str| {
            let names = vec![(name.to_owned(), help.to_owned())];
            let answer = at(&["release", "db", ""]).answer(names, "", CompletionCaller::Shell);
            answer.strip_suffix(":4\n").unwrap().to_owned()
        };
        for name in [
            "00000000-0000-4000-8000-000000000001",
            "arn:aws:eks:eu-west-1:1:cluster/prod",
            "gke_project_zone_name",
            "jane@prod.eu=1",
        ] {
            assert_eq!(offered(name, ""), format!("{name}\n"));
        }
        for name in [
            "x;id>PWNED;#",
            "$(id)",
            "`id`",
            "a b",
            "a\tb",
            "a\nb",
            "~root",
            "a*",
            "a\\b",
            "a'b",
            "a\"b",
            "a|b",
            "a&b",
            "{a,b}",
            "\u{202e}a",
            "--as=system:admin",
            "",
        ] {
            assert_eq!(offered(name, "help"), "", "{name:?}");
        }
        let said = offered("a", "prod-eu batch/é-1 $(id)`id`;\u{1b}[2J");
        assert_eq!(said, "a\tprod-eu batch/é-1 ??id??id????2J\n");
    }

    #[test]
    fn short_flags_are_read_as_they_are_elsewhere() {
        let inside = at(&["list", "-o=y"]);
        assert_eq!(
            (words(&inside), inside.before.as_str()),
            (vec!["yaml"], "-o=")
        );
        assert_eq!(words(&at(&["list", "-oy"])), ["yaml"]);
        let namespace = |words: &[&str]| at(words).connection.namespace;
        assert_eq!(namespace(&["show", "-n=web", ""]).as_deref(), Some("web"));
        assert_eq!(
            namespace(&["list", "-An", "web", ""]).as_deref(),
            Some("web")
        );
    }
}
