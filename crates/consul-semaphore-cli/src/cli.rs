//! The command line. Flags have environment variables, and defaults where possible.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

mod inspect;
mod restrictions;
mod semaphore;

use std::{ffi::OsString, num::NonZeroU32, path::Path, time::Duration};

use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand, ValueEnum, error::ErrorKind};
use command_line::{CONSUL_ENVIRONMENT, name};
use consul_client::{self as consul, Client};
use consul_semaphore::{
    Key, LONGEST_COOLDOWN, MOST_SLOTS, Period, Prefix, Reserved, Seconds, holder,
    identity::name_of, windows::WindowSpec,
};

pub(crate) use self::inspect::{
    CommonFlags, CompletionFlags, ListFlags, ReleaseFlags, ShowFlags, WatchFlags,
};
use crate::{exec, held::SequencerToCheck, stderr::Stderr};

/// Commands in slots of semaphores in Consul, and who holds and waits, on any machine.
#[derive(Debug, Parser)]
#[command(version, name = "consul-semaphore")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in slots of one or several semaphores, on any machine: wait for them, hold them, give them back
    #[command(after_help = format!("{HELP}\n\n{CONSUL_ENVIRONMENT}"))]
    Exec(Box<ExecFlags>),
    /// Report by the exit code whether a slot is still held, or all of several
    #[command(after_help = format!("{HELD_HELP}\n\n{CONSUL_ENVIRONMENT}"))]
    Held(Box<HeldFlags>),
    /// List the semaphores below a prefix, or all
    #[command(visible_alias = "ls", after_help = format!("{}\n\n{CONSUL_ENVIRONMENT}", inspect::HELP))]
    List(Box<ListFlags>),
    /// Show a semaphore: who holds its slots, and who waits
    #[command(after_help = format!("{}\n\n{CONSUL_ENVIRONMENT}", inspect::HELP))]
    Show(Box<ShowFlags>),
    /// Print a line for each change: slots that are granted, released or lost, who waits, other limits
    #[command(after_help = format!("{}\n\n{CONSUL_ENVIRONMENT}", inspect::HELP))]
    Watch(Box<WatchFlags>),
    /// Take a slot from its holder, which is stuck or dead: says what follows, and asks
    #[command(after_help = format!("{}\n\n{CONSUL_ENVIRONMENT}", inspect::HELP))]
    Release(Box<ReleaseFlags>),
    /// Print the script that completes this program's commands and flags in a shell
    Completion(CompletionFlags),
    #[command(hide = true)]
    Become(exec::Become),
}

/// The command's environment, and the meaning of the exit code.
const HELP: &str = "\
The command finds in its environment what its slot is called in Consul:
  CONSUL_SEMAPHORE_LOCK_KEY, CONSUL_SEMAPHORE_SESSION, CONSUL_SEMAPHORE_LOCK_INDEX
                           the sequencer; `held` says whether it is still good
  CONSUL_SEMAPHORE_FENCING_TOKEN
                           a later grant has a greater one
  CONSUL_SEMAPHORE_SLOTS   of several slots: all of them, as JSON; the others name the first

Exit code: the command's own, 128 and the signal's number if a signal ended it, or
   69  Consul can't be reached, has no leader, is overloaded or fails: with --try,
       or when --wait-for is over
   71  the system refuses: no process, no signals
   75  --try: no slot is free, or others that were queued before wait, too
   77  Consul refuses: the token is unknown or lacks a right, or the TTL is too
       short
   78  Consul has another limit, the key belongs to another use, too much is below
       the prefix, or the flags for Consul are wrong; with --must-exist or --limit
       consul: nobody uses the prefix; with --reentrant: not all slots are there
   79  the slot was lost; the command was ended, or had ended with 0
  124  --wait-for is over
  126  the command can't be run
  127  the command is not found";

/// The node that owns sessions without a local agent, if no token limits who may end them.
const DEFAULT_NODE: &str = "consul-semaphore-exec";

/// This program's credentials for Consul: anybody who has these can do in Consul what it may do.
const CREDENTIALS: [&str; 8] = [
    "CONSUL_HTTP_TOKEN",
    "CONSUL_HTTP_TOKEN_FILE",
    "CONSUL_HTTP_AUTH",
    "CONSUL_CLIENT_CERT",
    "CONSUL_CLIENT_KEY",
    "CONSUL_AUTH_METHOD",
    "CONSUL_BEARER_TOKEN_FILE",
    "CONSUL_LOGIN_META",
];

/// The default for the time that a command may take to end once it was asked to.
const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(crate) struct ExecFlags {
    /// Where the semaphore lives in Consul
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_PREFIX",
        value_name = "PREFIX",
        required_unless_present = "semaphores"
    )]
    prefix: Option<Prefix>,

    /// How many slots there are: the same for all who use the prefix. "consul" goes by the limit that the semaphore has
    /// in Consul, which a ConsulSemaphore or another program has set
    #[arg(
        long,
        short = 'n',
        env = "CONSUL_SEMAPHORE_LIMIT",
        value_name = "N",
        required_unless_present = "semaphores",
        value_parser = limit
    )]
    limit: Option<LimitFlag>,

    /// How the semaphore is stored in Consul: a mutex has one slot, which `consul lock -n 1` takes. In a rate the limit
    /// is on how many commands and Jobs start in a period
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_MODE",
        value_enum,
        value_name = "MODE",
        default_value_t
    )]
    mode: ModeFlag,

    /// For mode rate: at most as many commands and Jobs as the limit start in any such time, 1s to 12h. This program
    /// keeps running for so long after the start, and exits with the command's exit code
    #[arg(long, env = "CONSUL_SEMAPHORE_PERIOD", value_name = "DURATION")]
    period: Option<Period>,

    /// A separate semaphore below the prefix, as for a Job of a keyed ConsulSemaphore
    #[arg(long, env = "CONSUL_SEMAPHORE_KEY", value_name = "KEY")]
    key: Option<Key>,

    /// Grant slots only while a window is open: "SCHEDULE,duration=DURATION[,timeZone=ZONE][,limit=N]", such as
    /// "0 22 * * 1,3,duration=6h,timeZone=Europe/Berlin". The schedule is the five fields of cron. Repeat it for several
    /// windows; in the variable, separate them by semicolons
    #[arg(
        long = "window",
        env = "CONSUL_SEMAPHORE_WINDOW",
        value_name = "WORDS",
        value_parser = restrictions::window,
        value_delimiter = ';'
    )]
    windows: Vec<WindowSpec>,

    /// Leave the last free slots to the priority N and above: SLOTS,minPriority=N
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_RESERVE",
        value_name = "WORDS",
        value_parser = restrictions::reserve
    )]
    reserve: Option<Reserved>,

    /// Instead of the flags above: prefix=PREFIX,limit=N[,slots=N][,key=KEY][,mode=MODE][,period=DURATION]
    /// [,window=(...)][,reserve=(...)].
    /// Repeat it for slots of several semaphores; all are granted at once, or none. In the variable, separate them by
    /// semicolons
    #[arg(
        long = "semaphore",
        env = "CONSUL_SEMAPHORE_SEMAPHORE",
        value_name = "WORDS",
        value_parser = semaphore::parse,
        value_delimiter = ';',
        conflicts_with_all = ["prefix", "limit", "key", "mode", "period", "windows", "reserve"]
    )]
    semaphores: Vec<holder::SlotsOf>,

    /// Higher goes first
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_PRIORITY",
        value_name = "NUMBER",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    priority: i32,

    /// Fail with 78 if nobody uses a prefix yet, instead of making a new semaphore: for a prefix that is easily mistyped
    #[arg(long)]
    must_exist: bool,

    /// If this command itself runs in slots of these semaphores, because an exec around it holds them, run in those and
    /// take no others
    #[arg(long, env = "CONSUL_SEMAPHORE_REENTRANT")]
    reentrant: bool,

    /// Report only what goes wrong, not waiting and grants
    #[arg(long, short)]
    quiet: bool,

    /// How long to wait for the slots [default: as long as it takes]
    #[arg(long, env = "CONSUL_SEMAPHORE_WAIT_FOR", value_name = "DURATION")]
    wait_for: Option<Seconds<1, 2_592_000>>,

    /// Do not wait, except for the slot of a dead holder: if a slot is missing, report who holds them and exit with 75
    #[arg(long = "try", conflicts_with = "wait_for")]
    once: bool,

    /// What happens to the command when a slot of it is lost
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_ON_SLOT_LOST",
        value_enum,
        value_name = "WHAT",
        default_value_t
    )]
    on_slot_lost: OnSlotLostFlag,

    /// How long after SIGTERM a command that must end is killed; less than half of the TTL [default: 10s, or less]
    #[arg(long, env = "CONSUL_SEMAPHORE_KILL_AFTER", value_name = "DURATION")]
    kill_after: Option<Seconds<0, 43_200>>,

    /// How long the slot stays held after this program's last renewal, 10s to 24h
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_TTL",
        value_name = "DURATION",
        default_value = "60s"
    )]
    ttl: Seconds<10, 86_400>,

    /// How long the slot of a dead holder stays unused before it is granted here, 0s to 60s
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_LOCK_DELAY",
        value_name = "DURATION",
        default_value = "15s"
    )]
    lock_delay: Seconds<0, 60>,

    /// How long the slot stays held after the command has ended, 0s to 24h: this program keeps running until then,
    /// and exits with the command's exit code
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_COOLDOWN",
        value_name = "DURATION",
        default_value = "0s"
    )]
    cooldown: Seconds<0, LONGEST_COOLDOWN>,

    /// Whether slots are granted by priority and age across everyone who waits at the prefix; false: they go to the
    /// fastest client
    #[arg(long, env = "CONSUL_SEMAPHORE_FAIR_ORDER", value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    fair_order: bool,

    /// Leave the command in this process group, so that it can read the terminal; processes that the command starts
    /// are then not ended with it
    #[arg(long)]
    foreground: bool,

    /// The name of this host in Consul, for people [default: the host's name]
    #[arg(long, env = "CONSUL_SEMAPHORE_NAME", value_name = "NAME", value_parser = name)]
    name: Option<String>,

    /// The external Consul node that owns the session: the same for everyone who may end each other's commands.
    /// Required with a token and no local agent [default: the agent's own if Consul's address is local, else
    /// consul-semaphore-exec]
    #[arg(long, env = "CONSUL_SEMAPHORE_NODE", value_name = "NAME", value_parser = name)]
    node: Option<String>,

    /// With a local agent: let only its TTL end the session, and not gossip that considers this machine dead
    #[arg(long)]
    no_node_checks: bool,

    /// Keep this program's credentials for Consul in the command's environment
    #[arg(long, env = "CONSUL_SEMAPHORE_PASS_CONSUL_CREDENTIALS")]
    pass_consul_credentials: bool,

    #[command(flatten)]
    pub(crate) common: CommonFlags,

    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The limit of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitFlag {
    Number(u32),
    /// The limit that the semaphore has in Consul.
    Consul,
}

fn limit(text: &str) -> Result<LimitFlag, String> {
    if text == "consul" {
        return Ok(LimitFlag::Consul);
    }
    let number = semaphore::number(text, semaphore::GREATEST_LIMIT);
    number
        .map(LimitFlag::Number)
        .map_err(|error| format!("{error}: give one, or consul for the limit that is there"))
}

/// How the semaphore is stored in Consul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ModeFlag {
    /// A body with a limit and the holders' sessions
    #[default]
    Semaphore,
    /// A key that the holder's session has locked
    Mutex,
    /// A body with a limit and the sessions of those that started within the period
    Rate,
}

impl ModeFlag {
    /// Returns how the semaphore is stored, with the period of a rate.
    fn stored(
        self,
        period: Option<Period>,
    ) -> Result<(consul_semaphore::Mode, Option<Duration>), String> {
        match (self, period) {
            (Self::Rate, None) => {
                Err("a rate needs a period: give one from 1s to 12h, such as 1m".to_owned())
            }
            (Self::Semaphore | Self::Mutex, Some(_)) => {
                Err("a period is for mode rate: give that mode, or no period".to_owned())
            }
            (Self::Semaphore, None) => Ok((consul_semaphore::Mode::Semaphore, None)),
            (Self::Mutex, None) => Ok((consul_semaphore::Mode::Mutex, None)),
            (Self::Rate, Some(period)) => {
                Ok((consul_semaphore::Mode::Semaphore, Some(period.get())))
            }
        }
    }
}

/// What happens to the command when its slot is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnSlotLostFlag {
    /// The command is ended
    #[default]
    Terminate,
    /// The command gets a slot again if one is free, and continues without one if not
    Continue,
}

impl ExecFlags {
    /// Takes the limit from Consul, if the flags say so.
    ///
    /// # Errors
    /// Consul has no limit, or does not tell it.
    pub(crate) async fn take_limit(
        &mut self,
        consul: &consul::Config,
        stderr: &Stderr,
    ) -> Result<(), exec::ExecFailure> {
        let Some((prefix, LimitFlag::Consul)) = self.prefix.clone().zip(self.limit) else {
            return Ok(());
        };
        let limit = match semaphore::below(prefix, self.key.as_ref()) {
            Ok(prefix) if self.mode != ModeFlag::Mutex => {
                let client = Client::new(consul.clone())?;
                let patience = if self.once {
                    Some(Duration::ZERO)
                } else {
                    self.wait_for.map(Seconds::get)
                };
                let limit = exec::limit_in_consul(&prefix, &client, patience, stderr).await;
                client.log_out().await;
                limit?
            }
            // A mutex has one slot. What is wrong with a prefix is said with the settings.
            Ok(_) | Err(_) => 1,
        };
        self.limit = Some(LimitFlag::Number(limit));
        Ok(())
    }

    /// Returns the slots that the flags ask for.
    fn request(&self) -> Result<holder::Request, String> {
        let Self {
            prefix,
            limit,
            key,
            mode,
            period,
            windows,
            reserve,
            semaphores,
            priority,
            ..
        } = self;
        // The command line has both, or neither.
        let request = if let Some((prefix, LimitFlag::Number(limit))) = prefix.clone().zip(*limit) {
            if *mode == ModeFlag::Mutex && limit != 1 {
                return Err("--mode mutex: give --limit 1, or another mode".to_owned());
            }
            let restrictions = restrictions::restrictions(limit, windows.clone(), *reserve);
            let (mode, period) = mode.stored(*period)?;
            let semaphore = holder::SlotsOf {
                prefix: semaphore::below(prefix, key.as_ref())?,
                mode,
                period,
                limit,
                slots: NonZeroU32::MIN,
                restrictions: restrictions
                    .map_err(|error| format!("--reserve, --window: {error}"))?,
            };
            holder::Request::new(vec![semaphore]).map_err(|error| error.to_string())?
        } else {
            let request = holder::Request::new(semaphores.clone());
            request.map_err(|error| format!("--semaphore: {error}"))?
        };
        let reach = request.check_reach(*priority);
        reach.map_err(|error| error.to_string())?;
        Ok(request)
    }

    /// Returns the settings for `exec`.
    pub(crate) fn settings(
        self,
        consul: &consul::Config,
    ) -> Result<exec::ExecSettings, clap::Error> {
        let refuse = |problem: String| Cli::command().error(ErrorKind::ValueValidation, problem);
        let request = self.request().map_err(refuse)?;
        let mut semaphores = request.semaphores().iter();
        if semaphores.all(|one| one.period.is_some()) && !self.cooldown.get().is_zero() {
            return Err(refuse(
                "--cooldown: the slot of a rate stays held for its period anyway: leave one of them out"
                    .to_owned(),
            ));
        }
        let ttl = self.ttl.get();
        // It is asked to end a second early, and must have ended by the end of the TTL.
        let longest = (ttl / 2).saturating_sub(Duration::from_secs(1));
        let kill_after = match self.kill_after.map(Seconds::get) {
            Some(asked) if asked > longest => {
                return Err(refuse(format!(
                    "--kill-after: a slot is held for a TTL of {}s after Consul was last heard of, and the \
                     command must be gone by then: give {}s at the most, or a longer --ttl",
                    ttl.as_secs(),
                    longest.as_secs()
                )));
            }
            asked => asked.unwrap_or(DEFAULT_KILL_AFTER.min(longest)),
        };
        let agent = consul.addresses.iter().all(consul::Address::is_local) && !self.no_node_checks;
        let known = consul.token.is_some() || consul.token_file.is_some() || consul.login.is_some();
        if known && !agent && self.node.is_none() {
            return Err(refuse(
                "--node: a token that may write a node's sessions can end them all, so name the node of \
                 those who may end each other's commands, such as exec-team-a, and give that to all of them"
                    .to_owned(),
            ));
        }
        let program = self
            .command
            .first()
            .map(Path::new)
            .and_then(Path::file_name)
            .unwrap_or_default();
        let slots = holder::HolderSettings {
            request,
            priority: self.priority,
            fair: self.fair_order,
            wait: !self.once,
            must_exist: self.must_exist,
            kind: holder::HolderKind::Command,
            host: self
                .name
                .unwrap_or_else(|| name_of(&rustix::system::uname().nodename().to_string_lossy())),
            program: program.to_string_lossy().into_owned(),
            session: holder::SessionSettings {
                node: self
                    .node
                    .or_else(|| (!agent).then(|| DEFAULT_NODE.to_owned())),
                ttl,
                lock_delay: self.lock_delay.get(),
            },
            cooldown: self.cooldown.get(),
            on_slot_lost: match self.on_slot_lost {
                OnSlotLostFlag::Terminate => consul_semaphore::OnSlotLost::Suspend,
                OnSlotLostFlag::Continue => consul_semaphore::OnSlotLost::Continue,
            },
            grace: kill_after,
        };
        Ok(exec::ExecSettings {
            slots,
            patience: self.wait_for.map(Seconds::get),
            quiet: self.quiet,
            foreground: self.foreground,
            around: slots_around(),
            reentrant: self.reentrant,
            withheld: if self.pass_consul_credentials {
                &[]
            } else {
                &CREDENTIALS
            },
            command: self.command,
        })
    }
}

/// The meaning of `held`'s exit code.
const HELD_HELP: &str = "Exit code: 0 the slot is held, 1 it is not, 2 that can't be told. Of several slots: 0 all are, 1 one is not.";

#[derive(Args, Debug)]
pub(crate) struct HeldFlags {
    /// The key that the holder's session has locked
    #[arg(long, env = "CONSUL_SEMAPHORE_LOCK_KEY", value_name = "KEY")]
    lock_key: String,

    /// The session that was granted the slot
    #[arg(long, env = "CONSUL_SEMAPHORE_SESSION", value_name = "ID")]
    session: String,

    /// The key's LockIndex at the grant
    #[arg(long, env = "CONSUL_SEMAPHORE_LOCK_INDEX", value_name = "NUMBER")]
    lock_index: u64,

    /// All slots that were granted together, as JSON. If the slot above is the first of them, all are checked
    #[arg(long, env = "CONSUL_SEMAPHORE_SLOTS", value_name = "JSON", value_parser = slots)]
    slots: Option<SlotList>,

    #[command(flatten)]
    pub(crate) common: CommonFlags,
}

/// Slots that were granted together.
#[derive(Clone, Debug)]
struct SlotList(Vec<SequencerToCheck>);

fn slots(text: &str) -> Result<SlotList, String> {
    let slots = consul_semaphore::Sequencer::read_list(text)
        .map_err(|error| format!("it is no list of slots: {error}"))?;
    if slots.len() > usize::try_from(MOST_SLOTS).unwrap_or(usize::MAX) {
        return Err(format!("it lists more than {MOST_SLOTS} slots"));
    }
    Ok(SlotList(
        slots.into_iter().map(SequencerToCheck::from).collect(),
    ))
}

impl HeldFlags {
    /// Returns the sequencers to check.
    pub(crate) fn sequencers(self) -> Vec<SequencerToCheck> {
        let named = SequencerToCheck {
            lock_key: self.lock_key,
            session: self.session.into(),
            lock_index: self.lock_index,
        };
        granted_together(named, self.slots)
    }
}

/// Returns all slots that were granted together with this one, of which the list may be another one's.
fn granted_together(named: SequencerToCheck, slots: Option<SlotList>) -> Vec<SequencerToCheck> {
    match slots {
        Some(SlotList(all)) if all.first() == Some(&named) => all,
        // Another slot was named, or there is only one.
        _ => vec![named],
    }
}

/// Returns the slots that the environment says this program runs in; none if it does not say so as `exec` does.
fn slots_around() -> exec::SlotsAround {
    let variable = |name: &str| std::env::var(name).ok();
    let named = || {
        let named = SequencerToCheck {
            lock_key: variable("CONSUL_SEMAPHORE_LOCK_KEY")?,
            session: variable("CONSUL_SEMAPHORE_SESSION")?.into(),
            lock_index: variable("CONSUL_SEMAPHORE_LOCK_INDEX")?.parse().ok()?,
        };
        let all = variable("CONSUL_SEMAPHORE_SLOTS").and_then(|text| slots(&text).ok());
        Some(granted_together(named, all))
    };
    exec::SlotsAround(named().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
