//! Programs that take a slot or a lock again and again: Consul's Go client, `consul lock`, and this
//! project's own `exec`, library and Python package.
use std::{
    fmt::Display,
    panic::Location,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Result, bail};

use crate::{
    bed::Bed,
    process::{Process, Recipe},
    programs,
    story::story,
    wait::{self, PATIENCE},
};

/// The settings of a [`SlotClient`].
#[derive(Debug)]
pub struct SlotClientBuilder {
    bed: Bed,
    name: String,
    what: What,
    hold: Duration,
    rest: Duration,
    times: u32,
    /// The command that `consul lock` or `exec` runs instead of the script.
    command: Option<Vec<String>>,
    /// The address of Consul, if it is not that of the bed's.
    address: Option<String>,
    period: Option<Duration>,
}

#[derive(Debug)]
enum What {
    GoSemaphore {
        prefix: String,
        limit: u32,
    },
    GoLock {
        key: String,
    },
    ConsulLock {
        prefix: String,
        limit: u32,
    },
    Exec {
        prefix: String,
        limit: u32,
    },
    Library {
        prefix: String,
        limit: u32,
    },
    Python {
        python: PathBuf,
        prefix: String,
        limit: u32,
    },
}

/// Runs a command once for each grant. Its child, a script, holds the grant, and reports it as the other programs do.
/// The command's own output is mixed in, but it prints something only on errors. The shell waits with a trap, so that
/// SIGTERM ends it cleanly.
const AGAIN: &str = r#"
round=1
trap 'times=$round' TERM
hold=$1 rest=$2 times=$3
shift 3
export round asked
for (( ; times == 0 || round <= times; round++)); do
  asked=$(date +%s%3N)
  "$@" 'echo "granted $round after $(($(date +%s%3N) - asked)) ms"; exec sleep '"$hold" || exit 1
  echo "released $round"
  sleep "$rest" & wait $!
done
"#;

impl SlotClientBuilder {
    pub(crate) fn go_semaphore(bed: &Bed, name: &str, prefix: &str, limit: u32) -> Self {
        let prefix = prefix.to_owned();
        Self::new(bed, name, What::GoSemaphore { prefix, limit })
    }

    pub(crate) fn go_lock(bed: &Bed, name: &str, key: &str) -> Self {
        let key = key.to_owned();
        Self::new(bed, name, What::GoLock { key })
    }

    pub(crate) fn consul_lock(bed: &Bed, name: &str, prefix: &str, limit: u32) -> Self {
        let prefix = prefix.to_owned();
        Self::new(bed, name, What::ConsulLock { prefix, limit })
    }

    pub(crate) fn exec(bed: &Bed, name: &str, prefix: &str, limit: u32) -> Self {
        let prefix = prefix.to_owned();
        Self::new(bed, name, What::Exec { prefix, limit })
    }

    pub(crate) fn library(bed: &Bed, name: &str, prefix: &str, limit: u32) -> Self {
        let prefix = prefix.to_owned();
        Self::new(bed, name, What::Library { prefix, limit })
    }

    pub(crate) fn python(bed: &Bed, python: &Path, name: &str, prefix: &str, limit: u32) -> Self {
        let (python, prefix) = (python.to_owned(), prefix.to_owned());
        let what = What::Python {
            python,
            prefix,
            limit,
        };
        Self::new(bed, name, what)
    }

    fn new(bed: &Bed, name: &str, what: What) -> Self {
        Self {
            bed: bed.clone(),
            name: name.to_owned(),
            what,
            hold: Duration::from_hours(1),
            rest: Duration::ZERO,
            times: 1,
            command: None,
            address: None,
            period: None,
        }
    }

    /// How long it holds each grant (default: an hour, so in effect until it is stopped).
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How long it waits after each grant before it asks again (default: not at all).
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// How many grants it takes, one after another, before it ends (default 1; 0: no end).
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// Makes `consul lock` or `exec` run this command once, unchanged. It holds its grant for as long as the command
    /// runs.
    #[must_use]
    pub fn running<A: Into<String>>(mut self, command: impl IntoIterator<Item = A>) -> Self {
        self.command = Some(command.into_iter().map(Into::into).collect());
        self
    }

    /// Makes `exec` use the semaphore as a rate with this period.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self
    }

    /// Uses another address for Consul, such as that of a proxy.
    #[must_use]
    pub fn through(mut self, address: &str) -> Self {
        self.address = Some(address.to_owned());
        self
    }

    /// Starts it.
    #[track_caller]
    pub fn start(self) -> impl Future<Output = SlotClient> {
        story(Location::caller(), async move { self.try_start() })
    }

    /// Like [`Self::start`], for programs other than tests.
    pub fn try_start(self) -> Result<SlotClient> {
        /// Distinguishes the logs of two takers with the same name.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = format!("{}-{number}", self.name);
        let recipe = self.recipe(&log)?;
        let recipe = self
            .bed
            .consul_env()
            .iter()
            .fold(recipe, |recipe, (name, value)| recipe.env(name, value));
        let recipe = match self.period {
            Some(period) => recipe
                .env("CONSUL_SEMAPHORE_MODE", "rate")
                .env("CONSUL_SEMAPHORE_PERIOD", format!("{}s", period.as_secs())),
            None => recipe,
        };
        let elsewhere = self.address.as_deref();
        let recipe = elsewhere.into_iter().fold(recipe, |recipe, address| {
            recipe.env("CONSUL_HTTP_ADDR", address)
        });
        Ok(SlotClient {
            process: Process::start(self.bed.shared_folder(), &recipe)?,
            _bed: self.bed,
        })
    }

    fn recipe(&self, log: &str) -> Result<Recipe> {
        let (name, times) = (&self.name, self.times.to_string());
        let hold = format!("{}ms", self.hold.as_millis());
        let rest = format!("{}ms", self.rest.as_millis());
        let go = |kind: &str, of: [&dyn Display; 2]| -> Result<Recipe> {
            let [flag, value] = of.map(ToString::to_string);
            let recipe = Recipe::new(log, programs::server("go-client")?);
            Ok(recipe.args([
                kind, &flag, &value, "-hold", &hold, "-rest", &rest, "-times", &times, "-session",
                name,
            ]))
        };
        match &self.what {
            What::GoSemaphore { prefix, limit } => {
                let recipe = go("semaphore", [&"-prefix", prefix])?;
                Ok(recipe.args(["-limit", &limit.to_string()]))
            }
            What::GoLock { key } => go("lock", [&"-key", key]),
            What::ConsulLock { prefix, limit } => {
                let consul = programs::server("consul")?;
                let lock = ["lock", "-n", &limit.to_string(), "-name", name];
                Ok(match &self.command {
                    None => self.again(log).arg(consul).args(lock).arg(prefix),
                    Some(command) => {
                        let recipe = Recipe::new(log, consul).args(lock);
                        recipe.args(["-shell=false", prefix]).args(command)
                    }
                })
            }
            What::Exec { prefix, limit } => {
                let program = programs::cli_program()?;
                let limit = limit.to_string();
                // With --quiet all that it writes to stderr is an error.
                let exec = ["exec", "--quiet", "--prefix", prefix, "--name", name];
                let exec = exec.into_iter().chain(["--limit", &limit, "--"]);
                Ok(match &self.command {
                    None => self.again(log).arg(program).args(exec).args(["sh", "-c"]),
                    Some(command) => Recipe::new(log, program).args(exec).args(command),
                })
            }
            What::Library { prefix, limit } => {
                let recipe = Recipe::new(log, programs::library_program()?);
                Ok(self.asked(recipe, prefix, *limit))
            }
            What::Python {
                python,
                prefix,
                limit,
            } => {
                let recipe = Recipe::new(log, python).arg(programs::python_program());
                Ok(self.asked(recipe, prefix, *limit))
            }
        }
    }

    /// With the arguments of the examples `slot_client`.
    fn asked(&self, recipe: Recipe, prefix: &str, limit: u32) -> Recipe {
        let recipe = recipe.args([&self.name, prefix]).arg(limit.to_string());
        let times = [self.hold, self.rest].map(|time| time.as_millis().to_string());
        recipe.args(times).arg(self.times.to_string())
    }

    /// A recipe that repeats the command that is appended to it.
    fn again(&self, log: &str) -> Recipe {
        let seconds = |time: Duration| format!("{:.3}", time.as_secs_f64());
        let recipe = Recipe::new(log, "bash").args(["-c", AGAIN, "again"]);
        recipe.args([
            seconds(self.hold),
            seconds(self.rest),
            self.times.to_string(),
        ])
    }
}

/// A running foreign program. It ends when this is dropped.
#[derive(Debug)]
pub struct SlotClient {
    process: Process,
    /// Keeps Consul and the folder of the log.
    _bed: Bed,
}

/// A line of a taker's output.
enum Line<'a> {
    Granted(Duration),
    Released,
    /// Any other output, which appears only on errors.
    Other(&'a str),
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Self {
        match *line.split(' ').collect::<Vec<_>>() {
            ["granted", _, "after", wait, "ms"] => match wait.parse() {
                Ok(wait) => Self::Granted(Duration::from_millis(wait)),
                Err(_) => Self::Other(line),
            },
            ["released", _] => Self::Released,
            _ => Self::Other(line),
        }
    }
}

impl SlotClient {
    /// How long it waited for each grant so far.
    pub fn waits(&self) -> Vec<Duration> {
        let log = self.process.log();
        let granted = log.lines().filter_map(|line| match Line::read(line) {
            Line::Granted(wait) => Some(wait),
            Line::Released | Line::Other(_) => None,
        });
        granted.collect()
    }

    /// Its output other than grants and releases: errors.
    pub fn errors(&self) -> Vec<String> {
        let log = self.process.log();
        let other = log.lines().filter_map(|line| match Line::read(line) {
            Line::Other(line) => Some(line.to_owned()),
            Line::Granted(_) | Line::Released => None,
        });
        other.collect()
    }

    /// Waits until it holds a slot or the lock.
    #[track_caller]
    pub fn holds(&self) -> impl Future<Output = ()> {
        self.until("holds", || {
            let log = self.process.log();
            let last = log.lines().next_back().map(Line::read);
            matches!(last, Some(Line::Granted(_)))
        })
    }

    /// Waits until it has had all its grants, and panics on any error output.
    #[track_caller]
    pub fn is_done(&self) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let status = self.process.ended(PATIENCE).await?;
            let errors = self.errors();
            if !status.success() || !errors.is_empty() {
                bail!("{} ended: {status}: {errors:?}", self.process.name());
            }
            Ok(())
        })
    }

    /// Waits until it ends with an error that contains this text, as it should here.
    #[track_caller]
    pub fn fails_with(&self, words: &str) -> impl Future<Output = ()> {
        story(Location::caller(), async move {
            let status = self.process.ended(PATIENCE).await?;
            let errors = self.errors();
            if status.success() || !errors.iter().any(|line| line.contains(words)) {
                bail!("{} ended: {status}: {errors:?}", self.process.name());
            }
            Ok(())
        })
    }

    /// Kills it (SIGKILL) with all its children, and waits for its end: its session lives on until its TTL.
    #[track_caller]
    pub fn kill(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.process.kill())
    }

    /// Asks it to end (SIGTERM), and waits for its end.
    #[track_caller]
    pub fn stop(&self) -> impl Future<Output = ()> {
        story(Location::caller(), self.try_stop())
    }

    /// Like [`Self::stop`], for programs other than tests.
    pub async fn try_stop(&self) -> Result<()> {
        self.process.signal("TERM")?;
        self.process.ended(PATIENCE).await.map(drop)
    }

    #[track_caller]
    fn until(&self, what: &str, met: impl Fn() -> bool) -> impl Future<Output = ()> {
        let what = format!("{} {what}", self.process.name());
        story(Location::caller(), async move {
            wait::until(&what, PATIENCE, || async {
                let log = self.process.log();
                match self.process.exit_status() {
                    None if met() => Ok(()),
                    status => Err(format!("{status:?}, {log}")),
                }
            })
            .await
        })
    }
}
