//! A wrong address of Consul is logged even before there is a semaphore.

use testbed::{Bed, eventually, same};

#[tokio::test]
async fn an_address_at_which_nobody_answers_is_logged_at_the_start() {
    let bed = Bed::shared().await;
    let args = [
        "--leader-election",
        "off",
        "--semaphore-selector",
        "nobody=has-it",
    ];
    // Nothing listens on the discard port of loopback.
    let nowhere = [("CONSUL_HTTP_ADDR", "http://127.0.0.1:9".to_owned())];
    let operator = &bed.another_operator("elsewhere", args, nowhere);
    operator.start().await;
    eventually("it says so", || async {
        let is_warning =
            |line: &&str| line.contains("Consul does not answer") && line.contains("127.0.0.1:9");
        same(operator.logs().lines().filter(is_warning).count(), 1)
    })
    .await;
    assert!(operator.stop().await.success());
}
