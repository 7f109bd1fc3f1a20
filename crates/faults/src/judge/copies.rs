//! What the operator of a copy of the cluster does: nothing. The original uses the identity that both have.

use super::{Rule, Verdict, Violation};
use crate::record::{Record, What, Writer};

/// What it may write to its own API server: who leads, who it is itself, and what it says to people.
const SAYS: [&str; 4] = [
    "/leases",
    "/selfsubjectreviews",
    "/events",
    "/consulsemaphores/",
];

/// Judges each write of the copy, also one that was refused: it has nothing to ask for.
pub(super) fn judge(bed: &[Record], verdict: &mut Verdict) {
    for record in bed {
        let What::Write {
            writer: Writer::Copy,
            method,
            path,
            ..
        } = &record.what
        else {
            continue;
        };
        if !says(path) {
            verdict.violations.push(Violation {
                t: record.t,
                rule: Rule::CopyActs,
                prefix: String::new(),
                text: format!("the operator of a copy of the cluster sent {method} {path}"),
            });
        }
    }
}

/// Whether a write only says something. All paths of the API server begin so, and none of Consul's does.
fn says(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    let in_kubernetes = path.starts_with("/api/") || path.starts_with("/apis/");
    let status_alone = !path.contains("/consulsemaphores/") || path.ends_with("/status");
    in_kubernetes && status_alone && SAYS.iter().any(|said| path.contains(said))
}
