//! The commands `pause` and `resume`, which decide whether a semaphore grants slots.

use serde_json::json;

use crate::{
    cluster::ClusterClient,
    failure::Failure,
    read::title,
    terminal,
    view::item::{count, status},
};

pub(crate) async fn pause(
    cluster: &ClusterClient,
    name: &str,
    paused: bool,
) -> Result<(), Failure> {
    let cluster = cluster.to_change();
    let (object, semaphore) = cluster.readable(name).await?;
    let title = title(&object);
    if semaphore.spec.paused == paused {
        let word = if paused {
            "paused already"
        } else {
            "not paused"
        };
        return terminal::write(&format!("{title} is {word}\n"));
    }
    // The patch names the uid, so that it can't change a new semaphore with the same name.
    let patch = json!({ "metadata": { "uid": object.metadata.uid }, "spec": { "paused": paused } });
    cluster.patch_semaphore(name, &patch).await?;
    let status = status(&semaphore);
    let running = count(
        status.held_here,
        "Job that holds a slot here continues",
        "Jobs that hold a slot here continue",
    );
    let waiting = count(status.waiting, "waits", "wait");
    terminal::write(&if paused {
        format!("{title} paused: no more slots are granted; {running}, {waiting}\n")
    } else {
        format!("{title} resumed: {waiting} for a slot\n")
    })
}
