//! Makes the JSON of one semaphore, as the page shows it, from its status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use serde::Serialize;

use super::trend::Trend;
use consul_client::text::one_line;
use consul_semaphore::identity::{LEASE, PROCESS, PROGRAM_KIND};
use consul_semaphore_api::{
    ConsulSemaphore, ConsulSemaphoreStatus, HolderStatus, QueueStatus, SemaphoreMode,
    conditions::{self, ConditionStatus, ConditionType, Reason},
};
use consul_semaphore_workload::KIND;

/// Length to which text is cut that others may have written, in characters.
const LONGEST_TEXT: usize = 1_000;

/// A semaphore as the page shows it. Times are in seconds since 1970.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct View<'a> {
    namespace: String,
    name: String,
    prefix: String,
    mode: SemaphoreMode,
    /// Period of a rate, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<u64>,
    keyed: bool,
    /// Condition Ready; missing until the operator has processed the semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<ConditionText<'a>>,
    /// Reason of the first condition that asks for help.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'a str>,
    /// Text of the other conditions beyond Ready.
    remarks: Vec<ConditionText<'a>>,
    /// Number of slots: Consul's limit, or the spec's before there is one.
    limit: i32,
    held: i32,
    held_here: i32,
    waiting: i32,
    /// Number of slots that are granted in the open window, if these are fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    window_limit: Option<i32>,
    /// Time at which the next window opens, while none is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    window_opens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys_in_use: Option<i32>,
    holders: Vec<Holding<'a>>,
    queue: Vec<Waiting<'a>>,
}

/// The text of a condition.
#[derive(Debug, Serialize)]
struct ConditionText<'a> {
    status: &'a str,
    reason: &'a str,
    message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Holding<'a> {
    /// Kind of the holder: `job`, `workload`, `process`, `program`, or `unknown` if only the session is known.
    kind: &'static str,
    /// Kind of a workload that is not a Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Place of the holder: the cluster of a workload, the host of a process, the Consul node of another program's
    /// session.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a str>,
    session: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cools_until: Option<i64>,
    never_expires: bool,
    /// Why the workload has no pod that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_started: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waiting<'a> {
    kind: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    /// Time at which the workload is likely to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<i64>,
    /// All slots that the workload asks for, if these are slots of several semaphores.
    #[serde(skip_serializing_if = "Option::is_none")]
    asks_for: Option<&'a str>,
    /// Number of slots that the workload asks for here, if several.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<i32>,
    why: String,
}

impl<'a> View<'a> {
    /// Returns the view of a semaphore; `none` replaces a missing status.
    pub(super) fn of(semaphore: &'a ConsulSemaphore, none: &'a ConsulSemaphoreStatus) -> Self {
        let status = semaphore.status.as_ref().unwrap_or(none);
        let ready = conditions::find(&status.conditions, ConditionType::Ready);
        let stop = conditions::stop(&status.conditions);
        Self {
            namespace: semaphore.namespace().unwrap_or_default(),
            name: semaphore.name_any(),
            prefix: semaphore.prefix().to_string(),
            mode: semaphore.spec.mode,
            period: semaphore.spec.period.map(|period| period.get().as_secs()),
            keyed: semaphore.spec.keyed,
            ready: ready.map(ConditionText::by),
            problem: of_ours(&status.conditions)
                .find(|condition| is_problem(condition))
                .map(|condition| condition.reason.as_str()),
            remarks: of_ours(&status.conditions)
                .filter(|condition| says_more(condition, ready))
                .map(ConditionText::by)
                .collect(),
            limit: status.limit.unwrap_or(semaphore.spec.limit),
            held: status.held,
            held_here: status.held_here,
            waiting: status.waiting,
            window_limit: status.window_limit,
            window_opens: status.window_opens.as_ref().map(seconds),
            keys_in_use: status.keys_in_use,
            holders: status.holders.iter().map(Holding::of).collect(),
            queue: status
                .queue
                .iter()
                .map(|queued| Waiting::of(queued, stop))
                .collect(),
        }
    }

    /// Adds the number of slots that are held now. A keyed semaphore has no total.
    pub(super) fn add_to(&self, trend: &mut Trend, now: i64) {
        trend.add(now, self.held, (!self.keyed).then_some(self.limit));
    }
}

impl<'a> ConditionText<'a> {
    fn by(condition: &'a Condition) -> Self {
        Self {
            status: &condition.status,
            reason: &condition.reason,
            message: one_line(&condition.message, LONGEST_TEXT),
        }
    }
}

/// Returns the conditions that the operator reports.
fn of_ours(conditions: &[Condition]) -> impl Iterator<Item = &Condition> {
    let types = ConditionType::ALL.into_iter();
    types.filter_map(|type_| conditions::find(conditions, type_))
}

fn is_one_of(condition: &Condition, reasons: &[Reason]) -> bool {
    let mut reasons = reasons.iter();
    reasons.any(|reason| reason.as_str() == condition.reason)
}

/// Returns whether somebody has to do something. Nobody has to if the state was intended, or if merely all slots are
/// held.
fn is_problem(condition: &Condition) -> bool {
    let meant = [Reason::Paused, Reason::Terminating];
    condition.status == ConditionStatus::False.as_str()
        && !is_one_of(condition, &meant)
        && !conditions::is_normal(condition)
}

/// Returns whether a condition says something that Ready does not.
fn says_more(condition: &Condition, ready: Option<&Condition>) -> bool {
    let plain = conditions::is_normal(condition)
        && !is_one_of(condition, &[Reason::OutsideWindow, Reason::Reserved]);
    condition.status != ConditionStatus::Unknown.as_str()
        && !plain
        && ready.is_none_or(|ready| ready.reason != condition.reason)
}

impl<'a> Holding<'a> {
    fn of(holder: &'a HolderStatus) -> Self {
        let HolderStatus {
            session,
            key,
            holder,
            slot_index: _,
            slot_name,
            since,
            cools_until,
            never_expires,
            not_started,
        } = holder;
        let (kind, workload) = match holder.kind.as_deref() {
            None => ("unknown", None),
            Some(KIND) => ("job", None),
            Some(PROCESS) => ("process", None),
            Some(PROGRAM_KIND) => ("program", None),
            Some(LEASE) => ("process", Some(LEASE)),
            Some(kind) => ("workload", Some(kind)),
        };
        Self {
            kind,
            workload,
            name: holder.path(),
            place: holder.place(),
            session,
            key: key.as_deref(),
            slot_name: slot_name.as_deref(),
            since: since.as_ref().map(seconds),
            cools_until: cools_until.as_ref().map(seconds),
            never_expires: *never_expires,
            not_started: not_started
                .as_ref()
                .map(|start| one_line(&start.to_string(), LONGEST_TEXT)),
        }
    }
}

impl<'a> Waiting<'a> {
    /// Returns what the page shows of a queued workload. `stop` is the condition that says that nothing is granted.
    fn of(queued: &'a QueueStatus, stop: Option<&Condition>) -> Self {
        let QueueStatus {
            kind,
            name,
            key,
            slots,
            asks_for,
            since,
            expected,
            lacks: _,
            reason: _,
            message,
        } = queued;
        let why = match stop {
            // The message of the condition is shown once, above.
            Some(ready) => format!("nothing is granted now: {}", ready.reason),
            None => message.clone().unwrap_or_default(),
        };
        Self {
            kind,
            name,
            key: key.as_deref(),
            since: since.as_ref().map(seconds),
            expected: expected.as_ref().map(seconds),
            asks_for: asks_for.as_deref(),
            slots: *slots,
            why: one_line(&why, LONGEST_TEXT),
        }
    }
}

fn seconds(time: &Time) -> i64 {
    time.0.as_second()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(semaphore: Value) -> Value {
        let semaphore = serde_json::from_value(semaphore).unwrap();
        let none = ConsulSemaphoreStatus::default();
        serde_json::to_value(View::of(&semaphore, &none)).unwrap()
    }

    fn semaphore() -> Value {
        json!({
            "apiVersion": "consul-semaphore.io/v1alpha1",
            "kind": "ConsulSemaphore",
            "metadata": { "name": "db", "namespace": "batch" },
            "spec": { "limit": 2 },
        })
    }

    #[test]
    fn one_that_is_new_is_empty() {
        assert_eq!(
            view(semaphore()),
            json!({
                "namespace": "batch", "name": "db", "prefix": "semaphores/batch/db", "mode": "Semaphore", "keyed": false,
                "limit": 2, "held": 0, "heldHere": 0, "waiting": 0, "holders": [], "queue": [], "remarks": [],
            })
        );
    }

    #[test]
    fn it_shows_who_holds_who_waits_and_why() {
        let mut shown = semaphore();
        shown["status"] = json!({
            "limit": 1, "held": 1, "heldHere": 1, "waiting": 1,
            "holders": [{
                "session": "s-1", "kind": "Job", "cluster": "prod-eu", "namespace": "batch", "name": "migrate-1",
                "since": "1970-01-01T00:01:40Z", "coolsUntil": "1970-01-01T00:03:20Z",
                "notStarted": { "reason": "Unschedulable", "message": "no node fits" },
            }],
            "queue": [{
                "kind": "Job", "name": "migrate-2", "since": "1970-01-01T00:05:00Z", "reason": "AllSlotsHeld",
                "message": "1 of 1 slots are held",
            }],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Reconciled", "message": "slots are granted and released",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }, {
                "type": "SlotsAvailable", "status": "False", "reason": "AllSlotsHeld", "message": "1 of 1 slots are held",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let shown = view(shown);
        assert_eq!(
            shown["ready"],
            json!({ "status": "True", "reason": "Reconciled", "message": "slots are granted and released" })
        );
        assert_eq!(
            shown["holders"],
            json!([{
                "kind": "job", "name": "batch/migrate-1", "place": "prod-eu", "session": "s-1", "since": 100,
                "coolsUntil": 200, "neverExpires": false, "notStarted": "Unschedulable: no node fits",
            }])
        );
        assert_eq!(
            shown["queue"],
            json!([{ "kind": "Job", "name": "migrate-2", "since": 300, "why": "1 of 1 slots are held" }])
        );
    }

    #[test]
    fn it_shows_the_kind_of_what_is_no_job() {
        let mut shown = semaphore();
        shown["status"] = json!({
            "held": 5, "waiting": 1,
            "holders": [
                { "session": "s-1", "kind": "PipelineRun", "cluster": "prod-eu", "namespace": "batch", "name": "build" },
                { "session": "s-2", "kind": "Process", "host": "ci-7", "name": "deploy" },
                { "session": "s-3", "kind": "Program", "node": "web-1" },
                { "session": "s-4" },
                { "session": "s-5", "holder": "of an older status" },
            ],
            "queue": [{ "kind": "JobSet", "name": "train" }],
        });
        let shown = view(shown);
        let expected = json!([
            { "kind": "workload", "workload": "PipelineRun", "name": "batch/build", "place": "prod-eu", "session": "s-1",
              "neverExpires": false },
            { "kind": "process", "name": "deploy", "place": "ci-7", "session": "s-2", "neverExpires": false },
            { "kind": "program", "place": "web-1", "session": "s-3", "neverExpires": false },
            { "kind": "unknown", "session": "s-4", "neverExpires": false },
            { "kind": "unknown", "session": "s-5", "neverExpires": false },
        ]);
        assert_eq!(shown["holders"], expected);
        assert_eq!(shown["queue"][0]["kind"], "JobSet");
    }

    #[test]
    fn it_shows_what_is_asked_for_and_expected_and_when_the_window_opens() {
        let mut shown = semaphore();
        shown["status"] = json!({
            "waiting": 1, "windowOpens": "1970-01-01T00:10:00Z",
            "queue": [{
                "kind": "Job", "name": "a", "slots": 2, "asksFor": "db:2, licenses", "lacks": "licenses", "reason": "PassedOver",
                "message": "it waits for licenses; others start meanwhile",
                "expected": "1970-01-01T00:05:00Z",
            }],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Reconciled", "message": "slots are granted and released",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let shown = view(shown);
        assert_eq!(shown["windowOpens"], 600);
        let waiting = &shown["queue"][0];
        assert_eq!([&waiting["expected"], &waiting["slots"]], [300, 2]);
        assert_eq!(waiting["asksFor"], "db:2, licenses");
        assert_eq!(
            waiting["why"],
            "it waits for licenses; others start meanwhile"
        );
    }

    #[test]
    fn what_stops_all_is_above_and_named_at_each() {
        let mut shown = semaphore();
        shown["status"] = json!({
            "waiting": 2, "queue": [{ "kind": "Job", "name": "a" }, { "kind": "Job", "name": "b" }],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Paused", "message": "spec.paused is true: long text",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let shown = view(shown);
        for place in [0, 1] {
            assert_eq!(
                shown["queue"][place]["why"],
                "nothing is granted now: Paused"
            );
        }
        assert_eq!(shown["ready"]["message"], "spec.paused is true: long text");
    }

    #[test]
    fn a_problem_is_what_somebody_has_to_act_on() {
        let judged = |conditions: &[(&str, &str, &str)]| {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(type_, status, reason)| {
                    json!({
                        "type": type_, "status": status, "reason": reason, "message": "m",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    })
                })
                .collect();
            let mut shown = semaphore();
            shown["status"] = json!({ "conditions": conditions });
            let shown = view(shown);
            let each = shown["remarks"].as_array().unwrap().iter();
            let remarks = each.map(|remark| remark["reason"].as_str().unwrap().to_owned());
            let problem = shown["problem"].as_str().map(str::to_owned);
            (problem, remarks.collect::<Vec<_>>().join(" "))
        };
        let none = (None, String::new());
        let problem = |reason: &str, remarks: &str| (Some(reason.into()), remarks.into());
        let ready = ("Ready", "True", "Reconciled");
        let full = ("SlotsAvailable", "False", "AllSlotsHeld");
        assert_eq!(judged(&[ready, full]), none);
        for meant in ["Paused", "Terminating"] {
            assert_eq!(judged(&[("Ready", "False", meant), full]), none);
        }
        assert_eq!(judged(&[("Ready", "Unknown", "Starting")]), none);
        assert_eq!(
            judged(&[("Foreign", "False", "Whatever"), ready]),
            none,
            "a condition of somebody else"
        );
        let conflict = [
            ("Ready", "False", "LimitConflict"),
            ("LimitAgreed", "False", "LimitConflict"),
        ];
        assert_eq!(judged(&conflict), problem("LimitConflict", ""), "once");
        let lost = ("SlotsAvailable", "False", "RunningWithoutSlot");
        let expected = problem("RunningWithoutSlot", "RunningWithoutSlot");
        assert_eq!(judged(&[ready, lost]), expected);
        let stuck = [
            ("Ready", "False", "Terminating"),
            ("ConsulReachable", "False", "ConsulUnreachable"),
            ("LimitAgreed", "Unknown", "ConsulUnreachable"),
        ];
        let expected = problem("ConsulUnreachable", "ConsulUnreachable");
        assert_eq!(judged(&stuck), expected);
        let back = [ready, ("ConsulReachable", "True", "IndexWentBack")];
        assert_eq!(judged(&back), (None, "IndexWentBack".into()));
    }

    /// The page writes the text as text; here it stays unchanged, in one line.
    #[test]
    fn what_others_write_stays_text() {
        let mut shown = semaphore();
        let forged = "<img src=x onerror=alert(1)>";
        shown["status"] = json!({
            "held": 1,
            "holders": [{ "session": "</script>", "kind": "Program", "node": "\"web\n1", "name": forged }],
            "conditions": [{
                "type": "Ready", "status": "False", "reason": "x", "message": "a\r\ndata: b",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let semaphore: ConsulSemaphore = serde_json::from_value(shown).unwrap();
        let none = ConsulSemaphoreStatus::default();
        let text = serde_json::to_string(&View::of(&semaphore, &none)).unwrap();
        assert!(
            !text.contains(['\n', '\r']),
            "an event has no lines: {text}"
        );
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["holders"][0]["name"], forged);
        assert_eq!(read["ready"]["message"], "a  data: b");
    }
}
