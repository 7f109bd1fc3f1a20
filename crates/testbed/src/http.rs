//! The HTTP client of the bed and of all tests.
use std::time::Duration;

use reqwest::{ClientBuilder, Method, retry};

use crate::tls;

/// How often a request is sent again whose connection was closed without an answer.
const AGAIN: u32 = 5;

/// How long an answer may take, unless the client or the request says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names of this machine in URLs.
struct Loopback;

impl PartialEq<&str> for Loopback {
    fn eq(&self, host: &&str) -> bool {
        ["127.0.0.1", "localhost"].contains(host)
    }
}

/// A client of servers on this machine, which a test completes with what it is about, such as an authority.
///
/// - It takes no proxy from a developer's environment.
/// - Each request has a connection of its own: a server can close one that is kept just when it is used again.
/// - A `GET` whose connection is closed without an answer is sent again: the operator's endpoints close a connection
///   whose request has not arrived within two seconds, and a busy machine can delay a client for longer. Nothing is
///   sent again that changes something, that nobody listens to, or that has taken too long.
pub fn http_client() -> ClientBuilder {
    tls::init();
    let again = retry::for_host(Loopback)
        .no_budget()
        .max_retries_per_request(AGAIN)
        .classify_fn(|attempt| {
            let failed = attempt.error();
            let failed = failed.and_then(|error| error.downcast_ref::<reqwest::Error>());
            match failed {
                Some(error)
                    if attempt.method() == Method::GET
                        && !error.is_connect()
                        && !error.is_timeout() =>
                {
                    attempt.retryable()
                }
                _ => attempt.success(),
            }
        });
    ClientBuilder::new()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .timeout(PATIENCE)
        .retry(again)
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// A server that closes its first connections when it has read a request, and answers one request on each of the
    /// others, which it keeps open. Also the number of its connections so far.
    async fn server(silent: usize) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let count = Arc::<AtomicUsize>::default();
        let counted = count.clone();
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let number = counted.fetch_add(1, Ordering::Relaxed);
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                if number >= silent {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    stream.write_all(answer).await.unwrap();
                    open.push(stream);
                }
            }
        });
        (address, count)
    }

    #[tokio::test]
    async fn a_get_is_sent_again_when_its_connection_is_closed_without_an_answer() {
        let (address, count) = server(3).await;
        let http = http_client().build().unwrap();
        let answer = http.get(format!("http://{address}/")).send().await;
        assert_eq!(answer.unwrap().text().await.unwrap(), "ok");
        assert_eq!(count.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn what_changes_something_is_sent_once() {
        let (address, count) = server(1).await;
        let http = http_client().build().unwrap();
        let answer = http.put(format!("http://{address}/")).send().await;
        assert!(answer.is_err());
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn no_connection_is_used_twice() {
        let (address, count) = server(0).await;
        let http = http_client().build().unwrap();
        for _ in 0..3 {
            let answer = http.put(format!("http://{address}/")).send().await;
            assert_eq!(answer.unwrap().text().await.unwrap(), "ok");
        }
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
