//! Whether the admission policies of `config/policies` are in force, and what to do if not.
//!
//! The operator is correct without them, so nothing fails here: what can't be read is unknown. `read` asks the API
//! server; this file evaluates its answers.

mod read;

use std::{fmt, time::Duration};

use serde_json::Value;

pub use self::read::look;

/// How long one answer may take when the operator starts.
const PATIENCE: Duration = Duration::from_secs(10);

/// The policy that makes new Jobs suspended, and its binding.
pub const SUSPEND: &str = "suspend.consul-semaphore.io";
/// The policy that lets only the operator start Jobs and report on them, and its binding.
pub const GUARD: &str = "guard.consul-semaphore.io";
/// The policy that refuses `CronJobs` with the annotation on their own metadata, and its binding.
pub const CRON_JOBS: &str = "cronjobs.consul-semaphore.io";
/// The policy that refuses new Jobs that are not suspended, and its binding: for Kubernetes before 1.36, instead of
/// [`SUSPEND`].
pub const REFUSE: &str = "refuse.consul-semaphore.io";

/// The match condition of [`GUARD`] that names all operators.
const OPERATORS: &str = "not-by-an-operator";

/// An admission policy that belongs to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// [`SUSPEND`].
    Suspend,
    /// [`GUARD`].
    Guard,
    /// [`CRON_JOBS`].
    CronJobs,
    /// [`REFUSE`].
    Refuse,
}

impl Policy {
    /// The name of the policy and of its binding.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Suspend => SUSPEND,
            Self::Guard => GUARD,
            Self::CronJobs => CRON_JOBS,
            Self::Refuse => REFUSE,
        }
    }

    const fn kind(self) -> &'static str {
        match self {
            Self::Suspend => "MutatingAdmissionPolicy",
            Self::Guard | Self::CronJobs | Self::Refuse => "ValidatingAdmissionPolicy",
        }
    }

    /// What happens without it.
    const fn without(self) -> &'static str {
        match self {
            Self::Suspend | Self::Refuse => {
                "a Job that is made running is suspended when the operator sees it, and its pods may run until then"
            }
            Self::Guard => {
                "a waiting Job that somebody starts is suspended when the operator sees it, and its pods may run until then"
            }
            Self::CronJobs => {
                "the Jobs of a CronJob that has the annotation on its own metadata run without a slot, and nothing says so"
            }
        }
    }

    /// How to put it in force.
    const fn install(self) -> &'static str {
        match self {
            Self::Suspend | Self::Guard | Self::CronJobs => "kubectl apply -k config/policies",
            Self::Refuse => "kubectl apply -f config/policies/refuse.yaml",
        }
    }

    /// The Kubernetes version that has it.
    const fn since(self) -> &'static str {
        match self {
            Self::Suspend => {
                "on Kubernetes 1.36 or newer (before: kubectl apply -f config/policies/refuse.yaml, which refuses such \
                 Jobs)"
            }
            Self::Guard | Self::CronJobs | Self::Refuse => "on Kubernetes 1.30 or newer",
        }
    }
}

/// The API server's answer about one object.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Found(Value),
    NotThere,
    /// Unknown, for this reason.
    Unknown(String),
}

/// What is known of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In force, at least somewhere: its binding may exclude namespaces.
    InForce,
    /// Missing, or this Kubernetes has no such policies.
    Absent,
    /// It exists, but no binding puts it in force.
    Unbound,
    /// It treats this operator, whose user name this is, as a user.
    OperatorUnknown(String),
    /// Unknown, for this reason.
    Unknown(String),
}

/// A policy, and what is known of it. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The policy.
    pub policy: Policy,
    /// What is known of it.
    pub standing: Standing,
}

impl Finding {
    /// What to do, or the consequence of doing nothing; `None` if all is well.
    pub fn advice(&self) -> Option<String> {
        let policy = self.policy;
        let (without, install, since) = (policy.without(), policy.install(), policy.since());
        match &self.standing {
            Standing::InForce => None,
            Standing::Absent => Some(format!("{without}; for more: {install}, {since}")),
            Standing::Unbound => Some(format!(
                "{without}; its binding is in the same file: {install}"
            )),
            Standing::OperatorUnknown(user) => Some(format!(
                "it refuses every start of a Job: add '{user}' to the list of operators in its match \
                 condition {OPERATORS}"
            )),
            Standing::Unknown(_) => Some(
                "nothing depends on it; config/rbac/role.yaml lets the operator see it".to_owned(),
            ),
        }
    }

    /// Logs it: as a warning if the policy was asked for but is not in force.
    fn log(&self) {
        let advice = self.advice().unwrap_or_default();
        match self.standing {
            Standing::InForce => tracing::info!("{self}"),
            Standing::Absent | Standing::Unknown(_) => tracing::info!("{self}: {advice}"),
            Standing::Unbound | Standing::OperatorUnknown(_) => tracing::warn!("{self}: {advice}"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = (self.policy.kind(), self.policy.name());
        match &self.standing {
            Standing::InForce => write!(f, "the {kind} {name} is in force"),
            Standing::Absent => write!(f, "there is no {kind} {name}"),
            Standing::Unbound => write!(f, "the {kind} {name} is there, but not bound"),
            Standing::OperatorUnknown(user) => {
                write!(f, "the {kind} {name} does not know this operator, {user}")
            }
            Standing::Unknown(why) => {
                write!(
                    f,
                    "whether the {kind} {name} is in force is not known ({why})"
                )
            }
        }
    }
}

/// Reads the policies and logs their state.
pub async fn report(client: kube::Client) {
    let operator = read::user(&client, PATIENCE).await;
    for finding in look(&client, operator.as_deref(), PATIENCE).await {
        finding.log();
    }
}

/// The findings worth reporting: where unsuspended Jobs are refused, the policy that suspends them is not needed, and
/// a missing refusal does not matter unless it was asked for.
fn worth_reporting([suspend, guard, cron_jobs, refuse]: [Finding; 4]) -> Vec<Finding> {
    let refused = refuse.standing == Standing::InForce;
    let suspend = (!refused || suspend.standing != Standing::Absent).then_some(suspend);
    let refuse = (refuse.standing != Standing::Absent).then_some(refuse);
    suspend
        .into_iter()
        .chain([guard, cron_jobs])
        .chain(refuse)
        .collect()
}

/// Evaluates what was read of a policy and its binding. `user` is this operator's user name, if known.
fn judge(policy: Policy, read: &Answer, binding: &Answer, user: Option<&str>) -> Finding {
    let standing = match (read, binding) {
        (Answer::NotThere, _) => Standing::Absent,
        (Answer::Unknown(why), _) | (Answer::Found(_), Answer::Unknown(why)) => {
            Standing::Unknown(why.clone())
        }
        (Answer::Found(_), Answer::NotThere) => Standing::Unbound,
        (Answer::Found(read), Answer::Found(binding)) => {
            if !binds(policy, binding) {
                Standing::Unbound
            } else if let Some(user) = user.filter(|user| lacks_operator(read, user)) {
                Standing::OperatorUnknown(user.to_owned())
            } else {
                Standing::InForce
            }
        }
    };
    Finding { policy, standing }
}

fn binds(policy: Policy, binding: &Value) -> bool {
    let spec = &binding["spec"];
    let acts = |wanted: &[&str]| {
        let actions = spec["validationActions"].as_array();
        let mut actions = actions.into_iter().flatten().filter_map(Value::as_str);
        actions.any(|action| wanted.contains(&action))
    };
    let is_in_force = match policy {
        Policy::Suspend => true,
        Policy::Guard | Policy::Refuse => acts(&["Deny"]),
        // Its user learns of the mistake either way.
        Policy::CronJobs => acts(&["Deny", "Warn"]),
    };
    spec["policyName"] == policy.name() && is_in_force
}

/// Whether a policy has a list of operators that does not include this one.
fn lacks_operator(policy: &Value, user: &str) -> bool {
    let conditions = policy["spec"]["matchConditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let list = conditions.find(|condition| condition["name"] == OPERATORS);
    let list = list.and_then(|condition| condition["expression"].as_str());
    let quoted = |quote| format!("{quote}{user}{quote}");
    list.is_some_and(|list| !list.contains(&quoted('\'')) && !list.contains(&quoted('"')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALL: [Policy; 4] = [
        Policy::Suspend,
        Policy::Guard,
        Policy::CronJobs,
        Policy::Refuse,
    ];
    const USER: &str = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";

    /// The shipped policy and its binding.
    fn shipped(policy: Policy) -> [Value; 2] {
        let text = match policy {
            Policy::Suspend => include_str!("../config/policies/suspend.yaml"),
            Policy::Guard => include_str!("../config/policies/guard.yaml"),
            Policy::CronJobs => include_str!("../config/policies/cronjobs.yaml"),
            Policy::Refuse => include_str!("../config/policies/refuse.yaml"),
        };
        let documents = text.split("\n---\n");
        let objects: Vec<Value> = documents
            .map(|document| serde_yaml_ng::from_str(document).unwrap())
            .collect();
        objects.try_into().unwrap()
    }

    fn judged(policy: Policy, change: impl FnOnce(&mut [Value; 2])) -> Finding {
        let mut objects = shipped(policy);
        change(&mut objects);
        let [read, binding] = objects.map(|object| {
            if object.is_null() {
                Answer::NotThere
            } else {
                Answer::Found(object)
            }
        });
        judge(policy, &read, &binding, Some(USER))
    }

    #[test]
    fn what_is_shipped_is_in_force_for_the_account_that_is_shipped() {
        for policy in ALL {
            for object in shipped(policy) {
                assert_eq!(object["metadata"]["name"], policy.name());
            }
            let finding = judged(policy, |_| {});
            assert_eq!(finding.standing, Standing::InForce);
            assert_eq!(finding.advice(), None);
            assert!(finding.to_string().ends_with("is in force"), "{finding}");
        }
    }

    #[test]
    fn without_the_policy_its_binding_says_nothing() {
        for policy in ALL {
            let finding = judged(policy, |[read, _]| *read = Value::Null);
            assert_eq!(finding.standing, Standing::Absent);
            let advice = finding.advice().unwrap();
            assert!(advice.contains(policy.install()), "{advice}");
            let hidden = Answer::Unknown("forbidden".to_owned());
            let finding = judge(policy, &Answer::NotThere, &hidden, None);
            assert_eq!(finding.standing, Standing::Absent);
        }
    }

    #[test]
    fn a_policy_needs_a_binding_of_its_own_that_denies() {
        let unbound = |policy, change: fn(&mut Value)| {
            let finding = judged(policy, |[_, binding]| change(binding));
            assert_eq!(finding.standing, Standing::Unbound);
        };
        for policy in ALL {
            unbound(policy, |binding| *binding = Value::Null);
            unbound(policy, |binding| {
                binding["spec"]["policyName"] = json!("another");
            });
        }
        for policy in [Policy::Guard, Policy::Refuse] {
            unbound(policy, |binding| {
                binding["spec"]["validationActions"] = json!(["Audit", "Warn"]);
            });
        }
        unbound(Policy::CronJobs, |binding| {
            binding["spec"]["validationActions"] = json!(["Audit"]);
        });
        let warns = judged(Policy::CronJobs, |[_, binding]| {
            binding["spec"]["validationActions"] = json!(["Warn"]);
        });
        assert_eq!(warns.standing, Standing::InForce);
    }

    #[test]
    fn policies_that_are_not_needed_are_not_reported() {
        use Standing::{Absent, InForce, Unbound};
        let reported = |[suspend, guard, refuse]: [Standing; 3]| {
            let mut policies = ALL.into_iter();
            let findings = [suspend, guard, InForce, refuse].map(|standing| Finding {
                policy: policies.next().unwrap(),
                standing,
            });
            let findings = worth_reporting(findings).into_iter();
            findings.map(|finding| finding.policy).collect::<Vec<_>>()
        };
        let always = [Policy::Suspend, Policy::Guard, Policy::CronJobs];
        assert_eq!(reported([InForce, InForce, Absent]), always);
        assert_eq!(reported([Absent, Absent, Absent]), always);
        assert_eq!(reported([InForce, InForce, InForce]), ALL);
        assert_eq!(reported([Absent, InForce, Unbound]), ALL);
        assert_eq!(reported([Unbound, InForce, InForce]), ALL);
        assert_eq!(
            reported([Absent, InForce, InForce]),
            [Policy::Guard, Policy::CronJobs, Policy::Refuse]
        );
    }

    #[test]
    fn the_guard_has_to_know_the_operator() {
        let listing = |list: &str| {
            judged(Policy::Guard, |[read, _]| {
                read["spec"]["matchConditions"] = json!([
                    { "name": "another", "expression": "true" },
                    { "name": OPERATORS, "expression": format!("!(request.userInfo.username in {list})") },
                ]);
            })
        };
        let among = [format!("['a', '{USER}']"), format!("[\"{USER}\"]")];
        for list in among {
            assert_eq!(listing(&list).standing, Standing::InForce, "{list}");
        }
        for list in ["[]".to_owned(), format!("['{USER}-b']")] {
            let finding = listing(&list);
            assert_eq!(finding.standing, Standing::OperatorUnknown(USER.to_owned()));
            let advice = finding.advice().unwrap();
            assert!(advice.contains(&format!("add '{USER}'")), "{advice}");
        }
        // A customised policy without this condition.
        let finding = judged(Policy::Guard, |[read, _]| {
            read["spec"]["matchConditions"] = json!([]);
        });
        assert_eq!(finding.standing, Standing::InForce);
        let [read, binding] = shipped(Policy::Guard).map(Answer::Found);
        let nobody = judge(Policy::Guard, &read, &binding, None);
        assert_eq!(nobody.standing, Standing::InForce);
    }

    #[test]
    fn what_cannot_be_read_is_not_known() {
        let hidden = || Answer::Unknown("may not get it".to_owned());
        let [found, _] = shipped(Policy::Suspend).map(Answer::Found);
        for [read, binding] in [[hidden(), Answer::NotThere], [found, hidden()]] {
            let finding = judge(Policy::Suspend, &read, &binding, None);
            assert_eq!(
                finding.standing,
                Standing::Unknown("may not get it".to_owned())
            );
            assert!(
                finding.to_string().contains("(may not get it)"),
                "{finding}"
            );
        }
    }
}
