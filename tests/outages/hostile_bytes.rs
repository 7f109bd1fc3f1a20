//! What tenants can write at most: it neither takes the operator past its memory nor disturbs the semaphores of others.
//!
//! Each flood alone, and all of them at once. What they have in common is that the operator is started when they are
//! there, and that everything below the prefixes changes while it runs.

use std::{fmt::Write as _, future::Future, pin::Pin, time::Duration};

use consul_client::{Client, Config, Op, PutMode};
use futures::{FutureExt as _, StreamExt as _, stream};
use procfs::process::Process;
use serde_json::json;
use testbed::{Bed, Namespace, Operator, PATIENCE, Semaphore, eventually_within, same};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::Mutex};

/// How much memory of its own the operator may take at any time, in KiB: half of the chart's limit, less what the code
/// of a released program takes.
const MOST: u64 = (128 - 16) << 10;

/// The peak of the operator's own memory since it was last started, in KiB: what is resident without the pages of its
/// program file, of which an unoptimised build has many, and which the kernel drops before it ends a process.
async fn peak(operator: &Operator) -> u64 {
    let [id, _guard] = operator.ids().await.expect("it runs");
    let process = Process::new(id.try_into().expect("an id")).expect("a process");
    let status = process.status().expect("its status");
    let resident = status.vmhwm.expect("a process of a user");
    resident - status.rssfile.expect("a kernel that tells them apart")
}

/// What a hostile namespace has done, and the semaphores that the operator has because of it.
type Flooded<'a> = Pin<Box<dyn Future<Output = Vec<Semaphore>> + 'a>>;

/// A way to have the operator keep much.
type Flood = for<'a> fn(&'a Bed, &'a Namespace) -> Flooded<'a>;

/// A client of the bed's Consul, for writes by the thousand.
fn consul(bed: &Bed) -> Client {
    let addresses = vec![bed.consul().address().parse().expect("an address")];
    Client::new(Config {
        addresses,
        ..Config::default()
    })
    .expect("valid settings")
}

async fn set(bed: &Bed, keys: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let consul = consul(bed);
    let operations = keys.into_iter().map(|(key, value)| Op::Set {
        key,
        value,
        flags: 0,
    });
    let operations: Vec<_> = operations.collect();
    for part in operations.chunks(consul.transaction_capacity()) {
        consul.transaction(part).await.expect("written");
    }
}

/// A session that does not expire.
async fn session(bed: &Bed) -> String {
    bed.consul().create_session(json!({})).await
}

/// Semaphores of one prefix.
async fn share(team: &Namespace, prefix: &str, count: usize) -> Vec<Semaphore> {
    let mut semaphores = Vec::new();
    for number in 0..count {
        let semaphore = team.semaphore(&format!("{}-{number}", name(prefix)));
        semaphores.push(semaphore.prefix(prefix).limit(1).create().await);
    }
    semaphores
}

/// What a prefix is called within its namespace.
fn name(prefix: &str) -> &str {
    prefix.rsplit_once('/').map_or(prefix, |(_, name)| name)
}

fn prefix(team: &Namespace, name: &str) -> String {
    format!("semaphores/{}/{name}", team.name())
}

/// Jobs that ask for no slot. Each `<` takes six bytes in the API server's lists.
fn large_jobs<'a>(_bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let args = ["<".repeat(1_200_000)];
        let container = json!({ "name": "work", "image": "none", "args": args });
        let large = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
        for number in 0..30 {
            let job = team.job(&format!("large-{number}")).with(large.clone());
            job.create().await;
        }
        Vec::new()
    })
}

/// More than is read of any prefix, though nothing of it is kept.
fn values_of_others<'a>(bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let mut flooded = Vec::new();
        for prefix in ["values-a", "values-b"].map(|name| prefix(team, name)) {
            for number in 0..90 {
                let key = format!("{prefix}/junk-{number}");
                bed.consul().put(&key, 0, vec![b'x'; 500_000]).await;
            }
            flooded.extend(share(team, &prefix, 1).await);
        }
        flooded
    })
}

fn empty_keys<'a>(bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let prefix = prefix(team, "empty");
        let keys = (0..76_800).map(|number| (format!("{prefix}/{number}"), Vec::new()));
        set(bed, keys).await;
        share(team, &prefix, 4).await
    })
}

fn locked_values<'a>(bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let prefix = prefix(team, "locked");
        let (consul, session) = (consul(bed), session(bed).await);
        for number in 0..23 {
            let key = format!("{prefix}/{number}");
            let mode = PutMode::Acquire(session.as_str().into());
            consul
                .put(&key, &vec![b'x'; 500_000], 0, mode)
                .await
                .unwrap();
        }
        let key = format!("{prefix}/{session}");
        let mode = PutMode::Acquire(session.as_str().into());
        consul
            .put(&key, &vec![b'x'; 500_000], 0, mode)
            .await
            .unwrap();
        share(team, &prefix, 10).await
    })
}

/// One Secret, as large as the API server takes it.
fn large_tokens<'a>(_bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/config/token-secret");
        team.kubectl(["apply", "-k", manifests]).await;
        team.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "consul-token" },
            "stringData": { "token": "x".repeat(780_000) },
        }))
        .await;
        let mut flooded = Vec::new();
        for number in 0..80 {
            let token = json!({ "tokenSecretRef": { "name": "consul-token" } });
            let semaphore = team.semaphore(&format!("token-{number}")).limit(1);
            let semaphore = semaphore.spec(json!({ "consul": token }));
            flooded.push(semaphore.create().await);
        }
        flooded
    })
}

/// Lock keys that list tens of thousands of holders, below the prefix of a keyed semaphore.
fn many_holders<'a>(bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let prefix = prefix(team, "holders");
        let mut body = r#"{"Limit":1,"Holders":{"#.to_owned();
        for number in 0..57_000 {
            let comma = if number == 0 { "" } else { "," };
            write!(body, r#"{comma}"{number:x}":1"#).expect("text");
        }
        body += "}}";
        let consul = consul(bed);
        for number in 0..24 {
            let key = format!("{prefix}/{number}/.lock");
            let put = consul.put(&key, body.as_bytes(), 0, PutMode::Set).await;
            assert!(put.expect("written"));
        }
        let keyed = team.semaphore("holders").prefix(&prefix).limit(1);
        let keyed = keyed.spec(json!({ "keyed": true })).create().await;
        vec![keyed]
    })
}

/// Keys by the thousand, of a semaphore with as many windows as one may have.
fn keys_with_windows<'a>(bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        let prefix = prefix(team, "windows");
        let keys = (0..11_000).map(|number| (format!("{prefix}/{number}/.lock"), b"{}".to_vec()));
        set(bed, keys).await;
        let windows: Vec<_> = (0..20)
            .map(|minute| {
                let schedule = format!("{minute} 0-23/2 1-28 * MON,TUE");
                json!({ "schedule": schedule, "duration": "1h", "timeZone": "Europe/Berlin" })
            })
            .collect();
        let spec = json!({ "keyed": true, "windows": windows });
        let mut flooded = Vec::new();
        for number in 0..3 {
            let keyed = team.semaphore(&format!("windows-{number}"));
            let keyed = keyed.prefix(&prefix).limit(1).spec(spec.clone());
            flooded.push(keyed.create().await);
        }
        flooded
    })
}

/// As many holders as a semaphore may have, each with a body as ours have, for many semaphores of one prefix.
fn holders_for_many_semaphores<'a>(bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        const HOLDERS: usize = 2_000;
        let prefix = prefix(team, "shared");
        let consul = consul(bed);
        let mut sessions = Vec::new();
        for _ in 0..HOLDERS {
            sessions.push(session(bed).await);
        }
        for part in sessions.chunks(64) {
            let locks: Vec<_> = part
                .iter()
                .map(|session| Op::Lock {
                    key: format!("{prefix}/{session}"),
                    value: vec![b' '; 1024],
                    flags: testbed::SEMAPHORE_FLAGS,
                    session: session.as_str().into(),
                })
                .collect();
            consul.transaction(&locks).await.expect("locked");
        }
        let holders: Vec<_> = sessions.iter().map(|id| format!("\"{id}\":true")).collect();
        let body = format!(r#"{{"Limit":1,"Holders":{{{}}}}}"#, holders.join(","));
        let key = format!("{prefix}/.lock");
        bed.consul().put(&key, testbed::SEMAPHORE_FLAGS, body).await;
        share(team, &prefix, 25).await
    })
}

/// Jobs that never have a pod, so they hold their slots for ever, of 25 semaphores with one prefix.
fn jobs_without_pods<'a>(_bed: &'a Bed, team: &'a Namespace) -> Flooded<'a> {
    Box::pin(async move {
        const JOBS: usize = 5_000;
        const SEMAPHORES: usize = 25;
        let prefix = prefix(team, "podless");
        let mut semaphores = Vec::new();
        for number in 0..SEMAPHORES {
            // A busy machine renews thousands of sessions late: that is not what this is about.
            let semaphore = team.semaphore(&format!("podless-{number}")).ttl("24h");
            let semaphore = semaphore.prefix(&prefix).limit(5_000);
            semaphores.push(semaphore.create().await);
        }
        let jobs = (0..JOBS).map(|number| {
            let job = team.job(&format!("podless-{number}"));
            let job = job.with(json!({ "spec": { "parallelism": 0 } }));
            let semaphore = semaphores[number % SEMAPHORES].name();
            job.semaphore(semaphore).create().map(drop)
        });
        stream::iter(jobs).for_each_concurrent(16, |job| job).await;
        semaphores
    })
}

/// Waits until the operator has granted their slots to all Jobs without pods, or keeps no more of them. The peak is
/// while it grants them.
async fn podless_jobs_are_granted(semaphores: &[Semaphore]) {
    let what = "all slots are held, or no more of them can be kept";
    eventually_within(12 * PATIENCE, what, || async {
        for semaphore in semaphores {
            let ready = semaphore.condition("Ready").await;
            if ready["reason"] == "PrefixTooLarge" {
                return Ok(());
            }
        }
        let held = &semaphores[0].status().await["held"];
        same(held.as_u64(), Some(5_000)).map(drop)
    })
    .await;
}

/// One of these tests runs at a time: each floods servers of its own, and with them the machine.
static TURN: Mutex<()> = Mutex::const_new(());

/// Longest time that anything takes beside floods on a busy machine, where also the servers are slow.
const PATIENCE_IN_FLOODS: Duration = PATIENCE.saturating_mul(4);

/// Connections of readers of the metrics that ask for them and never read the answer.
async fn slow_readers(operator: &Operator) -> Vec<TcpStream> {
    const READERS: usize = 300;
    let address = operator.address().await.expect("it runs");
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut reader = TcpStream::connect(&address).await.expect("connected");
        let request = b"GET /metrics HTTP/1.1\r\nHost: metrics\r\n\r\n";
        // The operator may refuse more connections than it has room for.
        if reader.write_all(request).await.is_ok() {
            readers.push(reader);
        }
    }
    readers
}

/// A team has its Jobs started beside these floods and beside slow readers of the metrics, and the operator stays
/// small. The flooded semaphores come to this reason, if it is the same for all of them.
async fn is_small_beside(floods: &[Flood], reason: Option<&str>) {
    let _turn = TURN.lock().await;
    let bed = Bed::start().await;
    let (team, hostile) = (bed.namespace("team").await, bed.namespace("hostile").await);
    let ok = team.semaphore("ok").limit(1).create().await;
    ok.is_ready().await;
    let before = peak(bed.operator()).await;
    bed.operator().stop().await;

    let mut flooded = Vec::new();
    for flood in floods {
        flooded.extend(flood(&bed, &hostile).await);
    }
    let job = team.job("job").semaphore("ok").create().await;
    bed.operator().start().await;
    let _readers = slow_readers(bed.operator()).await;
    job.is_complete_within(PATIENCE_IN_FLOODS).await;
    for semaphore in &flooded {
        let what = "it is known what to do with the semaphore";
        eventually_within(PATIENCE_IN_FLOODS, what, || async {
            let ready = semaphore.condition("Ready").await;
            match ready["reason"].as_str() {
                // On a busy machine a listing that is cut off may take longer than a call, and the pause before the next
                // one grows each time.
                Some("Starting" | "ConsulUnreachable") | None => Err(ready.to_string()),
                is => same(is, reason.or(is)).map(drop),
            }
        })
        .await;
    }
    // Each change has all of it read again.
    for number in 0..5 {
        for semaphore in &flooded {
            let key = format!("{}/changed", semaphore.lock_prefix());
            bed.consul().put(&key, 0, number.to_string()).await;
        }
        let job = team.job(&format!("job-{number}")).semaphore("ok");
        let job = job.create().await;
        job.is_complete_within(PATIENCE_IN_FLOODS).await;
    }
    ok.is_ready().await;
    let peak = peak(bed.operator()).await;
    assert!(
        peak <= MOST,
        "{peak} KiB with all of it, {before} KiB with nothing to do"
    );
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn large_jobs_and_values_of_others_take_no_memory() {
    is_small_beside(&[large_jobs, values_of_others], Some("LockTooLarge")).await;
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn empty_keys_by_the_ten_thousand_take_little_memory() {
    is_small_beside(&[empty_keys], Some("LockTooLarge")).await;
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn locked_values_that_are_no_contenders_take_little_memory() {
    is_small_beside(&[locked_values], Some("Reconciled")).await;
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn tokens_that_are_none_take_little_memory() {
    is_small_beside(&[large_tokens], Some("TokenNotFound")).await;
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn lock_keys_with_too_many_holders_take_little_memory() {
    is_small_beside(&[many_holders], Some("LockTooLarge")).await;
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn thousands_of_keys_of_a_semaphore_with_windows_take_little_memory() {
    is_small_beside(&[keys_with_windows], Some("LockTooLarge")).await;
}

#[tokio::test]
#[ignore = "`make floods`: it finds the flood, when all of them at once take too much"]
async fn many_semaphores_of_one_large_prefix_take_little_memory() {
    is_small_beside(&[holders_for_many_semaphores], None).await;
}

/// All floods but that of Jobs, which has a test of its own.
const IN_CONSUL: [Flood; 8] = [
    large_jobs,
    values_of_others,
    empty_keys,
    locked_values,
    large_tokens,
    many_holders,
    keys_with_windows,
    holders_for_many_semaphores,
];

/// The floods of many small things, which take little of the machine.
#[tokio::test]
async fn keys_and_holders_by_the_ten_thousand_take_little_memory() {
    let floods = [empty_keys as Flood, many_holders, keys_with_windows];
    is_small_beside(&floods, Some("LockTooLarge")).await;
}

#[tokio::test]
#[ignore = "`make floods`: the servers send hundreds of megabytes, which takes a machine that has nothing else to do"]
async fn everything_at_once_takes_little_memory() {
    is_small_beside(&IN_CONSUL, None).await;
}

#[tokio::test]
#[ignore = "`make floods`: it creates 5,000 Jobs beside all the others, for many minutes"]
async fn everything_and_thousands_of_jobs_take_little_memory() {
    let mut all = IN_CONSUL.to_vec();
    all.push(jobs_without_pods);
    is_small_beside(&all, None).await;
}

#[tokio::test]
async fn thousands_of_jobs_that_hold_slots_without_pods_take_little_memory() {
    let _turn = TURN.lock().await;
    let bed = Bed::start().await;
    let hostile = bed.namespace("hostile").await;
    bed.operator().stop().await;
    let semaphores = jobs_without_pods(&bed, &hostile).await;
    bed.operator().start().await;
    podless_jobs_are_granted(&semaphores).await;
    let peak = peak(bed.operator()).await;
    assert!(peak <= MOST, "{peak} KiB");
}
