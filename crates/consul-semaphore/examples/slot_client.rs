//! Takes a slot again and again, among other programs: `slot_client HOST PREFIX LIMIT HOLD REST TIMES`.
//!
//! It holds each slot for HOLD ms, and waits for REST ms before the next one, TIMES times, or until SIGTERM if that
//! is 0. It prints `granted N after T ms` and `released N`, and anything else is an error. `make interop` runs it.
#![expect(clippy::print_stdout, reason = "it reports to a test")]

use std::{env, error::Error, time::Duration};

use consul_semaphore::{Notice, Semaphore, consul};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [host, prefix, limit, hold, rest, times] = arguments.as_slice() else {
        return Err("slot_client HOST PREFIX LIMIT HOLD REST TIMES".into());
    };
    let consul = consul::Client::new(consul::Config::from_env()?)?;
    let semaphore = Semaphore::builder(consul, prefix)
        .limit(limit.parse()?)
        .host(host)
        .on_notice(|notice| {
            if let Notice::Trouble { error, .. } = notice {
                println!("{error}");
            }
        })
        .build()?;
    let [hold, rest] = [hold.parse()?, rest.parse()?].map(Duration::from_millis);
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = again(&semaphore, hold, rest, times.parse()?) => ended?,
        // What it waits for, or has, is given up.
        _ = terminate.recv() => {}
    }
    semaphore.all_released().await;
    Ok(())
}

async fn again(
    semaphore: &Semaphore,
    hold: Duration,
    rest: Duration,
    times: u64,
) -> Result<(), Box<dyn Error>> {
    let mut round = 1;
    while times == 0 || round <= times {
        let asked = Instant::now();
        let slot = semaphore.acquire().await?;
        println!("granted {round} after {} ms", asked.elapsed().as_millis());
        tokio::select! {
            () = sleep(hold) => {}
            lost = slot.lost() => return Err(lost.into()),
        }
        slot.release().await?;
        println!("released {round}");
        round += 1;
        sleep(rest).await;
    }
    Ok(())
}
