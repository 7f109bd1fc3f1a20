//! Converts the use of a semaphore to dicts, which hold the arguments of the classes in
//! `python/consul_semaphore/_usage.py`.

use consul_semaphore::usage::{Usage, UsageContender, UsageHolder, UsageWaiter};
use pyo3::{
    prelude::*,
    types::{PyDateTime, PyTzInfo},
};

/// The use of a semaphore at one prefix.
#[derive(IntoPyObject)]
pub(crate) struct UsageDict {
    summary: Summary,
    holders: Vec<(Contender, Holder)>,
    waiters: Vec<(Contender, Waiter)>,
}

#[derive(IntoPyObject)]
struct Summary {
    prefix: String,
    kind: &'static str,
    limit: Option<u32>,
    held: usize,
    free: Option<u32>,
    waiting: Option<usize>,
    period_seconds: Option<u64>,
    problem: Option<String>,
}

#[derive(IntoPyObject)]
struct Contender {
    session: String,
    kind: String,
    name: String,
    #[pyo3(item("where"))]
    place: String,
    since: Option<Time>,
}

#[derive(IntoPyObject)]
struct Holder {
    fencing_token: Option<u64>,
    slot_index: Option<u32>,
    slot_name: Option<String>,
    dead: bool,
    cools_until: Option<Time>,
    never_expires: bool,
}

#[derive(IntoPyObject)]
struct Waiter {
    priority: Option<i32>,
    slots: u32,
}

/// A time in seconds since the Unix epoch, which becomes a `datetime` in UTC.
struct Time(f64);

impl<'py> IntoPyObject<'py> for Time {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        let utc = PyTzInfo::utc(py)?;
        match PyDateTime::from_timestamp(py, self.0, Some(&utc)) {
            Ok(time) => Ok(time.into_any()),
            // Contenders write their times themselves, and Python has no years before 1.
            Err(_no_time) => Ok(py.None().into_bound(py)),
        }
    }
}

impl UsageDict {
    pub(crate) fn of(usage: &Usage) -> Self {
        let summary = &usage.summary;
        Self {
            summary: Summary {
                prefix: summary.prefix.to_string(),
                kind: summary.kind.as_str(),
                limit: summary.limit,
                held: summary.held,
                free: usage.free(),
                waiting: summary.waiting,
                period_seconds: summary.period_seconds,
                problem: summary.problem.clone(),
            },
            holders: usage.holders.iter().map(holder).collect(),
            waiters: usage.waiters.iter().map(waiter).collect(),
        }
    }
}

fn holder(of: &UsageHolder) -> (Contender, Holder) {
    let holder = Holder {
        fencing_token: of.fencing_token,
        slot_index: of.slot_index,
        slot_name: of.slot_name.clone(),
        dead: of.dead,
        cools_until: of
            .cools_until
            .map(|until| Time(until.as_duration().as_secs_f64())),
        never_expires: of.never_expires,
    };
    (contender(&of.contender), holder)
}

fn waiter(of: &UsageWaiter) -> (Contender, Waiter) {
    let waiter = Waiter {
        priority: of.priority,
        slots: of.slots,
    };
    (contender(&of.contender), waiter)
}

fn contender(of: &UsageContender) -> Contender {
    Contender {
        session: of.session.shown().to_owned(),
        kind: of.kind.clone(),
        name: of.name.clone(),
        place: of.r#where.clone(),
        since: of
            .since
            .map(|since| Time(since.as_duration().as_secs_f64())),
    }
}
