//! A client that makes at most two calls in a second, together with all others that keep to the same rate:
//! `CONSUL_HTTP_ADDR=http://127.0.0.1:8500 cargo run --example rate_limited_client`.
#![expect(clippy::print_stdout, reason = "it shows what it does")]

use std::{error::Error, time::Duration};

use consul_semaphore::{Semaphore, consul};
use tokio::time::Instant;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let consul = consul::Client::new(consul::Config::from_env()?)?;
    let calls = Semaphore::builder(consul, "examples/rate-limited-client")
        .rate(2, Duration::from_secs(1))
        .build()?;

    let begun = Instant::now();
    for number in 1..=6 {
        // A slot says that a call may start. It stays held for its period, also once it is dropped.
        let slot = calls.acquire().await?;
        drop(slot);
        println!("call {number} after {} ms", begun.elapsed().as_millis());
    }
    // The last periods are awaited, so that the next run keeps to the rate, too.
    calls.all_released().await;
    Ok(())
}
