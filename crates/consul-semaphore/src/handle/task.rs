//! The task of a slot: it waits for the slot, holds it and gives it back.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};

use super::{NoSlot, Shared, Slot, StillHeld};
use crate::{
    holder::{Holder, Lost, Settings},
    plan::Start,
};

/// Where the one who asks for a slot waits for it; closed once nobody does.
type Reply = oneshot::Sender<Result<Slot, NoSlot>>;

/// Where the one who releases a slot waits for that.
pub(super) type Released = oneshot::Sender<Result<(), StillHeld>>;

/// What a task has of the slot that it gave out.
struct Given {
    lost: watch::Sender<Option<Lost>>,
    /// Closed when the slot is dropped.
    end: oneshot::Receiver<Released>,
}

/// Waits for a slot, gives it to `reply`, and gives it back to Consul when it is dropped. All that was begun in Consul
/// is undone, whenever the other side is gone.
pub(super) async fn run(shared: Arc<Shared>, wait: bool, within: Option<Duration>, reply: Reply) {
    let _counted = Counted::new(&shared);
    let settings = Settings {
        wait,
        ..shared.settings.clone()
    };
    let on_notice = shared.on_notice.clone();
    let mut holder = Holder::new(settings, shared.consul.clone(), move |notice| {
        on_notice(notice);
    });
    let asked = match take(&mut holder, &shared.settings, within, reply).await {
        Some(given) => hold(&mut holder, given).await,
        None => None,
    };
    holder.finished();
    let released = holder.release().await;
    // What a release that failed leaves expires; the one that succeeded leaves nothing.
    let released = match (released, holder.remains()) {
        (Err(_), Some(remains)) => Err(StillHeld::for_at_most(remains.within)),
        _ => Ok(()),
    };
    match (asked, released) {
        // Whoever has asked may have left.
        (Some(asked), released) => drop(asked.send(released)),
        (None, Err(error)) => tracing::warn!(%error, "a slot is not released"),
        (None, Ok(())) => {}
    }
}

/// Waits for the slot, unless nobody wants it any more; `None` if it is not given out.
async fn take(
    holder: &mut Holder,
    settings: &Settings,
    within: Option<Duration>,
    mut reply: Reply,
) -> Option<Given> {
    let patience = async {
        match within {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let granted = tokio::select! {
        granted = holder.acquire() => granted.map_err(|why| NoSlot::new(why, None, settings)),
        () = reply.closed() => return None,
        () = patience => Err(NoSlot::new(holder.why_waiting(), within, settings)),
    };
    match granted {
        // It has not begun: its slot does not cool down.
        Ok(_) if reply.is_closed() => None,
        Ok(start) => {
            holder.started(&start);
            let (slot, given) = give(start, settings);
            // If it can't be sent it is dropped, which ends it.
            drop(reply.send(Ok(slot)));
            Some(given)
        }
        Err(error) => {
            drop(reply.send(Err(error)));
            None
        }
    }
}

fn give(start: Start, settings: &Settings) -> (Slot, Given) {
    let (lost, is_lost) = watch::channel(None);
    let (ends, end) = oneshot::channel();
    let slot = Slot::new(start, settings, is_lost, ends);
    (slot, Given { lost, end })
}

/// Holds the slot until it is dropped or released: then whoever waits for its release is returned, if anybody does. A
/// lost slot counts as long as it is not dropped: its work may still run, in the others of several slots.
async fn hold(holder: &mut Holder, given: Given) -> Option<Released> {
    let Given { lost, mut end } = given;
    let why = tokio::select! {
        ended = &mut end => return ended.ok(),
        why = holder.hold() => why,
    };
    lost.send_replace(Some(why));
    end.await.ok()
}

/// Counts a task as long as it runs.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.tasks.send_modify(|tasks| *tasks += 1);
        Self(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}
