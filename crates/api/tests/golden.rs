//! The names in Kubernetes, as users, manifests, policies and other builds use them: a build with another name for an
//! object does not recognize it.

use consul_semaphore_api::{ConsulSemaphore, GROUP, annotations};
use kube::Resource as _;

/// What users write on a Job. A Job with another name asks for nothing, and runs without a slot.
#[test]
fn what_users_write_on_a_job() {
    let recorded = [
        "consul-semaphore.io/semaphore",
        "consul-semaphore.io/priority",
        "consul-semaphore.io/hold",
        "consul-semaphore.io/key",
        "consul-semaphore.io/on-contention",
        "consul-semaphore.io/wait-timeout",
    ];
    assert_eq!(annotations::OF_USERS, recorded);
}

/// What the operator writes, and reads again after an upgrade. `crates/workload/tests/golden.rs` shows where.
#[test]
fn what_the_operator_writes_on_a_job_and_its_pods() {
    let recorded = [
        "consul-semaphore.io/failed",
        "consul-semaphore.io/waits-since",
        "consul-semaphore.io/session",
        "consul-semaphore.io/lock-key",
        "consul-semaphore.io/lock-index",
        "consul-semaphore.io/fencing-token",
        "consul-semaphore.io/slot-index",
        "consul-semaphore.io/slot-name",
        "consul-semaphore.io/slots",
        "consul-semaphore.io/granted-to",
        "consul-semaphore.io/holder",
    ];
    assert_eq!(annotations::OF_THE_OPERATOR, recorded);
}

/// With another name, the old finalizer stays on every existing `ConsulSemaphore`: none of them can be deleted any
/// more.
#[test]
fn the_finalizer() {
    assert_eq!(annotations::FINALIZER, "consul-semaphore.io/finalizer");
}

/// Objects in etcd, and every manifest and role, use these names for the resource.
#[test]
fn the_resource() {
    assert_eq!(GROUP, "consul-semaphore.io");
    assert_eq!(ConsulSemaphore::group(&()), "consul-semaphore.io");
    assert_eq!(ConsulSemaphore::version(&()), "v1alpha1");
    assert_eq!(ConsulSemaphore::kind(&()), "ConsulSemaphore");
    assert_eq!(ConsulSemaphore::plural(&()), "consulsemaphores");
}
