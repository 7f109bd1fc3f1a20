//! The image, without a container engine: the steps of the Dockerfile's first stage are run in an empty folder, and
//! what its last stage would copy is tested. It needs a release build, so it is not part of `make test`: `make
//! image-test` runs it, as root, on Debian.
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

/// The libraries in `gcr.io/distroless/cc`, with the loaders of both platforms.
const LIBRARIES: [&str; 5] = [
    "libc.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

/// The programs that are in the image.
const PROGRAMS: [&str; 2] = ["consul-semaphore-operator", "consul-semaphore"];

/// The one that runs on any machine.
const ANYWHERE: &str = "consul-semaphore";

/// How large that may be, in bytes.
const LARGEST: u64 = 8 << 20;

/// The commit that is passed to the build.
const COMMIT: &str = "c0ffee0000000000000000000000000000c0ffee";

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

/// The output of a command, which must succeed.
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

/// An empty folder, which is kept so that its content can be inspected.
fn empty(platform: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("image-{platform}"));
    let _none = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Like `COPY . .`: everything that git knows, except what `.dockerignore` leaves out.
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

/// Runs the steps of the first stage for a platform; its absolute folders are in `folder`.
fn build(stage: &[(String, String)], folder: &Path, platform: &str) {
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
                    .env("TARGETARCH", platform)
                    .env("GIT_COMMIT", COMMIT)
                    .env_remove("CARGO_TARGET_DIR"));
            }
            other => panic!("no step of the first stage is known to be {other:?}"),
        }
    }
}

/// The output of the first stage for a platform, which the last one copies: the folder.
fn built(platform: &str) -> PathBuf {
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
    let folder = empty(platform);
    build(first, &folder, platform);
    let out = folder.join("out");

    let operator = fs::read(out.join("consul-semaphore-operator")).expect("the program");
    assert!(contains(&operator, COMMIT), "it does not know its commit");
    assert!(!contains(&operator, "CRASH_POINTS"), "it has crash points");
    let built_in = folder.display().to_string();
    for program in PROGRAMS {
        let text = fs::read(out.join(program)).expect("the program");
        assert!(
            !contains(&text, &built_in),
            "{program} knows the folder in which it was built"
        );
    }
    let licenses = out.join("licenses");
    for (name, words) in [
        ("LICENSE", "Apache License"),
        ("COPYRIGHT-library.html", "Rust"),
        ("COPYRIGHT-musl", "Rich Felker"),
        ("THIRD-PARTY-LICENSES.txt", "tokio v"),
        ("THIRD-PARTY-LICENSES.txt", "Permission is hereby granted"),
    ] {
        let text = fs::read(licenses.join(name)).expect(name);
        assert!(contains(&text, words), "{words:?} is not in {name}");
    }
    out
}

fn contains(text: &[u8], words: &str) -> bool {
    text.windows(words.len())
        .any(|part| part == words.as_bytes())
}

/// It is for this machine, needs only the libraries that are in the image, or none, and lists its crates.
fn assert_fits(program: &Path, machine: &str) {
    let readelf = |what| run(Command::new("readelf").args(["--wide", what]).arg(program));
    let header = readelf("--file-header");
    assert!(header.contains(machine), "{header}");
    let sections = readelf("--sections");
    assert!(sections.contains(".dep-v0"), "{sections}");
    let dynamic = readelf("--dynamic");
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let names: Vec<_> = needed
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    if program.ends_with(ANYWHERE) {
        assert!(names.is_empty(), "{dynamic}");
        let size = fs::metadata(program).expect("the program").len();
        assert!(size <= LARGEST, "{ANYWHERE} has {size} bytes");
    } else {
        assert!(names.contains(&"libc.so.6"), "{dynamic}");
    }
    for name in names {
        assert!(LIBRARIES.contains(&name), "{name} is not in the image");
    }
}

/// Copies the libraries that the program needs to where the image has them.
fn bring_libraries(out: &Path, program: &Path) {
    for line in run(Command::new("ldd").arg(program)).lines() {
        let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue; // The kernel's own.
        };
        let at = out.join(path.trim_start_matches('/'));
        fs::create_dir_all(at.parent().expect("a folder")).expect("a folder");
        fs::copy(path, at).expect(path);
    }
}

#[test]
fn for_amd64_it_runs_with_nothing_but_what_is_in_the_image() {
    let out = built("amd64");
    for program in PROGRAMS {
        assert_fits(&out.join(program), "X86-64");
        bring_libraries(&out, &out.join(program));
        let mut chroot = Command::new("chroot");
        chroot
            .arg(format!("--userspec={USER}"))
            .arg(&out)
            .arg(format!("/{program}"));
        let version = run(chroot.arg("--version"));
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
}

#[test]
fn for_arm64_it_is_made_by_the_compiler_of_another_platform() {
    let out = built("arm64");
    for program in PROGRAMS {
        let program = out.join(program);
        assert_fits(&program, "AArch64");
        let mut emulated = Command::new("qemu-aarch64-static");
        emulated.args(["-L", "/usr/aarch64-linux-gnu"]).arg(program);
        let version = run(emulated.arg("--version"));
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
}
