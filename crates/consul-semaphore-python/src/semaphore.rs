//! A semaphore, or several whose slots are taken together.

use std::{fmt::Write as _, sync::Arc};

use consul_semaphore::{Builder, Notice, windows::WindowSpec};
use pyo3::prelude::*;

use crate::{
    call::{self, Call},
    consul::Consul,
    error::{self, InvalidSemaphoreError, number, time},
    process::{self, OfProcess, Process, Registered},
    slot::Slot,
    usage::UsageDict,
};

/// Python's levels of logging.
const DEBUG: u8 = 10;
const INFO: u8 = 20;
const WARNING: u8 = 30;

/// The settings of one of the semaphores: a Python object that has these attributes.
#[derive(FromPyObject)]
struct Part {
    prefix: String,
    limit: Option<i64>,
    mutex: bool,
    /// Period of the limit in seconds, the unit of all times here.
    period: Option<f64>,
    slots: i64,
    windows: Vec<Window>,
    /// Number of reserved slots, and the least priority that may have them.
    reserve: Option<(i64, i64)>,
}

#[derive(FromPyObject)]
struct Window {
    schedule: String,
    duration: f64,
    time_zone: Option<String>,
    limit: Option<i64>,
}

/// The settings that all the semaphores share. The library has a default for each setting that is left out.
#[derive(FromPyObject)]
struct Common {
    priority: Option<i64>,
    fair_order: Option<bool>,
    must_exist: Option<bool>,
    cooldown: Option<f64>,
    ttl: Option<f64>,
    lock_delay: Option<f64>,
    grace: Option<f64>,
    host: Option<String>,
    program: Option<String>,
    node: Option<String>,
    agent_checks: Option<bool>,
}

/// A semaphore, or several whose slots are taken together.
#[pyclass(frozen)]
pub(crate) struct Semaphore(OfProcess<Arc<Registered>>);

#[pymethods]
impl Semaphore {
    /// Makes a semaphore of `parts`, of which there is at least one. `log` is a method like `log` of Python's loggers.
    #[new]
    fn new(consul: &Consul, parts: Vec<Part>, common: Common, log: Py<PyAny>) -> PyResult<Self> {
        let process = Process::here()?;
        let cools = common.cooldown.is_some_and(|cooldown| cooldown > 0.0);
        let rests = cools || parts.iter().any(|part| part.period.is_some());
        let mut builder: Option<Builder> = None;
        for part in parts {
            let prefix = part.prefix.clone();
            let named = match builder {
                None => consul_semaphore::Semaphore::builder(consul.client()?, prefix),
                Some(builder) => builder.and(prefix),
            };
            builder = Some(part.say(named)?);
        }
        let builder = builder.ok_or_else(|| InvalidSemaphoreError::new_err("name a semaphore"))?;
        let log = Arc::new(log);
        let builder = common.say(builder)?.on_notice(move |notice| {
            let (level, text) = told(&notice);
            let log = log.clone();
            process.log(move |py| {
                // A failure of the program's logging does not concern the semaphore.
                drop(log.call1(py, (level, text)));
            });
        });
        let _runtime = process.enter();
        match builder.build() {
            Ok(semaphore) => {
                let registered = Registered::new(process, semaphore, rests);
                Ok(Self(OfProcess::new(Arc::new(registered))))
            }
            Err(error) => Err(InvalidSemaphoreError::new_err(error.to_string())),
        }
    }

    /// Asks for a slot, and sets the result of `future` to it. The work in the slot begins with [`Slot::begin`].
    /// Without `timeout` the call waits for as long as it takes, and with a timeout of 0 it does not wait.
    #[pyo3(signature = (timeout, future))]
    fn acquire(&self, timeout: Option<f64>, future: Py<PyAny>) -> PyResult<Call> {
        let registered = self.0.get()?.clone();
        let within = timeout
            .map(|timeout| time("timeout", timeout))
            .transpose()?;
        let process = registered.process();
        call::begin(process, future, async move {
            let semaphore = registered.semaphore();
            let slot = tokio::select! {
                biased;
                () = process.ends() => return Err(process::ending()),
                slot = semaphore.acquire_pending(within) => slot.map_err(|no| error::no_slot(&no))?,
            };
            Slot::new(slot, registered)
        })
    }

    /// Sets the result of `future` to the use of each of the semaphores, in the order of the parts.
    fn usage(&self, future: Py<PyAny>) -> PyResult<Call> {
        let registered = self.0.get()?.clone();
        let process = registered.process();
        call::begin(process, future, async move {
            let semaphore = registered.semaphore();
            match semaphore.usage().await {
                Ok(all) => Ok(all.iter().map(UsageDict::of).collect::<Vec<_>>()),
                Err(why) => Err(error::no_usage(&why, &semaphore.advice_on(&why))),
            }
        })
    }

    /// Sets the result of `future` once all slots are released and nobody waits for one.
    fn all_released(&self, future: Py<PyAny>) -> PyResult<Call> {
        let registered = self.0.get()?.clone();
        let process = registered.process();
        call::begin(process, future, async move {
            registered.semaphore().all_released().await;
            Ok(())
        })
    }
}

impl Part {
    fn say(self, mut builder: Builder) -> PyResult<Builder> {
        let limit = self.limit.map(|limit| number::<u32>("limit", limit));
        builder = match (limit.transpose()?, self.period) {
            (Some(limit), Some(period)) => builder.rate(limit, time("period", period)?),
            (Some(limit), None) => builder.limit(limit),
            (None, _) => builder,
        };
        if self.mutex {
            builder = builder.mutex();
        }
        for window in self.windows {
            builder = builder.window(window.spec()?);
        }
        if let Some((slots, priority)) = self.reserve {
            builder = builder.reserve(number("reserve", slots)?, number("reserve", priority)?);
        }
        Ok(builder.slots(number("slots", self.slots)?))
    }
}

impl Window {
    fn spec(self) -> PyResult<WindowSpec> {
        let limit = self
            .limit
            .map(|limit| number("the limit of a window", limit));
        Ok(WindowSpec {
            schedule: self.schedule,
            duration: time("the duration of a window", self.duration)?,
            time_zone: self.time_zone,
            limit: limit.transpose()?,
        })
    }
}

impl Common {
    fn say(self, mut builder: Builder) -> PyResult<Builder> {
        if let Some(priority) = self.priority {
            builder = builder.priority(number("priority", priority)?);
        }
        if let Some(fair_order) = self.fair_order {
            builder = builder.fair_order(fair_order);
        }
        if self.must_exist == Some(true) {
            builder = builder.must_exist();
        }
        if let Some(cooldown) = self.cooldown {
            builder = builder.cooldown(time("cooldown", cooldown)?);
        }
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(time("ttl", ttl)?);
        }
        if let Some(lock_delay) = self.lock_delay {
            builder = builder.lock_delay(time("lock_delay", lock_delay)?);
        }
        if let Some(grace) = self.grace {
            builder = builder.grace(time("grace", grace)?);
        }
        if let Some(host) = self.host {
            builder = builder.host(host);
        }
        if let Some(program) = self.program {
            builder = builder.program(program);
        }
        if let Some(node) = self.node {
            builder = builder.node(node);
        }
        if self.agent_checks == Some(true) {
            builder = builder.agent_checks();
        }
        Ok(builder)
    }
}

/// Returns the level and the text with which a notice is logged.
fn told(notice: &Notice) -> (u8, String) {
    match notice {
        Notice::Waiting(missing) => (
            INFO,
            format!("waiting: {} is free: {}", missing.none(), missing.holders),
        ),
        Notice::Near => (DEBUG, "the turn is near".to_owned()),
        Notice::Granted { waited, created } => {
            let mut text = "granted".to_owned();
            // Writing into a string can't fail.
            if let Some(waited) = waited {
                let _ = write!(text, " after {:.1} s", waited.as_secs_f64());
            }
            for prefix in created {
                let _ = write!(text, "; nobody used {prefix} before");
            }
            (if created.is_empty() { DEBUG } else { INFO }, text)
        }
        Notice::Resting(prefix) => (
            INFO,
            format!("waiting for the lock-delay of a dead holder at {prefix}"),
        ),
        Notice::Trouble { error, holding } => {
            let what = if *holding {
                "holding a slot"
            } else {
                "waiting"
            };
            (
                WARNING,
                format!("Consul can't be used while {what}: {error}"),
            )
        }
        Notice::LimitChanged { prefix, from, to } => (
            INFO,
            format!("the limit of {prefix} in Consul has changed from {from} to {to}"),
        ),
        Notice::Regained(prefix) => (WARNING, format!("the slot of {prefix} was replaced")),
        Notice::Unheld(prefix) => (WARNING, format!("the slot of {prefix} is lost")),
        Notice::StillHeld(held) => (WARNING, format!("a slot is not released: {held}")),
    }
}
