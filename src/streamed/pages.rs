//! Reads lists in pages whose size in bytes is bounded. Other people's objects may have up to 1.5 MiB each, or a few
//! hundred bytes.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::{Client, client::Body};
use tower::{BoxError, service_fn};

/// Largest number of objects in a page.
pub(super) const MAX_OBJECTS_PER_PAGE: u32 = 500;

/// Largest number of bytes in a page with more than one object. The text of a page is in memory together with the
/// objects that are read from it.
const MAX_BYTES_PER_PAGE: usize = 8 * 1024 * 1024;

/// Returns this client, with pages of lists that have at most [`MAX_BYTES_PER_PAGE`]. A page that would have more is
/// dropped while it arrives, and is asked for again with half as many objects.
pub(super) fn bounded(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let limit = Arc::new(AtomicU32::new(MAX_OBJECTS_PER_PAGE));
    let service = service_fn(move |request: Request<Body>| {
        let (client, limit) = (client.clone(), limit.clone());
        async move {
            if has_limit(request.uri()) {
                list(&client, &limit, request).await
            } else {
                client.send(request).await.map_err(BoxError::from)
            }
        }
    });
    Client::new(service, namespace)
}

/// Reads one page. `limit` is the number of its objects. The function lowers the limit if they do not fit, and raises
/// it again if far more would fit.
async fn list(
    client: &Client,
    limit: &AtomicU32,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let (head, _no_body) = request.into_parts();
    loop {
        let count = limit.load(Ordering::Relaxed);
        let mut request = Request::new(Body::empty());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = with_limit(&head.uri, count)?;
        request.headers_mut().clone_from(&head.headers);
        let (head, body) = client.send(request).await?.into_parts();
        // One object has a bound of its own.
        let bound = if count == 1 {
            usize::MAX
        } else {
            MAX_BYTES_PER_PAGE
        };
        match Limited::new(body, bound).collect().await {
            Ok(body) => {
                let body = body.to_bytes();
                if body.len() <= MAX_BYTES_PER_PAGE / 4 {
                    limit.store((count * 2).min(MAX_OBJECTS_PER_PAGE), Ordering::Relaxed);
                }
                return Ok(Response::from_parts(head, Body::from(body)));
            }
            Err(error) if error.is::<LengthLimitError>() => {
                limit.store((count / 2).max(1), Ordering::Relaxed);
            }
            Err(error) => return Err(error),
        }
    }
}

fn has_limit(uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.any(|parameter| parameter.starts_with("limit="))
}

/// Returns this address of a list with another limit.
fn with_limit(uri: &Uri, limit: u32) -> Result<Uri, http::uri::InvalidUri> {
    let parameters = uri.query().unwrap_or_default().split('&');
    let others = parameters.filter(|parameter| !parameter.starts_with("limit="));
    let mut query: Vec<&str> = others.filter(|parameter| !parameter.is_empty()).collect();
    let limit = format!("limit={limit}");
    query.push(&limit);
    let query = query.join("&");
    let path = uri.path();
    match (uri.scheme(), uri.authority()) {
        (Some(scheme), Some(authority)) => format!("{scheme}://{authority}{path}?{query}").parse(),
        _ => format!("{path}?{query}").parse(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::StreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Config,
        runtime::watcher::{self, Event},
    };
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use wiremock::{Mock, MockServer, ResponseTemplate, matchers::any};

    use super::*;
    use crate::streamed;

    /// Returns the limits of the lists that a watch asks for from an API server that can't stream them, and the
    /// number of objects that it receives. The server has this many objects, of this size.
    async fn watched(count: usize, size: usize) -> (Vec<usize>, usize) {
        let asked: Arc<Mutex<Vec<usize>>> = Arc::default();
        let limits = asked.clone();
        let answer = move |request: &wiremock::Request| {
            let query: BTreeMap<_, _> = request.url.query_pairs().collect();
            let Some(limit) = query.get("limit") else {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
                    "reason": "Invalid", "message": "sendInitialEvents is forbidden for watch",
                });
                return ResponseTemplate::new(422).set_body_json(status);
            };
            let limit: usize = limit.parse().unwrap();
            limits.lock().push(limit);
            let from: usize = query
                .get("continue")
                .map_or(0, |from| from.parse().unwrap());
            let to = count.min(from + limit);
            let text = "x".repeat(size);
            let items = (from..to).map(|number| {
                let name = format!("a-{number}");
                json!({ "metadata": { "name": name, "namespace": "a" }, "data": { "x": text } })
            });
            let mut metadata = json!({ "resourceVersion": "1" });
            if to < count {
                metadata["continue"] = to.to_string().into();
            }
            let list = json!({
                "kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata,
                "items": items.collect::<Vec<Value>>(),
            });
            ResponseTemplate::new(200).set_body_json(list)
        };
        let server = MockServer::start().await;
        Mock::given(any()).respond_with(answer).mount(&server).await;
        let config = Config::new(server.uri().parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let config = watcher::Config::default();
        let mut events = std::pin::pin!(streamed::watch(&client, Api::<ConfigMap>::all, config));
        let mut received = 0;
        while let Some(event) = events.next().await {
            match event.unwrap() {
                Event::InitApply(_) => received += 1,
                Event::InitDone => break,
                _ => {}
            }
        }
        let asked = asked.lock().clone();
        (asked, received)
    }

    #[tokio::test]
    async fn small_objects_come_in_large_pages() {
        assert_eq!(watched(1200, 100).await, (vec![500, 500, 500], 1200));
    }

    /// A page of 500 such objects would have more than 15 MiB.
    #[tokio::test]
    async fn large_objects_come_in_pages_that_fit() {
        let (asked, received) = watched(600, 32 * 1024).await;
        assert_eq!((asked, received), (vec![500, 250, 250, 250], 600));
    }

    /// Two such objects do not fit into a page.
    #[tokio::test]
    async fn an_object_that_fits_in_no_page_comes_alone() {
        let (asked, received) = watched(2, 6 * 1024 * 1024).await;
        assert_eq!(asked, [500, 250, 125, 62, 31, 15, 7, 3, 1, 1]);
        assert_eq!(received, 2);
    }

    #[test]
    fn only_the_limit_is_changed() {
        let of = |uri: &str| with_limit(&uri.parse().unwrap(), 7).unwrap().to_string();
        assert_eq!(of("/a?limit=500&continue=x%3D"), "/a?continue=x%3D&limit=7");
        assert_eq!(of("https://a:6443/b?limit=500"), "https://a:6443/b?limit=7");
    }
}
