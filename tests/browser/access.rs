//! The page for those who use a keyboard, a screen reader, large text, or another set of colours.

use std::{env, fs};

use crate::{
    chromium::Page,
    stage::{Stage, refuse, tell_all},
};

/// The rules of axe-core that apply: WCAG 2.2 A and AA, and what its authors recommend.
const RULES: &str = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']";

/// The width of a window of 1280 pixels at 400 %.
const NARROW: u32 = 320;

#[tokio::test]
async fn axe_finds_nothing_and_nothing_is_wider_than_the_window() {
    let path =
        env::var_os("AXE").expect("the file axe.min.js of axe-core, which `make web-test` brings");
    let axe = fs::read_to_string(path).unwrap();
    let stage = Stage::set().await;
    let page = stage.open().await;
    page.run(&format!("{axe}\n;0")).await;

    tell_all(&page).await;
    look(&page, "live").await;
    page.run(
        "operator('kubernetes: no answer from https://a-long-name.of-a-host.example.com:6443')",
    )
    .await;
    page.run("lost('because of a-reason-that-does-not-say-much-and-has-no-spaces')")
        .await;
    look(&page, "away").await;
    page.run("begin(); document.getElementById('words').value = 'no such'; siftAll()")
        .await;
    look(&page, "nothing matches").await;
    refuse(&page).await;
    page.run("$('insecure').hidden = false").await;
    look(&page, "login").await;
}

/// Checks the page as it is now, in all colours and sizes.
async fn look(page: &Page<'_>, state: &str) {
    for colours in ["light", "dark"] {
        page.colours(colours).await;
        for width in [NARROW, 1200] {
            page.window(width, 1000).await;
            let widest = page.run("document.documentElement.scrollWidth").await;
            assert_eq!(widest, width, "{state}");
            let missing = page
                .run("/undefined|NaN/.test(document.body.innerText)")
                .await;
            assert_eq!(
                missing, false,
                "{state}: a field is shown that is not there"
            );
            let found = page
                .run(&format!(
                    "axe.run({{ runOnly: {RULES} }}).then(({{ violations }}) => violations.map(({{ id, nodes }}) =>
                        `${{id}}: ${{nodes.map(({{ html, failureSummary }}) => html + failureSummary).join('; ')}}`))"
                ))
                .await;
            assert_eq!(found, serde_json::json!([]), "{state}, {colours}, {width}");
        }
    }
}

#[tokio::test]
async fn everything_works_by_keyboard() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    refuse(&page).await;
    page.run("refusal = ''").await;

    at(&page, "token").await;
    page.types("my-token").await;
    page.press("Enter").await;
    page.until("it asks again", "streams.size === 1").await;
    tell_all(&page).await;
    assert_eq!(
        focus(&page).await,
        "top",
        "the focus is not lost with the form"
    );

    page.press("Tab").await;
    at(&page, "words").await;
    page.types("BATCH/bu").await;
    assert_eq!(shown(&page).await, "batch/busy");
    page.run("document.activeElement.select()").await;
    page.types("batch").await;
    page.press("Tab").await;
    at(&page, "busy").await;
    page.press("Space").await;
    let used = shown(&page).await;
    assert!(
        used.contains("batch/over") && !used.contains("idle"),
        "{used}"
    );
    page.press("Tab").await;
    at(&page, "logout").await;
    page.press("Enter").await;
    page.until("it is out", "streams.size === 0 && cards.size === 0")
        .await;
    at(&page, "token").await;
}

/// The id of what has the focus.
async fn focus(page: &Page<'_>) -> String {
    let id = page.run("document.activeElement.id").await;
    id.as_str().unwrap().to_owned()
}

/// Checks that this has the focus, and that it is seen.
async fn at(page: &Page<'_>, id: &str) {
    page.until(
        &format!("the focus is at {id}"),
        &format!("document.activeElement.id === '{id}'"),
    )
    .await;
    let outline = page
        .run("(({ outlineStyle, outlineWidth }) => `${outlineStyle} ${outlineWidth}`)(getComputedStyle(document.activeElement))")
        .await;
    assert_eq!(outline, "solid 3px", "{id}");
}

/// The semaphores that are shown.
async fn shown(page: &Page<'_>) -> String {
    let shown = "[...document.querySelectorAll('article:not([hidden]) h2')].map(text).join(' ')";
    page.run(shown).await.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_screen_reader_hears_what_is_what() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    page.run("tellAll([semaphore('idle'), semaphore('busy', { held: 1, waiting: 1 })])")
        .await;
    page.until("all is there", "document.body.dataset.complete === 'true'")
        .await;

    let expected = [
        "banner",
        "heading Semaphores",
        "search",
        "searchbox Filter",
        "checkbox in use only",
        "main",
        "status",
        "article batch/busy",
        "heading batch/busy",
        "image Slots held in the last 10 min: 0 to 1, limit 4",
        "table Holders, oldest first",
        "columnheader Holder",
        "columnheader Since",
        "rowheader batch/holder-0 Job · cluster prod-eu session s-0",
        "table Queue in this cluster, next first",
        "columnheader #",
        "columnheader Job",
        "columnheader Waits",
        "rowheader waiting-0 Job · all slots are held",
        "article batch/idle",
        "heading batch/idle",
        "image Slots held in the last 10 min: 0, limit 4",
        "contentinfo",
    ];
    let mut heard = page.heard().await;
    let role = |line: &str| line.split(' ').next().map(str::to_owned);
    heard.retain(|line| expected.iter().any(|expected| role(expected) == role(line)));
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn problems_come_first() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    page.run("tellAll(['c', 'a', 'd', 'b'].map((name) => semaphore(name)))")
        .await;
    page.until("in order of their names", &order("a b c d"))
        .await;
    assert_eq!(page.run("document.title").await, "no problems · Semaphores");

    page.run("globalThis.broken = (name) => semaphore(name, { problem: 'LimitConflict' })")
        .await;
    page.run("change([broken('c')])").await;
    page.until("the problem is first", &order("c a b d")).await;
    assert_eq!(page.run("document.title").await, "1 problem · Semaphores");
    page.run("change([broken('b'), broken('e')])").await;
    page.until("they are first", &order("b c e a d")).await;
    page.until(
        "it says how many",
        "text($('summary')) === '5 semaphores, 3 have problems'",
    )
    .await;
    let said = "text(card('e')).includes('Problem: LimitConflict')";
    assert_eq!(page.run(said).await, true, "not by its colour alone");
    page.run("change([semaphore('b')], ['batch/c'])").await;
    page.until("what is solved is behind", &order("e a b d"))
        .await;
}

/// Whether the semaphores are in this order.
fn order(names: &str) -> String {
    format!(
        "[...document.querySelectorAll('h2')].map((title) => text(title).split('/')[1]).slice(1).join(' ') === '{names}'"
    )
}

#[tokio::test]
async fn what_changes_is_said_and_not_too_often() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    page.run(
        "globalThis.said = [];
        new MutationObserver(() => said.push({ at: performance.now(), text: text($('told')) }))
            .observe($('told'), { childList: true });
        tellAll(everything());
        let round = 0;
        globalThis.busy = setInterval(() => {
            round += 1;
            change([semaphore(`more-${round}`, { problem: round % 2 ? 'LimitConflict' : undefined })]);
        }, 50);",
    )
    .await;
    page.until("it has said something three times", "said.length === 3")
        .await;
    page.run("clearInterval(busy); lost('')").await;
    page.until(
        "what is wrong is said",
        "said.at(-1).text.startsWith('not connected since')",
    )
    .await;
    let words = page.run("said[1].text").await;
    assert!(
        words.as_str().unwrap().contains(" have problems"),
        "{words}"
    );
    let soon =
        "said.some(({ at }, turn) => turn > 0 && at - said[turn - 1].at < BETWEEN_MESSAGES - 10)";
    assert_eq!(page.run(soon).await, false);
    let live = "[...document.querySelectorAll('[aria-live], [role=alert], [role=status]')].map(({ id }) => id).join()";
    assert_eq!(
        page.run(live).await,
        "told,refusal",
        "nothing else speaks by itself"
    );
}

#[tokio::test]
async fn the_title_says_the_state_and_nothing_moves_for_who_wants_that() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    let titled = async |title: &str| {
        let title = format!("{title} · Semaphores");
        page.until(&title, &format!("document.title === '{title}'"))
            .await;
    };
    titled("connecting").await;
    tell_all(&page).await;
    titled("2 problems").await;
    page.run("operator('kubernetes: no answer')").await;
    titled("may be old").await;
    page.run("operator(''); lost('')").await;
    titled("not connected").await;
    page.run("begin()").await;
    titled("2 problems").await;

    let moves = "(change([semaphore('busy', { held: 1, round: performance.now() })]),
        new Promise((done) => setTimeout(() => done(getComputedStyle(document.querySelector('tr.new')).animationName), 100)))";
    assert_eq!(page.run(moves).await, "new");
    page.prefers("reduced-motion", "reduce").await;
    assert_eq!(page.run(moves).await, "none");

    refuse(&page).await;
    titled("Log in").await;
}
