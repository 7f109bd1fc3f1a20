//! The shipped CRD is the one that the types in `src/api` make.

use consul_semaphore_operator::api::crd_yaml;
use std::{env, fs, path::Path};

const SHIPPED: &str = "crds/consulsemaphores.consul-semaphore.io.yaml";

#[test]
fn the_shipped_crd_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SHIPPED);
    let current = crd_yaml().expect("the CRD is serializable");
    if env::var_os("UPDATE_CRDS").is_some() {
        fs::write(&path, &current).expect("the CRD is written");
    }
    let shipped = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        shipped == current,
        "{SHIPPED} is not what src/api makes; write it anew with: UPDATE_CRDS=1 cargo test --test crd_drift"
    );
}
