//! The ways to reach a Consul.

use std::{fs, net::TcpListener, pin::pin, time::Duration};

use consul_client::{Client, PutMode, WatchOptions};
use futures::{StreamExt, future::try_join_all};
use testbed::{Certificates, Consul, Folder, Link};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    join,
    time::timeout,
};

use crate::{
    credentials::over_tls,
    server::{DEADLINE, client, config, free_port, kill, start, start_at},
};

#[tokio::test]
async fn over_a_unix_socket() {
    let folder = Folder::new().unwrap();
    let (_consul, address) = start_at(&folder).await;
    let client = client(&[("CONSUL_HTTP_ADDR", &address)]);
    assert!(client.put("k", b"1", 0, PutMode::Set).await.unwrap());
    assert_eq!(client.get("k").await.unwrap().unwrap().value, b"1");
}

#[tokio::test]
async fn an_address_without_a_listener_is_skipped() {
    let (consul, _) = start().await;
    let named = consul.address().replace("127.0.0.1", "localhost");
    let addresses = format!("127.0.0.1:{}, {named}", free_port());
    let client = client(&[("CONSUL_HTTP_ADDR", &addresses)]);
    // A write moves on as well, because nothing was sent to the first.
    assert!(client.put("k", b"1", 0, PutMode::Set).await.unwrap());
    assert_eq!(client.list("k").await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn past_a_server_that_hangs() {
    let (consul, _) = start().await;
    // The system accepts connections, and nobody ever reads from them.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = deaf.local_addr().unwrap();
    let addresses = format!("{deaf},{}", consul.address());
    let mut config = config(&[("CONSUL_HTTP_ADDR", &addresses)]);
    config.timeout = Duration::from_secs(20);
    let client = Client::new(config).unwrap();
    assert!(client.list("k").await.unwrap().entries.is_empty());
    assert!(client.put("k", b"1", 0, PutMode::Set).await.unwrap());
}

#[tokio::test]
async fn requests_move_from_a_stopped_server_to_another() {
    let (one, _) = start().await;
    let (two, _) = start().await;
    let addresses = format!("{},{}", one.address(), two.address());
    let client = client(&[("CONSUL_HTTP_ADDR", &addresses)]);
    client.put("p/one", b"", 0, PutMode::Set).await.unwrap();
    let mut readings = pin!(client.watch("p/", WatchOptions::default()));
    let first = timeout(DEADLINE, readings.next()).await.unwrap().unwrap();
    assert_eq!(first.unwrap().entries[0].key, "p/one");
    kill(&one).await;
    // When a connection ends, it is unknown whether it has carried a write.
    let written = async { while client.put("p/two", b"", 0, PutMode::Set).await != Ok(true) {} };
    timeout(DEADLINE, written)
        .await
        .expect("the write is done at the other");
    let seen = async {
        loop {
            let reading = readings.next().await.unwrap();
            if reading.is_ok_and(|l| l.entries.iter().any(|e| e.key == "p/two")) {
                return;
            }
        }
    };
    timeout(DEADLINE, seen)
        .await
        .expect("the watch goes on at the other");
}

/// Consul accepts only some connections from one address, and counts idle ones.
#[tokio::test]
async fn a_connection_that_is_kept_briefly_serves_a_burst_and_is_closed_soon_after() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = client(&[("CONSUL_HTTP_ADDR", &address)]).with_brief_connections();
    let burst = async {
        for _ in 0..3 {
            assert!(client.get("k").await.unwrap().is_none());
        }
    };
    let mut requests = 0;
    let served = async {
        let mut request = [0; 4096];
        while requests < 3 {
            // On a busy machine, a pause between two calls may have closed the connection before.
            let (mut connection, _) = listener.accept().await.unwrap();
            while connection.read(&mut request).await.unwrap() > 0 {
                requests += 1;
                let answer =
                    b"HTTP/1.1 404 Not Found\r\nX-Consul-Index: 1\r\nContent-Length: 0\r\n\r\n";
                connection.write_all(answer).await.unwrap();
            }
        }
    };
    // Connections of other clients stay open for a minute.
    let soon = Duration::from_secs(30);
    timeout(soon, async { join!(burst, served) }).await.unwrap();
    assert_eq!(requests, 3);
}

/// A separate task decides whether a connection is free again after its answer was read. Here that task has its own
/// thread, as in the operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_as_many_connections_as_calls_at_once() {
    let (consul, _) = start().await;
    let server = consul.address().trim_start_matches("http://").to_owned();
    let link = Link::start(server).await.unwrap();
    let client = client(&[("CONSUL_HTTP_ADDR", link.address())]);
    let callers = (0..64).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                client.get(&format!("k/{number}")).await.unwrap();
            }
        })
    });
    try_join_all(callers).await.unwrap();
    let made = link.made();
    assert!(made <= 15, "{made} connections");
}

/// The variables of a client that is accepted.
fn with_tls<'a>(address: &'a str, files: &'a [String; 3]) -> Vec<(&'static str, &'a str)> {
    vec![
        ("CONSUL_HTTP_ADDR", address),
        ("CONSUL_CACERT", &files[0]),
        ("CONSUL_CLIENT_CERT", &files[1]),
        ("CONSUL_CLIENT_KEY", &files[2]),
    ]
}

#[tokio::test]
async fn over_tls_with_certificates_on_both_sides() {
    let folder = Folder::new().unwrap();
    let made = Certificates::make(folder.path()).await.unwrap();
    let [certificate, key] = made.client();
    let files = [made.authority(), certificate, key].map(|file| file.display().to_string());
    let port = free_port();
    let [certificate, key] = made.server();
    let configuration = over_tls(&made.authority(), &certificate, &key, port);
    let _consul = Consul::builder().config(configuration).start().await;
    let https = format!("https://127.0.0.1:{port}");
    let bare = format!("localhost:{port}");
    let client = client(&with_tls(&https, &files));
    assert!(client.put("k", b"1", 0, PutMode::Set).await.unwrap());

    let get = async |variables: &[(&str, &str)]| {
        let client = crate::server::client(variables);
        client.get("k").await.map(|entry| entry.unwrap().value)
    };
    let all = with_tls(&https, &files);
    let but = |name: &str| {
        all.iter()
            .copied()
            .filter(|v| v.0 != name)
            .collect::<Vec<_>>()
    };

    // TLS by CONSUL_HTTP_SSL, to a name in the certificate.
    let mut by_flag = but("CONSUL_HTTP_ADDR");
    by_flag.extend([
        ("CONSUL_HTTP_ADDR", bare.as_str()),
        ("CONSUL_HTTP_SSL", "true"),
    ]);
    assert_eq!(get(&by_flag).await.unwrap(), b"1");
    // Another name than the address's, which the certificate has or lacks.
    let mut named = all.clone();
    named.push(("CONSUL_TLS_SERVER_NAME", "server.dc1.consul"));
    assert_eq!(get(&named).await.unwrap(), b"1");
    let mut misnamed = all.clone();
    misnamed.push(("CONSUL_TLS_SERVER_NAME", "server.dc2.consul"));
    let error = get(&misnamed).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    // A folder of CAs.
    let cas = Folder::new().unwrap();
    fs::copy(&files[0], cas.path().join("ca.pem")).unwrap();
    let mut by_folder = but("CONSUL_CACERT");
    by_folder.push(("CONSUL_CAPATH", cas.path().to_str().unwrap()));
    assert_eq!(get(&by_folder).await.unwrap(), b"1");

    // A server that is not trusted, unless verification is off.
    let other = folder.path().join("other");
    let other = Certificates::make(&other).await.unwrap();
    let other_ca = other.authority().display().to_string();
    let mut distrusting = but("CONSUL_CACERT");
    distrusting.push(("CONSUL_CACERT", &other_ca));
    let error = get(&distrusting).await.unwrap_err();
    assert_eq!(error.reason(), "ConsulUnreachable");
    assert!(error.to_string().contains("certificate"), "{error}");
    distrusting.push(("CONSUL_HTTP_SSL_VERIFY", "false"));
    assert_eq!(get(&distrusting).await.unwrap(), b"1");

    // An unknown client.
    let mut unknown = all.clone();
    unknown.retain(|v| !v.0.starts_with("CONSUL_CLIENT"));
    let error = get(&unknown).await.unwrap_err();
    assert_eq!(error.reason(), "ConsulUnreachable");
}
