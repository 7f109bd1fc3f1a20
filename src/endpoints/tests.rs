use std::{future::pending, net::IpAddr, sync::atomic::Ordering};

use http::Request;
use serde_json::{Value, json};
use testbed::{eventually, same};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::method};

use super::{
    metrics_page::tests::{LENGTH, counted},
    *,
};
use crate::auth::reviews_by;

/// How long what has to happen may take.
const DEADLINE: Duration = Duration::from_mins(2);

/// An API server that knows two tokens; the user of one may read the metrics.
async fn api_server() -> MockServer {
    let server = MockServer::start().await;
    let review = |request: &wiremock::Request| {
        let spec = &request.body_json::<Value>().unwrap()["spec"];
        let status = match spec["token"].as_str() {
            Some(token) => json!({
                "authenticated": token != "wrong",
                "audiences": spec["audiences"],
                "user": { "username": token },
            }),
            None => json!({
                "allowed": spec["user"] == "scraper"
                    && spec["nonResourceAttributes"] == json!({ "path": "/metrics", "verb": "get" }),
            }),
        };
        ResponseTemplate::new(201).set_body_json(json!({ "status": status }))
    };
    let reviews = Mock::given(method("POST")).respond_with(review);
    reviews.mount(&server).await;
    server
}

fn scrapers(uri: &str) -> Scrapers {
    Scrapers::asking(reviews_by(uri))
}

async fn admits(scrapers: &Scrapers, authorization: Option<&str>) -> Result<(), Refusal> {
    let mut request = Request::get(METRICS);
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request.body(()).unwrap();
    scrapers.admit(request.headers(), &"127.0.0.1".into()).await
}

#[tokio::test]
async fn only_those_who_may_get_the_metrics_are_let_in() {
    let server = api_server().await;
    let scrapers = scrapers(&server.uri());
    admits(&scrapers, Some("Bearer scraper")).await.unwrap();
    for (authorization, status) in [
        (None, 401),
        (Some("Basic c2NyYXBlcg=="), 401),
        (Some("Bearer wrong"), 401),
        (Some("Bearer viewer"), 403),
    ] {
        let refusal = admits(&scrapers, authorization).await.unwrap_err();
        let response = refusal.into_response();
        assert_eq!(response.status(), status, "{authorization:?}");
        let challenge = response.headers().get(header::WWW_AUTHENTICATE);
        assert_eq!(challenge.is_some(), status == 401);
    }
    let refusal = admits(&scrapers, Some("Bearer viewer")).await.unwrap_err();
    let words = refusal.to_string();
    assert!(words.starts_with("viewer may not get /metrics"), "{words}");
}

#[tokio::test]
async fn without_an_answer_of_the_api_server_nobody_is_let_in() {
    let scrapers = scrapers("http://127.0.0.1:1");
    let refusal = admits(&scrapers, Some("Bearer secret")).await.unwrap_err();
    let words = refusal.to_string();
    assert!(
        words.contains("did not say whether you may see this"),
        "{words}"
    );
    assert!(!words.contains("secret"), "{words}");
    assert!(scrapers.problem.lock().is_some());
    assert_eq!(refusal.into_response().status(), 503);
}

/// The client is told that there was no answer before its connection is closed.
#[tokio::test]
async fn a_silent_api_server_is_waited_for_for_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scrapers = scrapers(&format!("http://{}", listener.local_addr().unwrap()));
    let refusal = admits(&scrapers, Some("Bearer secret")).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Unable(_)), "{refusal}");
    assert!(BOUNDS.head * 2 + METRICS_REVIEW_TIMEOUT < BOUNDS.lasts);
}

/// Serves this page at a free port.
async fn serve(page: MetricsPage, scrapers: Option<Scrapers>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routes = routes(App {
        health: Health::default(),
        page: Arc::new(page),
        scrapers: scrapers.map(Arc::new),
    });
    // No answer is cut off while a busy machine is slow.
    let bounds = Bounds {
        head: DEADLINE,
        lasts: DEADLINE,
        ..BOUNDS
    };
    tokio::spawn(connections::serve(
        listener,
        None,
        routes,
        bounds,
        pending(),
    ));
    address
}

/// Asks for the metrics from this address of this machine.
async fn scrape(from: &str, server: SocketAddr, token: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from: IpAddr = from.parse().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let request =
        format!("GET {METRICS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Reviews of wrong tokens take for ever here, and there are more of these than turns.
#[tokio::test]
async fn a_flood_of_wrong_tokens_keeps_no_scraper_elsewhere_from_its_answer() {
    let api_server = api_server().await;
    let never = ResponseTemplate::new(201).set_delay(Duration::from_hours(1));
    let wrong = Mock::given(wiremock::matchers::body_string_contains("wrong")).respond_with(never);
    wrong.with_priority(1).mount(&api_server).await;
    let page = MetricsPage::new(|| "figures".to_owned());
    let server = serve(page, Some(scrapers(&api_server.uri()))).await;
    let mut flood = Vec::new();
    for number in 0..24 {
        flood.push(scrape("127.0.0.2", server, &format!("wrong-{number}")).await);
    }
    eventually("the API server is asked about the flood", async || {
        let asked = api_server.received_requests().await.unwrap().len();
        same(asked >= 4, true)
    })
    .await;
    let answer = answer(scrape("127.0.0.1", server, "scraper").await).await;
    assert!(answer.ends_with("\r\n\r\nfigures"), "{answer}");
}

/// Readers that have begun to read the page, and read no more of it.
async fn slow_readers(server: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut readers = Vec::new();
    for _ in 0..count {
        let mut reader = scrape("127.0.0.1", server, "any").await;
        timeout(DEADLINE, reader.read_u8()).await.unwrap().unwrap();
        readers.push(reader);
    }
    readers
}

#[tokio::test]
async fn slow_readers_share_one_page() {
    let (page, count) = counted(DEADLINE);
    let server = serve(page, None).await;
    let readers = slow_readers(server, BOUNDS.most / 2).await;
    assert_eq!(count.load(Ordering::Relaxed), 1);
    for reader in readers {
        let answer = answer(reader).await;
        let (_head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(text.len(), LENGTH);
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn slow_readers_of_old_pages_keep_few_of_them() {
    let (page, count) = counted(Duration::ZERO);
    let server = serve(page, None).await;
    let readers = slow_readers(server, BOUNDS.most / 2).await;
    let kept = count.load(Ordering::Relaxed);
    assert!(kept < 4, "{kept} pages are in memory");
    drop(readers);
    let another = async {
        while count.load(Ordering::Relaxed) == kept {
            drop(slow_readers(server, 1).await);
        }
    };
    timeout(DEADLINE, another).await.expect("a fresh page");
}
