//! The names in Kubernetes, as users, manifests, policies and other builds use them: a build with another name for an
//! object does not recognize it.

use consul_semaphore_api::{ConsulSemaphore, GROUP, annotations};
use kube::Resource as _;

/// What users write on a Job. A Job with another name asks for nothing, and runs without a slot.
#[test]
fn what_users_write_on_a_job() {
    assert_eq!(annotations::SEMAPHORE, "consul-semaphore.io/semaphore");
    assert_eq!(annotations::KEY, "consul-semaphore.io/key");
    assert_eq!(annotations::PRIORITY, "consul-semaphore.io/priority");
    assert_eq!(annotations::HOLD, "consul-semaphore.io/hold");
    assert_eq!(
        annotations::ON_CONTENTION,
        "consul-semaphore.io/on-contention"
    );
    assert_eq!(
        annotations::WAIT_TIMEOUT,
        "consul-semaphore.io/wait-timeout"
    );
}

/// What the operator writes, and reads again after an upgrade. `crates/workload/tests/golden.rs` shows where.
#[test]
fn what_the_operator_writes_on_a_job_and_its_pods() {
    assert_eq!(annotations::FAILED, "consul-semaphore.io/failed");
    assert_eq!(annotations::SESSION, "consul-semaphore.io/session");
    assert_eq!(annotations::LOCK_KEY, "consul-semaphore.io/lock-key");
    assert_eq!(annotations::LOCK_INDEX, "consul-semaphore.io/lock-index");
    assert_eq!(
        annotations::FENCING_TOKEN,
        "consul-semaphore.io/fencing-token"
    );
    assert_eq!(annotations::SLOTS, "consul-semaphore.io/slots");
    assert_eq!(annotations::GRANTED_TO, "consul-semaphore.io/granted-to");
    assert_eq!(annotations::HOLDER_LABEL, "consul-semaphore.io/holder");
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
