//! A migration that runs on one machine at a time, and writes only while it is the last one that was allowed to:
//! `CONSUL_HTTP_ADDR=http://127.0.0.1:8500 cargo run --example migration`.
#![expect(clippy::print_stdout, reason = "it shows what it does")]

use std::{error::Error, time::Duration};

use consul_semaphore::{Lost, Semaphore, Slot, consul};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let consul = consul::Client::new(consul::Config::from_env()?)?;
    let database = Semaphore::builder(consul, "examples/migration")
        .limit(1)
        .program("migration")
        .grace(Duration::from_secs(5))
        .on_notice(|notice| println!("{notice:?}"))
        .build()?;

    let slot = database.acquire_within(Duration::from_mins(1)).await?;
    migrate(&slot).await?;
    slot.release().await?;
    println!("done");
    Ok(())
}

/// Takes step after step, and none once the slot is lost.
async fn migrate(slot: &Slot) -> Result<(), Lost> {
    for step in 1..=5 {
        tokio::select! {
            () = write(step, slot.fencing_token()) => {}
            lost = slot.lost() => return Err(lost),
        }
    }
    Ok(())
}

/// A real database would compare the token with the greatest one that it has seen, in the same transaction: see
/// `docs/fencing.md`.
async fn write(step: u32, fencing_token: u64) {
    sleep(Duration::from_millis(100)).await;
    println!("step {step} with the fencing token {fencing_token}");
}
