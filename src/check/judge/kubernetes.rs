//! Makes the lines about Kubernetes.

use kube::CustomResourceExt as _;

use super::{
    consul::minor,
    definition::{Difference, difference},
    named,
};
use crate::{
    admission::{PolicyFinding, PolicyState, Role},
    check::{
        NamespacedName,
        api_server::{Answer, ApiError},
        election::{LeaseSearchResult, Searched},
        kubernetes::{
            CheckedRight, FoundObjects, KubernetesFacts, MAX_READ_OBJECTS, Rest, is_account,
        },
        report::{Area, Line, Outcome},
        rights::{Lease, RULES, Rule, RuleScope},
    },
    schema, telemetry,
};
use command_line::page;
use consul_semaphore_api::{ConsulSemaphore, annotations::SEMAPHORE};
use consul_semaphore_workload::Table;

/// The oldest Kubernetes in which a Job becomes Complete or Failed only once its pods have ended, which is when the
/// slot is given back.
const OLDEST_KUBERNETES: (u32, u32) = (1, 31);

const INSTALL: &str =
    "kubectl apply -k crds; or: consul-semaphore-operator crd | kubectl apply --server-side -f -";

/// Returns the lines about what was read, or about why the cluster is unknown.
pub(in crate::check) fn lines(seen: &Result<KubernetesFacts, String>) -> Vec<Line> {
    let seen = match seen {
        Ok(seen) => seen,
        Err(why) => {
            let line = line(
                "reachable",
                Outcome::Failed,
                format!("no cluster is configured: {why}"),
            );
            return vec![line.todo("set KUBECONFIG, or run this in a pod of the cluster")];
        }
    };
    let Some(rest) = &seen.rest else {
        let error = seen.version.as_ref().err();
        let why = error.map(ToString::to_string).unwrap_or_default();
        let line = line("reachable", Outcome::Failed, format!("{}: {why}", seen.url));
        return vec![
            line.todo("check KUBECONFIG, and the network between this machine and the API server"),
        ];
    };
    let mut lines = vec![
        line("reachable", Outcome::Ok, &seen.url),
        version(&seen.version),
        cluster(&rest.id),
    ];
    lines.extend(resource(rest));
    lines.push(asker(&rest.asker));
    lines.extend(rights(&rest.rights));
    lines.extend(
        rest.table
            .iter()
            .flat_map(|(name, table)| rows(name, table)),
    );
    lines.extend(rest.policies.iter().map(policy));
    lines.extend(rest.elects.then(|| election(&rest.election)));
    lines.extend(rest.schemas.iter().map(field));
    lines.extend(operators(&rest.contested));
    lines.push(cron_jobs(&rest.cron_jobs));
    lines
}

/// Returns whether an operator runs, as far as its Lease says.
fn election(election: &LeaseSearchResult) -> Line {
    let LeaseSearchResult {
        lease: Lease { namespace, name },
        lead,
        searched,
    } = election;
    let title = format!("{namespace}/{name}");
    let of = |outcome, message: String| line("operator", outcome, message);
    let none = |why: String| {
        of(
            Outcome::Warning,
            format!(
                "no replica leads: {why}. Until a replica leads, no slots are granted or released, the status of \
                 ConsulSemaphores is out of date, and deletions of ConsulSemaphores wait"
            ),
        )
    };
    let start = format!(
        "start the operator; or set --leader-election-namespace and --lease-name if its Lease is not {title}"
    );
    match (lead, searched) {
        (Ok(lead), _) if lead.holder.is_empty() => {
            none(format!("the Lease {title} was released")).todo(start)
        }
        (Ok(lead), _) if lead.is_over() => none(format!(
            "the Lease {title} was last renewed {} s ago",
            lead.age
        ))
        .todo(start),
        (Ok(lead), _) => of(
            Outcome::Ok,
            format!("{} leads, by the Lease {title}", lead.holder),
        ),
        (Err(ApiError::NotThere), Searched::Named) => {
            none(format!("there is no Lease {title}")).todo(start)
        }
        (Err(ApiError::NotThere), Searched::All) => {
            none(format!("there is no Lease {name} in any namespace"))
                .todo("start the operator; or set --lease-name if its Lease has another name")
        }
        (Err(why), Searched::Only(places)) => of(
            Outcome::Unknown,
            format!(
                "can't find out whether a replica leads: you may not list the Leases of all namespaces, and the Lease \
                 {name} in {} can't be read: {why}",
                places[..].join(" and ")
            ),
        )
        .todo(
            "set --leader-election-namespace to the namespace in which the operator runs, and use a kubeconfig that \
             may get Leases there",
        ),
        (Err(why), Searched::Named | Searched::All) => of(
            Outcome::Unknown,
            format!("the Lease {title} can't be read: {why}"),
        ),
    }
}

/// Returns the line about `ConsulSemaphores` with two operators, which do all work twice. There is no line if there are
/// no `ConsulSemaphores`.
fn operators(contested: &Answer<FoundObjects>) -> Option<Line> {
    let line = found(
        "operators",
        contested,
        "no ConsulSemaphore is managed by more than one operator",
        "more than one operator manages the same ConsulSemaphore, or did in the last 10 minutes. They keep its limit \
         and start no Job twice, but each emits all events and writes the status",
        concat!(
            "stop all but one, or give each a --semaphore-selector or --namespaces: ",
            page!("scope.md")
        ),
    );
    (*contested != Err(ApiError::NotThere)).then_some(line)
}

/// Returns the line about annotations on `CronJobs` themselves. They have no effect, and nothing else says so without
/// the admission policies.
fn cron_jobs(mistaken: &Answer<FoundObjects>) -> Line {
    found(
        "CronJobs",
        mistaken,
        "no CronJob has the annotation in the wrong place",
        &format!(
            "the annotation {SEMAPHORE} is on the CronJob itself, so its Jobs run without a slot"
        ),
        "move the annotation to spec.jobTemplate.metadata.annotations",
    )
}

/// Returns a line about objects that have a problem.
fn found(what: &str, found: &Answer<FoundObjects>, none: &str, problem: &str, todo: &str) -> Line {
    let of = |outcome, message: String| line(what, outcome, message);
    let FoundObjects { titles, cut } = match found {
        Ok(found) => found,
        Err(why) => return of(Outcome::Unknown, format!("they can't be listed: {why}")),
    };
    let rest = if *cut {
        format!(". There are more than {MAX_READ_OBJECTS}, and the others were not read")
    } else {
        String::new()
    };
    if !titles.is_empty() {
        let message = format!("{problem}: {}{rest}", named(titles.iter()));
        return of(Outcome::Warning, message).todo(todo);
    }
    let outcome = if *cut { Outcome::Unknown } else { Outcome::Ok };
    of(outcome, format!("{none}{rest}"))
}

fn line(what: &str, outcome: Outcome, message: impl std::fmt::Display) -> Line {
    Line::new(Area::Kubernetes, what, outcome, message)
}

/// Returns the lines about the rows of other kinds.
fn rows(name: &NamespacedName, table: &Answer<Table>) -> Vec<Line> {
    let title = format!("the ConfigMap {}/{}", name.namespace, name.name);
    let of = |outcome, message: String| line("kinds", outcome, message);
    let table = match table {
        Ok(table) => table,
        Err(ApiError::NotThere) => {
            let none = of(Outcome::Warning, format!("there is no {}", &title[4..]));
            return vec![none.todo("create it in the operator's namespace, or leave out --kinds")];
        }
        Err(why) => {
            return vec![of(
                Outcome::Unknown,
                format!("{title} can't be read: {why}"),
            )];
        }
    };
    let read = match table.kinds.len() {
        1 => format!("{title} has 1 row"),
        rows => format!("{title} has {rows} rows"),
    };
    let wrong = table.mistakes.iter().map(|(entry, why)| {
        let message = format!("the row {entry} of {title} is wrong: {why}");
        of(Outcome::Failed, message).todo(concat!("correct it: ", page!("kinds.md")))
    });
    [of(Outcome::Ok, read)].into_iter().chain(wrong).collect()
}

/// Returns the line about a field that a kind needs.
fn field(finding: &schema::FieldFinding) -> Line {
    use schema::FieldState;
    let outcome = match finding.standing {
        FieldState::There => Outcome::Ok,
        FieldState::Missing if finding.needed.holds => Outcome::Failed,
        FieldState::Missing | FieldState::NoKind => Outcome::Warning,
        FieldState::Unknown(_) => Outcome::Unknown,
    };
    let what = format!("schema of {}", finding.kind.resource().plural);
    let line = line(&what, outcome, finding);
    match finding.advice() {
        Some(advice) => line.todo(advice),
        None => line,
    }
}

/// Returns the line about a policy. The operator is correct without the policies.
fn policy(finding: &PolicyFinding) -> Line {
    let outcome = match finding.standing {
        PolicyState::InForce => Outcome::Ok,
        // The guard refuses an operator that it does not know.
        PolicyState::OperatorUnknown(_) if finding.policy.role() == Role::Guard => Outcome::Failed,
        PolicyState::Absent | PolicyState::Unbound | PolicyState::OperatorUnknown(_) => {
            Outcome::Warning
        }
        PolicyState::Unknown(_) => Outcome::Unknown,
    };
    let line = line(finding.policy.name(), outcome, finding);
    match finding.advice() {
        Some(advice) => line.todo(advice),
        None => line,
    }
}

fn version(version: &Answer<String>) -> Line {
    match version {
        Ok(version) => {
            let message = format!("{version} (tested with {})", telemetry::KUBERNETES);
            match minor(version) {
                Some(minor) if minor < OLDEST_KUBERNETES => {
                    line("version", Outcome::Failed, message).todo(
                        "use Kubernetes 1.31 or newer: in older versions, a Job may be Complete while its pods still \
                         run, and the operator would release its slot too early",
                    )
                }
                _ => line("version", Outcome::Ok, message),
            }
        }
        Err(why) => line("version", Outcome::Unknown, why),
    }
}

fn cluster(id: &Answer<String>) -> Line {
    match id {
        Ok(id) if !id.is_empty() => line("cluster id", Outcome::Ok, id),
        Ok(_) => line(
            "cluster id",
            Outcome::Failed,
            "the namespace kube-system has no uid",
        )
        .todo("this cluster has no id, which is unusual: start the operator with --consul-node and --cluster-name"),
        Err(why) => line(
            "cluster id",
            Outcome::Unknown,
            format!("can't read the uid of the namespace kube-system: {why}"),
        )
        .todo("use a kubeconfig that may get that namespace, or set --consul-node"),
    }
}

/// Returns whether the definition of `ConsulSemaphore` exists and matches this program.
fn resource(rest: &Rest) -> Vec<Line> {
    let of = |outcome, message: String| line("ConsulSemaphore", outcome, message);
    match &rest.served {
        Ok(kinds) if kinds.iter().any(|kind| kind == "consulsemaphores") => {}
        Ok(_) | Err(ApiError::NotThere) => {
            let missing = "the CustomResourceDefinition is not installed".to_owned();
            return vec![of(Outcome::Failed, missing).todo(INSTALL)];
        }
        Err(why) => return vec![of(Outcome::Unknown, why.to_string())],
    }
    let served = of(Outcome::Ok, "v1alpha1 is served".to_owned());
    vec![served, schema(&rest.definition)]
}

fn schema(installed: &Answer<crate::check::kubernetes::Definition>) -> Line {
    let of = |outcome, message: String| line("its schema", outcome, message);
    let installed = match installed {
        Ok(installed) => installed,
        Err(why) => {
            return of(Outcome::Unknown, format!("it can't be read: {why}"))
                .todo("use a kubeconfig that may get CustomResourceDefinitions");
        }
    };
    match difference(&ConsulSemaphore::crd(), installed) {
        None => of(Outcome::Ok, "it matches this program".to_owned()),
        Some(Difference::Version) => of(
            Outcome::Failed,
            "v1alpha1 is not the stored version".to_owned(),
        )
        .todo(INSTALL),
        Some(Difference::Property(path)) => {
            let message = format!(
                "it has no {path}, so it belongs to another version of the program, and the API server drops values of this field"
            );
            of(Outcome::Failed, message).todo(INSTALL)
        }
        Some(Difference::Line { ours, theirs }) => {
            let message = format!(
                "it belongs to another version: it has {theirs:?}, and this program has {ours:?}"
            );
            of(Outcome::Warning, message)
                .todo(format!("if the program is the newer one: {INSTALL}"))
        }
    }
}

fn asker(asker: &Answer<String>) -> Line {
    match asker {
        Ok(user) if is_account(user) => line("rights of", Outcome::Ok, user),
        Ok(user) => line(
            "rights of",
            Outcome::Warning,
            format!("{user} is not a ServiceAccount, but the operator's user is one"),
        )
        .todo("set --as system:serviceaccount:<namespace>:<name> to check the operator's rights"),
        Err(why) => line("rights of", Outcome::Unknown, why).todo(
            "to use --as you need the right to impersonate that account (verb impersonate on serviceaccounts)",
        ),
    }
}

fn rights(rights: &[CheckedRight]) -> Vec<Line> {
    let unknown = |right: &CheckedRight| right.unknown.is_some();
    if let Some(first) = rights.first()
        && rights
            .iter()
            .all(|right| unknown(right) && right.unknown == first.unknown)
    {
        let why = first.unknown.as_ref().map(ToString::to_string);
        let message = format!("they are unknown: {}", why.unwrap_or_default());
        return vec![
            line("rights", Outcome::Unknown, message)
                .todo("check KUBECONFIG: its user must be able to create SelfSubjectAccessReviews"),
        ];
    }
    rights.iter().map(right).collect()
}

fn right(right: &CheckedRight) -> Line {
    let CheckedRight {
        question,
        denied,
        unknown,
    } = right;
    let rule = &question.rule;
    let mut what = rule.resource.clone().into_owned();
    let namesake = |other: &Rule| other.resource == rule.resource && other.group != rule.group;
    if !rule.group.is_empty() && RULES.iter().any(namesake) {
        what = format!("{what}.{}", rule.group);
    }
    if let Some(name) = &question.name {
        what = format!("{what} {name}");
    }
    if let Some(namespace) = &question.namespace
        && question.name.as_ref() != Some(namespace)
    {
        what = format!("{what} in {namespace}");
    }
    if let Some(why) = unknown {
        return line(&what, Outcome::Unknown, why);
    }
    if denied.is_empty() {
        return line(&what, Outcome::Ok, format!("may {}", rule.verbs.join(", ")));
    }
    let outcome = if rule.optional {
        Outcome::Warning
    } else {
        Outcome::Failed
    };
    let message = format!("may not {}: {}", named(denied.iter()), rule.without);
    let command = question.source.apply();
    let apply = command.unwrap_or_else(|| match rule.place {
        RuleScope::BesideTable => concat!(
            "let the operator write events in the namespace of its ConfigMap, as this page says: ",
            page!("kinds.md")
        )
        .to_owned(),
        RuleScope::Table => concat!(
            "let the operator read its ConfigMap, as this page says: ",
            page!("kinds.md")
        )
        .to_owned(),
        _ => "kubectl apply -k config/rbac".to_owned(),
    });
    line(&what, outcome, message).todo(format!(
        "{apply}; for an operator of some namespaces see {}",
        page!("scope.md")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::{
            election::Lead,
            rights::{Served, questions},
        },
        identity::History,
    };
    use consul_semaphore_workload::Kinds;

    const OPERATOR: &str =
        "system:serviceaccount:consul-semaphore-system:consul-semaphore-operator";

    fn rest() -> Rest {
        let lease = lease();
        let served = Served {
            table: Some(table()),
            kinds: Kinds::default(),
        };
        let questions = questions(&served, &"*".parse().unwrap(), Some(&lease)).into_iter();
        let allowed = questions.map(|question| CheckedRight {
            question,
            denied: Vec::new(),
            unknown: None,
        });
        Rest {
            id: Ok("72ae35f8-3282-451b-b1ca-51957e931009".to_owned()),
            served: Ok(vec!["consulsemaphores".to_owned()]),
            definition: Ok(ConsulSemaphore::crd()),
            asker: Ok(OPERATOR.to_owned()),
            rights: allowed.collect(),
            table: Some((table(), Ok(Table::default()))),
            policies: Vec::new(),
            election: elected(Ok(lead("replica-1", 3)), Searched::Named),
            elects: true,
            history: Ok(History::default()),
            schemas: Vec::new(),
            cron_jobs: Ok(FoundObjects::default()),
            contested: Ok(FoundObjects::default()),
        }
    }

    fn table() -> NamespacedName {
        "consul-semaphore-system/kinds".parse().unwrap()
    }

    fn lease() -> Lease {
        Lease {
            namespace: "consul-semaphore-system".to_owned(),
            name: "consul-semaphore-operator".to_owned(),
        }
    }

    fn elected(lead: Answer<Lead>, searched: Searched) -> LeaseSearchResult {
        LeaseSearchResult {
            lease: lease(),
            lead,
            searched,
        }
    }

    fn lead(holder: &str, age: i64) -> Lead {
        Lead {
            holder: holder.to_owned(),
            age,
            duration: 15,
        }
    }

    #[test]
    fn it_is_reported_that_no_operator_runs() {
        for (answer, words) in [
            (Ok(lead("", 2)), "was released"),
            (Ok(lead("replica-1", 31)), "was last renewed 31 s ago"),
            (Err(ApiError::NotThere), "there is no Lease"),
        ] {
            let rest = Rest {
                election: elected(answer, Searched::Named),
                ..rest()
            };
            only(
                rest,
                "operator",
                Outcome::Warning,
                &["no replica leads", words],
            );
        }
        let hidden = Rest {
            election: elected(
                Err(ApiError::Forbidden("may not".to_owned())),
                Searched::Named,
            ),
            ..rest()
        };
        only(hidden, "operator", Outcome::Unknown, &["may not"]);
        let nowhere = Rest {
            election: elected(Err(ApiError::NotThere), Searched::All),
            ..rest()
        };
        let words = [
            "there is no Lease consul-semaphore-operator in any namespace",
            "--lease-name",
        ];
        only(nowhere, "operator", Outcome::Warning, &words);
    }

    /// An operator may run where the user may not look.
    #[test]
    fn a_lease_that_the_user_may_not_look_for_is_not_missing() {
        let places = vec!["default".to_owned(), "consul-semaphore-system".to_owned()];
        let rest = Rest {
            election: elected(Err(ApiError::NotThere), Searched::Only(places)),
            ..rest()
        };
        let words = [
            "you may not list the Leases of all namespaces",
            "in default and consul-semaphore-system can't be read: it does not exist",
            "set --leader-election-namespace",
        ];
        only(rest, "operator", Outcome::Unknown, &words);
    }

    fn some<const N: usize>(titles: [&str; N], cut: bool) -> FoundObjects {
        FoundObjects {
            titles: titles.map(str::to_owned).to_vec(),
            cut,
        }
    }

    #[test]
    fn an_annotation_on_a_cron_job_itself_is_reported() {
        let mistaken = |cut| Rest {
            cron_jobs: Ok(some(["batch/report"], cut)),
            ..rest()
        };
        let words = ["batch/report", "spec.jobTemplate.metadata.annotations"];
        only(mistaken(false), "CronJobs", Outcome::Warning, &words);
        let words = ["batch/report. There are more than 10000"];
        only(mistaken(true), "CronJobs", Outcome::Warning, &words);
    }

    #[test]
    fn where_not_all_were_read_nothing_is_certain() {
        let rest = Rest {
            cron_jobs: Ok(some([], true)),
            ..rest()
        };
        let words = ["no CronJob has", "more than 10000", "not read"];
        only(rest, "CronJobs", Outcome::Unknown, &words);
    }

    #[test]
    fn a_kind_that_can_t_be_held_is_reported() {
        use crate::schema::{FieldFinding, FieldState};

        let kinds: Kinds = "jobsets,sparkapplications".parse().unwrap();
        let of = |name: &str, which: usize, standing: FieldState| {
            let kind = kinds.named(&name.into()).unwrap();
            let schemas = vec![FieldFinding {
                kind: kind.clone(),
                needed: kind.needed().remove(which),
                standing,
            }];
            Rest { schemas, ..rest() }
        };
        let what = "schema of sparkapplications";
        let spark = |standing| of("SparkApplication", 0, standing);
        let words = [
            "can't be held",
            "spec.suspend",
            "install Spark operator 2.4",
        ];
        only(spark(FieldState::Missing), what, Outcome::Failed, &words);
        only(
            spark(FieldState::NoKind),
            what,
            Outcome::Warning,
            &["has no"],
        );
        let unknown = spark(FieldState::Unknown("away".to_owned()));
        only(unknown, what, Outcome::Unknown, &["away"]);
        let old = of("JobSet", 1, FieldState::Missing);
        let words = ["dependsOn", "install JobSet 0.8"];
        only(old, "schema of jobsets", Outcome::Warning, &words);
    }

    #[test]
    fn several_operators_of_one_semaphore_are_reported() {
        let rest = Rest {
            contested: Ok(some(["batch/db (a, b)"], false)),
            ..rest()
        };
        let words = ["batch/db (a, b)", "keep its limit", "--semaphore-selector"];
        only(rest, "operators", Outcome::Warning, &words);
    }

    fn all(rest: Rest) -> Vec<Line> {
        lines(&Ok(KubernetesFacts {
            url: "https://kubernetes:6443/".to_owned(),
            version: Ok("v1.36.3".to_owned()),
            rest: Some(rest),
        }))
    }

    #[track_caller]
    fn only(rest: Rest, what: &str, outcome: Outcome, words: &[&str]) {
        let mut bad = all(rest);
        bad.retain(|line| line.outcome != Outcome::Ok);
        let [line] = &bad[..] else {
            panic!("{bad:#?}");
        };
        assert_eq!((line.what.as_str(), line.outcome), (what, outcome));
        let todo = line.todo.as_deref().unwrap_or_default();
        for word in words {
            assert!(
                line.message.contains(word) || todo.contains(word),
                "{word}: {line:#?}"
            );
        }
    }

    #[test]
    fn where_all_is_well_nothing_is_to_be_done() {
        let lines = all(rest());
        assert!(
            lines
                .iter()
                .all(|line| line.outcome == Outcome::Ok && line.todo.is_none()),
            "{lines:#?}"
        );
        let whats: Vec<_> = lines.iter().map(|line| line.what.as_str()).collect();
        for what in [
            "its schema",
            "jobs",
            "pods",
            "consulsemaphores/status",
            "namespaces kube-system",
            "leases in consul-semaphore-system",
        ] {
            assert!(whats.contains(&what), "{whats:?}");
        }
    }

    #[test]
    fn one_that_is_away_is_asked_nothing_more() {
        let silent = ApiError::Failed("no route".to_owned());
        let seen = KubernetesFacts {
            url: "https://kubernetes:6443/".to_owned(),
            version: Err(silent),
            rest: None,
        };
        for (seen, words) in [
            (Ok(seen), "no route"),
            (Err("no file".to_owned()), "no file"),
        ] {
            let lines = lines(&seen);
            assert_eq!(lines.len(), 1);
            assert_eq!(lines[0].outcome, Outcome::Failed);
            assert!(lines[0].message.contains(words), "{lines:?}");
            assert!(
                lines[0]
                    .todo
                    .as_ref()
                    .is_some_and(|todo| todo.contains("KUBECONFIG"))
            );
        }
    }

    #[test]
    fn an_old_kubernetes_is_reported() {
        for (version, outcome) in [
            ("v1.30.9", Outcome::Failed),
            ("v1.31.0-eks-1", Outcome::Ok),
            ("v1.36.3", Outcome::Ok),
            ("v2.0.0", Outcome::Ok),
        ] {
            assert_eq!(
                super::version(&Ok(version.to_owned())).outcome,
                outcome,
                "{version}"
            );
        }
    }

    #[test]
    fn a_definition_that_is_not_there_or_another_one_is_reported() {
        let missing = Rest {
            served: Err(ApiError::NotThere),
            ..rest()
        };
        only(
            missing,
            "ConsulSemaphore",
            Outcome::Failed,
            &["not installed", "kubectl apply -k crds"],
        );
        let mut old = ConsulSemaphore::crd();
        old.spec.versions[0].schema = None;
        let old = Rest {
            definition: Ok(old),
            ..rest()
        };
        only(
            old,
            "its schema",
            Outcome::Warning,
            &["if the program is the newer one"],
        );
        let mut unstored = ConsulSemaphore::crd();
        unstored.spec.versions[0].storage = false;
        let unstored = Rest {
            definition: Ok(unstored),
            ..rest()
        };
        only(
            unstored,
            "its schema",
            Outcome::Failed,
            &["not the stored version"],
        );
        let hidden = Rest {
            definition: Err(ApiError::Forbidden("may not get it".to_owned())),
            ..rest()
        };
        only(
            hidden,
            "its schema",
            Outcome::Unknown,
            &["may not get it", "use a kubeconfig"],
        );
    }

    #[test]
    fn a_missing_right_is_reported_with_what_does_not_work() {
        let without = |resource: &str, verb| {
            let mut rest = rest();
            let rights = rest.rights.iter_mut();
            let mut named = rights.filter(|right| right.question.rule.resource == resource);
            named.next().unwrap().denied.push(verb);
            rest
        };
        let words = [
            "may not patch",
            "start or suspend Jobs",
            "kubectl apply -k config/rbac",
        ];
        only(without("jobs", "patch"), "jobs", Outcome::Failed, &words);
        only(
            without("events", "create"),
            "events",
            Outcome::Warning,
            &["no events"],
        );
    }

    /// Without an election by the Lease, the operator keeps the record of the last proofs there.
    #[test]
    fn a_missing_right_for_the_lease_is_reported_whatever_the_election() {
        for elects in [true, false] {
            for (verb, words) in [
                ("create", ["nothing is granted", "create its Leases"]),
                ("update", ["no replica leads", "just proved their slots"]),
            ] {
                let mut rest = Rest { elects, ..rest() };
                let of_lease = |right: &&mut CheckedRight| {
                    let rule = &right.question.rule;
                    rule.resource == "leases" && rule.verbs.contains(&verb)
                };
                let what = rest.rights.iter_mut().find(of_lease).map(|right| {
                    right.denied.push(verb);
                    let name = right.question.name.clone();
                    name.map_or_else(
                        || "leases in consul-semaphore-system".to_owned(),
                        |name| format!("leases {name} in consul-semaphore-system"),
                    )
                });
                only(rest, &what.unwrap(), Outcome::Failed, &words);
            }
        }
    }

    #[test]
    fn wrong_rows_and_a_missing_config_map_are_reported() {
        let with = |table| Rest {
            table: Some((self::table(), table)),
            ..rest()
        };
        let data = [("runs".to_owned(), "kind: Run".to_owned())];
        let wrong = Table::read(&data.into(), &Kinds::default());
        let words = [
            "the row runs of the ConfigMap consul-semaphore-system/kinds",
            "apiVersion",
        ];
        only(with(Ok(wrong)), "kinds", Outcome::Failed, &words);
        let words = ["there is no ConfigMap consul-semaphore-system/kinds"];
        let none = with(Err(ApiError::NotThere));
        only(none, "kinds", Outcome::Warning, &words);
    }

    #[test]
    fn the_report_says_whose_rights_they_are() {
        let admin = Rest {
            asker: Ok("kubernetes-admin".to_owned()),
            ..rest()
        };
        only(
            admin,
            "rights of",
            Outcome::Warning,
            &["kubernetes-admin", "--as system:serviceaccount:"],
        );
        let mut refused = rest();
        for right in &mut refused.rights {
            right.unknown = Some(ApiError::Forbidden("can't impersonate".to_owned()));
        }
        only(refused, "rights", Outcome::Unknown, &["can't impersonate"]);
    }
}
