//! Defines the paths of the page, and the headers of its answers. There is only GET.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::get,
};

use super::{AppState, guard::PageRefusal, stream};
use crate::connections::Connection;

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Headers that restrict what a browser may do with an answer. The page consists of its three files only, and text
/// can't become markup.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    // Proxies must not buffer the events.
    (HeaderName::from_static("x-accel-buffering"), "no"),
];

pub(super) fn routes(app: Arc<AppState>) -> Router {
    let file = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    // The page uses relative paths, so a proxy can serve it below another path.
    Router::new()
        .route("/", file("text/html; charset=utf-8", HTML))
        .route("/style.css", file("text/css; charset=utf-8", STYLE))
        .route("/page.js", file("text/javascript; charset=utf-8", SCRIPT))
        .route("/events", get(events))
        .with_state(app)
        .layer(map_response(secure))
}

async fn events(
    State(app): State<Arc<AppState>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, PageRefusal> {
    let pass = app.guard.admit(&headers, connection.address()).await?;
    let events = stream::open(app, pass).await?;
    // There are fewer places than connections.
    connection.keep();
    Ok(events)
}

async fn secure(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks for what the policy would refuse, so that it is noticed here and not in a browser.
    #[test]
    fn the_page_is_made_of_its_three_files_alone() {
        for inline in [
            "<style",
            " style=",
            " onclick",
            " onload",
            "javascript:",
            "http:",
            "https:",
            "//",
        ] {
            assert!(!HTML.contains(inline), "{inline}");
        }
        assert_eq!(HTML.matches("<script").count(), 1);
        assert!(HTML.contains(r#"<script src="page.js" defer></script>"#));
        assert!(HTML.contains(r#"<link rel="stylesheet" href="style.css">"#));
        for outside in ["@import", "url(", "http:", "https:"] {
            assert!(!STYLE.contains(outside), "{outside}");
        }
    }

    /// Foreign text is written as text.
    #[test]
    fn the_script_makes_no_html_of_text() {
        for sink in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "setAttribute(\"style\"",
            "localStorage",
            "document.cookie",
        ] {
            assert!(!SCRIPT.contains(sink), "{sink}");
        }
    }
}
