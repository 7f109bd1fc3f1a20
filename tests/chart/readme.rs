//! The chart's own page, which `helm show readme` prints, says what the project's pages say.

use std::{fs, path::Path};

use crate::{
    chart::{CHART, read},
    values::paths,
};

/// Where the files of this repository are on the web.
const REPOSITORY: &str = "https://github.com/consul-semaphore/consul-semaphore-operator/blob/main/";

fn readme() -> String {
    read("README.md")
}

#[tokio::test]
async fn helm_shows_it() {
    let shown = testbed::helm_alone(["show", "readme", CHART]).await;
    assert_eq!(shown.expect("the page").trim(), readme().trim());
}

#[test]
fn its_commands_are_those_of_the_other_pages() {
    let page = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        fs::read_to_string(path).expect(name)
    };
    // These are the pages whose commands are run.
    let others = page("README.md") + &page("docs/install.md") + &page("docs/check.md");
    let readme = readme();
    let mut compared = 0;
    for block in readme.split("```sh\n").skip(1) {
        let command = block.split("```").next().expect("a command").trim_end();
        assert!(others.contains(command), "no other page has {command}");
        compared += 1;
    }
    assert!(compared > 1, "{readme}");
}

#[test]
fn the_values_that_it_names_exist() {
    let values = paths();
    let readme = readme();
    let rows = readme.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let mut named = 0;
    for name in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        assert!(values.contains(name), "there is no value {name}");
        named += 1;
    }
    assert!(named > 20, "{named} values");
}

#[test]
fn its_links_are_absolute_and_lead_somewhere() {
    let readme = readme();
    let links = readme.split("](").skip(1);
    let mut followed = 0;
    for link in links.filter_map(|rest| rest.split(')').next()) {
        // Artifact Hub shows the page without the repository, so a relative path leads nowhere.
        assert!(link.starts_with("https://"), "{link} is not absolute");
        let Some(link) = link.strip_prefix(REPOSITORY) else {
            continue;
        };
        let path = link.split('#').next().expect("a path");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        assert!(path.exists(), "{link}");
        followed += 1;
    }
    assert!(followed > 5, "{followed} links");
}
