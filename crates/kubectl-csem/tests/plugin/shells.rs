//! Completion in real shells: what a person types, and how the plugin is then run.

use std::{env, fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;
use testbed::{Folder, PATIENCE, eventually, same};
use tokio::{process::Command, time::timeout};

use crate::{
    stage::{installed, path},
    terminal::Terminal,
};

/// Records its arguments, unless a shell calls it for completion. The file `$NAMES`, if it exists, has names that no
/// plugin of ours would offer.
const NOTES: &str = r#"#!/bin/bash
case $1 in
__complete)
  if [ -e "$NAMES" ]; then grep "^${@: -1}" "$NAMES"; echo :4; exit; fi
  exec "$REAL" "$@"
  ;;
completion) exec "$REAL" "$@" ;;
esac
echo "$*" >>"$HOME/ran"
"#;

/// Malicious names, chosen so that a shell would run them at Tab or at Enter.
const PLANTED: [&str; 6] = [
    "p1;touch${IFS}PWNED;#",
    "p2$(touch${IFS}PWNED)",
    "p3`touch${IFS}PWNED`",
    "p4>PWNED",
    "p5&touch${IFS}PWNED",
    "--as=p6",
];

/// A typed line with a Tab in it, and the line that it becomes.
const TYPED: [(&str, &str); 11] = [
    ("list --context p1\t", "list --context p1"),
    ("list --context p2\t", "list --context p2"),
    ("list --context p3\t", "list --context p3"),
    ("list --context p4\t", "list --context p4"),
    ("list --context p5\t", "list --context p5"),
    ("list --context --as=p\t", "list --context --as=p"),
    ("sh\t--help", "show --help"),
    ("list --output=y\t", "list --output=yaml"),
    ("list --context arn:eks:p\t", "list --context arn:eks:prod"),
    (
        "list --kubeconfig its\t",
        "list --kubeconfig its-kubeconfig",
    ),
    (
        "list --kubeconfig=its\t",
        "list --kubeconfig=its-kubeconfig",
    ),
];

const BASH: [&str; 4] = ["bash", "--noprofile", "--norc", "-i"];
const ZSH: [&str; 3] = ["zsh", "-f", "-i"];
const FISH: [&str; 3] = ["fish", "--no-config", "-i"];

fn kubeconfig() -> String {
    let names = PLANTED.iter().chain(&["arn:eks:prod"]);
    let context = |name| json!({ "name": name, "context": { "cluster": "c", "user": "u" } });
    let contexts: Vec<_> = names.map(context).collect();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": contexts,
    });
    config.to_string()
}

/// Types the setup from the docs, and then the lines, each for this program. Nothing else may run.
async fn completes(words: &[&str], documented: &str, program: &str) {
    types(words, documented, program, None, &TYPED).await;
}

/// The shell's own script inserts every name as plain text, even a name from another program.
async fn quotes(words: &[&str], documented: &str) {
    let names = PLANTED.join("\n");
    let typed = ["p1", "p2", "p3", "p4", "p5"].iter().zip(PLANTED);
    let typed: Vec<_> = typed
        .map(|(begin, name)| (format!("show {begin}\t"), format!("show {name}")))
        .collect();
    let typed: Vec<_> = typed.iter().map(|(line, to)| (&**line, &**to)).collect();
    types(words, documented, "kubectl-csem", Some(&names), &typed).await;
}

async fn types(
    words: &[&str],
    documented: &str,
    program: &str,
    names: Option<&str>,
    lines: &[(&str, &str)],
) {
    let home = Folder::new().expect("a folder");
    let file = |name: &str, text: &str| {
        let file = home.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(&file, text).expect(name);
        file
    };
    let plugin = file("bin/kubectl-csem", NOTES);
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("it can be run");
    let kubeconfig = file("its-kubeconfig", &kubeconfig());
    let ran = file("ran", "");
    if let Some(names) = names {
        file("names", names);
    }

    let terminal = Terminal::open(120, 40);
    let mut programs = vec![home.path().join("bin")];
    programs.extend(env::split_paths(&path()));
    let programs = env::join_paths(programs).expect("a path");
    // It leads its own session, so that this becomes its terminal.
    let mut shell = Command::new("setsid")
        .arg("--ctty")
        .args(words)
        .env_clear()
        .env("PATH", programs)
        .env("REAL", installed().join("kubectl-csem"))
        .env("HOME", home.path())
        .env("KUBECONFIG", kubeconfig)
        .env("NAMES", home.path().join("names"))
        .env("TERM", "xterm")
        .current_dir(home.path())
        .stdin(terminal.end())
        .stdout(terminal.end())
        .stderr(terminal.end())
        .kill_on_drop(true)
        .spawn()
        .expect("the shell");
    terminal.types(&format!("{documented}\n"));
    for (line, becomes) in lines {
        terminal.types(&format!("{program} {line}\n"));
        eventually(becomes, || async {
            let ran = fs::read_to_string(&ran).map_err(|error| error.to_string())?;
            let last = ran.lines().last().unwrap_or_default().trim_end();
            same(last.to_owned(), (*becomes).to_owned())
                .map_err(|error| format!("{error}; on the terminal: {}", terminal.text()))
        })
        .await;
    }
    terminal.types("exit\n");
    let ended = timeout(PATIENCE, shell.wait()).await;
    ended.expect("it ends in time").expect("it ends");
    assert!(!home.path().join("PWNED").exists(), "a name was run");
}

#[tokio::test]
async fn bash() {
    let documented = "source <(kubectl csem completion bash)";
    completes(&BASH, documented, "kubectl-csem").await;
    quotes(&BASH, documented).await;
}

#[tokio::test]
#[ignore = "zsh must be there: make shells-test"]
async fn zsh() {
    let documented = "source <(kubectl csem completion zsh)";
    completes(&ZSH, documented, "kubectl-csem").await;
    quotes(&ZSH, documented).await;
}

#[tokio::test]
#[ignore = "fish must be there: make shells-test"]
async fn fish() {
    let documented = "kubectl csem completion fish | source";
    completes(&FISH, documented, "kubectl-csem").await;
    quotes(&FISH, documented).await;
}

/// Through kubectl's own completion, set up as `kubectl completion --help` says.
#[tokio::test]
#[ignore = "bash-completion must be there: make shells-test"]
async fn bash_by_kubectl() {
    let documented =
        "source /usr/share/bash-completion/bash_completion; source <(kubectl completion bash)";
    completes(&BASH, documented, "kubectl csem").await;
}

#[tokio::test]
#[ignore = "zsh must be there: make shells-test"]
async fn zsh_by_kubectl() {
    let documented = "autoload -Uz compinit; compinit -i; source <(kubectl completion zsh)";
    completes(&ZSH, documented, "kubectl csem").await;
}

#[tokio::test]
#[ignore = "fish must be there: make shells-test"]
async fn fish_by_kubectl() {
    completes(&FISH, "kubectl completion fish | source", "kubectl csem").await;
}
