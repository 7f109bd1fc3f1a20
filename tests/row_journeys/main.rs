//! Journeys of workloads whose kinds are rows, through the operator and their real controllers: the same as of the other
//! kinds, and those of a `ConfigMap` with rows.
//!
//! Not covered: what Spark's driver does is played here, and `KubeRay` finds no dashboard.
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
const CONTROLLERS: &[Controller] = &[
    Controller::JobSet,
    Controller::KubeRay,
    Controller::Trainer,
    Controller::Mpi,
    Controller::Spark,
];

/// Makes a test for each kind of a journey, an async function that takes the kind.
macro_rules! each_kind {
    ($($journey:ident),* $(,)?) => { $(
        mod $journey {
            use crate::rows;

            #[tokio::test]
            async fn ray_job() {
                super::$journey(&rows::RAY_JOB).await;
            }

            #[tokio::test]
            async fn mpi_job() {
                super::$journey(&rows::MPI_JOB).await;
            }

            #[tokio::test]
            async fn train_job() {
                super::$journey(&rows::TRAIN_JOB).await;
            }

            #[tokio::test]
            async fn spark_application() {
                super::$journey(&rows::SPARK_APPLICATION).await;
            }
        }
    )* };
}

mod again;
mod deleted;
#[allow(dead_code, reason = "the other kinds have journeys of their own")]
#[path = "../workload_journeys/kinds.rs"]
mod kinds;
#[path = "../workload_journeys/lost.rs"]
mod lost;
#[path = "../workload_journeys/order.rs"]
mod order;
mod rows;
#[allow(dead_code, reason = "some steps are only of the other kinds")]
#[path = "../workload_journeys/stage.rs"]
mod stage;
mod table;
mod unused;
#[path = "../workload_journeys/waits.rs"]
mod waits;
