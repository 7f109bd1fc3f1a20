//! Journeys of workloads that are no Jobs, through the operator and their real controllers.
//!
//! A journey is written once and told of each kind: `each_kind!` makes a test of each. What they must know of a kind is
//! its row in `kinds.rs`.
//!
//! The controllers are built on demand: `make test-workloads`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the helpers of a test fail the test"
)]

use testbed::Controller;

/// The controllers on the bed that these journeys share.
const CONTROLLERS: &[Controller] = &[Controller::JobSet, Controller::Tekton, Controller::Argo];

/// Makes a test for each kind of a journey, an async function that takes the kind.
macro_rules! each_kind {
    ($($journey:ident),* $(,)?) => { $(
        mod $journey {
            use crate::kinds;

            #[tokio::test]
            async fn job_set() {
                super::$journey(&kinds::JOB_SET).await;
            }

            #[tokio::test]
            async fn pipeline_run() {
                super::$journey(&kinds::PIPELINE_RUN).await;
            }

            #[tokio::test]
            async fn task_run() {
                super::$journey(&kinds::TASK_RUN).await;
            }

            #[tokio::test]
            async fn workflow() {
                super::$journey(&kinds::WORKFLOW).await;
            }

            #[tokio::test]
            async fn pod() {
                super::$journey(&kinds::POD).await;
            }
        }
    )* };
}

mod children;
mod cooling;
mod definitions;
mod deleted;
mod kinds;
mod late;
mod lost;
mod nested;
mod order;
mod restart;
mod stage;
mod switched_off;
mod waits;
mod webhook;
