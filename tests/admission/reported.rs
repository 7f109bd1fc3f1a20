//! What the operator logs about the policies when it starts, and that it works with each state: on a separate bed,
//! where the policies are installed and removed.

use std::fs;

use testbed::{
    Bed, Operator, eventually,
    proof::{End, SEMAPHORE, nothing_is_left, pods_end, runs_in_a_slot},
    same,
};

use crate::stage::{
    BOTH, HOLDS, OPERATOR, Person, STARTS, annotated, install, is_refused, job, suspend,
};

const SUSPEND: &str = "MutatingAdmissionPolicy suspend.consul-semaphore.io";
const GUARD: &str = "ValidatingAdmissionPolicy guard.consul-semaphore.io";
const CRON_JOBS: &str = "ValidatingAdmissionPolicy cronjobs.consul-semaphore.io";

/// Starts an operator and waits until it has logged one line about each policy, at this level and with this word.
async fn says(bed: &Bed, name: &str, expected: [(&str, &str, &str); 3]) -> Operator {
    let operator = bed.another_operator(name, [""; 0], []);
    operator.start().await;
    for (policy, level, word) in expected {
        let what = format!("{name} logs the {policy}");
        eventually(&what, || async {
            let logs = operator.logs();
            let lines: Vec<_> = logs.lines().filter(|line| line.contains(policy)).collect();
            let [line] = lines[..] else {
                return Err(format!("{lines:?}"));
            };
            same((line.contains(level), line.contains(word)), (true, true))
                .map_err(|_| line.to_owned())
        })
        .await;
    }
    operator
}

/// The overlay of docs/admission.md, with these names in place of its own.
async fn apply_overlay(bed: &Bed, names: &[(&str, &str)]) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let page = fs::read_to_string(format!("{root}docs/admission.md")).expect("the page");
    let mut blocks = page.split("```");
    let overlay = blocks.find_map(|block| block.strip_prefix("yaml\n# kustomization.yaml\n"));
    let mut overlay = overlay.expect("the overlay").to_owned();
    for (from, to) in names {
        overlay = overlay.replace(from, to);
    }
    let folder = bed.folder().path().join("overlay");
    let policies = folder.join("config/policies");
    fs::create_dir_all(&policies).expect("a folder");
    for file in [
        "kustomization.yaml",
        "suspend.yaml",
        "guard.yaml",
        "cronjobs.yaml",
        "operator.yaml",
    ] {
        let shipped = format!("{root}config/policies/{file}");
        fs::copy(shipped, policies.join(file)).expect("a copy");
    }
    fs::write(folder.join("kustomization.yaml"), overlay).expect("the overlay's file");
    bed.kubectl(["apply", "-k", &folder.display().to_string()])
        .await;
}

#[tokio::test]
async fn the_operator_says_at_its_start_how_they_stand() {
    let bed = Bed::builder().without_operator().start().await;
    let absent = [
        (SUSPEND, "INFO", "kubectl apply -k config/policies"),
        (GUARD, "INFO", "kubectl apply -k config/policies"),
        (CRON_JOBS, "INFO", "run without a slot"),
    ];
    says(&bed, "without", absent).await.stop().await;

    install(&bed).await;
    let in_force = [
        (SUSPEND, "INFO", "is in force"),
        (GUARD, "INFO", "is in force"),
        (CRON_JOBS, "INFO", "is in force"),
    ];
    says(&bed, "with", in_force).await.stop().await;

    for kind in [
        "mutatingadmissionpolicybinding",
        "validatingadmissionpolicybinding",
    ] {
        bed.kubectl(["delete", kind, "--all"]).await;
    }
    let unbound = [SUSPEND, GUARD, CRON_JOBS].map(|policy| (policy, "WARN", "no binding"));
    says(&bed, "unbound", unbound).await.stop().await;

    // The guard trusts others: this operator can't start anything, and says what to do.
    let (team, other) = (bed.namespace("team").await, bed.namespace("other").await);
    let elsewhere = ("consul-semaphore-system", "elsewhere");
    let only = format!("[{}]", team.name());
    let teams = ("[team-a, team-b]", only.as_str());
    apply_overlay(&bed, &[teams, elsewhere]).await;
    let user = Person::user(&bed, &team).await;
    team.policies_are(&BOTH).await;
    team.guard_lets(OPERATOR, false).await;
    let stranger = [
        (SUSPEND, "INFO", "is in force"),
        (GUARD, "WARN", OPERATOR),
        (CRON_JOBS, "INFO", "is in force"),
    ];
    let operator = says(&bed, "stranger", stranger).await;
    let db = team.semaphore("db").limit(1).create().await;
    let named = |name| team.job(name).semaphore("db").unsuspended().runs("1h");
    let first = named("first").create().await;
    let refused = first.has_event("StartRefused").await;
    assert!(refused.contains(STARTS), "{refused}");
    operator.stop().await;

    // Both are known, and the policies don't apply to the other namespace.
    apply_overlay(&bed, &[teams]).await;
    team.guard_lets(OPERATOR, true).await;
    other.policies_are(&[]).await;
    let operator = says(&bed, "known", in_force).await;
    runs_in_a_slot(&bed, &db, &first).await;
    is_refused(
        user.change("first", annotated(SEMAPHORE, None)).await,
        HOLDS,
    );
    pods_end(&team, &first, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    let admin = Person::admin(&bed, &other);
    let made = admin.would_create(&job("job", Some(false))).await;
    assert_eq!(suspend(&made.expect("it can be made")), Some(false));
    operator.stop().await;

    // An operator that may not read the policies works as well.
    let role = "consul-semaphore-operator";
    let rules = bed
        .kubectl(["get", "clusterrole", role, "-o", "json"])
        .await;
    let mut rules: serde_json::Value = serde_json::from_str(&rules).expect("a ClusterRole");
    let rules = rules["rules"].as_array_mut().expect("rules");
    rules.retain(|rule| rule["apiGroups"][0] != "admissionregistration.k8s.io");
    let rules = serde_json::json!({ "rules": rules }).to_string();
    bed.kubectl([
        "patch",
        "clusterrole",
        role,
        "--type=merge",
        "--patch",
        &rules,
    ])
    .await;
    for (kind, name) in [
        ("mutating", "suspend"),
        ("validating", "guard"),
        ("validating", "cronjobs"),
    ] {
        let what = format!(
            "{kind}admissionpolicies.admissionregistration.k8s.io/{name}.consul-semaphore.io"
        );
        bed.lets(OPERATOR, ["get", &what], None, false).await;
    }
    let hidden = [SUSPEND, GUARD, CRON_JOBS].map(|policy| (policy, "INFO", "is forbidden"));
    let operator = says(&bed, "hidden", hidden).await;
    let late = named("late").create().await;
    runs_in_a_slot(&bed, &db, &late).await;
    pods_end(&team, &late, End::Succeeded).await;
    nothing_is_left(&bed, &team, &db).await;
    operator.stop().await;
}
