//! What a module must not know, checked in the sources where the compiler does not check it: a crate can't know what
//! it does not depend on.
//!
//! The check reads words, not types: it looks for paths such as `tokio::time` or `crate::controller`, also in grouped
//! imports, everywhere except in comments. That is enough to notice a broken boundary, and simple enough to trust.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

#[test]
fn the_algorithm_has_no_io_no_clock_and_no_async() {
    let files = sources(&folder("crates/consul-semaphore/src"));
    // The parts that hold slots talk to Consul, and the model's worlds of programs with the library do it through them.
    let talks = |part: &OsStr| {
        let hold = ["holding", "holder", "holder.rs", "handle", "handle.rs"];
        let model = ["library.rs", "served.rs"];
        hold.iter().chain(&model).any(|name| part == *name)
    };
    let pure = files.into_iter().filter(|file| !file.iter().any(talks));
    assert_files_avoid(
        "the algorithm",
        pure.collect(),
        &[
            "tokio",
            "reqwest",
            "hyper",
            "axum",
            "kube",
            "kube_client",
            "kube_runtime",
            "async",
            "await",
            "Moment::now",
            "Timestamp::now",
            "Instant",
            "SystemTime",
            "std::fs",
            "std::net",
            "std::env",
            "std::process",
            "std::thread",
        ],
    );
}

#[test]
fn what_users_write_is_read_without_a_client() {
    assert_module_avoids(
        "crates/api/src",
        &[
            "tokio",
            "reqwest",
            "Client",
            "kube::client",
            "kube_client",
            "kube_runtime",
            "kube::runtime",
            "async",
            "await",
        ],
    );
}

#[test]
fn what_a_workload_says_is_read_without_io() {
    assert_module_avoids(
        "crates/workload/src",
        &[
            "tokio",
            "kube",
            "async",
            "await",
            "Moment::now",
            "clock::time",
            "std::fs",
            "std::env",
        ],
    );
}

/// All others use the crate's `Job` and `Pod`, and ask it what they say. Kubernetes' own types have code for each field,
/// which is much.
#[test]
fn one_crate_knows_the_kind_of_a_workload() {
    for module in [
        "src",
        "crates/api/src",
        "crates/consul-semaphore/src",
        "crates/kubectl-csem/src",
    ] {
        assert_module_avoids(module, &["k8s_openapi::api::batch", "batch::v1", "v1::Pod"]);
    }
    assert_module_avoids("src/workload", &["crate::controller"]);
}

#[test]
fn an_election_knows_nothing_of_the_work() {
    assert_module_avoids(
        "src/leader",
        &[
            "consul_semaphore_api",
            "consul_semaphore",
            "crate::controller",
        ],
    );
}

#[test]
fn an_identity_knows_nothing_of_slots() {
    assert_module_avoids(
        "src/identity",
        &[
            "consul_semaphore_api",
            "consul_semaphore::engine",
            "crate::controller",
            "crate::check",
        ],
    );
}

#[test]
fn telemetry_knows_nothing_of_what_it_reports() {
    assert_module_avoids(
        "src/telemetry",
        &[
            "k8s_openapi",
            "axum",
            "consul_semaphore_api",
            "consul_client",
            "consul_semaphore",
            "crate::controller",
        ],
    );
}

/// The page shows what the operator has published, and judges nothing itself. (Its unit tests read what the algorithm
/// writes.)
#[test]
fn the_page_shows_only_what_is_published() {
    assert_module_avoids(
        "src/web",
        &[
            "reqwest",
            "consul_client::Client",
            "consul_client::Entry",
            "crate::controller",
            "crate::leader",
            "consul_semaphore::holding",
            "consul_semaphore::decide",
        ],
    );
    for module in [
        "src/controller",
        "src/telemetry",
        "src/leader",
        "crates/api/src",
    ] {
        assert_module_avoids(module, &["crate::web"]);
    }
}

/// What is common to the page and the metrics does not depend on either.
#[test]
fn who_asks_and_how_is_the_same_for_all() {
    for module in ["src/auth", "src/connections"] {
        assert_module_avoids(
            module,
            &[
                "crate::web",
                "crate::endpoints",
                "crate::telemetry",
                "crate::controller",
            ],
        );
    }
}

#[test]
fn whether_the_policies_are_in_force_changes_nothing() {
    assert_module_avoids(
        "src/admission",
        &[
            "consul_semaphore_api",
            "consul_client::Client",
            "consul_semaphore",
            "crate::controller",
            "crate::leader",
        ],
    );
}

#[test]
fn a_check_is_judged_by_what_was_read() {
    assert_module_avoids(
        "src/check/judge",
        &[
            "tokio",
            "reqwest",
            "Client",
            "async",
            "await",
            "Moment::now",
            "clock::time",
            "std::fs",
            "std::env",
        ],
    );
}

#[test]
fn what_the_plugin_shows_is_made_without_a_client_and_a_clock() {
    assert_module_avoids(
        "crates/kubectl-csem/src/view",
        &[
            "tokio",
            "Client",
            "kube::runtime",
            "async",
            "await",
            "clock::time",
            "Timestamp::now",
            "std::fs",
            "std::io",
            "std::env",
            "crate::cluster",
            "crate::terminal",
            "crate::read",
            "crate::act",
        ],
    );
}

#[test]
fn manifests_are_made_without_io() {
    assert_module_avoids(
        "src/manifests",
        &[
            "tokio",
            "Client",
            "async",
            "await",
            "std::fs",
            "std::env",
            "crate::controller",
        ],
    );
}

#[test]
fn nobody_needs_a_check_to_work() {
    assert_module_avoids("src/controller", &["crate::check"]);
}

/// An observer that shared code with the operator would share its mistakes.
#[test]
fn those_who_judge_the_operator_share_no_code_with_it() {
    for observer in ["crates/testbed", "crates/faults"] {
        let manifest = folder(observer).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest is readable");
        for judged in ["consul-client", "consul-semaphore", "kubectl-csem"] {
            let depends = manifest.lines().any(|line| line.starts_with(judged));
            assert!(!depends, "{observer} depends on {judged}");
        }
    }
}

/// One client knows what a busy machine does to connections: `testbed::http_client`. The proxy of the bed is a part of
/// the network, and keeps connections as a network does.
#[test]
fn tests_have_one_http_client() {
    let exempt = [
        "crates/testbed/src/http.rs",
        "crates/testbed/src/proxy.rs",
        // It names what is forbidden.
        "tests/modules.rs",
    ];
    let exempt = exempt.map(folder);
    for module in ["tests", "crates/testbed/src", "crates/faults"] {
        let mut files = sources(&folder(module));
        files.retain(|file| !exempt.contains(file));
        let own = [
            "reqwest::Client::builder",
            "reqwest::Client::new",
            "reqwest::get",
        ];
        assert_files_avoid(module, files, &own);
    }
}

/// Fails with `file:line` of every use of a forbidden path in the sources below a folder.
#[track_caller]
fn assert_module_avoids(module: &str, forbidden: &[&str]) {
    assert_files_avoid(module, sources(&folder(module)), forbidden);
}

fn folder(module: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(module)
}

#[track_caller]
fn assert_files_avoid(module: &str, files: Vec<PathBuf>, forbidden: &[&str]) {
    assert!(!files.is_empty(), "{module} has no sources");
    let mut found = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file).expect("a source is readable");
        for (line, path) in mentions(&source, forbidden) {
            found.push(format!("{}:{line}: {path}", file.display()));
        }
    }
    assert!(
        found.is_empty(),
        "{module} must not mention:\n{}",
        found.join("\n")
    );
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("the module exists") {
        let path = entry.expect("a folder is readable").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Every forbidden path that a source mentions, with its line: `a::b` is in `x::a::b::c`, and in `a::{b, c}`.
fn mentions<'a>(source: &str, forbidden: &[&'a str]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (line, path) in paths(source) {
        for wanted in forbidden {
            let words: Vec<&str> = wanted.split("::").collect();
            if path.windows(words.len()).any(|window| window == words) {
                found.push((line, *wanted));
            }
        }
    }
    found
}

/// All paths of a source with the lines they end on; a single word is a path with one part. What a module reaches
/// through `super` counts as reached through `crate`: that can only find too much.
fn paths(source: &str) -> Vec<(usize, Vec<&str>)> {
    let tokens = tokens(source);
    let mut rest = tokens.as_slice();
    let mut paths = Vec::new();
    while !rest.is_empty() {
        rest = read_path(rest, &[], &mut paths);
    }
    for (_, path) in &mut paths {
        let ups = path.iter().take_while(|word| **word == "super").count();
        if ups > 0 {
            path.splice(..ups, ["crate"]);
        }
    }
    paths
}

type Token<'a> = (usize, &'a str);

/// Reads one path, or a group of paths, that continues `prefix`; returns the rest. Always consumes a token.
fn read_path<'t, 's>(
    tokens: &'t [Token<'s>],
    prefix: &[&'s str],
    paths: &mut Vec<(usize, Vec<&'s str>)>,
) -> &'t [Token<'s>] {
    let mut path = prefix.to_vec();
    let mut rest = tokens;
    while let [(line, token), after @ ..] = rest {
        rest = after;
        if *token == "{" && !path.is_empty() {
            while let [(_, token), after @ ..] = rest {
                if *token == "}" {
                    return after;
                }
                rest = if *token == "," {
                    after
                } else {
                    read_path(rest, &path, paths)
                };
            }
            return rest;
        }
        if !token.starts_with(is_word) {
            break;
        }
        path.push(token);
        let [(_, "::"), after @ ..] = rest else {
            paths.push((*line, path));
            break;
        };
        rest = after;
    }
    rest
}

/// Words, `::`, and every other character as separate tokens, with their lines. Comments and spaces are left out.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let mut rest = line.split("//").next().unwrap_or_default().trim_start();
        while let Some(first) = rest.chars().next() {
            let end = if is_word(first) {
                rest.find(|character| !is_word(character))
                    .unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (token, after) = rest.split_at(end);
            tokens.push((number, token));
            rest = after.trim_start();
        }
    }
    tokens
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[test]
fn it_finds_imports() {
    assert_eq!(
        mentions("use std::fmt;\nuse tokio::time::sleep;", &["tokio"]),
        [(2, "tokio")]
    );
    assert_eq!(
        mentions("use crate::controller::Settings;", &["crate::controller"]),
        [(1, "crate::controller")]
    );
}

#[test]
fn it_finds_grouped_imports() {
    let source = "use crate::{\n    clock::Moment,\n    api::{Prefix, Ttl},\n    controller,\n};";
    assert_eq!(
        mentions(source, &["crate::controller"]),
        [(4, "crate::controller")]
    );
    assert_eq!(
        mentions(source, &["crate::api"]),
        [(3, "crate::api"), (3, "crate::api")]
    );
    assert_eq!(
        mentions(
            "use std::{time::{self, SystemTime}, fs};",
            &["SystemTime", "std::fs"]
        ),
        [(1, "SystemTime"), (1, "std::fs")]
    );
}

#[test]
fn it_finds_what_is_named_in_place() {
    assert_eq!(
        mentions("let at = crate::clock::Moment::now();", &["Moment::now"]),
        [(1, "Moment::now")]
    );
    assert_eq!(
        mentions("pub async fn f(c: &kube::Client) {}", &["async", "Client"]),
        [(1, "async"), (1, "Client")]
    );
    assert_eq!(
        mentions("struct S {\n  t: tokio::time::Instant,\n}", &["Instant"]),
        [(2, "Instant")]
    );
}

#[test]
fn it_sees_through_super() {
    assert_eq!(
        mentions("use super::super::controller::run;", &["crate::controller"]),
        [(1, "crate::controller")]
    );
    assert_eq!(
        mentions("use super::{api};", &["crate::api"]),
        [(1, "crate::api")]
    );
}

#[test]
fn it_leaves_comments_and_other_words_alone() {
    let source = "//! Knows nothing of tokio.\nlet kube_like = 1; // kube\n/// See crate::controller\nfn asynchronous() {}";
    assert_eq!(
        mentions(source, &["tokio", "kube", "async", "crate::controller"]),
        []
    );
    assert_eq!(
        mentions(
            "use crate::clock::Moment;\nfn now(at: Moment) {}",
            &["Moment::now"]
        ),
        []
    );
}

/// The crates, with their features, that these packages are built of.
fn built(packages: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--edges=normal,build", "--prefix=none"]);
    cargo.args(["--no-dedupe", "--format={p} {f}"]);
    cargo.args(
        packages
            .iter()
            .map(|package| format!("--package={package}")),
    );
    let tree = cargo.output().expect("cargo tree");
    let lines = String::from_utf8(tree.stdout).expect("UTF-8");
    assert!(tree.status.success(), "{:?}", tree.stderr);
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn the_program_for_any_machine_is_built_without_kubernetes() {
    let mut crates = built(&["consul-semaphore-cli"]);
    crates.retain(|name| name.starts_with("kube") || name.starts_with("k8s"));
    assert_eq!(crates, BTreeSet::new());
}

/// Cargo builds a crate again, and all that use it, if the packages that are built together ask for more of its
/// features: `cargo run` after `make bare` would compile for minutes.
#[test]
fn the_operator_alone_is_built_of_what_it_is_built_of_beside_the_others() {
    let up = "crates/testbed/up";
    let script = fs::read_to_string(up).expect("what make bare runs");
    let words: Vec<_> = script.split([' ', '(', ')', '\n']).collect();
    let named = words.windows(2).filter(|pair| pair[0] == "--package");
    let packages: Vec<_> = named.map(|pair| pair[1]).collect();
    assert!(packages.len() > 3, "{packages:?}");
    let (together, alone) = (built(&packages), built(&["consul-semaphore-operator"]));
    let others: Vec<_> = alone.difference(&together).collect();
    assert_eq!(
        others,
        Vec::<&String>::new(),
        "ask for the same features in [workspace.dependencies]"
    );
}
