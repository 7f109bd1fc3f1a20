//! The order of the queue: priority, then age, then name.
use futures::future::join_all;
use testbed::{
    Bed, Job,
    proof::{End, PRIORITY, grant_of, nothing_is_left, pods_end, queue_is, runs_in_a_slot},
};

#[tokio::test]
async fn the_higher_first_then_the_older_then_by_name() {
    let bed = Bed::shared().await;
    let team = bed.namespace("priority").await;
    let db = team.semaphore("db").limit(1).create().await;
    let observer = bed.watch_limit(&db.lock_prefix()).await;
    let first = team.job("first").semaphore("db").runs("1h").create().await;
    runs_in_a_slot(&bed, &db, &first).await;

    // Some of them within one second, in whatever order the API server creates them.
    let made = [
        ("f", 0),
        ("e", 0),
        ("d", 0),
        ("c", 0),
        ("low", -5),
        ("b", 7),
        ("a", 7),
        ("high", i32::MAX),
        ("lowest", i32::MIN),
    ];
    let jobs = join_all(made.map(|(name, priority)| {
        let job = team.job(name).semaphore("db").runs("200ms");
        if priority == 0 {
            job
        } else {
            job.priority(priority.into())
        }
        .create()
    }))
    .await;
    queue_is(&db, in_order(&jobs).await.each_ref()).await;

    // Changes while they wait take effect at once.
    let [high, low, lowest] = ["high", "low", "lowest"].map(|name| team.job(name));
    low.annotate(PRIORITY, Some("100")).await;
    lowest.annotate(PRIORITY, None).await;
    high.annotate(PRIORITY, Some("-1")).await;
    let order = in_order(&jobs).await;
    assert_eq!((order[0].name(), order[8].name()), ("low", "high"));
    queue_is(&db, order.each_ref()).await;

    pods_end(&team, &first, End::Succeeded).await;
    let mut tokens = Vec::new();
    for job in &order {
        job.is_complete().await;
        let grant = grant_of(job).await.expect("it was started by a grant");
        tokens.push(grant.fencing_token);
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    nothing_is_left(&bed, &team, &db).await;
    assert_eq!((observer.peak_holders(), observer.peak_jobs()), (1, 1));
}

/// The order according to the API server's data.
async fn in_order(jobs: &[Job]) -> [Job; 9] {
    let mut places = Vec::new();
    for job in jobs {
        let metadata = job.get().await.expect("a Job that waits is there").metadata;
        let annotations = metadata.annotations.unwrap_or_default();
        let priority = annotations.get(PRIORITY).map_or("0", String::as_str);
        let priority: i64 = priority.parse().expect("priorities are numbers");
        let second = metadata.creation_timestamp.map(|time| time.0.as_second());
        places.push((-priority, second, job.name().to_owned(), job.clone()));
    }
    places.sort_by(|(p1, s1, n1, _), (p2, s2, n2, _)| (p1, s1, n1).cmp(&(p2, s2, n2)));
    let order: Vec<_> = places.into_iter().map(|(.., job)| job).collect();
    order.try_into().expect("nine were made")
}
