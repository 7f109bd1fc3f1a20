//! Sends traces, which consist of spans, to an OpenTelemetry collector (OTLP over HTTP).
//!
//! A span is recorded when it is over, with times and ids that its caller chose, so this module has no tracer. It
//! uses only the library's exporter, which also reads the `OTEL_EXPORTER_OTLP_*` variables.

use std::{
    env,
    time::{Duration, SystemTime},
};

use jiff::Timestamp;
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    resource::EnvResourceDetector,
    trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{Metrics, VERSION};

const PROGRAM: &str = "consul-semaphore-operator";

/// Number of spans that may be queued; more are dropped, and counted.
const MAX_QUEUED_SPANS: usize = 2048;

/// Number of spans that are sent at once.
const BATCH: usize = 512;

/// Time for which spans are collected for one export. Other work at the same time takes precedence.
const COALESCE: Duration = Duration::from_millis(200);

/// Longest timeout of an export, whatever the environment allows, because all other exports wait for it.
const LONGEST_EXPORT: Duration = Duration::from_secs(30);

/// Reason for a dropped span: the queue was full, because the collector did not accept spans.
pub(super) const QUEUE_FULL: &str = "queue_full";

/// Reason for a dropped span: the collector refused it.
pub(super) const NOT_TAKEN: &str = "not_taken";

/// The identity of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanRef {
    /// Id of the trace.
    pub trace: u128,
    /// Id of the span in the trace.
    pub id: u64,
}

/// A stage of work that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Identity of the span.
    pub this: SpanRef,
    /// Parent span, in the same trace.
    pub parent: Option<u64>,
    /// Name of the span, a fixed word.
    pub name: &'static str,
    /// Time at which the span began.
    pub start: Timestamp,
    /// Time at which the span was over.
    pub end: Timestamp,
    /// Attributes of the span.
    pub attributes: Vec<(&'static str, String)>,
    /// Events in the span, with their times.
    pub events: Vec<(&'static str, Timestamp)>,
    /// Links to spans of other traces that this span waited for.
    pub links: Vec<SpanRef>,
    /// Error of the span.
    pub error: Option<&'static str>,
}

/// A handle that records spans; clones share one queue. The default has no queue, and drops all spans.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<(mpsc::Sender<Span>, Metrics)>);

impl Traces {
    /// Creates a queue of spans, and a task that sends them to the collector that the environment names, until every
    /// handle to the queue is dropped.
    ///
    /// # Errors
    /// Fails if the environment variables are not valid.
    pub fn otlp(
        metrics: &Metrics,
    ) -> Result<(Self, impl Future<Output = ()> + use<>), ExporterBuildError> {
        let mut exporter = SpanExporter::builder().with_http().build()?;
        exporter.set_resource(&resource());
        metrics.count_spans();
        let (queue, due) = mpsc::channel(MAX_QUEUED_SPANS);
        let sending = send(exporter, due, metrics.clone());
        Ok((Self(Some((queue, metrics.clone()))), sending))
    }

    /// Returns whether spans are sent anywhere.
    pub fn are_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records a span, and never waits. If the queue is full, the span is dropped, and counted.
    pub fn emit(&self, span: Span) {
        if let Some((queue, metrics)) = &self.0
            && queue.try_send(span).is_err()
        {
            metrics.spans_dropped(1, QUEUE_FULL);
        }
    }
}

async fn send(exporter: SpanExporter, mut due: mpsc::Receiver<Span>, metrics: Metrics) {
    let scope = InstrumentationScope::builder(PROGRAM)
        .with_version(VERSION)
        .build();
    let mut batch = Vec::new();
    let mut works = true;
    while due.recv_many(&mut batch, BATCH).await > 0 {
        if !due.is_closed() {
            sleep(COALESCE).await;
        }
        let spans: Vec<_> = batch.drain(..).map(|span| data(span, &scope)).collect();
        let count = spans.len();
        let sent = timeout(LONGEST_EXPORT, exporter.export(spans)).await;
        let problem = sent.map_or_else(|_| Some("no answer".to_owned()), problem);
        if let Some(problem) = &problem {
            metrics.spans_dropped(count, NOT_TAKEN);
            if works {
                tracing::warn!(problem, "can't send traces: spans are dropped");
            }
        } else if !works {
            tracing::info!("sending traces again");
        }
        works = problem.is_none();
    }
}

/// Returns the error as text; the library omits addresses and headers.
fn problem(sent: OTelSdkResult) -> Option<String> {
    sent.err().map(|error| error.to_string())
}

/// Returns the resource with the service name: this program, unless the environment says otherwise.
fn resource() -> Resource {
    let resource = Resource::builder_empty()
        .with_service_name(PROGRAM)
        .with_attribute(KeyValue::new("service.version", VERSION))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name),
        _ => resource,
    }
    .build()
}

fn context(SpanRef { trace, id }: SpanRef, is_remote: bool) -> SpanContext {
    let (trace, id) = (TraceId::from(trace), SpanId::from(id));
    SpanContext::new(trace, id, TraceFlags::SAMPLED, is_remote, TraceState::NONE)
}

fn data(span: Span, scope: &InstrumentationScope) -> SpanData {
    let Span {
        this,
        parent,
        name,
        start,
        end,
        attributes,
        events,
        links,
        error,
    } = span;
    let pairs = attributes.into_iter();
    let mut happened = SpanEvents::default();
    happened.events = events
        .into_iter()
        .map(|(name, time)| Event::new(name, time.into(), Vec::new(), 0))
        .collect();
    let mut linked = SpanLinks::default();
    linked.links = links
        .into_iter()
        .map(|link| Link::new(context(link, true), Vec::new(), 0))
        .collect();
    SpanData {
        span_context: context(this, false),
        parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: SystemTime::from(start),
        end_time: SystemTime::from(end),
        attributes: pairs
            .map(|(name, value)| KeyValue::new(name, value))
            .collect(),
        dropped_attributes_count: 0,
        events: happened,
        links: linked,
        status: error.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope.clone(),
    }
}
