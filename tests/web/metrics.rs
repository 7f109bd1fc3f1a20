//! The metrics over TLS, for those who may read them.

use std::{fs, path::Path, time::Duration};

use testbed::{
    Bed, Certificates, eventually_within, http_client, same,
    web::{may_review_by, somebody, token_for},
};

/// Longer than an answer of the API server is cached, and a certificate.
const PATIENCE: Duration = Duration::from_mins(2);

/// A client that trusts this CA alone.
struct Scraper {
    http: reqwest::Client,
    address: String,
}

impl Scraper {
    fn new(authority: &Path, address: &str) -> Self {
        let authority = reqwest::Certificate::from_pem(&fs::read(authority).unwrap()).unwrap();
        let http = http_client().tls_certs_only([authority]);
        Self {
            http: http.build().unwrap(),
            address: address.to_owned(),
        }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> reqwest::Result<(u16, String)> {
        let mut request = self.http.get(format!("https://{}{path}", self.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    async fn scrapes(&self, token: &str) -> bool {
        let (status, text) = self.get("/metrics", Some(token)).await.unwrap();
        assert_eq!(text.ends_with("# EOF\n"), status == 200, "{text}");
        status == 200
    }
}

#[tokio::test]
async fn the_metrics_are_for_those_who_may_read_them() {
    let bed = Bed::shared().await;
    may_review_by(&bed, "metrics").await;
    bed.kubectl(["apply", "-f", "config/metrics/reader_role.yaml"])
        .await;
    let folder = bed.folder().path().join("endpoints");
    let first = Certificates::make(&folder.join("1")).await.unwrap();
    let second = Certificates::make(&folder.join("2")).await.unwrap();
    let files = ["tls.crt", "tls.key"].map(|name| folder.join(name));
    let install = |certificates: &Certificates| {
        for (from, to) in certificates.server().iter().zip(&files) {
            fs::copy(from, to).unwrap();
        }
    };
    install(&first);
    let [certificate, key] = files.each_ref().map(|file| file.display().to_string());
    let operator = bed.another_operator(
        "scraped",
        [
            "--metrics-auth=kubernetes".to_owned(),
            format!("--http-tls-cert-file={certificate}"),
            format!("--http-tls-key-file={key}"),
        ],
        [],
    );
    operator.start().await;
    let address = operator.address().await.unwrap();
    let scraper = Scraper::new(&first.authority(), &address);

    // The probes have no token.
    for probe in ["/livez", "/readyz"] {
        assert_eq!(scraper.get(probe, None).await.unwrap().0, 200, "{probe}");
    }
    for token in [None, Some("ey.wrong.token")] {
        let (status, words) = scraper.get("/metrics", token).await.unwrap();
        assert_eq!(status, 401, "{words}");
    }
    let team = bed.namespace("scrapes").await;
    let account = somebody(&team, "prometheus").await;
    let own = token_for(&bed, &account, "consul-semaphore-metrics").await;
    let (status, words) = scraper.get("/metrics", Some(&own)).await.unwrap();
    assert_eq!(status, 403, "{words}");
    assert!(words.contains("prometheus may not get /metrics"), "{words}");

    let binding = format!("{}-scrapes", team.name());
    let role = "--clusterrole=consul-semaphore-operator-metrics-reader";
    let to = format!("--serviceaccount={account}");
    bed.kubectl(["create", "clusterrolebinding", &binding, role, &to])
        .await;
    let allowed = async || same(scraper.scrapes(&own).await, true);
    eventually_within(PATIENCE, "the metrics are read", allowed).await;
    // A token for the API server, as Prometheus has.
    let args = ["create", "token", "prometheus", "-n", team.name()];
    let for_api_server = bed.kubectl(args).await;
    assert!(scraper.scrapes(for_api_server.trim()).await);

    install(&second);
    let renewed = Scraper::new(&second.authority(), &address);
    let exchanged = async || {
        let answer = renewed.get("/livez", None).await;
        answer.map_err(|error| format!("{error:?}"))
    };
    eventually_within(PATIENCE, "the new certificate is used", exchanged).await;
    assert!(renewed.scrapes(&own).await);
    assert!(scraper.get("/livez", None).await.is_err(), "no longer");
    assert!(
        operator.exit_status().await.is_none(),
        "it was not restarted"
    );

    bed.kubectl(["delete", "clusterrolebinding", &binding])
        .await;
    let revoked = async || same(renewed.scrapes(&own).await, false);
    eventually_within(PATIENCE, "the right is gone", revoked).await;
    let logs = operator.logs();
    assert!(logs.contains("read again"), "{logs}");
    for token in [own.as_str(), for_api_server.trim()] {
        assert!(!logs.contains(token), "no token in the log");
    }
}

#[tokio::test]
async fn tokens_in_plain_text_are_warned_about_once() {
    let bed = Bed::shared().await;
    may_review_by(&bed, "metrics").await;
    let operator = bed.another_operator("plain", ["--metrics-auth=kubernetes"], []);
    operator.start().await;
    for _ in 0..2 {
        let refusal = operator.try_get("/metrics").await.unwrap_err();
        assert!(format!("{refusal:#}").contains("401"), "{refusal:#}");
    }
    assert_eq!(operator.logs().matches("in plain text").count(), 1);
}
