//! A short campaign. `make faults` runs longer ones, with other seeds.
#![allow(clippy::expect_used, reason = "a test that cannot go on says so")]

use std::path::Path;

use faults::{
    campaign::{Options, run},
    judge::Rule,
};

#[tokio::test(flavor = "multi_thread")]
async fn forty_faults_make_no_violation() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short-campaign");
    // Do not continue an earlier run.
    let _none = std::fs::remove_dir_all(&folder);
    let options = Options {
        faults: 40,
        seed: 4,
        folder,
        only: None,
        workloads: false,
    };
    let verdict = run(&options).await.expect("the campaign comes to its end");
    // On a machine that is busy with other tests, how soon a Job without a slot is suspended says nothing.
    // `make faults` judges that, too.
    let timed = [Rule::GapTooLong, Rule::StartedTooLate];
    let mut violations = verdict.violations;
    violations.retain(|violation| !timed.contains(&violation.rule));
    assert!(violations.is_empty(), "{violations:#?}");
}
