//! Runs the program as a check, and reads its output.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use serde_json::Value;
use testbed::{Bed, Consul, PATIENCE};
use tokio::{process::Command, time::timeout};

/// The address of Consul, and the token.
pub(crate) fn variables(consul: &Consul) -> Vec<(&'static str, String)> {
    let mut variables = vec![("CONSUL_HTTP_ADDR", consul.address().to_owned())];
    variables.extend(
        consul
            .token()
            .map(|token| ("CONSUL_HTTP_TOKEN", token.to_owned())),
    );
    variables
}

/// The program, not started yet. It has no Kubernetes unless a variable names one.
pub(crate) fn program(arguments: &[&str], variables: &[(&'static str, String)]) -> Command {
    // Started in the background of a shell, the tests would make it ignore SIGINT.
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

/// The output of a check.
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

    /// Runs a check of a bed, as the user of this kubeconfig.
    pub(crate) async fn of_bed(bed: &Bed, kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut variables = variables(bed.consul());
        variables.push(("KUBECONFIG", kubeconfig.display().to_string()));
        // The same as for the bed's operator.
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

    /// The line with this name.
    #[track_caller]
    fn line(&self, area: &str, what: &str) -> &Value {
        let found = self.find(area, what);
        found.unwrap_or_else(|| panic!("no {area} {what} in {self:#?}"))
    }

    /// The line with this name, if there is one.
    pub(crate) fn find(&self, area: &str, what: &str) -> Option<&Value> {
        let mut lines = self.lines.iter();
        lines.find(|line| line["area"] == area && line["what"] == what)
    }

    /// Checks the outcome of a line, and that its message or advice contains these words.
    #[track_caller]
    pub(crate) fn assert(&self, area: &str, what: &str, outcome: &str, words: &[&str]) {
        let line = self.line(area, what);
        assert_eq!(line["outcome"], outcome, "{line:#}");
        let text = format!("{} -> {}", line["message"], line["todo"]);
        // Quotes are escaped in JSON.
        let text = text.replace("\\\"", "\"");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    }

    /// The lines of an area that are not ok.
    pub(crate) fn bad(&self, area: &str) -> Vec<String> {
        let bad = self
            .lines
            .iter()
            .filter(|line| line["area"] == area && line["outcome"] != "ok");
        bad.map(|line| line["what"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Checks that each failed line says what to do.
    pub(crate) fn each_failure_says_what_to_do(&self) {
        for line in &self.lines {
            let helps = line["outcome"] != "failed" || line["todo"].is_string();
            assert!(helps, "{line:#}");
        }
    }
}
