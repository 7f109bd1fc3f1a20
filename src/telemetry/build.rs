//! The version and commit of this build, for `version`, the first log line and the `build_info` metric.

/// The operator's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The git commit of a release build, or the value of `GIT_COMMIT` at build time (`build.rs`).
pub const COMMIT: &str = match option_env!("BUILD_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The Kubernetes that the tests run against, as `crates/testbed/servers/kubernetes/go.mod` pins it.
pub const KUBERNETES: &str = "v1.37.2";

/// The Consul that the tests run against, as `crates/testbed/servers/consul/go.mod` pins it.
pub const CONSUL: &str = "v1.22.7";

/// Returns the text that `version` prints.
pub fn version() -> String {
    let commit = match option_env!("BUILD_COMMIT") {
        Some(commit) => format!(" (commit {commit})"),
        None if cfg!(debug_assertions) => " (a development build)".to_owned(),
        None => String::new(),
    };
    format!(
        "consul-semaphore-operator {VERSION}{commit}\ntested with Kubernetes {KUBERNETES} and Consul {CONSUL}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(go_mod: &str, module: &str) -> Option<String> {
        let mut lines = go_mod
            .lines()
            .map(|line| line.trim().trim_start_matches("require "));
        lines.find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(module)).then(|| words.next().map(str::to_owned))?
        })
    }

    #[test]
    fn it_names_the_servers_that_the_test_bed_pins() {
        let kubernetes = include_str!("../../crates/testbed/servers/kubernetes/go.mod");
        let consul = include_str!("../../crates/testbed/servers/consul/go.mod");
        assert_eq!(
            pinned(kubernetes, "k8s.io/kubernetes").as_deref(),
            Some(KUBERNETES)
        );
        assert_eq!(
            pinned(consul, "github.com/hashicorp/consul").as_deref(),
            Some(CONSUL)
        );
    }
}
