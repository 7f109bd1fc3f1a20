//! Eight workers, of which at most three work at a time, however many copies of this program run on however many
//! machines: `CONSUL_HTTP_ADDR=http://127.0.0.1:8500 cargo run --example worker_pool`.
#![expect(clippy::print_stdout, reason = "it shows what it does")]

use std::{error::Error, time::Duration};

use consul_semaphore::{Semaphore, consul};
use tokio::{task::JoinSet, time::sleep};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let consul = consul::Client::new(consul::Config::from_env()?)?;
    let pool = Semaphore::builder(consul, "examples/worker-pool")
        .limit(3)
        .build()?;

    let mut workers = JoinSet::new();
    for worker in 1..=8 {
        let pool = pool.clone();
        workers.spawn(async move {
            pool.run(async |slot| {
                println!("worker {worker} begins in the slot of {}", slot.session());
                work().await;
                println!("worker {worker} is done");
            })
            .await
        });
    }
    let ended: Result<Vec<()>, _> = workers.join_all().await.into_iter().collect();
    // Otherwise a session that a worker could not end in time would stay until it has expired.
    pool.all_released().await;
    ended?;
    Ok(())
}

async fn work() {
    sleep(Duration::from_millis(300)).await;
}
