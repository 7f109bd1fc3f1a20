//! Workloads that are deleted. None is made again under the same name here: the MPI operator gives up one whose name
//! the pods of an earlier one have.

use crate::{
    kinds::Kind,
    stage::{Described, Stage},
};

each_kind!(deleted_while_it_waits_and_while_it_runs);

async fn deleted_while_it_waits_and_while_it_runs(kind: &'static Kind) {
    let stage = Stage::new("deleted").await;
    let new = |name| Described::new(kind, &stage.team, name);
    // Who comes in the same second waits in the order of the names.
    let first = new("a").create().await;
    let session = first.runs(&stage).await;
    let second = new("b").waits().await;
    let third = new("c").waits().await;

    second.object.delete().await;
    second.object.is_gone().await;
    first.object.delete().await;
    // Its pods are left now.
    first.object.is_gone().await;
    let other = third.runs(&stage).await;
    assert_ne!(session, other);
    third.object.delete().await;
    stage.is_over(2).await;
}
