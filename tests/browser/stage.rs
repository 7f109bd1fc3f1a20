//! The page without an operator: its own files, and events that a test writes (`stage.js`).

use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

use crate::chromium::{Chromium, Page};

const FILES: [(&str, &str, &str); 3] = [
    (
        "/",
        "text/html",
        include_str!("../../src/web/page/index.html"),
    ),
    (
        "/style.css",
        "text/css",
        include_str!("../../src/web/page/style.css"),
    ),
    (
        "/page.js",
        "text/javascript",
        include_str!("../../src/web/page/page.js"),
    ),
];

/// Serves the page.
pub(crate) struct Stage {
    browser: Chromium,
    server: MockServer,
}

impl Stage {
    pub(crate) async fn set() -> Self {
        let server = MockServer::start().await;
        for (path, kind, text) in FILES {
            let file = ResponseTemplate::new(200).set_body_raw(text, kind);
            let asked = Mock::given(matchers::path(path));
            asked.respond_with(file).mount(&server).await;
        }
        Self {
            browser: Chromium::start(),
            server,
        }
    }

    /// The page, once it has asked for its first events.
    pub(crate) async fn open(&self) -> Page<'_> {
        let url = self.server.uri();
        let page = self.browser.open_with(&url, include_str!("stage.js")).await;
        page.window(1200, 1000).await;
        page.until("it asks for events", "streams.size === 1").await;
        page
    }
}

/// Opens the page with one semaphore of each kind.
pub(crate) async fn tell_all(page: &Page<'_>) {
    page.run("tellAll(everything())").await;
    page.until("all is there", "document.body.dataset.complete === 'true'")
        .await;
}

/// Has the page ask for a token.
pub(crate) async fn refuse(page: &Page<'_>) {
    page.run("refusal = 'the API server does not know this token'; end()")
        .await;
    page.until("it asks", "!document.getElementById('login').hidden")
        .await;
}
