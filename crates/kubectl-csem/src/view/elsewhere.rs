//! The contenders of other clusters and programs that wait.

use consul_semaphore_api::{ConsulSemaphoreStatus, LISTED, WaiterStatus};

use super::item::count;

/// The number of contenders that are named.
const NAMED_WAITERS: usize = 5;

/// Returns the contenders that wait for a slot of this key, or of any key if there is none.
pub(super) fn waiters<'a>(
    status: &'a ConsulSemaphoreStatus,
    key: Option<&str>,
) -> Vec<&'a WaiterStatus> {
    let all = status.waiting_elsewhere.iter();
    all.filter(|waiter| key.is_none() || waiter.key.as_deref() == key)
        .collect()
}

/// Returns a line about the contenders that wait elsewhere; `None` if nobody does. The number is a lower bound if the
/// status lists as many as it can.
pub(super) fn line(status: &ConsulSemaphoreStatus, key: Option<&str>) -> Option<String> {
    let waiters = waiters(status, key);
    if waiters.is_empty() {
        return None;
    }
    let mut names: Vec<String> = waiters
        .iter()
        .take(NAMED_WAITERS)
        .map(|waiter| name(waiter, key))
        .collect();
    if waiters.len() > NAMED_WAITERS {
        names.push("...".to_owned());
    }
    let at_least = if status.waiting_elsewhere.len() >= LISTED {
        "at least "
    } else {
        ""
    };
    let number = count(waiters.len(), "other waiter", "other waiters");
    Some(format!("{at_least}{number}: {}", names.join(", ")))
}

/// Returns the name of a contender, or its session if it has none, with its key unless the key is known.
pub(super) fn name(waiter: &WaiterStatus, known: Option<&str>) -> String {
    let mut name = waiter.waiter.to_string();
    if name.is_empty() {
        name = format!("session {}", waiter.session);
    }
    match &waiter.key {
        Some(key) if known.is_none() => format!("{name} (key {key})"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn status(waiters: &Value) -> ConsulSemaphoreStatus {
        from_value(json!({ "waitingElsewhere": waiters })).unwrap()
    }

    #[test]
    fn one_line_names_them() {
        assert_eq!(line(&status(&json!([])), None), None);
        let one =
            json!([{ "session": "s", "kind": "Process", "host": "ci-runner", "name": "deploy" }]);
        assert_eq!(
            line(&status(&one), None).as_deref(),
            Some("1 other waiter: ci-runner deploy")
        );
        let two = json!([{ "session": "s-1" }, { "session": "s-2", "kind": "Job", "cluster": "us", "namespace": "batch", "name": "a" }]);
        assert_eq!(
            line(&status(&two), None).as_deref(),
            Some("2 other waiters: session s-1, us batch/a")
        );
    }

    #[test]
    fn a_full_list_may_leave_some_out() {
        let full: Value = (0..LISTED)
            .map(|number| json!({ "session": format!("s-{number}"), "kind": "Process", "host": "ci", "name": format!("job-{number}") }))
            .collect();
        assert_eq!(
            line(&status(&full), None).as_deref(),
            Some(
                "at least 20 other waiters: ci job-0, ci job-1, ci job-2, ci job-3, ci job-4, ..."
            )
        );
    }

    #[test]
    fn those_of_a_keyed_one_wait_for_their_key() {
        let waiters = json!([
            { "session": "s-1", "key": "k1", "kind": "Process", "host": "ci", "name": "a" },
            { "session": "s-2", "key": "k2", "kind": "Process", "host": "ci", "name": "b" },
        ]);
        let keyed = status(&waiters);
        assert_eq!(
            line(&keyed, None).as_deref(),
            Some("2 other waiters: ci a (key k1), ci b (key k2)")
        );
        assert_eq!(
            line(&keyed, Some("k2")).as_deref(),
            Some("1 other waiter: ci b")
        );
        assert_eq!(line(&keyed, Some("k3")), None);
    }
}
