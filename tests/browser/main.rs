//! The web page in a real browser, headless Chromium: what a user sees.
//!
//! It is not part of `make test`, because it needs a Chromium: `make web-test` runs it. With `UPDATE_PICTURES=1` it
//! updates the screenshots in `docs/`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

mod access;
mod chromium;
mod day;
mod scene;
mod stage;

use std::{fs, path::Path};

use crate::{
    chromium::{Chromium, Page},
    scene::Scene,
};

/// A login, a hand-over, a restart of the operator: seen on one page that is never reloaded.
#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "a story, of one page that is loaded once"
)]
async fn a_person_sees_what_happens() {
    let scene = Scene::set().await;
    let browser = Chromium::start();
    let page = browser.open(&format!("http://{}/", scene.address)).await;

    page.until(
        "it asks for a token",
        "!document.getElementById('login').hidden",
    )
    .await;
    page.run("window.loadedOnce = true").await;
    log_in(&page, "nobody's").await;
    page.until(
        "a wrong token is refused",
        "document.getElementById('refusal').textContent.includes('does not know this token')",
    )
    .await;
    log_in(&page, &scene.token).await;
    page.until("it is connected", "document.body.dataset.state === 'live'")
        .await;
    page.until("all is there", "document.body.dataset.complete === 'true'")
        .await;
    page.until(
        "what is wrong comes first",
        "text(document.querySelector('article')).startsWith('team-a/migrationsProblem: LimitConflict')",
    )
    .await;
    page.until(
        "a card shows who holds and who waits, in tables",
        &card("db-migrations", "migrate-1", "holder"),
    )
    .await;
    for (job, list) in [
        ("migrate-2", "holder"),
        ("migrate-3", "waiter"),
        ("migrate-4", "waiter"),
    ] {
        page.until(job, &card("db-migrations", job, list)).await;
    }
    page.until(
        "the reason",
        "text(card('db-migrations')).includes('2 of 2 slots are held')",
    )
    .await;
    page.until(
        "another program's name is text",
        "text(card('licence-server')).includes('<img src=x onerror=alert(1)>')",
    )
    .await;
    page.until(
        "what is wrong is said",
        "text(card('nightly-reports')).includes('Paused') && text(card('nightly-reports')).includes('spec.paused is true')",
    )
    .await;
    page.until(
        "of which time the picture is",
        "text(card('db-migrations').querySelector('figcaption')).startsWith('Slots held in the last ')",
    )
    .await;
    page.until(
        "a picture of the use",
        "card('db-migrations').querySelectorAll('svg.trend path').length === 3",
    )
    .await;
    pictures(&page).await;

    scene.first.finish().await;
    page.until(
        "the next one holds",
        &card("db-migrations", "migrate-3", "holder"),
    )
    .await;
    page.until(
        "the one that is done does not",
        "!text(card('db-migrations')).includes('migrate-1')",
    )
    .await;

    assert!(scene.bed.operator().stop().await.success());
    page.until(
        "it says that it is not connected",
        "document.getElementById('state').textContent.startsWith('not connected since')",
    )
    .await;
    assert_eq!(
        page.run(&card("db-migrations", "migrate-3", "holder"))
            .await,
        true,
        "what was known is still shown"
    );
    scene.second.finish().await;
    scene.bed.operator().start().await;
    page.until(
        "it is connected again",
        "document.body.dataset.state === 'live'",
    )
    .await;
    page.until("it goes on", &card("db-migrations", "migrate-4", "holder"))
        .await;
    page.until(
        "the state is told to a screen reader",
        "document.querySelector('#told[role=status]').textContent.endsWith('live; 5 semaphores, 1 has a problem')",
    )
    .await;

    refused_while_open(&page).await;
    assert_eq!(
        page.run("window.loadedOnce").await,
        true,
        "without a reload"
    );
    assert_eq!(
        page.run("document.querySelectorAll('img, iframe, object').length")
            .await,
        0
    );
    assert_eq!(page.run("document.cookie").await, "");
    page.run("document.getElementById('logout').click()").await;
    page.until(
        "who logs out sees nothing",
        "!document.getElementById('login').hidden && document.querySelectorAll('article').length === 0 \
         && sessionStorage.length === 0",
    )
    .await;
    assert_eq!(page.violations().await, Vec::<String>::new());
    // Make sure that violations would be noticed.
    page.run("console.error('told'); setTimeout(() => { throw new Error('thrown') })")
        .await;
    page.run("new Promise((done) => setTimeout(done, 10))")
        .await;
    assert_eq!(page.violations().await.len(), 2);
}

/// Events that end with a refusal: it is shown, and each retry comes later than the one before.
async fn refused_while_open(page: &Page<'_>) {
    page.run(
        r#"globalThis.asked = fetch;
        globalThis.fetch = async () => new Response('event: refused\ndata: "because"\n\n');
        connect()"#,
    )
    .await;
    page.until(
        "it says why",
        "document.getElementById('state').textContent.endsWith(': because')",
    )
    .await;
    page.until("it waits for longer", "pause >= 8 * FIRST_PAUSE")
        .await;
    page.run("globalThis.fetch = asked").await;
    page.until("it goes on", "document.body.dataset.state === 'live'")
        .await;
    page.until("and waits for less", "pause === FIRST_PAUSE")
        .await;
}

async fn log_in(page: &Page<'_>, token: &str) {
    let token = serde_json::Value::from(token);
    page.run(&format!(
        "document.getElementById('token').value = {token}; document.getElementById('login').requestSubmit()"
    ))
    .await;
}

/// Whether a card has a row about this Job in its first or second table.
fn card(semaphore: &str, job: &str, list: &str) -> String {
    let caption = if list == "holder" { "Holders" } else { "Queue" };
    format!(
        "[...card('{semaphore}').querySelectorAll('table')].some((table) => table.caption.textContent.startsWith('{caption}') \
         && table.querySelectorAll('th[scope=col]').length > 1 && [...table.tBodies[0].rows].some((row) => text(row).includes('{job}')))"
    )
}

/// The appearance: light, dark and on a phone. What can be checked is checked, and the rest is for people who look at
/// the screenshots.
async fn pictures(page: &Page<'_>) {
    // The first two semaphores.
    page.window(1200, 654).await;
    page.colours("dark").await;
    let dark = page
        .run("getComputedStyle(document.body).backgroundColor")
        .await;
    keep("web-dark.png", &page.picture().await);
    page.colours("light").await;
    let light = page
        .run("getComputedStyle(document.body).backgroundColor")
        .await;
    assert_ne!(dark, light);
    keep("web-light.png", &page.picture().await);
    page.window(360, 780).await;
    let widest = page.run("document.documentElement.scrollWidth").await;
    assert_eq!(widest, 360, "nothing is wider than a phone");
    keep("web-phone.png", &page.picture().await);
    page.colours("dark").await;
    keep("web-phone-dark.png", &page.picture().await);
    page.colours("light").await;
    page.window(1200, 1000).await;
}

/// Stores the screenshot beside the build output, or with `UPDATE_PICTURES=1` in `docs/`.
fn keep(name: &str, picture: &[u8]) {
    assert!(picture.starts_with(b"\x89PNG"));
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), picture).unwrap();
    if scene::pictures_are_taken() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        fs::write(docs.join(name), picture).unwrap();
    }
}
