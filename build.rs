//! Sets the commit that the program is built from: `GIT_COMMIT` if set, else, in a release build, what git says.
//! Other builds don't ask: every commit would then recompile everything.
use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=GIT_COMMIT");
    let given = env::var("GIT_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(commit) = given.or_else(|| release.then(commit).flatten()) {
        println!("cargo::rustc-env=BUILD_COMMIT={commit}");
    }
}

/// The commit that is checked out; `None` outside of a repository, for example in a source archive.
fn commit() -> Option<String> {
    // A source archive inside another repository does not belong to its commits.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // It grows with every commit and every change of branch.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={log}");
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() {
        commit
    } else {
        format!("{commit}-modified")
    })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
