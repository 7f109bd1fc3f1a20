//! The shipped CRD matches the types in `crates/api/src`; so does the chart's copy, which is needed because a chart
//! can't contain files of another folder.

use consul_semaphore_api::crd_yaml;
use std::{env, fs, path::Path};

const SHIPPED: [&str; 2] = [
    "crds/consulsemaphores.consul-semaphore.io.yaml",
    "charts/consul-semaphore-operator/files/crds/consulsemaphores.consul-semaphore.io.yaml",
];

#[test]
fn the_shipped_crd_is_current() {
    let current = crd_yaml().expect("the CRD is serializable");
    for shipped in SHIPPED {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(shipped);
        if env::var_os("UPDATE_CRDS").is_some() {
            fs::write(&path, &current).expect("the CRD is written");
        }
        assert!(
            fs::read_to_string(&path).unwrap_or_default() == current,
            "{shipped} is not what crates/api/src makes; write it anew with: UPDATE_CRDS=1 cargo test --test crd_drift"
        );
    }
}
