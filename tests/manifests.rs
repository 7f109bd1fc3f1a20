//! The manifests in `config/` match the program that they start. No server is needed.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::{env, fs, net::TcpListener, path::Path, process::Command};

use consul_semaphore_api::annotations::OF_THE_OPERATOR;
use consul_semaphore_operator::{admission, manifests};
use consul_semaphore_workload::Kind;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Container, ServiceAccount},
        rbac::v1::{ClusterRole, PolicyRule, Role},
    },
    serde::de::DeserializeOwned,
};
use serde_json::Value;

fn manifest<T: DeserializeOwned>(path: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(path);
    let text = fs::read_to_string(&path).expect("the manifest is there");
    serde_saphyr::from_str(&text).expect("the manifest is what it says")
}

fn operator_container() -> Container {
    container_of("manager/deployment.yaml")
}

fn container_of(path: &str) -> Container {
    let deployment: Deployment = manifest(path);
    let pod = deployment
        .spec
        .and_then(|spec| spec.template.spec)
        .expect("a pod");
    pod.containers.into_iter().next().expect("a container")
}

/// The deployment's own arguments and variables get as far as binding the address, which is taken: exit code 1. If
/// they are not understood: 2.
#[test]
fn the_program_understands_its_deployment() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let container = operator_container();
    let mut variables = container.env.unwrap_or_default();
    // Patches that are not applied by default.
    variables.extend(container_of("web/deployment.yaml").env.unwrap_or_default());
    variables.extend(
        container_of("metrics/deployment.yaml")
            .env
            .unwrap_or_default(),
    );
    let output = Command::new(env!("CARGO_BIN_EXE_consul-semaphore-operator"))
        .args(container.args.unwrap_or_default())
        // Each component of config/workloads adds one.
        .args(["--workloads=jobsets", "--workloads=pods"])
        .env_clear()
        .envs(
            variables
                .into_iter()
                .filter_map(|variable| Some((variable.name, variable.value?))),
        )
        .env("HTTP_ADDRESS", address)
        .output()
        .expect("the program starts");
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_image_is_this_version() {
    let kustomization: Value = manifest("default/kustomization.yaml");
    assert_eq!(
        kustomization["images"][0]["newTag"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(
        kustomization["images"][0]["name"],
        operator_container().image.expect("an image")
    );
    let label = format!(
        "org.opencontainers.image.version=\"{}\"",
        env!("CARGO_PKG_VERSION")
    );
    assert!(include_str!("../Dockerfile").contains(&label), "{label}");
}

/// Whether a text is a digest or the id of a commit, of so many digits.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether an image is named by its digest.
fn is_pinned(image: &str) -> bool {
    let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| is_hex(digest, 64))
}

/// The images of the Dockerfile, in their order.
fn images_of_the_dockerfile() -> Vec<&'static str> {
    let lines = include_str!("../Dockerfile").lines();
    let from = lines.filter_map(|line| line.strip_prefix("FROM "));
    from.filter_map(|words| words.split(' ').find(|word| !word.starts_with("--")))
        .collect()
}

/// A tag can be another image tomorrow. The same holds for a frontend, which `# syntax=` would run.
#[test]
fn the_dockerfile_takes_every_image_by_its_digest() {
    let dockerfile = include_str!("../Dockerfile");
    assert!(!dockerfile.contains("syntax="), "a frontend by its tag");
    let images = images_of_the_dockerfile();
    assert_eq!(images.len(), 2, "{images:?}");
    for image in &images {
        assert!(is_pinned(image), "{image}");
    }
    let (name, digest) = images[1].split_once('@').expect("a digest");
    for (what, value) in [("name", name), ("digest", digest)] {
        let label = format!("org.opencontainers.image.base.{what}=\"{value}\"");
        assert!(dockerfile.contains(&label), "{label}");
    }
}

/// Who moves a tag of an action would run what they like where releases are signed. Dependabot updates the commit
/// together with the version behind it.
#[test]
fn the_workflows_take_every_action_by_its_commit_and_every_image_by_its_digest() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let files = fs::read_dir(folder).expect("the folder is there");
    let mut seen = [0; 2];
    for file in files {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a workflow");
        for line in text.lines() {
            let after = |start: &str| line.split_once(start).map(|(_, rest)| rest);
            let here = format!("{}: {line}", path.display());
            if let Some(action) = after("uses: ") {
                let (_, version) = action.split_once('@').expect("a version");
                let (commit, version) = version.split_once(" # v").expect(&here);
                assert!(is_hex(commit, 40) && version.contains('.'), "{here}");
                seen[0] += 1;
            } else if let Some(image) = after("container: ") {
                // Programs for people are built like those of the image.
                assert_eq!(image, images_of_the_dockerfile()[0], "{here}");
                seen[1] += 1;
            } else if let Some(image) = after("image=").or_else(|| after("generator=")) {
                assert!(is_pinned(image), "{here}");
            }
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
}

/// The first document of a manifest.
fn first<T: DeserializeOwned>(path: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(path);
    let text = fs::read_to_string(&path).expect("the manifest is there");
    let document = text.split("\n---\n").next().expect("a document");
    serde_saphyr::from_str(document).expect("the manifest is what it says")
}

/// The kinds that have manifests of their own.
fn plurals() -> Vec<String> {
    let kinds = Kind::all().into_iter().filter(|kind| *kind != Kind::Job);
    kinds.map(|kind| kind.switch()).collect()
}

#[test]
fn all_kinds_come_with_their_folder() {
    let all: Value = manifest("workloads/kustomization.yaml");
    assert_eq!(all["components"], serde_json::json!(plurals()));
}

fn all_rules() -> Vec<PolicyRule> {
    let role: ClusterRole = manifest("rbac/role.yaml");
    let election: Role = first("rbac/leader_election_role.yaml");
    let page: ClusterRole = manifest("web/role.yaml");
    let metrics: ClusterRole = manifest("metrics/role.yaml");
    let rules = [role.rules, election.rules, page.rules, metrics.rules];
    let of_kinds = plurals().into_iter().map(|plural| {
        let role: ClusterRole = first(&format!("workloads/{plural}/{plural}.yaml"));
        role.rules
    });
    rules
        .into_iter()
        .chain(of_kinds)
        .flatten()
        .flatten()
        .collect()
}

#[test]
fn the_operator_may_read_no_secret_and_has_no_wildcard() {
    for rule in all_rules() {
        let resources = rule.resources.unwrap_or_default();
        let words = [rule.verbs, rule.api_groups.unwrap_or_default(), resources].concat();
        assert!(
            !words.iter().any(|word| word == "*" || word == "secrets"),
            "{words:?}"
        );
    }
}

/// The Leases may be written only where the deployment is, and only those with these names; `create` can't be
/// restricted to a name.
#[test]
fn the_lease_is_in_the_deployments_namespace() {
    let deployment: Deployment = manifest("manager/deployment.yaml");
    let election: Role = first("rbac/leader_election_role.yaml");
    assert_eq!(election.metadata.namespace, deployment.metadata.namespace);
    let leases = [
        "consul-semaphore-operator",
        "consul-semaphore-operator-identity",
    ];
    for rule in election.rules.expect("rules") {
        let of_lease = |name: &String| leases.contains(&name.as_str());
        let names = rule.resource_names.as_ref();
        assert!(
            rule.verbs == ["create"] || names.is_some_and(|names| names.iter().all(of_lease)),
            "{rule:?}"
        );
    }
    let variables = operator_container().env.expect("variables");
    for (name, field) in [
        ("LEADER_ELECTION_IDENTITY", "metadata.name"),
        ("LEADER_ELECTION_NAMESPACE", "metadata.namespace"),
    ] {
        let variable = variables.iter().find(|variable| variable.name == name);
        let source = variable.and_then(|variable| variable.value_from.clone());
        let path = source.and_then(|source| Some(source.field_ref?.field_path));
        assert_eq!(path.as_deref(), Some(field), "{name}");
    }
}

/// The quoted words in an expression of a policy.
fn quoted(expression: &Value) -> Vec<String> {
    let expression = expression.as_str().expect("an expression");
    let words = expression.split('\'').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

#[test]
fn both_policies_know_all_that_only_the_operator_writes() {
    for file in ["policies/suspend.yaml", "policies/guard.yaml"] {
        let policy: Value = first(file);
        let variables = policy["spec"]["variables"].as_array().expect("variables");
        let reports = variables
            .iter()
            .find(|variable| variable["name"] == "reports");
        let reports = quoted(&reports.expect("the names")["expression"]);
        assert_eq!(reports, OF_THE_OPERATOR, "{file}");
    }
}

/// It comes first in the list, where docs/admission.md replaces it.
#[test]
fn the_guard_knows_the_account_that_the_operator_runs_as() {
    let guard: Value = first("policies/guard.yaml");
    let account: ServiceAccount = manifest("rbac/service_account.yaml");
    let account = account.metadata;
    let (namespace, name) = (
        account.namespace.expect("a namespace"),
        account.name.expect("a name"),
    );
    let operators = quoted(&guard["spec"]["matchConditions"][0]["expression"]);
    assert_eq!(
        operators,
        [format!("system:serviceaccount:{namespace}:{name}")]
    );
}

#[test]
fn the_operator_may_see_its_own_policies_and_no_others() {
    let mut rules = all_rules();
    rules.retain(|rule| {
        rule.api_groups
            .iter()
            .flatten()
            .any(|group| group == "admissionregistration.k8s.io")
    });
    let given: Vec<_> = rules
        .into_iter()
        .map(|rule| (rule.resources, rule.resource_names, rule.verbs))
        .collect();
    let of = |kind: &str, names: &[&str]| {
        let resources = ["policies", "policybindings"].map(|what| format!("{kind}admission{what}"));
        let verbs = vec!["get".to_owned()];
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        (Some(resources.to_vec()), Some(names), verbs)
    };
    let of_kinds = Kind::all().into_iter().flat_map(|kind| {
        let policies = admission::policies_of(&kind);
        let (holds, others): (Vec<_>, Vec<_>) = policies
            .iter()
            .partition(|policy| policy.role() == admission::Role::Hold);
        let named = |kind, policies: &[&admission::Policy]| {
            let names: Vec<&str> = policies.iter().map(|policy| policy.name()).collect();
            (!names.is_empty()).then(|| of(kind, &names))
        };
        let rules = [named("mutating", &holds), named("validating", &others)];
        rules.into_iter().flatten()
    });
    assert_eq!(given, of_kinds.collect::<Vec<_>>());
}

/// Where the manifests of kinds of workloads are, and what they are to be. The chart can't contain files of another
/// folder, so it has copies.
fn of_kinds() -> Vec<(String, String)> {
    let chart = "charts/consul-semaphore-operator/files";
    let mut files = Vec::new();
    for kind in Kind::all() {
        let plural = kind.switch();
        if kind == Kind::Job {
            let policy = manifests::operator(&kind);
            files.push(("config/policies/operator.yaml".to_owned(), policy.clone()));
            files.push((format!("{chart}/policies/operator.yaml"), policy));
            let makers = manifests::maker(&kind).expect("CronJobs make Jobs");
            files.push(("config/policies/cronjobs.yaml".to_owned(), makers.clone()));
            files.push((format!("{chart}/policies/cronjobs.yaml"), makers));
            continue;
        }
        let all = manifests::of_kind(&kind);
        let folder = format!("config/workloads/{plural}");
        files.push((format!("{folder}/{plural}.yaml"), all.clone()));
        files.push((format!("{chart}/workloads/{plural}.yaml"), all));
        files.push((
            format!("{folder}/kustomization.yaml"),
            manifests::component(&kind),
        ));
    }
    files
}

/// Who creates a workload held, and starts it later, reads how it comes to run instead. Before Kubernetes 1.36 no policy
/// adds the label for them.
#[test]
fn the_guards_say_how_to_queue_what_nobody_else_may_start() {
    let mut guards = 0;
    for kind in Kind::all().into_iter().filter(|kind| *kind != Kind::Job) {
        let text = manifests::of_kind(&kind);
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        if !text.contains("only the operator starts a") {
            continue;
        }
        let how = r#"remove the annotation consul-semaphore.io/hold and set the label consul-semaphore.io/waits to "true""#;
        assert!(text.contains(how), "{}", kind.name());
        guards += 1;
    }
    assert_eq!(
        guards,
        Kind::all().len() - 2,
        "all but those of Jobs and of Kueue"
    );
}

#[test]
fn those_of_the_kinds_are_what_the_program_makes() {
    for (path, current) in of_kinds() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path);
        if env::var_os("UPDATE_MANIFESTS").is_some() {
            fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is made");
            fs::write(&file, &current).expect("the manifest is written");
        }
        assert!(
            fs::read_to_string(&file).unwrap_or_default() == current,
            "{path} is not what src/manifests makes; write it anew with: UPDATE_MANIFESTS=1 cargo test --test manifests"
        );
    }
}
