//! The page without an operator: its own files, and events that a test writes (`stage.js`).

use std::{fs, path::Path};

use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

use crate::chromium::{Chromium, Page};

/// The files of the page, and their types.
const FILES: [(&str, &str); 3] = [
    ("index.html", "text/html"),
    ("style.css", "text/css"),
    ("page.js", "text/javascript"),
];

/// Serves the page.
pub(crate) struct Stage {
    browser: Chromium,
    server: MockServer,
}

impl Stage {
    pub(crate) async fn set() -> Self {
        let server = MockServer::start().await;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/web/page");
        for (name, kind) in FILES {
            let text = fs::read_to_string(folder.join(name)).expect("a file of the page");
            let file = ResponseTemplate::new(200).set_body_raw(text, kind);
            let path = if name == "index.html" { "" } else { name };
            let asked = Mock::given(matchers::path(format!("/{path}")));
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
