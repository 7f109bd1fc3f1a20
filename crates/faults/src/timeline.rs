//! The timeline: an append-only file, and the present that follows from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};

use anyhow::{Context as _, Result};

use crate::record::{Body, Job, JobState, Record, What};

/// The timeline of a campaign. All clones are the same timeline.
#[derive(Clone)]
pub struct Timeline(Arc<Inner>);

struct Inner {
    path: PathBuf,
    begin: Instant,
    /// The second at which this part of the campaign began.
    offset: f64,
    state: Mutex<State>,
}

struct State {
    file: File,
    records: Vec<Record>,
    view: View,
    failed: Option<String>,
}

/// The present, as the records show it.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The existing Jobs, by uid.
    pub jobs: BTreeMap<String, Job>,
    /// The Jobs with pods that have not ended, with those pods.
    pub pods: BTreeMap<String, BTreeSet<String>>,
    /// The Job that a session is for.
    pub sessions: BTreeMap<String, String>,
    /// The `.lock` of each semaphore.
    pub locks: BTreeMap<String, Body>,
    /// How many slots were handed over.
    pub hand_overs: usize,
}

impl View {
    /// Applies a record.
    pub fn take(&mut self, what: &What) {
        match what {
            What::Bed { .. } => *self = Self::default(),
            What::Job(job) if job.state == JobState::Gone => {
                self.jobs.remove(&job.uid);
            }
            What::Job(job) => {
                self.jobs.insert(job.uid.clone(), job.clone());
            }
            What::Pod {
                pod, uid, alive, ..
            } => {
                let pods = self.pods.entry(uid.clone()).or_default();
                if *alive {
                    pods.insert(pod.clone());
                } else {
                    pods.remove(pod);
                }
                if pods.is_empty() {
                    self.pods.remove(uid);
                }
            }
            What::Contender { session, uid, .. } => {
                self.sessions.insert(session.clone(), uid.clone());
            }
            What::Lock { prefix, body, .. } => {
                let before = self.locks.insert(prefix.clone(), body.clone());
                let before = before.map(|body| body.holders()).unwrap_or_default();
                self.hand_overs += body.holders().difference(&before).count();
            }
            _ => {}
        }
    }

    /// The Jobs of a semaphore in this state.
    pub fn jobs_of(&self, prefix: &str, state: JobState) -> Vec<Job> {
        let jobs = self.jobs.values();
        jobs.filter(|job| job.prefix == prefix && job.state == state)
            .cloned()
            .collect()
    }

    /// The sessions that hold a slot of a semaphore for a Job, with the Job's uid.
    pub fn held_here(&self, prefix: &str) -> Vec<(String, String)> {
        let holders = self.locks.get(prefix).map(Body::holders);
        let holders = holders.unwrap_or_default().into_iter();
        holders
            .filter_map(|session| {
                let uid = self.sessions.get(&session)?.clone();
                Some((session, uid))
            })
            .collect()
    }
}

impl Timeline {
    /// Begins a timeline, or continues the one in the file.
    pub fn open(path: &Path) -> Result<Self> {
        let records = if path.exists() {
            read(path)?
        } else {
            Vec::new()
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        Ok(Self(Arc::new(Inner {
            path: path.to_owned(),
            begin: Instant::now(),
            offset: records.last().map_or(0.0, |record| record.t.ceil()),
            state: Mutex::new(State {
                file,
                records,
                view: View::default(),
                failed: None,
            }),
        })))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Seconds since the campaign began.
    pub fn now(&self) -> f64 {
        self.0.offset + self.0.begin.elapsed().as_secs_f64()
    }

    /// Writes a record. If a record can't be written, the campaign fails at its end.
    pub fn push(&self, what: What) {
        let mut state = self.state();
        // Under the lock, so that the records in the file are in order of time.
        let record = Record {
            t: self.now(),
            what,
        };
        let written = serde_json::to_string(&record)
            .map_err(anyhow::Error::from)
            .and_then(|line| Ok(writeln!(state.file, "{line}")?));
        if let Err(error) = written {
            state.failed.get_or_insert(format!("{error:#}"));
        }
        state.view.take(&record.what);
        state.records.push(record);
    }

    /// Reads the present.
    pub fn look<T>(&self, look: impl FnOnce(&View) -> T) -> T {
        look(&self.state().view)
    }

    /// All records so far, and why some could not be written.
    pub fn records(&self) -> (Vec<Record>, Option<String>) {
        let state = self.state();
        (state.records.clone(), state.failed.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

/// Reads the records of a file, without a truncated last line.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the timeline {}", path.display()))?;
    let mut records = Vec::new();
    for (number, line) in text.lines().enumerate() {
        match serde_json::from_str(line) {
            Ok(record) => records.push(record),
            Err(_) if !text.ends_with('\n') && number + 1 == text.lines().count() => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    Ok(records)
}
