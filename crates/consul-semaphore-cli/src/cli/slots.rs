//! The flags that say which slots are asked for, and how to wait for them.
#![allow(
    clippy::doc_markdown,
    reason = "these comments are the help, which is shown as it stands"
)]

use std::{num::NonZeroU32, time::Duration};

use clap::{ArgAction, Args, CommandFactory as _, ValueEnum, error::ErrorKind};
use command_line::name;
use consul_client::{self as consul, Client};
use consul_semaphore::{
    Key, OnSlotLost, Period, Prefix, Reserved, Seconds, holder, identity::name_of,
    windows::WindowSpec,
};

use super::{Cli, restrictions, semaphore};
use crate::{exec, stderr::Stderr};

/// The node that owns sessions without a local agent, if no token limits who may end them.
const DEFAULT_NODE: &str = "consul-semaphore-exec";

#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(crate) struct SlotFlags {
    /// The semaphore's prefix in Consul
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_PREFIX",
        value_name = "PREFIX",
        required_unless_present = "semaphores"
    )]
    prefix: Option<Prefix>,

    /// The number of slots; all users of the prefix must set the same number. With "consul", this program uses the
    /// limit that a ConsulSemaphore or another program has set in Consul
    #[arg(
        long,
        short = 'n',
        env = "CONSUL_SEMAPHORE_LIMIT",
        value_name = "N",
        required_unless_present = "semaphores",
        value_parser = limit
    )]
    limit: Option<LimitFlag>,

    /// How the semaphore is stored in Consul: a mutex has one slot, which `consul lock -n 1` takes. For a rate, the
    /// limit is how many commands and Jobs may start in a period
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_MODE",
        value_enum,
        value_name = "MODE",
        default_value_t
    )]
    mode: ModeFlag,

    /// For mode rate: within any period of this length, 1s to 12h, at most --limit commands and Jobs start. This program
    /// continues to run until the period is over, and exits with the command's exit code
    #[arg(long, env = "CONSUL_SEMAPHORE_PERIOD", value_name = "DURATION")]
    period: Option<Period>,

    /// Use the semaphore of this key below the prefix, as a Job of a keyed ConsulSemaphore does
    #[arg(long, env = "CONSUL_SEMAPHORE_KEY", value_name = "KEY")]
    key: Option<Key>,

    /// Grant slots only while a window is open: "SCHEDULE,duration=DURATION[,timeZone=ZONE][,limit=N]", such as
    /// "0 22 * * 1,3,duration=6h,timeZone=Europe/Berlin". The schedule has the five fields of cron. Repeat the flag for
    /// several windows; in the variable, separate the windows by semicolons
    #[arg(
        long = "window",
        env = "CONSUL_SEMAPHORE_WINDOW",
        value_name = "WORDS",
        value_parser = restrictions::window,
        value_delimiter = ';'
    )]
    windows: Vec<WindowSpec>,

    /// Reserve the last free slots for clients with the priority N or higher: SLOTS,minPriority=N
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_RESERVE",
        value_name = "WORDS",
        value_parser = restrictions::reserve
    )]
    reserve: Option<Reserved>,

    /// One semaphore, instead of the flags above: prefix=PREFIX,limit=N[,slots=N][,key=KEY][,mode=MODE][,period=DURATION]
    /// [,window=(...)][,reserve=(...)].
    /// Repeat the flag for slots of several semaphores; all slots are granted at once, or none. In the variable, separate
    /// the semaphores by semicolons
    #[arg(
        long = "semaphore",
        env = "CONSUL_SEMAPHORE_SEMAPHORE",
        value_name = "WORDS",
        value_parser = semaphore::parse,
        value_delimiter = ';',
        conflicts_with_all = ["prefix", "limit", "key", "mode", "period", "windows", "reserve"]
    )]
    semaphores: Vec<holder::SlotsOf>,

    /// The priority: a higher priority gets slots first
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_PRIORITY",
        value_name = "NUMBER",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    priority: i32,

    /// Exit with 78 if nobody uses the prefix yet, instead of creating a new semaphore, for example at a mistyped
    /// prefix
    #[arg(long)]
    must_exist: bool,

    /// Print only problems, and not waits and grants
    #[arg(long, short)]
    pub(super) quiet: bool,

    /// How long to wait for the slots [default: as long as it takes]
    #[arg(long, env = "CONSUL_SEMAPHORE_WAIT_FOR", value_name = "DURATION")]
    wait_for: Option<Seconds<1, 2_592_000>>,

    /// Do not wait, except for the slot of a dead holder: if a slot is missing, report the holders and exit with 75
    #[arg(long = "try", conflicts_with = "wait_for")]
    once: bool,

    /// How long to wait before taking the slot of a dead holder, 0s to 60s
    #[arg(
        long,
        env = "CONSUL_SEMAPHORE_LOCK_DELAY",
        value_name = "DURATION",
        default_value = "15s"
    )]
    lock_delay: Seconds<0, 60>,

    /// Whether priority and age decide which of the clients that wait at the prefix gets a slot; false: the fastest
    /// client gets the slot
    #[arg(long, env = "CONSUL_SEMAPHORE_FAIR_ORDER", value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    fair_order: bool,

    /// The name of this host in Consul, for people [default: the host's name]
    #[arg(long, env = "CONSUL_SEMAPHORE_NAME", value_name = "NAME", value_parser = name)]
    name: Option<String>,

    /// The external Consul node that owns the session. All users of the same node can end each other's commands.
    /// Required with a token, unless exec uses a local agent without --consul-datacenter [default: the agent's own node
    /// in that case, else consul-semaphore-exec]
    #[arg(long, env = "CONSUL_SEMAPHORE_NODE", value_name = "NAME", value_parser = name)]
    node: Option<String>,
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
    number.map(LimitFlag::Number).map_err(|error| {
        format!("{error}: use such a number, or consul for the limit that Consul has")
    })
}

/// How the semaphore is stored in Consul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ModeFlag {
    /// A value with the limit and the holders' sessions
    #[default]
    Semaphore,
    /// A key that the holder's session has locked
    Mutex,
    /// A value with the limit and the sessions of the commands and Jobs that started within the period
    Rate,
}

impl ModeFlag {
    /// Returns how the semaphore is stored, with the period of a rate.
    pub(super) fn stored(
        self,
        period: Option<Period>,
    ) -> Result<(consul_semaphore::Mode, Option<Duration>), String> {
        match (self, period) {
            (Self::Rate, None) => {
                Err("a rate needs a period: set one from 1s to 12h, such as 1m".to_owned())
            }
            (Self::Semaphore | Self::Mutex, Some(_)) => Err(
                "a period is only for mode rate: set this mode, or leave the period out".to_owned(),
            ),
            (Self::Semaphore, None) => Ok((consul_semaphore::Mode::Semaphore, None)),
            (Self::Mutex, None) => Ok((consul_semaphore::Mode::Mutex, None)),
            (Self::Rate, Some(period)) => {
                Ok((consul_semaphore::Mode::Semaphore, Some(period.get())))
            }
        }
    }
}

/// What the slots are for.
pub(super) struct SlotUse {
    pub(super) kind: holder::HolderKind,
    /// Name of the holder, for people.
    pub(super) program: String,
    pub(super) ttl: Duration,
    pub(super) cooldown: Duration,
    pub(super) on_slot_lost: OnSlotLost,
    pub(super) grace: Duration,
    /// Whether the checks of a local agent may end the sessions, too.
    pub(super) node_checks: bool,
}

impl SlotFlags {
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
    pub(super) fn request(&self) -> Result<holder::Request, String> {
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
                return Err("--mode mutex: set --limit 1, or use another mode".to_owned());
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

    /// Returns the longest time to wait for the slots; `None` for no limit.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.wait_for.map(Seconds::get)
    }

    /// Returns the settings of a holder of these slots.
    pub(super) fn holder(
        self,
        request: holder::Request,
        consul: &consul::Config,
        slot_use: SlotUse,
    ) -> Result<holder::HolderSettings, clap::Error> {
        let is_local = consul.addresses.iter().all(consul::Address::is_local);
        // The node of the local agent is not in another datacenter.
        let agent = is_local && slot_use.node_checks && consul.datacenter.is_none();
        let known = consul.token.is_some() || consul.token_file.is_some() || consul.login.is_some();
        if known && !agent && self.node.is_none() {
            let problem = "--node: a token that may write a node's sessions can end all of them. Set --node to the \
                           same name, such as exec-team-a, for all users who may end each other's commands";
            return Err(Cli::command().error(ErrorKind::ValueValidation, problem));
        }
        let SlotUse {
            kind,
            program,
            ttl,
            cooldown,
            on_slot_lost,
            grace,
            node_checks: _,
        } = slot_use;
        Ok(holder::HolderSettings {
            request,
            priority: self.priority,
            fair: self.fair_order,
            wait: !self.once,
            must_exist: self.must_exist,
            kind,
            host: self
                .name
                .unwrap_or_else(|| name_of(&rustix::system::uname().nodename().to_string_lossy())),
            program,
            session: holder::SessionSettings {
                node: self
                    .node
                    .or_else(|| (!agent).then(|| DEFAULT_NODE.to_owned())),
                ttl,
                lock_delay: self.lock_delay.get(),
            },
            cooldown,
            on_slot_lost,
            grace,
        })
    }
}
