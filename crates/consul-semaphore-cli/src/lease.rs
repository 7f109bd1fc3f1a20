//! Slots for work whose steps are processes of their own, as in a pipeline: `acquire` takes them for a fixed time,
//! `renew` begins that time again, and `release` releases them.
//!
//! No process renews the sessions of these slots: they end by their TTL, if no step does it before.

use std::{io, time::Duration};

use command_line::terminal::try_write;
use consul_client::{self as consul, Client, Session};
use consul_semaphore::{
    Identity, Lock, Mode, OnSlotLost, Prefix, Sequencer,
    holder::{
        AcquireError, Holder, HolderKind, HolderSettings, Notice, Request, SessionSettings, SlotsOf,
    },
    plan::Start,
};
use tokio::time::timeout;

use crate::{
    exec::{
        ExecFailure, ReportWording, SlotsAround, leave, out_of_patience, report, set_up, variables,
    },
    held::{self, NotTold, SequencerToCheck, SlotVerdict},
    inspect::InspectFailure,
    stderr::Stderr,
};

/// The longest lock-delay that Consul and this program know.
const LONGEST_LOCK_DELAY: Duration = Duration::from_mins(1);

/// The slots to take, and how they are reported.
#[derive(Debug)]
pub(crate) struct AcquireSettings {
    pub(crate) slots: HolderSettings,
    /// Longest time to wait for the slots; `None` for no limit.
    pub(crate) patience: Option<Duration>,
    /// Whether only what goes wrong is reported.
    pub(crate) quiet: bool,
    /// Slots that the environment names already.
    pub(crate) around: SlotsAround,
    pub(crate) format: SlotFormat,
}

/// How slots are printed for the steps that come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotFormat {
    /// `NAME=value` lines, as files of environment variables have them.
    Env,
    /// `export` commands for a POSIX shell.
    Shell,
    /// One JSON object.
    Json,
}

/// Takes slots, prints them, and leaves them held. Returns the exit code; messages go to `stderr`.
pub(crate) async fn acquire(
    settings: AcquireSettings,
    consul: consul::Config,
    stderr: &Stderr,
) -> u8 {
    let (mut signals, client) = match set_up(consul, settings.quiet, stderr) {
        Ok(both) => both,
        Err(failure) => return report(&failure, stderr),
    };
    let words = ReportWording::new(settings.slots.request.slots());
    let (quiet, said, around) = (settings.quiet, stderr.clone(), settings.around.clone());
    let mut holder = Holder::new(settings.slots.clone(), client.clone(), move |notice| {
        if let Notice::Waiting(missing) = &notice
            && around.has_slot_of(&missing.of.prefix)
        {
            said.say(&format!(
                "the environment already names a slot of {}, and this command waits for another one: release the \
                 first slot before you take another one",
                missing.of.prefix
            ));
        }
        if !(quiet && notice.is_progress()) {
            words
                .of_notice(notice)
                .iter()
                .for_each(|line| said.say(line));
        }
    });
    let taken = tokio::select! {
        biased;
        signal = signals.asks_to_end() => Err(ExecFailure::Interrupted(signal)),
        taken = take(&settings, &client, &mut holder) => taken,
    };
    let code = match taken {
        // The sessions live on without the holder.
        Ok(()) => 0,
        Err(failure) => {
            let code = report(&failure, stderr);
            leave(words, &mut holder, &mut signals, stderr).await;
            code
        }
    };
    drop(holder);
    client.log_out().await;
    code
}

/// Takes the slots and prints them.
async fn take(
    settings: &AcquireSettings,
    client: &Client,
    holder: &mut Holder,
) -> Result<(), ExecFailure> {
    let patience = settings.patience.unwrap_or(Duration::MAX);
    let Ok(granted) = timeout(patience, holder.acquire()).await else {
        return Err(out_of_patience(settings.patience, holder));
    };
    let granted = granted?;
    holder.started(&granted);
    // The sessions were last renewed some time ago, and the time for which the slots are held begins now.
    for session in granted.sessions() {
        client.renew_session(session).await.map_err(unanswered)?;
    }
    match try_write(&settings.format.text(&granted)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ExecFailure::System(io::ErrorKind::BrokenPipe.into())),
        Err(error) => Err(ExecFailure::System(error)),
    }
}

fn unanswered(error: consul::Error) -> ExecFailure {
    // A session that has ended meanwhile is no refusal: it is worth another try.
    if error.may_pass() || error == consul::Error::Gone {
        AcquireError::Unreachable(error).into()
    } else {
        AcquireError::Refused(error).into()
    }
}

impl SlotFormat {
    /// Returns the text that names these slots to the steps that come next.
    fn text(self, granted: &Start) -> String {
        let variables = variables(granted)
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let lines: Vec<String> = match self {
            Self::Env => variables
                .map(|(name, value)| format!("{name}={value}\n"))
                .collect(),
            // The list of several slots is JSON, whose quotes a shell must not take for its own.
            Self::Shell => variables
                .map(|(name, value)| {
                    let quoted = value.replace('\'', r"'\''");
                    format!("export {name}='{quoted}'\n")
                })
                .collect(),
            Self::Json => {
                let slots: Vec<_> = granted.slots().map(Sequencer::from).collect();
                vec![format!("{}\n", serde_json::json!({ "slots": slots }))]
            }
        };
        lines.concat()
    }
}

/// Slots that `acquire` took, as Consul has them.
struct Leased {
    /// The slots, in the order in which they were asked for, each with its session.
    slots: Vec<(SequencerToCheck, Session)>,
    /// The holder, as the name of the first session has it.
    holder: Identity,
}

impl Leased {
    /// Asks Consul for these slots.
    ///
    /// # Errors
    /// One of the slots is not held any more, is not one that `acquire` took, or Consul does not say.
    async fn read(client: &Client, slots: Vec<SequencerToCheck>) -> Result<Self, InspectFailure> {
        check(client, &slots).await?;
        let mut leased: Vec<(SequencerToCheck, Session)> = Vec::new();
        let mut holder: Option<Identity> = None;
        for slot in slots {
            let Some(session) = client.session(&slot.session).await? else {
                return Err(unseen(client, slot).await);
            };
            let named = Identity::parse(&session.name);
            let lease = named
                .filter(Identity::is_lease)
                .ok_or_else(|| InspectFailure::NoLease(slot.session.clone()))?;
            let first = holder.get_or_insert_with(|| lease.clone());
            if (&lease.cluster, &lease.uid) != (&first.cluster, &first.uid) {
                return Err(InspectFailure::SeveralLeases);
            }
            leased.push((slot, session));
        }
        let holder = holder.ok_or(InspectFailure::SeveralLeases)?;
        let slots = leased;
        Ok(Self { slots, holder })
    }

    /// Returns the settings of the holder that `acquire` had.
    async fn settings(&self, client: &Client) -> Result<HolderSettings, InspectFailure> {
        let mut semaphores: Vec<SlotsOf> = Vec::new();
        for (slot, _) in &self.slots {
            let named = slot.prefix().unwrap_or_default();
            let mut known = semaphores.iter_mut();
            if let Some(of) = known.find(|of| of.prefix.as_str() == named) {
                of.slots = of.slots.saturating_add(1);
                continue;
            }
            let prefix: Prefix = named.parse().map_err(|error| {
                InspectFailure::NotReleased(format!("{}: {error}", slot.lock_key))
            })?;
            semaphores.push(semaphore(client, prefix, &slot.lock_key).await?);
        }
        for semaphore in &mut semaphores {
            // The limit may have been lowered since.
            semaphore.limit = semaphore.limit.max(semaphore.slots.get());
        }
        let request = Request::new(semaphores)
            .map_err(|error| InspectFailure::NotReleased(error.to_string()))?;
        Ok(HolderSettings {
            request,
            priority: 0,
            fair: true,
            wait: true,
            must_exist: false,
            kind: HolderKind::Lease,
            host: self.holder.cluster.to_string(),
            program: self.holder.workload.to_string(),
            session: SessionSettings {
                node: self.slots.first().map(|(_, session)| session.node.clone()),
                ttl: self.life(),
                // Longer than a release may take, so that it removes no dead holder of others early.
                lock_delay: LONGEST_LOCK_DELAY,
            },
            cooldown: Duration::ZERO,
            on_slot_lost: OnSlotLost::Suspend,
            grace: Duration::ZERO,
        })
    }

    /// Returns how long the slots stay held after a renewal.
    fn life(&self) -> Duration {
        let sessions = self.slots.iter().map(|(_, session)| session);
        sessions
            .filter_map(|session| session.ttl)
            .min()
            .unwrap_or_default()
    }
}

/// Returns why a session can't be read whose slot was held a moment ago.
async fn unseen(client: &Client, slot: SequencerToCheck) -> InspectFailure {
    let session = slot.session.clone();
    match held::ask(client, &[slot]).await {
        // Before 1.12, Consul leaves out what the token may not read.
        Ok(SlotVerdict::Held) => {
            let why = format!("session {session} can't be read: the token needs session:read");
            consul::Error::Denied(why).into()
        }
        _ => InspectFailure::Lost(format!("session {session} has ended")),
    }
}

/// Returns the semaphore at this prefix, in which a slot with this key is held.
async fn semaphore(
    client: &Client,
    prefix: Prefix,
    lock_key: &str,
) -> Result<SlotsOf, InspectFailure> {
    let entry = client.get(&prefix.lock_key()).await?;
    let mode = if lock_key == prefix.lock_key() {
        Mode::Mutex
    } else {
        Mode::Semaphore
    };
    let limit = match Lock::read(mode, entry.as_ref()) {
        Lock::Semaphore { body, .. } => body.limit(),
        _ => 1,
    };
    Ok(SlotsOf::one(prefix, mode, limit))
}

/// Begins the time anew for which slots of `acquire` stay held.
///
/// # Errors
/// One of the slots is lost, is not one that `acquire` took, or Consul does not answer.
pub(crate) async fn renew(
    client: &Client,
    slots: Vec<SequencerToCheck>,
) -> Result<(), InspectFailure> {
    let leased = Leased::read(client, slots).await?;
    for (slot, _) in &leased.slots {
        match client.renew_session(&slot.session).await {
            Ok(_) => {}
            Err(consul::Error::Gone) => {
                let why = format!("session {} has ended", slot.session);
                return Err(InspectFailure::Lost(why));
            }
            Err(error) => return Err(error.into()),
        }
    }
    // A slot may have been lost before its session was renewed.
    let slots: Vec<_> = leased.slots.iter().map(|(slot, _)| slot.clone()).collect();
    check(client, &slots).await?;
    let text = format!("held for {}s from now\n", leased.life().as_secs());
    try_write(&text).map(drop).map_err(InspectFailure::Output)
}

/// Checks that all of these slots are held.
async fn check(client: &Client, slots: &[SequencerToCheck]) -> Result<(), InspectFailure> {
    match held::ask(client, slots).await {
        Ok(SlotVerdict::Held) => Ok(()),
        Ok(SlotVerdict::NotHeld(why)) => Err(InspectFailure::Lost(why)),
        Err(NotTold::Consul(error)) => Err(error.into()),
        Err(error) => Err(InspectFailure::NotReleased(error.to_string())),
    }
}

/// Gives back slots of `acquire`.
///
/// # Errors
/// One of the slots was lost before, is not one that `acquire` took, or Consul does not answer.
pub(crate) async fn release(
    client: &Client,
    slots: Vec<SequencerToCheck>,
) -> Result<(), InspectFailure> {
    let leased = Leased::read(client, slots).await?;
    let settings = leased.settings(client).await?;
    let mut holder = Holder::new(settings, client.clone(), |_notice| {});
    let slots = leased.slots.into_iter();
    let by_key = slots.map(|(slot, session)| (slot.lock_key, session));
    holder.take_over(&leased.holder.uid, by_key.collect());
    holder.finished();
    holder.release().await.map_err(|failed| failed.why)?;
    match holder.lost() {
        Some(lost) => Err(InspectFailure::Lost(lost.to_string())),
        None => Ok(()),
    }
}
