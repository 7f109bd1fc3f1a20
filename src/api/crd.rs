//! The custom resource definition as it is shipped.

use super::ConsulSemaphore;
use kube::CustomResourceExt;

const HEADER: &str = "\
# Generated from src/api by `consul-semaphore-operator crd`: change the types there, not this file.
# To write it anew: UPDATE_CRDS=1 cargo test --test crd_drift
";

/// The `CustomResourceDefinition` of [`ConsulSemaphore`] as a YAML document, ready for
/// `kubectl apply`, with a comment that says where it comes from.
pub fn crd_yaml() -> Result<String, serde_yaml_ng::Error> {
    Ok(format!(
        "{HEADER}{}",
        serde_yaml_ng::to_string(&ConsulSemaphore::crd())?
    ))
}
