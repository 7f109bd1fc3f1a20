//! A client that makes at most two calls in a second, together with all others that keep to the same rate:
//! `CONSUL_HTTP_ADDR=http://127.0.0.1:8500 cargo run --example rate_limited_client`.
#![expect(clippy::print_stdout, reason = "it shows what it does")]

use std::{error::Error, time::Duration};

use consul_semaphore::{Rate, consul};
use tokio::time::Instant;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let consul = consul::Client::new(consul::Config::from_env()?)?;
    let second = Duration::from_secs(1);
    let calls = Rate::builder(consul, "examples/rate-limited-client", 2, second).build()?;

    let begun = Instant::now();
    for number in 1..=6 {
        calls.start().await?;
        println!("call {number} after {} ms", begun.elapsed().as_millis());
    }
    // Otherwise the last starts would count until their sessions have expired.
    calls.semaphore().all_released().await;
    Ok(())
}
