//! Completion by the shells themselves: what a person types, and what the plugin is then run with.

use std::{env, fs, os::unix::fs::PermissionsExt as _};

use testbed::{Folder, PATIENCE, eventually, same};
use tokio::{process::Command, time::timeout};

use crate::{
    stage::{installed, path},
    terminal::Terminal,
};

/// Notes what it is run with, unless a shell asks it.
const NOTES: &str = r#"#!/bin/bash
case $1 in __complete | completion) exec "$REAL" "$@" ;; esac
echo "$*" >>"$HOME/ran"
"#;

const KUBECONFIG: &str = r#"{
"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [],
"contexts": [{ "name": "arn:eks:prod", "context": { "cluster": "c", "user": "u" } }]
}"#;

/// A line that is typed, with the key Tab in it, and what it becomes.
const TYPED: [(&str, &str); 5] = [
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

/// Types what the docs say, and then the lines, each of this program.
async fn completes(words: &[&str], documented: &str, program: &str) {
    let home = Folder::new().expect("a folder");
    let file = |name: &str, text: &str| {
        let file = home.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(&file, text).expect(name);
        file
    };
    let plugin = file("bin/kubectl-csem", NOTES);
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).expect("it can be run");
    let kubeconfig = file("its-kubeconfig", KUBECONFIG);
    let ran = file("ran", "");

    let terminal = Terminal::open(120, 40);
    let mut programs = vec![home.path().join("bin")];
    programs.extend(env::split_paths(&path()));
    let programs = env::join_paths(programs).expect("a path");
    // It leads a session of its own, so that this is its terminal.
    let mut shell = Command::new("setsid")
        .arg("--ctty")
        .args(words)
        .env_clear()
        .env("PATH", programs)
        .env("REAL", installed().join("kubectl-csem"))
        .env("HOME", home.path())
        .env("KUBECONFIG", kubeconfig)
        .env("TERM", "xterm")
        .current_dir(home.path())
        .stdin(terminal.end())
        .stdout(terminal.end())
        .stderr(terminal.end())
        .kill_on_drop(true)
        .spawn()
        .expect("the shell");
    terminal.types(&format!("{documented}\n"));
    for (line, becomes) in TYPED {
        terminal.types(&format!("{program} {line}\n"));
        eventually(becomes, || async {
            let ran = fs::read_to_string(&ran).map_err(|error| error.to_string())?;
            let last = ran.lines().last().unwrap_or_default().trim_end();
            same(last.to_owned(), becomes.to_owned())
                .map_err(|error| format!("{error}; on the terminal: {}", terminal.text()))
        })
        .await;
    }
    terminal.types("exit\n");
    let ended = timeout(PATIENCE, shell.wait()).await;
    ended.expect("it ends in time").expect("it ends");
}

#[tokio::test]
async fn bash() {
    let documented = "source <(kubectl csem completion bash)";
    completes(&BASH, documented, "kubectl-csem").await;
}

#[tokio::test]
#[ignore = "zsh must be there: make shells-test"]
async fn zsh() {
    let documented = "source <(kubectl csem completion zsh)";
    completes(&ZSH, documented, "kubectl-csem").await;
}

#[tokio::test]
#[ignore = "fish must be there: make shells-test"]
async fn fish() {
    let documented = "kubectl csem completion fish | source";
    completes(&FISH, documented, "kubectl-csem").await;
}

/// By kubectl's own completion, as `kubectl completion --help` has it set up.
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
