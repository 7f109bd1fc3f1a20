//! Users change Jobs and semaphores.

use std::time::Duration;

use anyhow::Result;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{ActiveFault, Hit, locks::is_made_again, until_done};
use crate::{
    load::{Life, LoadSemaphore, create_job, delete_job, patch_job, semaphores},
    record::{Job, JobState, Part, What, WorkloadKind},
    world::{CALL, NAMESPACE, World},
};

/// How long Jobs are written to, the pause between writes, and the annotation that is written.
const TOUCHES: Duration = Duration::from_secs(4);
const BETWEEN_TOUCHES: Duration = Duration::from_millis(50);
const TOUCHED: &str = "faults.consul-semaphore.io/touched";

/// A workload of the semaphore in this state, of a kind that is wanted.
fn some_job(
    fault: &mut ActiveFault,
    state: JobState,
    wanted: impl Fn(WorkloadKind) -> bool,
) -> Result<Option<Job>> {
    let prefix = fault.semaphore()?.prefix();
    let mut jobs = fault
        .world
        .timeline
        .look(|view| view.jobs_of(&prefix, state));
    jobs.retain(|job| wanted(job.kind));
    Ok(fault.rng.choice(jobs))
}

async fn delete(fault: &ActiveFault, job: &Job, policy: PropagationPolicy) -> Result<()> {
    let params = DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    };
    delete_job(&fault.world, job, &params).await
}

pub(super) async fn deleted(fault: &mut ActiveFault) -> Result<Hit> {
    let states = [JobState::Running, JobState::Running, JobState::Waiting];
    let state = states[fault.rng.usize(..states.len())];
    let Some(job) = some_job(fault, state, |_| true)? else {
        return Ok(Hit::Nothing);
    };
    let policies = [
        PropagationPolicy::Background,
        PropagationPolicy::Foreground,
        PropagationPolicy::Orphan,
    ];
    let policy = policies[fault.rng.usize(..policies.len())].clone();
    let note = format!("{} ({state:?}), {policy:?}", job.name);
    delete(fault, &job, policy).await?;
    fault.begins(note);
    Ok(Hit::Yes)
}

/// Deletes a running Job of a semaphore, if there is one.
pub(super) async fn delete_one_that_runs(
    fault: &mut ActiveFault,
    semaphore: &LoadSemaphore,
) -> Result<()> {
    let running = fault
        .world
        .timeline
        .look(|view| view.jobs_of(&semaphore.prefix(), JobState::Running));
    match fault.rng.choice(running) {
        Some(job) => delete(fault, &job, PropagationPolicy::Background).await,
        None => Ok(()),
    }
}

pub(super) async fn suspended(fault: &mut ActiveFault) -> Result<Hit> {
    let Some(job) = some_job(fault, JobState::Running, WorkloadKind::can_be_suspended)? else {
        return Ok(Hit::Nothing);
    };
    let suspend = json!({ "spec": { "suspend": true } });
    patch_job(&fault.world, &job, suspend).await?;
    fault.begins(&job.name);
    fault.lasts(3).await;
    let world = fault.world.clone();
    until_done("nothing of it is on hold", || async {
        release(&world, &job).await
    })
    .await?;
    Ok(Hit::Yes)
}

/// A user ends a `PipelineRun`, which can't be suspended.
pub(super) async fn cancelled(fault: &mut ActiveFault) -> Result<Hit> {
    let states = [JobState::Running, JobState::Running, JobState::Waiting];
    let state = states[fault.rng.usize(..states.len())];
    let wanted = |kind| kind == WorkloadKind::PipelineRun;
    let Some(job) = some_job(fault, state, wanted)? else {
        return Ok(Hit::Nothing);
    };
    let cancel = json!({ "spec": { "status": "Cancelled" } });
    patch_job(&fault.world, &job, cancel).await?;
    fault.begins(format!("{} ({state:?})", job.name));
    Ok(Hit::Yes)
}

/// Removes the hold from a Job. Returns whether nothing is left to do.
pub(crate) async fn release(world: &World, job: &Job) -> Result<bool> {
    let state = world
        .timeline
        .look(|view| view.jobs.get(&job.uid).map(|job| job.state));
    match state {
        None
        | Some(JobState::Finished | JobState::Running | JobState::Waiting | JobState::Gone) => {
            Ok(true)
        }
        Some(JobState::Stopping) => Ok(false),
        Some(JobState::Held) => {
            let patch =
                json!({ "metadata": { "annotations": { "consul-semaphore.io/hold": null } } });
            patch_job(world, job, patch).await.map(|_| true)
        }
    }
}

pub(super) async fn unsuspended(fault: &mut ActiveFault) -> Result<Hit> {
    let Some(job) = some_job(fault, JobState::Waiting, |_| true)? else {
        return Ok(Hit::Nothing);
    };
    let patch = json!({ "metadata": { "uid": job.uid }, "spec": { "suspend": false } });
    let rv = patch_job(&fault.world, &job, patch).await?;
    fault.world.timeline.push(What::ByHand {
        uid: job.uid.clone(),
        rv,
    });
    fault.begins(&job.name);
    Ok(Hit::Yes)
}

/// A Job whose pods take longer to end than most Jobs run is deleted as soon as it runs.
pub(super) async fn lingers(fault: &mut ActiveFault) -> Result<Hit> {
    let semaphore = fault.semaphore()?;
    let life = Life {
        kind: fault.world.clone().some_kind(&mut fault.rng),
        runs_ms: 8_000,
        terminates_ms: 7_000,
        fails: false,
        pods: 1,
        ends_by: None,
        child_asks: false,
    };
    let name = create_job(&fault.world, &fault.load, NAMESPACE, semaphore.name, &life).await?;
    fault.begins(&name);
    let world = fault.world.clone();
    let made = || {
        world.timeline.look(|view| {
            let mut jobs = view.jobs.values();
            jobs.find(|job| job.name == name).cloned()
        })
    };
    let started = [JobState::Running, JobState::Finished];
    until_done("it runs", || async {
        Ok(made().is_some_and(|job| started.contains(&job.state)))
    })
    .await?;
    until_done("it is deleted", || async {
        let Some(job) = made() else {
            return Ok(true);
        };
        match delete(fault, &job, PropagationPolicy::Background).await {
            Ok(()) => Ok(true),
            Err(error) if error.to_string().contains("not found") => Ok(true),
            Err(error) => Err(error),
        }
    })
    .await?;
    Ok(Hit::Yes)
}

/// Another program writes to waiting Jobs again and again, so decisions on an older version of them are refused.
pub(super) async fn touched(fault: &mut ActiveFault) -> Result<Hit> {
    let prefix = fault.semaphore()?.prefix();
    let world = fault.world.clone();
    let waiting = || {
        world
            .timeline
            .look(|view| view.jobs_of(&prefix, JobState::Waiting))
    };
    if waiting().is_empty() {
        return Ok(Hit::Nothing);
    }
    fault.begins("");
    let touch = async {
        for number in 0_u64.. {
            for job in waiting() {
                let touched = json!({ TOUCHED: number.to_string() });
                let patch = json!({ "metadata": { "annotations": touched } });
                // It may have been deleted by now.
                let _gone = patch_job(&world, &job, patch).await;
            }
            sleep(BETWEEN_TOUCHES).await;
        }
    };
    let _over = timeout(TOUCHES, touch).await;
    Ok(Hit::Yes)
}

async fn patch_semaphore(fault: &ActiveFault, spec: &Value) -> Result<()> {
    let api = semaphores(&fault.world.kubernetes.client, NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": spec }));
    let name = fault.semaphore()?.name;
    timeout(CALL, api.patch(name, &PatchParams::default(), &patch)).await??;
    Ok(())
}

async fn surely_patch_semaphore(fault: &ActiveFault, spec: &Value) -> Result<()> {
    until_done("the semaphore is as it was", || async {
        patch_semaphore(fault, spec).await.map(|()| true)
    })
    .await
}

pub(super) async fn paused(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let _kept = world.semaphores.read().await;
    let away = fault.away(Part::Grants(fault.semaphore()?.prefix()));
    patch_semaphore(fault, &json!({ "paused": true })).await?;
    fault.begins("");
    fault.lasts(3).await;
    surely_patch_semaphore(fault, &json!({ "paused": false })).await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn limit_changed(fault: &mut ActiveFault) -> Result<Hit> {
    let world = fault.world.clone();
    let _kept = world.semaphores.read().await;
    let limit = fault.semaphore()?.limit;
    let other = if limit > 1 && fault.rng.bool() {
        limit - 1
    } else {
        limit + 1
    };
    // While the other programs want another limit, the operator grants nothing.
    let away = fault.semaphore()?.is_shared().then(|| {
        fault
            .semaphore()
            .map(|semaphore| fault.away(Part::Grants(semaphore.prefix())))
    });
    patch_semaphore(fault, &json!({ "limit": other })).await?;
    fault.begins(format!("{limit} to {other}"));
    fault.lasts(3).await;
    surely_patch_semaphore(fault, &json!({ "limit": limit })).await?;
    drop(away);
    Ok(Hit::Yes)
}

pub(super) async fn remade(fault: &mut ActiveFault) -> Result<Hit> {
    let semaphore = fault.semaphore()?;
    let world = fault.world.clone();
    let _kept = world.semaphores.read().await;
    let api = semaphores(&world.kubernetes.client, NAMESPACE);
    let away = fault.away(Part::Grants(semaphore.prefix()));
    timeout(CALL, api.delete(semaphore.name, &DeleteParams::default())).await??;
    fault.begins("");
    until_done("the semaphore is gone", || async {
        Ok(timeout(CALL, api.get_opt(semaphore.name)).await??.is_none())
    })
    .await?;
    is_made_again(&world, semaphore).await?;
    drop(away);
    Ok(Hit::Yes)
}
