//! Implements `release`, which takes a slot from its holder.
//!
//! The command destroys the session of a live holder, as any tool for Consul would: the holder learns of the loss,
//! and others wait for the lock-delay. The command removes a dead holder from the lock key by a compare-and-swap
//! without that delay, because a user who asks for this knows that the holder's program has stopped.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use command_line::terminal::{message, try_write};
use consul_client::{self as consul, Backoff, Client, Op, SessionId};
use consul_semaphore::{
    ContenderBody, Lock, Mode, Prefix, Reading,
    usage::{SessionNames, UsageContender},
};

use super::failure::InspectFailure;

/// Number of attempts at a write when other writers are faster.
const MOST_WRITE_TRIES: u32 = 8;

/// Pauses between the attempts.
const PAUSES_BETWEEN_TRIES: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// Part that a session has at the prefix.
enum HolderRole {
    /// The session holds a slot and lives.
    Holds {
        /// `ModifyIndex` of the session's contender, which differs for another slot.
        written: u64,
    },
    /// The session is a dead holder; these operations remove it.
    Dead(Vec<Op>),
}

impl HolderRole {
    /// Returns whether the session has the same role as before, in the same slot.
    fn is_still(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Holds { written: now }, Self::Holds { written }) => now == written,
            (Self::Dead(_), Self::Dead(_)) => true,
            _ => false,
        }
    }
}

/// Takes the slot from its holder. Asks the user first, unless `yes` is set.
pub(crate) async fn release(
    client: &Client,
    prefix: &Prefix,
    session: &SessionId,
    yes: bool,
) -> Result<(), InspectFailure> {
    let reading = read(client, prefix).await?;
    let role = role(&reading, session)?;
    message(&consequences(client, &reading, session, &role).await?);
    if !yes {
        confirm()?;
        // The user's answer took time. Meanwhile the session may have given the slot back and serve another purpose.
        let now = self::role(&read(client, prefix).await?, session)?;
        if !now.is_still(&role) {
            return Err(InspectFailure::NotReleased(
                "what the session holds has changed while the command waited for your answer. Run the command again \
                 to see what will happen now"
                    .to_owned(),
            ));
        }
    }
    let done = match role {
        HolderRole::Holds { .. } => {
            client.destroy_session(session).await?;
            format!(
                "session {} destroyed: its slot of {prefix} is released\n",
                session.shown()
            )
        }
        HolderRole::Dead(_) => {
            prune(client, prefix, session).await?;
            format!("{} removed from {}\n", session.shown(), prefix.lock_key())
        }
    };
    try_write(&done).map(drop).map_err(InspectFailure::Output)
}

async fn read(client: &Client, prefix: &Prefix) -> Result<Reading, InspectFailure> {
    let listing = client.list(&prefix.folder()).await?;
    Ok(Reading::found(prefix.clone(), listing))
}

/// Returns the role of the session at the prefix, if its slot can be taken.
fn role(reading: &Reading, session: &SessionId) -> Result<HolderRole, InspectFailure> {
    let refuse = |why: String| Err(InspectFailure::NotReleased(why));
    let prefix = reading.prefix();
    if let Lock::Unreadable(why) = reading.lock() {
        return refuse(format!("{}: {why}", prefix.lock_key()));
    }
    if reading.holds(session) {
        let entry = reading.contender(session);
        let written = entry.map_or(0, |entry| entry.modify_index);
        return Ok(HolderRole::Holds { written });
    }
    if let Some(operations) = reading.prune(session) {
        return Ok(HolderRole::Dead(operations));
    }
    if reading.contender(session).is_some() {
        return refuse(format!("the session only waits for a slot of {prefix}"));
    }
    refuse(format!(
        "the session has no slot of {prefix}. `consul-semaphore show {prefix}` lists the holders"
    ))
}

/// Removes a dead holder, as long as it is still dead and nobody else has removed it.
async fn prune(
    client: &Client,
    prefix: &Prefix,
    session: &SessionId,
) -> Result<(), InspectFailure> {
    let mut pauses = PAUSES_BETWEEN_TRIES;
    loop {
        let reading = read(client, prefix).await?;
        if !reading.is_named(session) && reading.is_readable() {
            return Ok(());
        }
        let HolderRole::Dead(operations) = role(&reading, session)? else {
            return Err(InspectFailure::NotReleased("it lives again".to_owned()));
        };
        let Err(error) = client.transaction(&operations).await else {
            return Ok(());
        };
        let again = matches!(error, consul::Error::Conflict(_)) || error.may_have_been_applied();
        if !again || pauses.tries() == MOST_WRITE_TRIES {
            return Err(error.into());
        }
        pauses.wait().await;
    }
}

/// Describes everything that the user should know before confirming the release.
async fn consequences(
    client: &Client,
    reading: &Reading,
    session: &SessionId,
    role: &HolderRole,
) -> Result<String, InspectFailure> {
    let prefix = reading.prefix();
    let id = session.shown();
    if matches!(role, HolderRole::Dead(_)) {
        return Ok(format!(
            "This releases a slot of {prefix}: it removes the session {id} from {}.\nThe holder is dead: its session \
             has ended, or no longer locks its contender. The work of the holder may still run.\nThe slot is free at once, \
             without a lock-delay.",
            prefix.lock_key()
        ));
    }
    let entry = reading.contender(session);
    let body = entry.and_then(|entry| ContenderBody::read(&entry.value));
    // The name of the session proves who owns it, whereas a body may say anything.
    let known = match client.session(session).await {
        Ok(known) => known,
        Err(consul::Error::Denied(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let lock_delay = known
        .as_ref()
        .map_or(Duration::ZERO, |known| known.lock_delay);
    let names = SessionNames::of(session, known);
    let proved = match names.get(session) {
        Some(_) => UsageContender::of(session, None, &names),
        None => UsageContender::of(session, body.as_ref(), &names),
    };
    let then = match reading.mode() {
        Mode::Semaphore => {
            "Operators and `exec` grant the slot again after their lock-delay; Consul's Go client can take it at \
             once. To free the slot at once, run this command again."
                .to_owned()
        }
        Mode::Mutex => format!("Nobody can lock the key until the session's lock-delay ({}s) is over.", lock_delay.as_secs()),
    };
    let held = body.as_ref().and_then(|body| body.cools_until).map_or("", |_| {
        " The slot is in its cooldown, or counts a start of a rate. The release ends this early, unless the holder's \
         operator takes another slot for the holder."
    });
    Ok(format!(
        "This releases a slot of {prefix}: it destroys the session {id}, which also frees everything else that the session \
         has locked.\nThe holder is {proved}: {}{held}\n{then}",
        fate(&proved.kind)
    ))
}

/// Describes what happens to a holder of this kind.
fn fate(kind: &str) -> &'static str {
    match kind {
        "Process" => {
            "`exec` ends the command and exits with 79; with --on-slot-lost continue, the command continues, in another \
             slot if one is free."
        }
        "Lease" => {
            "no process watches this slot: steps that run in it learn of the loss from `held`, `renew` and `release`."
        }
        "Program" | "Unknown" => {
            "the program itself decides what to do after it has lost its session: `consul lock` ends its command, but \
             scripts may continue."
        }
        _ => {
            "onSlotLost of its ConsulSemaphore decides whether it gets a slot again, is stopped, or continues without \
             a slot; if no operator runs, nothing stops it."
        }
    }
}

fn confirm() -> Result<(), InspectFailure> {
    let failed = |error: io::Error| {
        InspectFailure::NotReleased(format!("can't ask: {error}. --yes skips the question"))
    };
    write!(io::stderr(), "Release it? Type yes: ").map_err(failed)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim() == "yes" {
        return Ok(());
    }
    Err(InspectFailure::NotReleased(
        "the answer was not yes".to_owned(),
    ))
}
