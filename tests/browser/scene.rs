//! The contents of the page: semaphores in use, one that is shared with a foreign program, one that is paused, one
//! with keys, one with a problem.

use serde_json::json;
use testbed::{
    Bed, Job, Namespace, SlotClient, eventually,
    web::{free_address, may_review, somebody, token},
};

/// Whether to update the screenshots in `docs/`.
pub(crate) fn pictures_are_taken() -> bool {
    std::env::var_os("UPDATE_PICTURES").is_some()
}

/// An operator with the page, and the objects that it shows.
pub(crate) struct Scene {
    pub(crate) bed: Bed,
    pub(crate) address: String,
    pub(crate) token: String,
    /// Jobs that hold the slots of `db-migrations`.
    pub(crate) first: Job,
    pub(crate) second: Job,
    _program: SlotClient,
    /// A namespace that is dropped is deleted.
    _team: Namespace,
}

impl Scene {
    pub(crate) async fn set() -> Self {
        let address = free_address();
        let args = ["--web-address", &address, "--cluster-name", "prod-eu"];
        let bed = Bed::builder().operator_args(args).start().await;
        may_review(&bed).await;
        let batch = bed.namespace_named("batch").await;
        let account = somebody(&batch, "viewer").await;
        let all = format!("--serviceaccount={account}");
        let role = "--clusterrole=consul-semaphore-viewer";
        bed.kubectl(["create", "clusterrolebinding", "viewer", role, &all])
            .await;

        let team = bed.namespace_named("team-a").await;
        let licence = team
            .semaphore("licence-server")
            .limit(4)
            .prefix("shared/licence");
        licence.create().await.is_ready().await;
        let hostile = "<img src=x onerror=alert(1)>";
        let program = bed.go_semaphore(hostile, "shared/licence", 4).start().await;
        program.holds().await;
        team.job("render-7")
            .semaphore("licence-server")
            .runs("1h")
            .create()
            .await;
        let reports = batch
            .semaphore("nightly-reports")
            .paused(true)
            .create()
            .await;
        batch
            .job("report")
            .semaphore("nightly-reports")
            .create()
            .await;
        reports.has_condition("Ready", "True", "Paused").await;
        let keyed = team
            .semaphore("per-customer")
            .spec(json!({ "keyed": true }));
        keyed.create().await;
        for (job, key) in [("import-42", "customer-42"), ("import-7", "customer-7")] {
            let job = team.job(job).semaphore("per-customer").runs("1h");
            let key = job.annotation("consul-semaphore.io/key", key);
            key.create().await.is_running().await;
        }

        let db = batch.semaphore("db-migrations").limit(2).create().await;
        let migration = |number: u32| {
            let job = batch.job(&format!("migrate-{number}"));
            job.semaphore("db-migrations").runs("1h")
        };
        if pictures_are_taken() {
            past(&batch).await;
        }
        let first = migration(1).create().await;
        first.is_running().await;
        let second = migration(2).create().await;
        second.is_running().await;
        for number in [3, 4] {
            migration(number).create().await;
            // Within a second they are ordered by name, otherwise by age.
            eventually("it is in line", || async {
                testbed::same(
                    db.status().await["waiting"].as_u64(),
                    Some(u64::from(number) - 2),
                )
            })
            .await;
        }
        let conflict = team
            .semaphore("migrations")
            .limit(3)
            .prefix("semaphores/batch/db-migrations")
            .create()
            .await;
        conflict
            .has_condition("Ready", "False", "LimitConflict")
            .await;
        let token = token(&bed, &account).await;
        Self {
            bed,
            address,
            token,
            first,
            second,
            _program: program,
            _team: team,
        }
    }
}

/// Finished Jobs, so that the last minutes are not empty.
async fn past(batch: &Namespace) {
    let runs = ["30s", "12s", "25s", "18s", "14s", "35s", "11s"];
    for (number, runs) in runs.iter().enumerate() {
        let job = batch.job(&format!("past-{number}"));
        let job = job.semaphore("db-migrations").runs(runs).create().await;
        job.is_running().await;
        if number % 3 == 2 {
            job.is_complete().await;
        }
    }
    batch
        .semaphore("db-migrations")
        .shows(json!({ "held": 0 }))
        .await;
}
