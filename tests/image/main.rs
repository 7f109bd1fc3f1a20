//! The image, without an engine: the steps of the Dockerfile's first stage are run in an empty folder, and what
//! its last stage would copy is tried by itself. It takes a release build, so it is no part of `make test`:
//! `make image-test` runs it, as root, on Debian.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test fail the test"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What `gcr.io/distroless/cc` has of libraries, with the loader.
const LIBRARIES: [&str; 4] = [
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
];

/// The user of the image.
const USER: &str = "65532:65532";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The instructions of a Dockerfile, one line each.
fn instructions(text: &str) -> Vec<(String, String)> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let instructions = joined.lines().filter_map(|line| line.split_once(' '));
    instructions
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .collect()
}

/// What a command prints, which succeeds.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// An empty folder, which stays for whoever looks at what was made.
fn empty() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
    let _none = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// As `COPY . .` does: all that git knows, but what `.dockerignore` leaves out.
fn copy_context(to: &Path) {
    let ignored = fs::read_to_string(root().join(".dockerignore")).expect(".dockerignore");
    let ignored: Vec<_> = ignored.lines().collect();
    let known = run(Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root()));
    for file in known.lines() {
        if ignored.contains(&file.split('/').next().expect("a name")) {
            continue;
        }
        let to = to.join(file);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(root().join(file), to).expect(file);
    }
}

/// Runs the steps of the first stage for this platform; its absolute folders are in `folder`.
fn build(stage: &[(String, String)], folder: &Path, commit: &str) {
    let mut here = folder.to_owned();
    for (name, rest) in stage {
        match (name.as_str(), rest.as_str()) {
            ("WORKDIR", path) => {
                here = folder.join(path.trim_start_matches('/'));
                fs::create_dir_all(&here).expect("a folder");
            }
            ("COPY", ". .") => copy_context(&here),
            ("ARG", _) => {}
            ("RUN", rest) => {
                let words = rest
                    .split_whitespace()
                    .filter(|word| !word.starts_with("--mount="));
                let command = words.collect::<Vec<_>>().join(" ");
                let out = folder.join("out").display().to_string();
                let command = command.replace(" /out", &format!(" {out}"));
                let mut bash = Command::new("bash");
                bash.args(["-ec", &command]).current_dir(&here);
                run(bash
                    .env("TARGETARCH", "amd64")
                    .env("GIT_COMMIT", commit)
                    .env_remove("CARGO_TARGET_DIR"));
            }
            other => panic!("no step of the first stage is known to be {other:?}"),
        }
    }
}

#[test]
fn what_is_built_is_what_is_copied_and_runs_with_nothing_else() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).expect("the Dockerfile");
    let instructions = instructions(&dockerfile);
    let stages: Vec<_> = instructions
        .split(|(name, _)| name == "FROM")
        .skip(1)
        .collect();
    let [first, last] = stages[..] else {
        panic!("{} stages", stages.len());
    };
    for expected in [
        ("COPY", "--from=build /out /"),
        ("USER", USER),
        ("ENTRYPOINT", r#"["/consul-semaphore-operator"]"#),
    ] {
        let expected = (expected.0.to_owned(), expected.1.to_owned());
        assert!(last.contains(&expected), "{expected:?} is not in {last:?}");
    }

    let folder = empty();
    let commit = "c0ffee0000000000000000000000000000c0ffee";
    build(first, &folder, commit);
    let out = folder.join("out");
    let program = out.join("consul-semaphore-operator");
    for name in ["LICENSE", "THIRD-PARTY-LICENSES.txt"] {
        assert!(out.join("licenses").join(name).is_file(), "{name}");
    }
    let sections = run(Command::new("readelf")
        .args(["--wide", "--sections"])
        .arg(&program));
    assert!(
        sections.contains(".dep-v0"),
        "no list of its crates is in it: {sections}"
    );
    let strings = run(Command::new("strings").arg(&program));
    let built_in = folder.display().to_string();
    assert!(strings.contains(commit), "it does not know its commit");
    assert!(
        !strings.contains(&built_in),
        "it knows the folder in which it was built"
    );

    // Only with the libraries that are in the image.
    for line in run(Command::new("ldd").arg(&program)).lines() {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name");
        let Some(path) = words
            .find(|word| word.starts_with('/'))
            .or(name.starts_with('/').then_some(name))
        else {
            continue;
        };
        let file = Path::new(name)
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        assert!(LIBRARIES.contains(&file.as_str()), "{line}");
        let at = name
            .strip_prefix('/')
            .unwrap_or(path.trim_start_matches('/'));
        let at = out.join(at);
        fs::create_dir_all(at.parent().expect("a folder")).expect("a folder");
        fs::copy(path, at).expect(path);
    }
    let mut chroot = Command::new("chroot");
    chroot
        .arg(format!("--userspec={USER}"))
        .arg(&out)
        .arg("/consul-semaphore-operator");
    let version = run(chroot.arg("--version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}
