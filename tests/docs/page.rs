//! The content of the pages.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use crate::shell::Shell;

/// A block of a page.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Its language: `sh`, `console`, `yaml`.
    pub(crate) kind: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages, by their paths from the root.
pub(crate) fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/results", "examples"].map(|folder| root().join(folder));
    let mut pages: Vec<_> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| path.strip_prefix(root()).unwrap().to_owned())
        .collect();
    let libraries = ["consul-semaphore", "consul-semaphore-python"];
    pages.extend(libraries.map(|library| format!("crates/{library}/README.md").into()));
    pages.sort();
    pages
}

pub(crate) fn text_of(page: &Path) -> String {
    fs::read_to_string(root().join(page))
        .unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The blocks of a page, also those in lists.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((indent, kind)) = line.split_once("```") else {
            continue;
        };
        if !indent.trim().is_empty() {
            continue;
        }
        let mut text = String::new();
        for line in lines.by_ref() {
            let line = line.strip_prefix(indent).unwrap_or(line);
            if line == "```" {
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        let kind = kind.to_owned();
        blocks.push(Block { kind, text });
    }
    blocks
}

/// A page whose commands are run. When it is dropped, all of them must have been run.
pub(crate) struct Page {
    name: &'static str,
    blocks: Vec<Block>,
}

impl Page {
    pub(crate) fn open(name: &'static str) -> Self {
        let blocks = blocks(&text_of(Path::new(name)));
        Self { name, blocks }
    }

    /// The commands of the block that begins like this, which count as run.
    #[track_caller]
    pub(crate) fn commands(&mut self, beginning: &str) -> String {
        let mut blocks = self.blocks.iter();
        let found =
            blocks.position(|block| block.kind == "sh" && block.text.starts_with(beginning));
        let Some(found) = found else {
            panic!("{}: no commands `{beginning}` are left", self.name);
        };
        self.blocks.remove(found).text
    }

    /// Runs the commands of the block that begins like this, and returns what they print.
    #[track_caller]
    pub(crate) fn run(&mut self, shell: &Shell, beginning: &str) -> impl Future<Output = String> {
        let commands = self.commands(beginning);
        async move { shell.run(&commands).await }
    }

    /// The block of a page whose first line is a comment with this file name.
    pub(crate) fn file(page: &str, name: &str) -> String {
        let first = format!("# {name}\n");
        let blocks = blocks(&text_of(Path::new(page)));
        let mut found = blocks
            .into_iter()
            .filter(|block| block.text.starts_with(&first));
        found
            .next()
            .unwrap_or_else(|| panic!("{page}: no file {name}"))
            .text
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let left: Vec<_> = self
            .blocks
            .iter()
            .filter(|block| block.kind == "sh")
            .collect();
        assert!(
            thread::panicking() || left.is_empty(),
            "{}: not run: {left:#?}",
            self.name
        );
    }
}

#[test]
fn a_page_with_commands_has_a_scene() {
    let scenes: Vec<_> = fs::read_dir(root().join("tests/docs"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let mut with_commands = 0;
    for page in pages() {
        let blocks = blocks(&text_of(&page));
        let unknown = |block: &&Block| matches!(block.kind.as_str(), "" | "bash" | "shell");
        assert_eq!(
            blocks.iter().find(unknown).map(|block| &block.text),
            None,
            "{}: say what it is",
            page.display()
        );
        if !blocks.iter().any(|block| block.kind == "sh") {
            continue;
        }
        with_commands += 1;
        let opened = format!("Page::open(\"{}\")", page.display());
        assert!(
            scenes.iter().any(|scene| scene.contains(&opened)),
            "nobody runs the commands of {}",
            page.display()
        );
    }
    assert!(with_commands > 5, "{with_commands}");
}

#[test]
fn it_finds_blocks_in_lists_too() {
    let text = "a\n```sh\nb\n  c\n```\n1. d\n\n   ```yaml\n   e:\n     f\n   ```\n";
    let found: Vec<_> = blocks(text)
        .into_iter()
        .map(|block| (block.kind, block.text))
        .collect();
    let expected = [("sh", "b\n  c\n"), ("yaml", "e:\n  f\n")];
    assert_eq!(
        found,
        expected.map(|(kind, text)| (kind.to_owned(), text.to_owned()))
    );
}
