//! What a real API server refuses, defaults, keeps and shows of a `ConsulSemaphore`.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod place;
mod semaphores;
mod shown;
mod spec;

use testbed::ApiServer;

use self::semaphores::Semaphores;

#[tokio::test]
async fn the_api_server_guards_and_shows_what_users_write() {
    let server = ApiServer::start().await;
    let api = Semaphores::install(&server.client().await).await;
    spec::is_checked(&api).await;
    place::is_checked_and_kept(&api).await;
    shown::is_what_the_operator_reports(&api, &server).await;
}
