//! Steps that several suites share.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a step of a story fails the story"
)]

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use tokio::process::Command;

use crate::{Bed, Job, eventually};

/// Waits until a Job has a warning with this reason, and returns its message.
pub async fn warning(job: &Job, reason: &str) -> String {
    let what = format!("{} has a warning {reason}", job.name());
    eventually(&what, || async {
        let events = job.events().await;
        // The Job controller has its own reasons, which may have the same name.
        let warning = events.into_iter().find(|event| {
            event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some("Warning")
        });
        warning.and_then(|event| event.message)
    })
    .await
}

/// The id by which the operator knows its cluster: the uid of the namespace kube-system.
pub async fn cluster_id(bed: &Bed) -> String {
    let uid = [
        "get",
        "namespace",
        "kube-system",
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    bed.kubectl(uid).await
}

/// The rules of a block of docs/consul-acl.md, one each. The block is found by the name of its file, and the names of
/// the example are replaced by others.
pub fn documented_rules(file: &str, names: &[(&str, &str)]) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/consul-acl.md");
    let page = fs::read_to_string(page).expect("the page");
    let begin = format!("hcl\n# {file}\n");
    let mut blocks = page.split("```");
    let block = blocks.find_map(|block| block.strip_prefix(&begin));
    let rename = |rule: &str| {
        let mut rule = rule.to_owned();
        for (from, to) in names {
            rule = rule.replace(from, to);
        }
        rule
    };
    block.expect(file).lines().map(rename).collect()
}

/// Applies the objects of a block of docs/scope.md, with the names of the page replaced by others. The block is found
/// by the name of its file.
pub async fn apply_documented(bed: &Bed, file: &str, names: &[(&str, &str)]) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scope.md");
    let page = fs::read_to_string(page).expect("the page");
    let begin = format!("yaml\n# {file}\n");
    let mut blocks = page.split("```");
    let block = blocks.find_map(|block| block.strip_prefix(&begin));
    let mut objects = block.expect(file).to_owned();
    for (from, to) in names {
        objects = objects.replace(from, to);
    }
    let path = bed.folder().path().join(file);
    fs::write(&path, objects).expect("the objects' file");
    bed.kubectl(["apply", "-f", &path.display().to_string()])
        .await;
}

/// The reasons of the events that operators have emitted on a Job, in any order.
pub async fn event_reasons(job: &Job) -> Vec<String> {
    let events = job.events().await.into_iter();
    let ours =
        events.filter(|event| event.reporting_component.as_deref() == Some("consul-semaphore.io"));
    ours.filter_map(|event| event.reason).collect()
}

/// A metric from a page of metrics, by its name without this program's prefix, with its labels.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let line = format!("consul_semaphore_operator_{name} ");
    let value = page.lines().find_map(|found| found.strip_prefix(&line))?;
    value.parse().ok()
}

/// Arranges for a program to be started so that [`memory_is_private`] can tell: as root it gets another group.
pub fn shows_who_may_see_it(program: &mut Command) {
    if rustix::process::geteuid().is_root() {
        program.gid(NOBODY);
    }
}

/// A group that is not root's.
const NOBODY: u32 = 65534;

/// Whether the memory of a process is hidden from other processes of its user, and left out of core dumps. The kernel
/// shows it by the owner of the process's files: root, whoever the process is.
pub fn memory_is_private(id: u32) -> bool {
    let folder = PathBuf::from(format!("/proc/{id}"));
    let status = fs::read_to_string(folder.join("status")).expect("it runs");
    let effective = |what: &str| -> u32 {
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let id = line.and_then(|ids| ids.split_whitespace().nth(1));
        id.and_then(|id| id.parse().ok()).expect("an id")
    };
    let (root, own) = ((0, 0), (effective("Uid:"), effective("Gid:")));
    assert_ne!(own, root, "start it after shows_who_may_see_it");
    let file = fs::metadata(folder.join("environ")).expect("its environment");
    let owner = (file.uid(), file.gid());
    assert!(owner == root || owner == own, "{owner:?}");
    owner == root
}

/// How long a core dump of a process may be, as `proc_pid_limits(5)` says it: the soft limit and the hard one.
pub fn core_limits(id: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).expect("it runs");
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"));
    line.expect("the limit").trim().to_owned()
}
