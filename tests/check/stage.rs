//! The program, run as a check, and what it said.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use serde_json::Value;
use testbed::{Bed, Consul, PATIENCE};
use tokio::{process::Command, time::timeout};

/// Where Consul is, and as whom it is asked.
pub(crate) fn variables(consul: &Consul) -> Vec<(&'static str, String)> {
    let mut variables = vec![("CONSUL_HTTP_ADDR", consul.address().to_owned())];
    variables.extend(
        consul
            .token()
            .map(|token| ("CONSUL_HTTP_TOKEN", token.to_owned())),
    );
    variables
}

/// The program, not started yet. It knows of no Kubernetes unless a variable says so.
pub(crate) fn program(arguments: &[&str], variables: &[(&'static str, String)]) -> Command {
    // Whoever runs the tests in the background of a shell would have it ignore SIGINT.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT")
        .arg(env!("CARGO_BIN_EXE_consul-semaphore-operator"))
        .args(["check", "-o", "json"])
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("KUBECONFIG", "/does/not/exist")
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// What a check said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    lines: Vec<Value>,
}

impl Said {
    /// Runs a check to its end.
    pub(crate) async fn of(arguments: &[&str], variables: &[(&'static str, String)]) -> Self {
        let ran = timeout(PATIENCE, program(arguments, variables).output());
        Self::read(&ran.await.expect("it comes to an end").expect("it starts"))
    }

    /// Of a bed, as the user of this kubeconfig.
    pub(crate) async fn of_bed(bed: &Bed, kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut variables = variables(bed.consul());
        variables.push(("KUBECONFIG", kubeconfig.display().to_string()));
        // As the bed's operator has it.
        variables.push(("TRUSTED_NAMESPACES", "*".to_owned()));
        Self::of(arguments, &variables).await
    }

    fn read(output: &Output) -> Self {
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        Self {
            code: output.status.code(),
            lines: report["lines"].as_array().expect("lines").clone(),
        }
    }

    /// The line about this.
    #[track_caller]
    fn line(&self, area: &str, what: &str) -> &Value {
        let found = self.find(area, what);
        found.unwrap_or_else(|| panic!("no {area} {what} in {self:#?}"))
    }

    /// The line about this, if there is one.
    pub(crate) fn find(&self, area: &str, what: &str) -> Option<&Value> {
        let mut lines = self.lines.iter();
        lines.find(|line| line["area"] == area && line["what"] == what)
    }

    /// Checks how something stands, and that the message or the advice has these words.
    #[track_caller]
    pub(crate) fn assert(&self, area: &str, what: &str, outcome: &str, words: &[&str]) {
        let line = self.line(area, what);
        assert_eq!(line["outcome"], outcome, "{line:#}");
        let text = format!("{} -> {}", line["message"], line["todo"]);
        // As JSON, quotes are escaped.
        let text = text.replace("\\\"", "\"");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    }

    /// What is not ok in an area.
    pub(crate) fn bad(&self, area: &str) -> Vec<String> {
        let bad = self
            .lines
            .iter()
            .filter(|line| line["area"] == area && line["outcome"] != "ok");
        bad.map(|line| line["what"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Checks that whatever has failed says what to do.
    pub(crate) fn each_failure_says_what_to_do(&self) {
        for line in &self.lines {
            let helps = line["outcome"] != "failed" || line["todo"].is_string();
            assert!(helps, "{line:#}");
        }
    }
}
