//! The chart's own page, which `helm show readme` prints, says what the project's pages say.

use std::{fs, path::Path};

use crate::{
    chart::{CHART, file, read},
    values::paths,
};

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
fn it_names_values_that_there_are() {
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
fn its_links_lead_somewhere() {
    let readme = readme();
    let links = readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    for link in links.filter(|link| !link.starts_with("https://")) {
        let path = link.split('#').next().expect("a path");
        assert!(file(path).exists(), "{link}");
    }
}
