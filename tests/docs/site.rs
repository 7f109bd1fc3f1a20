//! The site is published in versions.

use std::{fs, path::Path, process::Command};

use testbed::Folder;

use super::page::root;

/// What a command says; it must succeed if it is to.
fn run(program: &str, arguments: &[&str], succeeds: bool) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    let output = command.output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(output.status.success(), succeeds, "{said}");
    said
}

#[test]
fn each_version_has_a_folder_and_the_first_page_leads_to_the_newest_release() {
    let folder = Folder::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (site, bare) = (path("site"), path("remote.git"));
    fs::create_dir_all(Path::new(&site).join("results")).expect("a folder");
    for page in ["index.html", "results/faults.html"] {
        let file = Path::new(&site).join(page);
        fs::write(file, "<div class=\"right-buttons\">").expect("a page");
    }
    run("git", &["init", "--quiet", "--bare", &bare], true);
    let remote = format!("file://{bare}");
    let publish =
        |version: &str, succeeds| run("docs/site/publish", &[version, &remote, &site], succeeds);
    let shown = |file: &str| {
        run(
            "git",
            &["-C", &bare, "show", &format!("gh-pages:{file}")],
            true,
        )
    };

    publish("main", true);
    assert!(shown("index.html").contains("url=main/index.html"));
    for version in ["0.9.0", "0.10.0"] {
        publish(version, true);
    }
    assert!(shown("index.html").contains("url=0.10.0/index.html"));
    let versions = shown("versions.html");
    let listed =
        ["0.10.0", "0.9.0", "main"].map(|version| versions.find(&format!(">{version}</a>")));
    assert!(listed.is_sorted() && listed[0].is_some(), "{versions}");
    assert!(shown("0.9.0/index.html").contains("href=\"../versions.html\""));
    assert!(shown("main/results/faults.html").contains("href=\"../../versions.html\""));
    assert!(publish("0.10.0", true).contains("published already"));
    assert!(publish("v1", false).contains("neither a version such as 0.1.0 nor main"));
}
