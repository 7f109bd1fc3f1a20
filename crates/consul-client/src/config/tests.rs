//! Every variable, good and bad values.

use super::*;

fn config(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_lookup(|name| {
        let found = variables.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn addresses(list: &str) -> Vec<String> {
    let config = config(&[("CONSUL_HTTP_ADDR", list)]).unwrap();
    config.addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn without_variables_it_is_the_agent_on_this_machine() {
    let config = config(&[]).unwrap();
    assert_eq!(config.addresses[0].to_string(), "http://127.0.0.1:8500");
    assert_eq!(config.tls, Tls::default());
    assert!(config.tls.verify);
}

#[test]
fn an_empty_variable_is_none() {
    let all: Vec<_> = VARIABLES.iter().map(|name| (*name, "")).collect();
    let config = config(&all).unwrap();
    assert_eq!(config.addresses[0].to_string(), "http://127.0.0.1:8500");
    assert_eq!(config.token, None);
    assert_eq!(config.tls, Tls::default());
}

#[test]
fn addresses_have_all_forms_and_several_are_a_list() {
    assert_eq!(addresses("consul:8500"), ["http://consul:8500"]);
    assert_eq!(
        addresses("http://[::1]:8500/consul/, https://consul.example:8501"),
        ["http://[::1]:8500/consul", "https://consul.example:8501"]
    );
    assert_eq!(
        addresses("unix:///run/consul.sock"),
        ["unix:///run/consul.sock"]
    );
}

#[test]
fn a_bad_address_is_named_with_what_is_allowed() {
    for bad in [
        "ftp://consul:21",
        "consul:http",
        "unix://relative",
        "a,,b",
        "http://",
        "http://consul:8500?dc=x",
    ] {
        let error = config(&[("CONSUL_HTTP_ADDR", bad)]).unwrap_err();
        assert_eq!(error.variable, "CONSUL_HTTP_ADDR");
        assert!(error.to_string().contains("unix:///path"), "{bad}: {error}");
    }
}

#[test]
fn a_password_in_an_address_is_refused_and_not_repeated() {
    let error = config(&[("CONSUL_HTTP_ADDR", "http://me:hunter2@consul:8500")]).unwrap_err();
    assert!(error.problem.contains("CONSUL_HTTP_AUTH"));
    assert!(!error.to_string().contains("hunter2"));
}

#[test]
fn booleans_are_those_of_go() {
    for (value, verify) in [("true", true), ("1", true), ("False", false), ("0", false)] {
        let config = config(&[("CONSUL_HTTP_SSL_VERIFY", value)]).unwrap();
        assert_eq!(config.tls.verify, verify);
    }
    assert!(config(&[("CONSUL_HTTP_SSL", "true")]).unwrap().tls.enabled);
    for name in ["CONSUL_HTTP_SSL", "CONSUL_HTTP_SSL_VERIFY"] {
        let error = config(&[(name, "yes")]).unwrap_err();
        assert_eq!(error.variable, name);
        assert_eq!(error.problem, "\"yes\" must be true or false");
    }
}

#[test]
fn tls_is_not_contradicted() {
    let https = ("CONSUL_HTTP_ADDR", "https://consul:8501");
    assert!(config(&[https, ("CONSUL_HTTP_SSL", "true")]).is_ok());
    let error = config(&[https, ("CONSUL_HTTP_SSL", "false")]).unwrap_err();
    assert_eq!(error.variable, "CONSUL_HTTP_SSL");
}

#[test]
fn files_and_names_for_tls() {
    let config = config(&[
        ("CONSUL_CACERT", "/tls/ca.pem"),
        ("CONSUL_CAPATH", "/tls/ca"),
        ("CONSUL_CLIENT_CERT", "/tls/client.pem"),
        ("CONSUL_CLIENT_KEY", "/tls/client-key.pem"),
        ("CONSUL_TLS_SERVER_NAME", "server.dc1.consul"),
    ])
    .unwrap();
    assert_eq!(
        config.tls,
        Tls {
            ca_file: Some("/tls/ca.pem".into()),
            ca_path: Some("/tls/ca".into()),
            client_cert: Some("/tls/client.pem".into()),
            client_key: Some("/tls/client-key.pem".into()),
            server_name: Some("server.dc1.consul".into()),
            ..Tls::default()
        }
    );
}

#[test]
fn a_certificate_without_its_key_is_refused_and_the_other_way_round() {
    let error = config(&[("CONSUL_CLIENT_CERT", "/c")]).unwrap_err();
    assert_eq!(error.variable, "CONSUL_CLIENT_CERT");
    assert!(error.problem.contains("CONSUL_CLIENT_KEY"));
    let error = config(&[("CONSUL_CLIENT_KEY", "/k")]).unwrap_err();
    assert_eq!(error.variable, "CONSUL_CLIENT_KEY");
}

#[test]
fn who_asks_is_never_printed() {
    let config = config(&[
        ("CONSUL_HTTP_TOKEN", "b1gs3cr3t"),
        ("CONSUL_HTTP_AUTH", "me:hunter2:x"),
        ("CONSUL_HTTP_TOKEN_FILE", "/run/token"),
    ])
    .unwrap();
    assert_eq!(config.token.as_ref().unwrap().expose(), "b1gs3cr3t");
    let auth = config.http_auth.as_ref().unwrap();
    assert_eq!(
        (auth.username.as_str(), auth.password.expose()),
        ("me", "hunter2:x")
    );
    assert_eq!(config.token_file, Some("/run/token".into()));
    let printed = format!("{config:?}");
    assert!(!printed.contains("b1gs3cr3t") && !printed.contains("hunter2"));
}

#[test]
fn a_user_may_have_no_password() {
    let config = config(&[("CONSUL_HTTP_AUTH", "me")]).unwrap();
    assert_eq!(config.http_auth.unwrap().password.expose(), "");
}

#[test]
fn enterprise_places() {
    let config = config(&[
        ("CONSUL_NAMESPACE", "team-a"),
        ("CONSUL_PARTITION", "default"),
    ])
    .unwrap();
    assert_eq!(
        config.scope(),
        Scope {
            datacenter: None,
            namespace: Some("team-a".to_owned()),
            partition: Some("default".to_owned()),
        }
    );
}

#[test]
fn an_agent_on_this_machine_is_distinguished_from_a_server_elsewhere() {
    let is_local = |address: &str| address.parse::<Address>().unwrap().is_local();
    for here in [
        "127.0.0.1:8500",
        "https://localhost:8501",
        "[::1]:8500",
        "unix:///run/consul",
    ] {
        assert!(is_local(here), "{here}");
    }
    for elsewhere in [
        "consul:8500",
        "https://10.0.0.1:8501",
        "localhost.example:8500",
    ] {
        assert!(!is_local(elsewhere), "{elsewhere}");
    }
}
