//! Runs the task of a slot, which waits for the slot, holds it and gives it back.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{NoSlot, PendingSlot, ReleaseError, SharedData, Slot};
use crate::{
    holder::{Holder, HolderSettings, Notice, StillHeld},
    plan::Start,
};
use consul_client::clock::Moment;

/// The channel on which the caller waits for its slot. It is closed once nobody waits.
type Reply = oneshot::Sender<Result<PendingSlot, NoSlot>>;

/// The channel on which the caller waits for the release of its slot.
pub(super) type Released = oneshot::Sender<Result<(), ReleaseError>>;

/// The longest time that a call without a slot waits until its place in the queue is given up: enough for a few calls.
const LEAVE_QUEUE_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of the wait for a slot.
enum Taken {
    /// The slot was sent to the caller that asked for it.
    Given(GivenSlot),
    /// There is no slot.
    Refused(Reply, NoSlot),
    /// Nobody wants the slot any more.
    Unwanted,
}

/// A slot that was handed out.
struct GivenSlot {
    start: Start,
    /// The message that the work begins; closed when the work will never begin.
    begins: oneshot::Receiver<()>,
    /// The time at which it is too late for the work to begin.
    begin_by: Moment,
    /// The message that the slot is released; closed when the slot is dropped.
    ends: oneshot::Receiver<Released>,
}

/// Waits for a slot, gives it to `reply`, and gives it back to Consul when it is dropped. Everything that was begun in
/// Consul is undone whenever the caller is gone.
pub(super) async fn run(counted: Counted, wait: bool, within: Option<Duration>, reply: Reply) {
    let shared = &counted.0;
    let settings = HolderSettings {
        wait,
        ..shared.settings.clone()
    };
    let on_notice = shared.on_notice.clone();
    let mut holder = Holder::new(settings, shared.consul.clone(), move |notice| {
        report(&*on_notice, notice);
    });
    let asked = match take(&mut holder, &shared.settings, within, reply).await {
        Taken::Given(mut given) => {
            if begins(&mut holder, &mut given).await {
                holder.started(&given.start);
                hold(&mut holder, given.ends).await
            } else {
                None
            }
        }
        Taken::Refused(reply, why) => {
            holder.finished();
            // A caller that asks again at once must not come behind its own earlier place.
            let _left = timeout(LEAVE_QUEUE_TIMEOUT, holder.release()).await;
            drop(reply.send(Err(why)));
            None
        }
        Taken::Unwanted => None,
    };
    holder.finished();
    let released = holder.release().await;
    // The rest of a release that failed expires, and a release that succeeded leaves nothing.
    let released = match (released, holder.remains()) {
        (Err(failed), Some(remains)) => {
            Err(StillHeld::new(failed, remains.within, &shared.settings))
        }
        _ => Ok(()),
    };
    let Some(asked) = asked else {
        if let Err(held) = released {
            report(&*shared.on_notice, Notice::StillHeld(held));
        }
        return;
    };
    let released = match holder.slot_watch().lost_before() {
        Some(lost) => Err(ReleaseError::Lost(lost)),
        None => released.map_err(ReleaseError::from),
    };
    // The caller may have left.
    if let Err(Err(ReleaseError::StillHeld(held))) = asked.send(released) {
        report(&*shared.on_notice, Notice::StillHeld(held));
    }
}

/// Reports to the program. The slots are held even if that panics.
pub(super) fn report(on_notice: &(dyn Fn(Notice) + Send + Sync), notice: Notice) {
    let reported = catch_unwind(AssertUnwindSafe(|| on_notice(notice)));
    if reported.is_err() {
        tracing::error!("on_notice has panicked: this notice is lost, but the slot is not");
    }
}

/// Waits for the slot, unless nobody wants it any more.
async fn take(
    holder: &mut Holder,
    settings: &HolderSettings,
    within: Option<Duration>,
    mut reply: Reply,
) -> Taken {
    let patience = async {
        match within {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let granted = tokio::select! {
        granted = holder.acquire() => granted.map_err(|why| NoSlot::new(why, None, settings)),
        () = reply.closed() => return Taken::Unwanted,
        () = patience => Err(NoSlot::new(holder.why_waiting(), within, settings)),
    };
    match granted {
        Ok(start) => {
            let begin_by = holder.offered(&start);
            let ((tells_begin, begins), (tells_end, ends)) =
                (oneshot::channel(), oneshot::channel());
            let slot = Slot::new(start.clone(), settings, holder.slot_watch(), tells_end);
            let pending = PendingSlot::new(slot, tells_begin, begin_by);
            // A slot that can't be sent is dropped, so its work never begins.
            drop(reply.send(Ok(pending)));
            Taken::Given(GivenSlot {
                start,
                begins,
                begin_by,
                ends,
            })
        }
        Err(why) => Taken::Refused(reply, why),
    }
}

/// Whether the work begins in a slot that was handed out. The caller may be gone, or may not look at the answer for
/// long. Until the work begins, the slot neither cools down when it is given back nor counts as a start.
async fn begins(holder: &mut Holder, given: &mut GivenSlot) -> bool {
    tokio::select! {
        biased;
        begun = &mut given.begins => begun.is_ok(),
        _lost = holder.hold() => false,
        () = sleep(given.begin_by.since(Moment::now())) => false,
    }
}

/// Holds the slot until it is dropped or released, and returns the channel of the caller that waits for the release, if
/// any does. A slot that is lost stays until it is dropped, because its work may still run, in the others of several
/// slots.
async fn hold(holder: &mut Holder, mut end: oneshot::Receiver<Released>) -> Option<Released> {
    tokio::select! {
        ended = &mut end => return ended.ok(),
        _lost = holder.hold() => {}
    }
    end.await.ok()
}

/// Counts a task from before its start until it has ended.
pub(super) struct Counted(Arc<SharedData>);

impl Counted {
    pub(super) fn new(shared: &Arc<SharedData>) -> Self {
        shared.tasks.send_modify(|tasks| *tasks += 1);
        Self(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.tasks.send_modify(|tasks| *tasks -= 1);
    }
}
