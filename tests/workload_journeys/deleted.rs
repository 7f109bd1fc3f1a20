//! Workloads that are deleted, and made again under the same name.

use crate::{
    kinds::Kind,
    stage::{Described, Stage},
};

each_kind!(deleted_and_made_again);

async fn deleted_and_made_again(kind: &'static Kind) {
    let stage = Stage::new("deleted").await;
    let new = |name| Described::new(kind, &stage.team, name);
    // Who comes in the same second waits in the order of the names.
    let first = new("c").create().await;
    let session = first.runs(&stage).await;
    let second = new("a").waits().await;
    let third = new("b").waits().await;

    second.object.delete().await;
    second.object.is_gone().await;
    first.object.delete().await;
    // A pod is gone when it has ended; of all others, pods are left now.
    first.object.is_gone().await;
    let again = new("c").waits().await;
    let other = third.runs(&stage).await;
    assert_ne!(session, other);
    again.is_held().await;
    third.object.delete().await;
    again.runs(&stage).await;
    again.object.delete().await;
    stage.is_over(3).await;
}
