//! A program as its user sees it: arguments, environment, exit codes, and output.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a step of a story fails the story"
)]

use std::process::{Command, Output};

/// One of this project's programs.
#[derive(Clone, Copy, Debug)]
pub struct Program(&'static str);

impl Program {
    /// The program at this path, which cargo gives to a test (`CARGO_BIN_EXE_<name>`).
    pub const fn at(path: &'static str) -> Self {
        Self(path)
    }

    /// Runs it to its end, with these arguments and only these environment variables.
    pub fn run(self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(self.0);
        command
            .args(arguments)
            .env_clear()
            .envs(variables.iter().copied())
            .output()
            .expect("the program starts")
    }

    /// Checks that it refuses, with exit code 2 and nothing on stdout, and returns its stderr.
    #[track_caller]
    pub fn refusal(self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.run(arguments, variables);
        let said = text(output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(output.stdout, b"", "{said}");
        said
    }
}

/// The stdout of a program.
#[track_caller]
pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

/// Checks that the stdout of a program contains all of these words.
#[track_caller]
pub fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not in:\n{said}");
    }
}
