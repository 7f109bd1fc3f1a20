//! The program as a user runs it: flags, environment, exit codes, and the HTTP endpoints. No server is needed.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::{
    fs,
    future::pending,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
};

use consul_semaphore_operator::{
    endpoints::{Access, Endpoints, EndpointsSettings},
    telemetry::{self, Telemetry},
};
use testbed::{
    Folder,
    command_line::{Program, assert_says, text},
    eventually,
    helpers::{core_limits, memory_is_private, shows_who_may_see_it},
    http_client,
};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    process::{Child, Command},
};

const PROGRAM: Program = Program::at(env!("CARGO_BIN_EXE_consul-semaphore-operator"));

#[test]
fn without_a_command_it_shows_its_commands() {
    assert_says(
        &PROGRAM.refusal(&[], &[]),
        &["run", "check", "crd", "version"],
    );
}

#[test]
fn unknown_commands_and_flags_are_refused() {
    assert_says(
        &PROGRAM.refusal(&["rum"], &[]),
        &["unrecognized subcommand 'rum'", "'run'"],
    );
    assert_says(
        &PROGRAM.refusal(&["run", "--consul-adress=x"], &[]),
        &["--consul-adress", "--consul-address"],
    );
}

#[test]
fn bad_values_say_what_is_allowed() {
    let cases = [
        ("--log-format=xml", "possible values: text, json"),
        ("--log-filter=info,kube=loud", "info,kube=debug"),
        ("--http-address=8080", "IP:PORT"),
        ("--metrics-auth=basic", "possible values: none, kubernetes"),
        ("--http-tls-cert-file=a", "--http-tls-key-file <FILE>"),
        ("--http-tls-key-file=a", "--http-tls-cert-file <FILE>"),
        ("--traces-exporter=jaeger", "possible values: none, otlp"),
        ("--cluster-name=a/b", "1 to 63 letters"),
        ("--consul-node=", "1 to 63 letters"),
        ("--consul-address=ftp://consul", "https://host:port"),
        ("--consul-auth-method=", "value is required"),
        ("--consul-login-meta=pod", "KEY=VALUE"),
        ("--namespaces=", "or * for all"),
        ("--namespaces=team-a,Team", "\"Team\" is not the name"),
        ("--semaphore-selector=", "key in (a,b)"),
        ("--semaphore-selector=shard in a", "\"shard in a\" is not"),
        ("--lease-name=leader", "not \"leader\""),
    ];
    for (argument, allowed) in cases {
        let said = PROGRAM.refusal(&["run", argument], &[]);
        assert_says(&said, &[allowed]);
        assert!(!said.contains("environment"), "{said}");
    }
}

/// The library that sends them reports the error, not the command line.
#[test]
fn traces_that_cannot_be_sent_are_refused() {
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a b")];
    let output = PROGRAM.run(&["run", "--traces-exporter=otlp"], &variables);
    assert_eq!(output.status.code(), Some(1));
    let said = text(output.stderr);
    assert_says(
        &said,
        &["cannot send traces", "OTEL_EXPORTER_OTLP_ENDPOINT"],
    );
}

#[test]
fn a_check_says_what_it_can_be_asked() {
    let cases = [
        ("--semaphore=db", "give NAMESPACE/NAME"),
        ("--semaphore=Batch/db", "give NAMESPACE/NAME"),
        ("--as=", "the name of a user"),
        ("--as=jane doe", "the name of a user"),
        ("--timeout=0s", "from 1s to 300s"),
        ("--output=yaml", "possible values: text, json"),
        ("--namespaces=", "or * for all"),
    ];
    for (argument, allowed) in cases {
        assert_says(&PROGRAM.refusal(&["check", argument], &[]), &[allowed]);
    }
}

/// If nothing answers, the report says so line by line, and the exit code too.
#[test]
fn a_check_of_nothing_has_failed() {
    let free = testbed::lasting_port().expect("a free port");
    let address = format!("127.0.0.1:{free}");
    let variables = [
        ("CONSUL_HTTP_ADDR", address.as_str()),
        ("KUBECONFIG", "/does/not/exist"),
    ];
    let output = PROGRAM.run(&["check", "--timeout=1s"], &variables);
    assert_eq!(output.status.code(), Some(1));
    let said = text(output.stdout);
    assert_says(
        &said,
        &[
            &address,
            "CONSUL_HTTP_ADDR",
            "set KUBECONFIG",
            "0 ok, 0 warning, 2 failed",
        ],
    );
    assert!(!said.contains('\x1b'), "colours for nobody: {said}");

    let output = PROGRAM.run(&["check", "--timeout=1s", "-o", "json"], &variables);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let outcomes: Vec<_> = report["lines"].as_array().expect("lines").iter().collect();
    assert_eq!(outcomes.len(), 2, "{report}");
    for line in outcomes {
        assert_eq!(line["outcome"], "failed");
        assert!(line["todo"].is_string(), "{line}");
    }
}

/// A missing token file is a line like any other: everything else is still checked.
#[test]
fn a_check_with_settings_that_cannot_be_used_says_so() {
    let variables = [
        ("CONSUL_HTTP_TOKEN_FILE", "/does/not/exist"),
        ("KUBECONFIG", "/nor/this"),
    ];
    let output = PROGRAM.run(&["check"], &variables);
    assert_eq!(output.status.code(), Some(1));
    assert_says(
        &text(output.stdout),
        &["settings", "CONSUL_HTTP_TOKEN_FILE", "set KUBECONFIG"],
    );
}

#[test]
fn a_bad_value_of_the_environment_names_its_variable() {
    let cases = [
        ("LOG_FORMAT", "xml", "possible values: text, json"),
        ("RUST_LOG", "consul_semaphore_operator=loud", "--log-filter"),
        ("HTTP_ADDRESS", "localhost", "--http-address"),
        ("CLUSTER_NAME", "prod eu", "1 to 63 letters"),
        ("CONSUL_NODE", "..", "not only dots"),
        ("NAMESPACES", "", "or * for all"),
        ("SEMAPHORE_SELECTOR", "shard=a b", "\"shard=a b\" is not"),
    ];
    for (variable, value, allowed) in cases {
        let said = PROGRAM.refusal(&["run"], &[(variable, value)]);
        assert_says(
            &said,
            &[allowed, &format!("environment variable {variable}")],
        );
    }
}

#[test]
fn a_flag_goes_before_the_environment() {
    let said = PROGRAM.refusal(&["run", "--log-format=yaml"], &[("LOG_FORMAT", "json")]);
    assert_says(&said, &["'yaml'"]);
    assert!(!said.contains("environment"), "{said}");
}

#[test]
fn a_bad_value_of_consuls_environment_names_its_variable() {
    let cases = [
        ("CONSUL_HTTP_ADDR", "ftp://consul", "https://host:port"),
        ("CONSUL_HTTP_SSL", "maybe", "true or false"),
        ("CONSUL_CLIENT_CERT", "cert.pem", "CONSUL_CLIENT_KEY"),
    ];
    for (variable, value, allowed) in cases {
        assert_says(
            &PROGRAM.refusal(&["run"], &[(variable, value)]),
            &[variable, allowed],
        );
    }
}

#[test]
fn flags_that_contradict_each_other_say_what_to_do() {
    let plain = "http://consul:8500";
    let advice = [
        "--consul-ca-file",
        "does not use it",
        "leave --consul-ca-file out",
    ];
    let address = format!("--consul-address=https://consul:8501,{plain}");
    let said = PROGRAM.refusal(&["run", &address, "--consul-ca-file=ca.pem"], &[]);
    assert_says(&said, &advice);
    assert_says(&said, &[plain]);
    let said = PROGRAM.refusal(
        &["run", "--consul-ca-file=ca.pem"],
        &[("CONSUL_HTTP_ADDR", "unix:///run/consul.sock")],
    );
    assert_says(&said, &advice);
}

/// Without a login everybody who can reach the page sees everything.
#[test]
fn a_page_without_a_login_is_for_loopback_alone() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let taken = taken.local_addr().expect("an address").to_string();
    let said = PROGRAM.refusal(
        &["run", "--web-auth=none", "--web-address=0.0.0.0:8081"],
        &[],
    );
    assert_says(&said, &["loopback", "--web-address=127.0.0.1:8081"]);
    // What is not refused gets as far as binding the address, which is taken.
    for page in ["--web-address=127.0.0.1:0", "--web-address=[::1]:0"] {
        let address = format!("--http-address={taken}");
        let output = PROGRAM.run(&["run", "--web-auth=none", page, &address], &[]);
        assert_eq!(output.status.code(), Some(1));
    }
    let output = PROGRAM.run(
        &["run", "--http-address=127.0.0.1:0"],
        &[("WEB_ADDRESS", &taken)],
    );
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_says(&said, &["cannot listen on", &taken, "--web-address"]);
}

/// The operator of one part would stand by while that of another part leads.
#[test]
fn operators_of_parts_of_a_cluster_do_not_share_an_election() {
    // What is not refused gets as far as binding the address, which is taken.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = taken.local_addr().expect("an address");
    let address = format!("--http-address={address}");
    for part in ["--namespaces=team-a", "--semaphore-selector=shard=a"] {
        let said = PROGRAM.refusal(&["run", part], &[]);
        assert_says(&said, &["its own --lease-name", "--leader-election=off"]);
        PROGRAM.refusal(&["run", part, "--leader-election=consul"], &[]);
        for allowed in ["--lease-name=shard-a", "--leader-election=off"] {
            let output = PROGRAM.run(&["run", part, allowed, &address], &[]);
            let said = text(output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert_says(&said, &["cannot listen on"]);
        }
    }
}

#[test]
fn a_login_and_a_token_contradict_each_other() {
    let login = ["run", "--consul-auth-method=kubernetes"];
    for (variable, value) in [
        ("CONSUL_HTTP_TOKEN", "s3cr3t-t0ken"),
        ("CONSUL_HTTP_TOKEN_FILE", "/s3cr3t"),
    ] {
        let said = PROGRAM.refusal(&login, &[(variable, value)]);
        assert_says(&said, &["--consul-auth-method", variable, "leave one"]);
        assert!(!said.contains(value), "{said}");
    }
    let said = PROGRAM.refusal(
        &["run", "--consul-token-file=/file"],
        &[("CONSUL_AUTH_METHOD", "kubernetes")],
    );
    assert_says(&said, &["--consul-token-file gives one"]);
}

#[test]
fn a_login_without_what_to_log_in_with_says_so() {
    let output = PROGRAM.run(
        &["run", "--http-address=127.0.0.1:0"],
        &[
            ("CONSUL_AUTH_METHOD", "kubernetes"),
            ("CONSUL_BEARER_TOKEN_FILE", "/does/not/exist"),
        ],
    );
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_says(&said, &["CONSUL_BEARER_TOKEN_FILE", "/does/not/exist"]);
}

#[test]
fn a_certificate_that_cannot_be_read_is_an_error_that_says_so() {
    let output = PROGRAM.run(
        &[
            "run",
            "--http-address=127.0.0.1:0",
            "--http-tls-cert-file=/does/not/exist",
        ],
        &[("HTTP_TLS_KEY_FILE", "/nor/this")],
    );
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_says(
        &said,
        &["HTTP_TLS_CERT_FILE", "cannot read /does/not/exist"],
    );
}

#[test]
fn an_address_in_use_is_an_error_that_says_so() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let output = PROGRAM.run(&["run", "--http-address", &address], &[]);
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_says(&said, &["cannot listen on", &address, "--http-address"]);
}

#[test]
fn version_says_what_it_is_tested_with() {
    let output = PROGRAM.run(&["version"], &[]);
    assert!(output.status.success());
    let said = text(output.stdout);
    assert_says(
        &said,
        &[
            env!("CARGO_PKG_VERSION"),
            telemetry::KUBERNETES,
            telemetry::CONSUL,
        ],
    );
}

#[test]
fn help_tells_of_every_environment_variable_and_default() {
    let output = PROGRAM.run(&["run", "--help"], &[]);
    assert!(output.status.success());
    assert_says(
        &text(output.stdout),
        &[
            "[env: CONSUL_HTTP_ADDR]",
            "[default: http://127.0.0.1:8500]",
            "[env: CONSUL_HTTP_TOKEN_FILE]",
            "[env: CONSUL_CACERT]",
            "CONSUL_HTTP_TOKEN ",
            "CONSUL_CAPATH",
            "CONSUL_CLIENT_CERT",
            "CONSUL_TLS_SERVER_NAME",
            "CONSUL_NAMESPACE",
            "KUBECONFIG",
        ],
    );
}

#[test]
fn crd_prints_the_file_that_is_shipped() {
    let output = PROGRAM.run(&["crd"], &[]);
    assert!(output.status.success());
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crds/consulsemaphores.consul-semaphore.io.yaml"
    );
    let shipped = fs::read_to_string(path).expect("the CRD is shipped");
    assert!(
        text(output.stdout) == shipped,
        "{path} is not what `crd` prints"
    );
}

/// Plain endpoints on a free port, open to everybody.
async fn endpoints() -> Endpoints {
    let settings = EndpointsSettings {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        tls: None,
        metrics: Access::Open,
    };
    Endpoints::bind(settings).await.expect("a free port")
}

/// A server on a free port, for as long as the test's runtime lives.
async fn serve(telemetry: &Telemetry) -> SocketAddr {
    let endpoints = endpoints().await;
    let address = endpoints.address().expect("an address");
    tokio::spawn(endpoints.serve(telemetry.clone(), pending()));
    address
}

/// An operator that waits for an API server, with these variables, and the file with its log. It ends with the test.
struct Waiting {
    operator: Child,
    log: PathBuf,
    _folder: Folder,
}

impl Waiting {
    fn start(variables: &[(&str, &str)]) -> Self {
        let folder = Folder::new().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let nowhere = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "users": [{"name": "a", "user": {}}]}"#;
        fs::write(&kubeconfig, nowhere).expect("it is written");
        let log = folder.path().join("log");
        let mut program = Command::new(env!("CARGO_BIN_EXE_consul-semaphore-operator"));
        shows_who_may_see_it(&mut program);
        program
            .args(["run", "--http-address=127.0.0.1:0"])
            .env_clear()
            .envs(variables.iter().copied())
            .env("KUBECONFIG", kubeconfig)
            .stderr(fs::File::create(&log).expect("a log"))
            .kill_on_drop(true);
        Self {
            operator: program.spawn().expect("it starts"),
            log,
            _folder: folder,
        }
    }
}

#[tokio::test]
async fn the_memory_of_the_operator_has_tokens_and_is_its_own() {
    let waiting = Waiting::start(&[]);
    let id = waiting.operator.id().expect("it runs");
    eventually("nobody else can read its memory", async || {
        testbed::same(memory_is_private(id), true)
    })
    .await;
    let limits = core_limits(id);
    let limits: Vec<_> = limits.split_whitespace().collect();
    assert_eq!(limits, ["0", "0", "bytes"]);
}

/// Every address of this machine: it is reached, but is not a loopback address.
const ELSEWHERE: &str = "http://0.0.0.0:1";

#[tokio::test]
async fn a_token_that_is_sent_in_plain_text_is_warned_of_once() {
    let variables = [
        ("CONSUL_HTTP_ADDR", ELSEWHERE),
        ("CONSUL_HTTP_TOKEN", "s3cr3t"),
    ];
    let waiting = Waiting::start(&variables);
    let log = || fs::read_to_string(&waiting.log).expect("its log");
    eventually("it waits for the API server", async || {
        let log = log();
        log.contains("kube-system can't be read")
            .then_some(())
            .ok_or(log)
    })
    .await;
    let log = log();
    let warned = log
        .lines()
        .filter(|line| line.contains(" WARN ") && line.contains("plain text"));
    assert_eq!(warned.count(), 1, "{log}");
    assert!(!log.contains("s3cr3t"), "{log}");
}

#[test]
fn a_check_warns_of_a_token_in_plain_text() {
    let variables = [
        ("CONSUL_HTTP_ADDR", ELSEWHERE),
        ("CONSUL_HTTP_TOKEN", "s3cr3t"),
        ("KUBECONFIG", "/does/not/exist"),
    ];
    let output = PROGRAM.run(&["check", "--timeout=1s"], &variables);
    let said = text(output.stdout);
    let words = ["transport", "plain text", ELSEWHERE, "1 warning"];
    assert_says(&said, &words);
    assert!(!said.contains("s3cr3t"), "{said}");
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let http = http_client().build().expect("a client");
    let answer = http.get(format!("http://{address}{path}")).send().await;
    let answer = answer.expect("an answer");
    (
        answer.status().as_u16(),
        answer.text().await.expect("a text"),
    )
}

#[tokio::test]
async fn it_lives_as_soon_as_it_serves() {
    let address = serve(&Telemetry::default()).await;
    assert_eq!(get(address, "/livez").await, (200, "ok\n".to_owned()));
}

#[tokio::test]
async fn it_is_ready_when_all_parts_are() {
    let telemetry = Telemetry::default();
    let address = serve(&telemetry).await;
    assert_eq!(
        get(address, "/readyz").await,
        (503, "operator: not synced yet\n".to_owned())
    );
    let (jobs, semaphores) = (
        telemetry.health.part("jobs"),
        telemetry.health.part("consulsemaphores"),
    );
    semaphores.ready();
    assert_eq!(
        get(address, "/readyz").await,
        (503, "jobs: not synced yet\n".to_owned())
    );
    jobs.ready();
    assert_eq!(get(address, "/readyz").await, (200, "ok\n".to_owned()));
}

#[tokio::test]
async fn it_shows_its_metrics() {
    let telemetry = Telemetry::default();
    let address = serve(&telemetry).await;
    telemetry.metrics.consul().set_sessions(3);
    let (status, page) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    assert_says(
        &page,
        &[
            "consul_semaphore_operator_build_info{",
            "consul_semaphore_operator_sessions 3\n",
        ],
    );
    assert!(page.ends_with("# EOF\n"), "{page}");
}

#[tokio::test]
async fn other_paths_are_not_found() {
    let address = serve(&Telemetry::default()).await;
    assert_eq!(get(address, "/").await.0, 404);
}

#[tokio::test]
async fn it_stops_serving_when_it_is_asked_to() {
    let (stop, asked) = tokio::sync::oneshot::channel::<()>();
    let endpoints = endpoints().await;
    let address = endpoints.address().expect("an address");
    let serving = tokio::spawn(endpoints.serve(Telemetry::default(), async {
        drop(asked.await);
    }));
    let mut silent = TcpStream::connect(address).await.expect("it serves");
    drop(stop);
    serving.await.expect("the server ends by itself");
    // That nobody listens can't be shown by connecting: another server may have been given the port since.
    let read = silent.read(&mut [0]).await;
    assert!(!matches!(read, Ok(1..)), "nothing is said: {read:?}");
}
