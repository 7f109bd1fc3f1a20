//! The doors: proxies that record each write with its answer. All traffic of the operator to Consul and to the API
//! server passes through one, and so do the writes of all other programs to Consul.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::{
    body::{Body, Bytes, to_bytes},
    response::Response,
};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use testbed::{Call, Next, Proxy, ProxyBuilder};
use tokio::time::timeout;

use crate::{
    consul_record::LockBook,
    facts::Answer,
    record::{What, Writer},
    timeline::Timeline,
    versions::Versions,
};

/// The longest answer to a write, in bytes.
const LONGEST: usize = 16 << 20;

/// How long a server may take for a write.
const WRITE: Duration = Duration::from_mins(2);

/// A door to Consul for one kind of writer. The book records the result for each `.lock`.
pub(crate) fn to_consul(
    servers: &[String],
    writer: Writer,
    timeline: &Timeline,
    book: &LockBook,
) -> ProxyBuilder {
    let (timeline, book) = (timeline.clone(), book.clone());
    Proxy::before(servers).carried_by(move |call, next| {
        let (timeline, book) = (timeline.clone(), book.clone());
        async move {
            if !call.writes() {
                return next.send(call).await;
            }
            let note = Note::begin(writer, &call, &next);
            let sent = write(call.clone(), next);
            let answer = book.write(writer, &timeline, &call, sent).await;
            note.end(&timeline, &answer);
            answer.map(Answer::into_response)
        }
    })
}

/// An operator's door to the API server. It shows resource versions other than the real ones.
pub(crate) fn to_kubernetes(
    url: &str,
    writer: Writer,
    timeline: &Timeline,
    versions: &Versions,
) -> ProxyBuilder {
    let (timeline, versions) = (timeline.clone(), versions.clone());
    Proxy::before([url]).carried_by(move |call, next| {
        let (timeline, added) = (timeline.clone(), versions.now());
        async move {
            let Some(call) = added.subtract_offset(call) else {
                return Ok(expired());
            };
            if call.writes() {
                let note = Note::begin(writer, &call, &next);
                let answer = write(call, next).await;
                note.end(&timeline, &answer);
                let mut answer = answer?;
                answer.body = added.add_offset(&answer.body);
                return Ok(answer.into_response());
            }
            let (head, body) = next.send(call).await?.into_parts();
            let lines = lines(body.into_data_stream());
            let lines = lines.map_ok(move |line| added.add_offset(&line));
            Ok(Response::from_parts(head, Body::from_stream(lines)))
        }
    })
}

async fn write(call: Call, next: Next) -> Result<Answer> {
    let answered = async {
        let (head, body) = next.send(call).await?.into_parts();
        let body = to_bytes(body, LONGEST).await?;
        Ok(Answer { head, body })
    };
    timeout(WRITE, answered)
        .await
        .context("a server's answer")?
}

/// A write to be recorded.
struct Note {
    start: Instant,
    renews: bool,
    writer: Writer,
    method: String,
    path: String,
    lost: bool,
}

impl Note {
    fn begin(writer: Writer, call: &Call, next: &Next) -> Self {
        Self {
            start: Instant::now(),
            renews: call.is_renewal(),
            writer,
            method: call.method.to_string(),
            path: call.target(),
            lost: next.loses_the_answer(),
        }
    }

    fn end(self, timeline: &Timeline, answer: &Result<Answer>) {
        // Renewals are most of the writes, and they change no keys. The operator of a copy must not send them either.
        let is_allowed = self.writer != Writer::Copy;
        if self.renews && is_allowed && !self.lost && answer.is_ok() {
            return;
        }
        let took = self.start.elapsed().as_millis();
        timeline.push(What::Write {
            writer: self.writer,
            method: self.method,
            path: self.path,
            status: answer.as_ref().ok().map(Answer::status),
            lost: self.lost,
            ms: took.try_into().unwrap_or(u64::MAX),
        });
    }
}

/// Re-chunks the bytes so that each chunk ends at a line end.
fn lines(
    chunks: impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
    // After a last line without an end it is polled again.
    let begun = (Box::pin(chunks.fuse()), Vec::new());
    stream::try_unfold(begun, |(mut chunks, mut begun)| async move {
        while let Some(chunk) = chunks.try_next().await? {
            begun.extend_from_slice(&chunk);
            if let Some(end) = begun.iter().rposition(|byte| *byte == b'\n') {
                let rest = begun.split_off(end + 1);
                return Ok(Some((begun.into(), (chunks, rest))));
            }
        }
        let rest = std::mem::take(&mut begun);
        Ok((!rest.is_empty()).then(|| (rest.into(), (chunks, begun))))
    })
}

/// The API server's answer to a watch from a version that is too old.
fn expired() -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    });
    let event = serde_json::json!({ "type": "ERROR", "object": status });
    Response::new(Body::from(format!("{event}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_line_needs_no_end() {
        let chunks = stream::unfold(vec!["b\nc", "a"], async |mut left| {
            let chunk = left.pop()?;
            Some((Ok(Bytes::from(chunk)), left))
        });
        let lines: Vec<Bytes> = lines(chunks).try_collect().await.unwrap();
        assert_eq!(lines, ["ab\n", "c"]);
    }
}
