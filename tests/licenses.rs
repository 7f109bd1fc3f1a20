//! The licenses that the image brings are those of the crates that the program is made of.

use std::process::Command;

#[test]
fn each_crate_of_the_program_is_listed() {
    let listed = include_str!("../THIRD-PARTY-LICENSES.txt");
    let mut tree = Command::new(env!("CARGO"));
    tree.args([
        "tree",
        "--locked",
        "--offline",
        "--package",
        "consul-semaphore-operator",
    ])
    .args([
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ])
    .args(["--target", "x86_64-unknown-linux-gnu"])
    .current_dir(env!("CARGO_MANIFEST_DIR"));
    let tree = tree.output().expect("cargo tree");
    let crates = String::from_utf8(tree.stdout).expect("UTF-8");
    assert!(crates.lines().count() > 100, "{crates}");
    for line in crates.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            continue;
        };
        // The program itself.
        if line.contains("(/") {
            continue;
        }
        let version = version.trim_start_matches('v');
        assert!(
            listed
                .lines()
                .any(|line| line.starts_with(&format!("{name}@{version} "))),
            "{name} {version} is not in THIRD-PARTY-LICENSES.txt: make licenses"
        );
    }
}
