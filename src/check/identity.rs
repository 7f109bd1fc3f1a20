//! Finds out whether another API server uses the cluster's identity in Consul, as the operator would.

use super::{
    OperatorIdentity,
    api_server::Answer,
    kubernetes,
    report::{Area, Line, Outcome},
};
use crate::identity::{History, Place, conflict, judge_for_people, mark_key};
use command_line::page;
use consul_client::{Client, Entry, Error};

/// The facts that were read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IdentityFacts {
    /// The cluster's id.
    id: String,
    /// The key of the mark.
    key: String,
    mark: Result<Option<Entry>, Error>,
    /// The marks that the operators of this API server have written.
    history: Answer<History>,
}

/// Reads the mark. Returns `None` while the cluster or its Lease is unknown.
pub(super) async fn look(
    operator: &OperatorIdentity,
    kubernetes: &kubernetes::KubernetesFacts,
    consul: &Client,
) -> Option<IdentityFacts> {
    let rest = kubernetes.rest.as_ref()?;
    let lease = &rest.election.lease;
    let key = mark_key(&Place {
        cluster: operator.cluster.clone(),
        node: operator.node.as_deref()?.into(),
        replica: "check".into(),
        namespace: lease.namespace.clone(),
        lease: lease.name.clone(),
    });
    Some(IdentityFacts {
        id: operator.cluster.id.clone(),
        mark: consul.get(&key).await,
        key,
        history: rest.history.clone(),
    })
}

/// Returns the line about the mark.
pub(super) fn line(seen: &IdentityFacts) -> Line {
    let IdentityFacts {
        id,
        key,
        mark,
        history,
    } = seen;
    let of = |outcome, message: String| Line::new(Area::Consul, "identity", outcome, message);
    let entry = match mark {
        Ok(Some(entry)) if entry.session.is_some() => entry,
        Ok(_) => {
            return of(
                Outcome::Ok,
                format!("no operator uses the identity {id} now"),
            );
        }
        Err(why) => {
            let message =
                format!("can't find out whether another cluster uses the identity {id}: {why}");
            return of(Outcome::Unknown, message);
        }
    };
    let history = match history {
        Ok(history) => history,
        Err(why) => {
            let message = format!(
                "can't find out whether another cluster uses the identity {id}, because the Lease of this operator's \
                 identity can't be read: {why}"
            );
            return of(Outcome::Unknown, message).todo(
                "set --leader-election-namespace, and use a kubeconfig that may get Leases there",
            );
        }
    };
    match judge_for_people(entry, history) {
        Ok(replica) => of(
            Outcome::Ok,
            format!("{replica} uses the identity {id}, and no other API server does"),
        ),
        Err(mark) => of(Outcome::Failed, conflict(key, id, mark.as_ref())).todo(concat!(
            "set --cluster-id for the operator of the copied cluster: ",
            page!("operations.md#copies-of-a-cluster")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::api_server::ApiError, samples::entry};

    fn seen(session: Option<&str>) -> IdentityFacts {
        let value = r#"{"writer":"a","number":7,"cluster":"prod","replica":"operator-0"}"#;
        IdentityFacts {
            id: "7d0d".to_owned(),
            key: "k".to_owned(),
            mark: Ok(Some(entry(value, session))),
            history: Ok(History::in_annotations(&serde_json::json!({
                "consul-semaphore.io/identity": r#"[{"writer":"a","number":7}]"#,
            }))),
        }
    }

    #[test]
    fn each_state_of_the_mark_has_its_line() {
        let foreign = IdentityFacts {
            history: Ok(History::default()),
            ..seen(Some("s"))
        };
        let hidden = IdentityFacts {
            history: Err(ApiError::Forbidden("may not".to_owned())),
            ..seen(Some("s"))
        };
        let denied = IdentityFacts {
            mark: Err(Error::Denied("key:read".to_owned())),
            ..seen(Some("s"))
        };
        for (seen, outcome, words) in [
            (seen(None), Outcome::Ok, "no operator uses"),
            (
                seen(Some("s")),
                Outcome::Ok,
                "operator-0 uses the identity 7d0d",
            ),
            (foreign, Outcome::Failed, "--cluster-id"),
            (hidden, Outcome::Unknown, "may not"),
            (denied, Outcome::Unknown, "key:read"),
        ] {
            let line = line(&seen);
            assert_eq!(line.outcome, outcome, "{line:?}");
            assert!(line.message.contains(words), "{line:?}");
        }
    }
}
