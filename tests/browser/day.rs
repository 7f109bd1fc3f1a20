//! A page that is open for a day: what it keeps, and how it returns when the computer has slept.

use crate::stage::{Stage, tell_all};

/// An hour: a change a second, a few of them of semaphores that come and go, and a new connection every ten minutes.
const HOUR: &str = "globalThis.connected = async () => {
    while (streams.size === 0) await new Promise((done) => setTimeout(done, 10));
};
globalThis.hour = async (number) => {
    const trend = Array.from({ length: 180 }, (_, at) => [seconds() - 900 + 5 * at, at % 4, 4]);
    for (let second = 0; second < 3600; second += 1) {
        const round = number * 3600 + second;
        if (second % 600 === 0) {
            end();
            await connected();
            tellAll(everything());
        }
        const problem = round % 120 === 0 ? 'LimitConflict' : undefined;
        change([semaphore('busy', { held: 1 + round % 4, waiting: round % 3, round, trend, problem })]);
        if (second % 60 === 0) change([semaphore(`passing-${round}`)]);
        if (second % 60 === 1) change([], [`batch/passing-${round - 1}`]);
        // So often it draws. On a busy machine it may have connected again.
        if (second % 30 === 0) await new Promise(requestAnimationFrame).then(connected);
    }
    change([semaphore('busy', { held: 1, round: `end-of-${number}-`, trend })]);
};";

/// How many bytes more a day may take, of those that the engine does not give back at once.
const MARGIN: u64 = 1 << 20;

#[tokio::test]
async fn a_day_takes_no_more_memory_than_an_hour() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    tell_all(&page).await;
    page.run(HOUR).await;
    let mut kept = Vec::new();
    for hour in 0..24 {
        page.run(&format!("hour({hour})")).await;
        page.until(
            "all of it has arrived",
            &format!("text(card('busy')).includes('holder-end-of-{hour}-0')"),
        )
        .await;
        kept.push(page.keeps().await);
    }
    let [first, .., last] = kept[..] else {
        panic!("24 hours")
    };
    assert!(last.0 <= first.0 + 50, "nodes: {kept:?}");
    assert!(last.1 <= first.1 + MARGIN, "bytes: {kept:?}");
    assert_eq!(
        page.run("`${cards.size} ${order.length} ${inView.size <= 9} ${streams.size}`")
            .await,
        "9 9 true 1"
    );
    assert_eq!(page.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn it_returns_after_a_sleep() {
    let stage = Stage::set().await;
    let page = stage.open().await;
    tell_all(&page).await;

    // The connection is dead, which nobody tells the browser. The clock may also be set back.
    for (times, hours) in [(2, 8), (3, -8)] {
        page.run(&format!(
            "globalThis.clock ??= Date.now; Date.now = () => clock() + {hours} * 3_600_000"
        ))
        .await;
        page.until(
            "it connects again, once",
            &format!("opened === {times} && streams.size === 1"),
        )
        .await;
        page.run("tellAll([semaphore('after')])").await;
        page.until(
            "it shows what is there now",
            "cards.size === 1 && document.body.dataset.state === 'live'",
        )
        .await;
    }

    page.run(
        "globalThis.hide = (hidden) => {
            Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
            document.dispatchEvent(new Event('visibilitychange'));
        };
        hide(true)",
    )
    .await;
    page.until(
        "a hidden page has no connection, and says so",
        "streams.size === 0 && document.title === 'paused · Semaphores'",
    )
    .await;
    page.run("hide(false)").await;
    page.until("it connects again", "opened === 4 && streams.size === 1")
        .await;
    page.run("tellAll([])").await;
    page.until(
        "and is live",
        "document.title === 'no problems · Semaphores'",
    )
    .await;
}
