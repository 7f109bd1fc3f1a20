//! Slots that stay held for a while: after a workload is done, or after it was started.

use jiff::Timestamp;
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use testbed::{Entry, eventually, same};

use crate::{
    kinds::Kind,
    stage::{Described, GRANTED_TO, Stage, Workload, bed},
};

each_kind!(its_slot_cools, at_most_one_starts_in_a_period);

async fn its_slot_cools(kind: &'static Kind) {
    let spec = json!({ "cooldown": "3s" });
    let stage = Stage::with(bed().await, "cooldown", spec).await;
    let a = Described::new(kind, &stage.team, "a").terminates_in("0s");
    let a = a.create().await;
    let session = a.runs(&stage).await;
    let next = stage.job("next").runs("1h").create().await;
    next.has_event("SlotWaiting").await;
    a.object.delete().await;
    let until = eventually("its slot cools", || async {
        let contenders = stage.bed.consul().contenders(&stage.db.lock_prefix()).await;
        let bodies = contenders.iter().map(Entry::json);
        let mut ends = bodies.filter_map(|body| time(&body, "coolsUntil"));
        ends.next().ok_or(format!("{contenders:?}"))
    })
    .await;
    let note = a.object.has_event("SlotCooling").await;
    assert!(note.contains(&session), "{note}");
    next.is_running().await;
    let session = next.session().await.expect("it runs in a slot");
    let key = format!("{}/{session}", stage.db.lock_prefix());
    let contender = stage.bed.consul().kv(&key).await.expect("its contender");
    let granted = time(&contender.json(), "time").expect("a time");
    assert!(granted >= until, "{granted} is before {until}");
    next.finish().await;
    eventually("its slot is free", || async {
        same(stage.holders().await.len(), 0)
    })
    .await;
    stage.ran_one_by_one(2);
}

/// A time in a contender's body, by the operator's clock.
fn time(body: &Value, field: &str) -> Option<Timestamp> {
    body[field].as_str()?.parse().ok()
}

/// Those that were started run beside each other.
async fn at_most_one_starts_in_a_period(kind: &'static Kind) {
    let spec = json!({ "mode": "Rate", "period": "3s" });
    let stage = Stage::with(bed().await, "rate", spec).await;
    let new = |name| Described::new(kind, &stage.team, name).terminates_in("0s");
    let (a, b) = (new("a").create().await, new("b").create().await);
    b.all_run().await;
    a.all_run().await;
    let mut starts = [started(&a).await, started(&b).await];
    starts.sort_unstable();
    // The API server cuts off the fraction of a second.
    assert!(starts[1] - starts[0] >= 2, "{starts:?}");
    stage.db.shows(json!({ "held": 0, "waiting": 0 })).await;
    for workload in [a, b] {
        workload.all_run().await;
        workload.object.delete().await;
    }
}

/// When the API server took the write that recorded its grant, in whole seconds.
async fn started(workload: &Workload) -> i64 {
    let mut object = workload.object.get().await;
    let metadata: ObjectMeta = serde_json::from_value(object["metadata"].take()).expect("it");
    let mut writes = metadata.managed_fields.into_iter().flatten();
    let start = writes.find(|write| {
        let fields = write.fields_v1.as_ref().map(|fields| &fields.0);
        let annotation = format!("f:{GRANTED_TO}");
        fields.is_some_and(|fields| !fields["f:metadata"]["f:annotations"][&annotation].is_null())
    });
    let time = start.and_then(|start| start.time);
    time.expect("it was started").0.as_second()
}
