//! Finds out whether the admission policies of `config/policies` are in force, and says what to do if not.
//!
//! The operator is correct without the policies, so nothing fails here: the state of a policy that can't be read is
//! unknown. `read` asks the API server; this file evaluates its answers.

mod read;

use std::{fmt, time::Duration};

use consul_semaphore_api::{GROUP, annotations::WAITS_LABEL};
use consul_semaphore_workload::Kind;
use serde_json::Value;

pub use self::read::look;
use crate::manifests::{self, Source};

/// The time that one answer may take when the operator starts.
const POLICY_TIMEOUT: Duration = Duration::from_secs(10);

/// The policy that makes new Jobs suspended, and its binding.
pub const SUSPEND: &str = "suspend.consul-semaphore.io";
/// The policy that lets only the operator start Jobs and report on them, and its binding.
pub const GUARD: &str = "guard.consul-semaphore.io";
/// The policy that refuses `CronJobs` with the annotation on their own metadata, and its binding.
pub const CRON_JOBS: &str = "cronjobs.consul-semaphore.io";
/// The policy that refuses new Jobs that are not suspended, and its binding: for Kubernetes before 1.36, instead of
/// [`SUSPEND`].
pub const REFUSE: &str = "refuse.consul-semaphore.io";

/// The match conditions that name all operators: the condition of a policy about all others, and of one about
/// operators.
const OPERATORS: [&str; 2] = ["not-by-an-operator", "by-an-operator"];

/// Purpose of an admission policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The policy holds new workloads that name a semaphore: [`SUSPEND`].
    Hold,
    /// The policy lets only the operator start workloads and report on them: [`GUARD`].
    Guard,
    /// The policy refuses objects that make such workloads if the annotation is at a place from which the workloads
    /// don't get it: [`CRON_JOBS`].
    Makers,
    /// The policy refuses workloads that are not held or can't be held: [`REFUSE`].
    Refuse,
    /// The policy limits what the operator may do.
    Operator,
}

/// An admission policy that belongs to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    role: Role,
    name: String,
    /// The kind of the workloads that the policy is about.
    kind: String,
    source: Source,
}

/// The policies of a kind of workload.
pub fn policies_of(kind: &Kind) -> Vec<Policy> {
    let (switch, plural) = (kind.switch(), kind.resource().plural);
    let source = Source::of(kind);
    let policy = |role, name: String| Policy {
        role,
        name,
        kind: kind.name().to_string(),
        source: source.clone(),
    };
    let of = |role, beginning: &str| policy(role, format!("{beginning}.{plural}.{GROUP}"));
    let operator = |part: &str| policy(Role::Operator, format!("operator.{part}{switch}.{GROUP}"));
    match kind {
        Kind::Job => vec![
            policy(Role::Hold, SUSPEND.to_owned()),
            policy(Role::Guard, GUARD.to_owned()),
            policy(Role::Makers, CRON_JOBS.to_owned()),
            policy(Role::Refuse, REFUSE.to_owned()),
            operator(""),
        ],
        Kind::KueueWorkload => ["", "checks.", "active."].map(operator).into(),
        kind => {
            let mut policies = vec![
                of(Role::Hold, "hold"),
                of(Role::Guard, "guard"),
                operator(""),
            ];
            let refuses = manifests::has_requirements(kind);
            policies.extend(refuses.then(|| of(Role::Refuse, "refuse")));
            let makers = manifests::makers_of(kind);
            policies.extend(makers.map(|plural| policy(Role::Makers, format!("{plural}.{GROUP}"))));
            policies
        }
    }
}

impl Policy {
    /// Returns the name of the policy and of its binding.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the purpose of the policy.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether the policy is there only for those who ask for it.
    fn is_extra(&self) -> bool {
        self.role == Role::Refuse && self.source == Source::Operator
    }

    fn type_(&self) -> &'static str {
        match self.role {
            Role::Hold => "MutatingAdmissionPolicy",
            Role::Guard | Role::Makers | Role::Refuse | Role::Operator => {
                "ValidatingAdmissionPolicy"
            }
        }
    }

    /// Returns the name of such policies in URLs.
    pub(crate) fn resource(&self) -> &'static str {
        match self.role {
            Role::Hold => "mutatingadmissionpolicies",
            Role::Guard | Role::Makers | Role::Refuse | Role::Operator => {
                "validatingadmissionpolicies"
            }
        }
    }

    /// Returns the name of their bindings in URLs.
    pub(crate) fn binding(&self) -> &'static str {
        match self.role {
            Role::Hold => "mutatingadmissionpolicybindings",
            Role::Guard | Role::Makers | Role::Refuse | Role::Operator => {
                "validatingadmissionpolicybindings"
            }
        }
    }

    /// Returns what happens without the policy.
    fn without(&self) -> String {
        let kind = &self.kind;
        match (self.role, &self.source) {
            (Role::Hold | Role::Refuse, Source::Operator) => {
                "a Job that is created without suspend: true is suspended when the operator sees it, and its pods may run until then".into()
            }
            (Role::Guard, Source::Operator) => {
                "a waiting Job that somebody starts is suspended when the operator sees it, and its pods may run until then"
                    .into()
            }
            (Role::Makers, _) => format!(
                "the {kind}s of a Cron{kind} that has the annotation on its own metadata run without a slot, and \
                 nothing reports this"
            ),
            (Role::Hold, _) => format!(
                "a {kind} waits only if its manifest holds it back and has the label {WAITS_LABEL}"
            ),
            (Role::Guard, _) => format!("anybody who may change a waiting {kind} can start it"),
            (Role::Refuse, _) => {
                format!("a {kind} that can't be held is accepted, and only an event reports this")
            }
            (Role::Operator, _) => {
                format!(
                    "anybody who has the token of the operator's ServiceAccount can change what a {kind} runs"
                )
            }
        }
    }

    /// Returns how to put the policy in force.
    fn install(&self) -> String {
        let extra = self.is_extra();
        self.source.apply().unwrap_or_else(|| {
            if extra {
                "kubectl apply -f config/policies/refuse.yaml".to_owned()
            } else {
                "kubectl apply -k config/policies".to_owned()
            }
        })
    }

    /// Returns the Kubernetes version that has the policy.
    fn since(&self) -> &'static str {
        match (self.role, &self.source) {
            (Role::Hold, Source::Operator) => {
                "on Kubernetes 1.36 or newer (on older versions: kubectl apply -f config/policies/refuse.yaml, which \
                 refuses such Jobs)"
            }
            (Role::Hold, _) => "on Kubernetes 1.36 or newer",
            (Role::Operator, _) => "on Kubernetes 1.33 or newer",
            (Role::Guard | Role::Makers | Role::Refuse, _) => "on Kubernetes 1.30 or newer",
        }
    }
}

/// The API server's answer about one object.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Found(Value),
    NotThere,
    /// The answer is unknown, for this reason.
    Unknown(String),
}

/// The state of a policy, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyState {
    /// The policy is in force, at least somewhere, because its binding may exclude namespaces.
    InForce,
    /// The policy is missing, or this Kubernetes has no such policies.
    Absent,
    /// The policy exists, but no binding puts it in force.
    Unbound,
    /// The policy treats this operator as a user; the value is the operator's user name.
    OperatorUnknown(String),
    /// The state is unknown, for this reason.
    Unknown(String),
}

/// A policy and its state. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFinding {
    /// The policy.
    pub policy: Policy,
    /// The state of the policy.
    pub standing: PolicyState,
}

impl PolicyFinding {
    /// Returns what to do, or the consequence of doing nothing; `None` if all is well.
    pub fn advice(&self) -> Option<String> {
        let policy = &self.policy;
        let (without, install, since) = (policy.without(), policy.install(), policy.since());
        match &self.standing {
            PolicyState::InForce => None,
            PolicyState::Absent => Some(format!("{without}; to prevent this: {install}, {since}")),
            PolicyState::Unbound => Some(format!(
                "{without}; to install the policy with its binding: {install}"
            )),
            PolicyState::OperatorUnknown(user) => {
                let [all_others, these] = OPERATORS;
                let (so, condition) = match policy.role {
                    Role::Operator => ("it does not limit this operator".to_owned(), these),
                    _ => (
                        format!("it refuses every start of a {}", policy.kind),
                        all_others,
                    ),
                };
                Some(format!(
                    "{so}: add '{user}' to the list of operators in its match condition {condition}"
                ))
            }
            PolicyState::Unknown(_) => {
                let command = self.policy.source.apply();
                let lets = command.unwrap_or_else(|| "config/rbac/role.yaml".to_owned());
                Some(format!(
                    "the operator works without this information; {lets} gives it the right to read the policy"
                ))
            }
        }
    }

    /// Logs the finding: as a warning if the policy was asked for but is not in force.
    fn log(&self) {
        let advice = self.advice().unwrap_or_default();
        match self.standing {
            PolicyState::InForce => tracing::info!("{self}"),
            PolicyState::Absent | PolicyState::Unknown(_) => tracing::info!("{self}: {advice}"),
            PolicyState::Unbound | PolicyState::OperatorUnknown(_) => {
                tracing::warn!("{self}: {advice}");
            }
        }
    }
}

impl fmt::Display for PolicyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = (self.policy.type_(), self.policy.name());
        match &self.standing {
            PolicyState::InForce => write!(f, "the {kind} {name} is in force"),
            PolicyState::Absent => write!(f, "there is no {kind} {name}"),
            PolicyState::Unbound => write!(f, "the {kind} {name} exists, but has no binding"),
            PolicyState::OperatorUnknown(user) => {
                write!(f, "the {kind} {name} does not know this operator, {user}")
            }
            PolicyState::Unknown(why) => {
                write!(
                    f,
                    "it is unknown whether the {kind} {name} is in force ({why})"
                )
            }
        }
    }
}

/// Reads the policies of these kinds and logs their state.
pub async fn report(client: kube::Client, kinds: Vec<Kind>) {
    let operator = read::user(&client, POLICY_TIMEOUT).await;
    for kind in kinds {
        for finding in look(&client, &kind, operator.as_deref(), POLICY_TIMEOUT).await {
            finding.log();
        }
    }
}

/// Returns the findings about a kind that are worth reporting. Where unsuspended Jobs are refused, the policy that
/// suspends them is not needed, and a missing refusal does not matter unless it was asked for.
fn worth_reporting(mut findings: Vec<PolicyFinding>) -> Vec<PolicyFinding> {
    let mut extra = findings.iter().filter(|finding| finding.policy.is_extra());
    let refused = extra.any(|finding| finding.standing == PolicyState::InForce);
    findings.retain(|PolicyFinding { policy, standing }| {
        let spare = policy.is_extra() || refused && policy.role == Role::Hold;
        !spare || *standing != PolicyState::Absent
    });
    findings
}

/// Evaluates what was read of a policy and its binding. `user` is this operator's user name, if known.
fn judge(policy: Policy, read: &Answer, binding: &Answer, user: Option<&str>) -> PolicyFinding {
    let standing = match (read, binding) {
        (Answer::NotThere, _) => PolicyState::Absent,
        (Answer::Unknown(why), _) | (Answer::Found(_), Answer::Unknown(why)) => {
            PolicyState::Unknown(why.clone())
        }
        (Answer::Found(_), Answer::NotThere) => PolicyState::Unbound,
        (Answer::Found(read), Answer::Found(binding)) => {
            if !binds(&policy, binding) {
                PolicyState::Unbound
            } else if let Some(user) = user.filter(|user| lacks_operator(read, user)) {
                PolicyState::OperatorUnknown(user.to_owned())
            } else {
                PolicyState::InForce
            }
        }
    };
    PolicyFinding { policy, standing }
}

fn binds(policy: &Policy, binding: &Value) -> bool {
    let spec = &binding["spec"];
    let acts = |wanted: &[&str]| {
        let listed = spec["validationActions"].as_array();
        let mut actions = listed.into_iter().flatten().filter_map(Value::as_str);
        actions.any(|action| wanted.contains(&action))
    };
    let is_in_force = match policy.role {
        Role::Hold => true,
        Role::Guard | Role::Refuse | Role::Operator => acts(&["Deny"]),
        // The user learns of the mistake from a warning, too.
        Role::Makers => acts(&["Deny", "Warn"]),
    };
    spec["policyName"] == policy.name() && is_in_force
}

/// Whether a policy has a list of operators that does not include this one.
fn lacks_operator(policy: &Value, user: &str) -> bool {
    let listed = policy["spec"]["matchConditions"].as_array();
    let mut conditions = listed.into_iter().flatten();
    let about_operators =
        conditions.find(|condition| OPERATORS.iter().any(|name| condition["name"] == *name));
    let list = about_operators.and_then(|condition| condition["expression"].as_str());
    let quoted = |quote| format!("{quote}{user}{quote}");
    list.is_some_and(|list| !list.contains(&quoted('\'')) && !list.contains(&quoted('"')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALL: [Role; 5] = [
        Role::Hold,
        Role::Guard,
        Role::Makers,
        Role::Refuse,
        Role::Operator,
    ];
    const USER: &str = "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";

    /// Returns the policy of Jobs with this role.
    fn of_jobs(role: Role) -> Policy {
        let mut policies = policies_of(&Kind::Job).into_iter();
        policies.find(|policy| policy.role == role).unwrap()
    }

    /// Returns the shipped policy and its binding.
    fn shipped(role: Role) -> [Value; 2] {
        let text = match role {
            Role::Hold => include_str!("../config/policies/suspend.yaml"),
            Role::Guard => include_str!("../config/policies/guard.yaml"),
            Role::Makers => include_str!("../config/policies/cronjobs.yaml"),
            Role::Refuse => include_str!("../config/policies/refuse.yaml"),
            Role::Operator => include_str!("../config/policies/operator.yaml"),
        };
        let documents = text.split("\n---\n");
        let objects: Vec<Value> = documents
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect();
        objects.try_into().unwrap()
    }

    fn judged(role: Role, change: impl FnOnce(&mut [Value; 2])) -> PolicyFinding {
        let mut objects = shipped(role);
        change(&mut objects);
        let [read, binding] = objects.map(|object| {
            if object.is_null() {
                Answer::NotThere
            } else {
                Answer::Found(object)
            }
        });
        judge(of_jobs(role), &read, &binding, Some(USER))
    }

    #[test]
    fn what_is_shipped_is_in_force_for_the_account_that_is_shipped() {
        for policy in ALL {
            for object in shipped(policy) {
                assert_eq!(object["metadata"]["name"], of_jobs(policy).name());
            }
            let finding = judged(policy, |_| {});
            assert_eq!(finding.standing, PolicyState::InForce);
            assert_eq!(finding.advice(), None);
            assert!(finding.to_string().ends_with("is in force"), "{finding}");
        }
    }

    #[test]
    fn without_the_policy_its_binding_says_nothing() {
        for policy in ALL {
            let finding = judged(policy, |[read, _]| *read = Value::Null);
            assert_eq!(finding.standing, PolicyState::Absent);
            let advice = finding.advice().unwrap();
            assert!(advice.contains(&of_jobs(policy).install()), "{advice}");
            let hidden = Answer::Unknown("forbidden".to_owned());
            let finding = judge(of_jobs(policy), &Answer::NotThere, &hidden, None);
            assert_eq!(finding.standing, PolicyState::Absent);
        }
    }

    #[test]
    fn a_policy_needs_a_binding_of_its_own_that_denies() {
        let unbound = |policy: Role, change: fn(&mut Value)| {
            let finding = judged(policy, |[_, binding]| change(binding));
            assert_eq!(finding.standing, PolicyState::Unbound);
        };
        for policy in ALL {
            unbound(policy, |binding| *binding = Value::Null);
            unbound(policy, |binding| {
                binding["spec"]["policyName"] = json!("another");
            });
        }
        for policy in [Role::Guard, Role::Refuse, Role::Operator] {
            unbound(policy, |binding| {
                binding["spec"]["validationActions"] = json!(["Audit", "Warn"]);
            });
        }
        unbound(Role::Makers, |binding| {
            binding["spec"]["validationActions"] = json!(["Audit"]);
        });
        let warns = judged(Role::Makers, |[_, binding]| {
            binding["spec"]["validationActions"] = json!(["Warn"]);
        });
        assert_eq!(warns.standing, PolicyState::InForce);
    }

    #[test]
    fn policies_that_are_not_needed_are_not_reported() {
        use PolicyState::{Absent, InForce, Unbound};
        let reported = |[suspend, guard, refuse]: [PolicyState; 3]| {
            let mut roles = ALL.into_iter();
            let standings = [suspend, guard, InForce, refuse, Absent];
            let findings = standings.map(|standing| PolicyFinding {
                policy: of_jobs(roles.next().unwrap()),
                standing,
            });
            let findings = worth_reporting(findings.into()).into_iter();
            findings
                .map(|finding| finding.policy.role)
                .collect::<Vec<_>>()
        };
        let always = [Role::Hold, Role::Guard, Role::Makers, Role::Operator];
        assert_eq!(reported([InForce, InForce, Absent]), always);
        assert_eq!(reported([Absent, Absent, Absent]), always);
        assert_eq!(reported([InForce, InForce, InForce]), ALL);
        assert_eq!(reported([Absent, InForce, Unbound]), ALL);
        assert_eq!(reported([Unbound, InForce, InForce]), ALL);
        assert_eq!(
            reported([Absent, InForce, InForce]),
            [Role::Guard, Role::Makers, Role::Refuse, Role::Operator]
        );
    }

    #[test]
    fn the_guard_has_to_know_the_operator() {
        let listing = |list: &str| {
            judged(Role::Guard, |[read, _]| {
                read["spec"]["matchConditions"] = json!([
                    { "name": "another", "expression": "true" },
                    { "name": OPERATORS[0], "expression": format!("!(request.userInfo.username in {list})") },
                ]);
            })
        };
        let among = [format!("['a', '{USER}']"), format!("[\"{USER}\"]")];
        for list in among {
            assert_eq!(listing(&list).standing, PolicyState::InForce, "{list}");
        }
        for list in ["[]".to_owned(), format!("['{USER}-b']")] {
            let finding = listing(&list);
            assert_eq!(
                finding.standing,
                PolicyState::OperatorUnknown(USER.to_owned())
            );
            let advice = finding.advice().unwrap();
            assert!(advice.contains(&format!("add '{USER}'")), "{advice}");
        }
        // Somebody has made a policy without this condition.
        let finding = judged(Role::Guard, |[read, _]| {
            read["spec"]["matchConditions"] = json!([]);
        });
        assert_eq!(finding.standing, PolicyState::InForce);
        let [read, binding] = shipped(Role::Guard).map(Answer::Found);
        let nobody = judge(of_jobs(Role::Guard), &read, &binding, None);
        assert_eq!(nobody.standing, PolicyState::InForce);
    }

    #[test]
    fn the_policies_of_other_kinds_are_judged_like_those_of_jobs() {
        for kind in Kind::all() {
            let manifests = crate::manifests::of_kind(&kind);
            let texts = manifests.split("---\n").filter(|text| !text.is_empty());
            let objects: Vec<Value> = texts
                .map(|text| serde_saphyr::from_str(text).unwrap())
                .collect();
            let policies = policies_of(&kind).into_iter();
            for policy in policies.filter(|_| kind != Kind::Job) {
                let is_it = |object: &&Value| object["metadata"]["name"] == policy.name();
                let mut its_own = objects.iter().filter(is_it).cloned().map(Answer::Found);
                let (read, binding) = (its_own.next().unwrap(), its_own.next().unwrap());
                let judged = |user| judge(policy.clone(), &read, &binding, Some(user)).standing;
                assert_eq!(judged(USER), PolicyState::InForce, "{policy:?}");
                let lists = matches!(policy.role, Role::Guard | Role::Operator);
                assert_eq!(judged("else") != PolicyState::InForce, lists, "{policy:?}");
                let absent = judge(policy, &Answer::NotThere, &Answer::NotThere, None);
                let advice = absent.advice().unwrap();
                let command = format!("kinds --manifests {} |", kind.switch());
                assert!(advice.contains(&command), "{advice}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_known() {
        let hidden = || Answer::Unknown("may not get it".to_owned());
        let [found, _] = shipped(Role::Hold).map(Answer::Found);
        for [read, binding] in [[hidden(), Answer::NotThere], [found, hidden()]] {
            let finding = judge(of_jobs(Role::Hold), &read, &binding, None);
            assert_eq!(
                finding.standing,
                PolicyState::Unknown("may not get it".to_owned())
            );
            assert!(
                finding.to_string().contains("(may not get it)"),
                "{finding}"
            );
        }
    }
}
