//! The lives of Jobs as traces, as a collector receives them.

use std::{collections::BTreeSet, sync::Arc};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use jiff::Timestamp;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, status::StatusCode},
};
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::json;
use testbed::{
    Bed, BedBuilder, Job, Semaphore, eventually,
    helpers::metric,
    proof::{End, is_given_back, nothing_is_left, pods_end, runs_in_a_slot, uid_of},
};
use tokio::net::TcpListener;

/// The header that the collector accepts.
const SECRET: &str = "a-secret-of-the-collector";

/// A collector that remembers what it received. Clones share it.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collector {
    /// Starts to listen; the address is what users set as the endpoint.
    async fn start() -> (Self, String) {
        let (listener, endpoint) = listen().await;
        let collector = Self::default();
        let traces = Router::new()
            .route("/v1/traces", post(receive))
            .with_state(collector.clone());
        tokio::spawn(async { axum::serve(listener, traces).await });
        (collector, endpoint)
    }

    /// The span with this name of a grant, once it has arrived.
    async fn span(&self, name: &str, job: &Job, session: &str) -> Span {
        let trace = id(&uid_of(job).await);
        let what = format!("a span {name} of {} has come", job.name());
        eventually(&what, || async {
            let mut spans = self.spans();
            spans.retain(|span| span.trace_id == trace);
            let found = spans.iter().position(|span| {
                let of = attribute(&span.attributes, "consul_semaphore.session");
                span.name == name && of.as_deref() == Some(session)
            });
            found
                .map(|at| spans.swap_remove(at))
                .ok_or(format!("{spans:?}"))
        })
        .await
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// The senders in everything that was received.
    fn senders(&self, name: &str) -> BTreeSet<Option<String>> {
        let requests = self.0.lock();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let said = resources.map(|spans| attribute(&spans.resource.as_ref()?.attributes, name));
        said.collect()
    }
}

async fn receive(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) {
    assert_eq!(headers["x-secret"], SECRET);
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
    collector.0.lock().push(request);
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    (listener, endpoint)
}

fn tracing_to(endpoint: &str) -> BedBuilder {
    Bed::builder()
        .operator_args(["--traces-exporter", "otlp"])
        .operator_env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .operator_env("OTEL_EXPORTER_OTLP_HEADERS", &format!("x-secret={SECRET}"))
}

fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let pair = attributes.iter().find(|pair| pair.key == name)?;
    match pair.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        _ => None,
    }
}

/// The bytes of a uid.
fn id(uid: &str) -> [u8; 16] {
    let number = u128::from_str_radix(&uid.replace('-', ""), 16);
    number.expect("a UUID").to_be_bytes()
}

fn time(nanos: u64) -> Timestamp {
    Timestamp::from_nanosecond(nanos.into()).unwrap()
}

/// When the slot of a Job was granted, according to its contender.
async fn granted_at(bed: &Bed, db: &Semaphore, session: &str) -> Timestamp {
    let key = format!("{}/{session}", db.lock_prefix());
    let body = bed.consul().kv(&key).await.expect("its contender").json();
    body["time"].as_str().unwrap().parse().unwrap()
}

async fn made_at(job: &Job) -> Timestamp {
    let metadata = job.get().await.expect("the Job").metadata;
    metadata.creation_timestamp.expect("a time").0
}

#[tokio::test]
async fn the_stages_of_a_job_are_one_trace_whichever_replica_emits_it() {
    let (collector, endpoint) = Collector::start().await;
    let bed = tracing_to(&endpoint)
        .operator_env("OTEL_SERVICE_NAME", "semaphores")
        .operator_env(
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test",
        )
        .start()
        .await;
    let team = bed.namespace("traces").await;
    let db = team.semaphore("db").limit(1).create().await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let first = runs_in_a_slot(&bed, &db, &a).await;
    let b = team.job("b").semaphore("db").runs("1h").create().await;
    b.has_event("SlotWaiting").await;
    let granted = granted_at(&bed, &db, &first.session).await;

    // A span is sent as soon as it is over.
    let waiting = collector.span("waiting", &a, &first.session).await;
    assert_eq!(time(waiting.start_time_unix_nano), made_at(&a).await);
    assert_eq!(time(waiting.end_time_unix_nano), granted);
    assert_eq!(waiting.parent_span_id, [0; 0]);
    let says = |name| attribute(&waiting.attributes, name);
    assert_eq!(says("k8s.job.name").as_deref(), Some("a"));
    assert_eq!(says("k8s.namespace.name").as_deref(), Some(team.name()));
    assert_eq!(says("consul_semaphore.name").as_deref(), Some("db"));
    assert_eq!(
        says("consul_semaphore.lock_key"),
        Some(format!("{}/.lock", db.lock_prefix()))
    );

    // A different operator process than the one that granted the slot sees it given back.
    bed.operator().kill().await;
    let before = bed.consul().sessions().await;
    bed.operator().start().await;
    eventually("it has a session for the next one", || async {
        let now = bed.consul().sessions().await;
        let mut ids = now.iter().map(|session| &session["ID"]);
        let is_new = ids.any(|id| before.iter().all(|known| known["ID"] != *id));
        is_new.then_some(())
    })
    .await;
    pods_end(&team, &a, End::Succeeded).await;
    is_given_back(&bed, &db, &first).await;
    let holding = collector.span("holding", &a, &first.session).await;
    assert_eq!(holding.parent_span_id, waiting.span_id);
    assert_eq!(holding.trace_id, waiting.trace_id);
    assert_eq!(time(holding.start_time_unix_nano), granted);
    assert!(holding.end_time_unix_nano > holding.start_time_unix_nano);
    assert_eq!(holding.status.unwrap_or_default().code(), StatusCode::Unset);

    // The next one waited for it, and was granted in the same transaction.
    let second = runs_in_a_slot(&bed, &db, &b).await;
    let waiting = collector.span("waiting", &b, &second.session).await;
    assert_eq!(time(waiting.start_time_unix_nano), made_at(&b).await);
    let links = waiting.links.iter();
    let links: Vec<_> = links.map(|link| (&link.trace_id, &link.span_id)).collect();
    assert_eq!(links, [(&holding.trace_id, &holding.span_id)]);

    let name = collector.senders("service.name");
    assert_eq!(name, [Some("semaphores".to_owned())].into());
    let environment = collector.senders("deployment.environment.name");
    assert_eq!(environment, [Some("test".to_owned())].into());
    assert!(!bed.operator().logs().contains(SECRET));
    b.finish().await;
    let holding = collector.span("holding", &b, &second.session).await;
    assert_eq!(holding.parent_span_id, waiting.span_id);
}

#[tokio::test]
async fn a_trace_says_why_a_slot_was_lost() {
    let (collector, endpoint) = Collector::start().await;
    let bed = tracing_to(&endpoint).start().await;
    let team = bed.namespace("traces-lost").await;
    let db = team.semaphore("db").limit(1);
    let db = db.spec(json!({ "onSlotLost": "Suspend" })).create().await;
    let a = team.job("a").semaphore("db").runs("1h").create().await;
    let lost = runs_in_a_slot(&bed, &db, &a).await;
    let since = granted_at(&bed, &db, &lost.session).await;
    bed.consul().destroy_session(&lost.session).await;
    let holding = collector.span("holding", &a, &lost.session).await;
    let status = holding.status.unwrap_or_default();
    assert_eq!(status.code(), StatusCode::Error);
    assert_eq!(status.message, "the slot was lost; the Job is suspended");
    // The start in the Job's status has whole seconds.
    assert!(time(holding.start_time_unix_nano).as_second() >= since.as_second());

    // It has a slot again, and has waited since it was suspended.
    let again = eventually("it has another slot", || async {
        let session = a.session().await;
        session.filter(|session| *session != lost.session)
    })
    .await;
    let waiting = collector.span("waiting", &a, &again).await;
    assert_eq!(waiting.trace_id, holding.trace_id);
    assert!(waiting.start_time_unix_nano <= waiting.end_time_unix_nano);
}

#[tokio::test]
async fn a_collector_that_never_answers_changes_nothing() {
    // The kernel accepts connections, and nobody reads them.
    let (_deaf, endpoint) = listen().await;
    let bed = tracing_to(&endpoint)
        .operator_env("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")
        .start()
        .await;
    let team = bed.namespace("traces-unheard").await;
    let db = team.semaphore("db").limit(1).create().await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        jobs.push(team.job(name).semaphore("db").create().await);
    }
    for job in &jobs {
        job.is_complete().await;
        job.has_event("SlotReleased").await;
    }
    nothing_is_left(&bed, &team, &db).await;
    // Three spans of waiting and three of holding, and none was received.
    eventually("all spans are dropped", || async {
        let page = bed.operator().get("/metrics").await;
        let dropped = |reason| {
            metric(
                &page,
                &format!("spans_dropped_total{{reason=\"{reason}\"}}"),
            )
        };
        let dropped = (dropped("not_taken"), dropped("queue_full"));
        testbed::same(dropped, (Some(6.0), Some(0.0)))
    })
    .await;
    let warned = bed.operator().logs().matches("can't send traces").count();
    assert_eq!(warned, 1, "it is said once");
}
