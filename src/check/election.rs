//! Finds out which replica leads, by the Lease of the election. Nothing says in which namespace the operator runs, so
//! its Lease is looked for in all namespaces, or where the user may look.

use jiff::Timestamp;
use kube::Config;
use serde_json::Value;

use super::{
    api_server::{Answer, ApiError, ApiServer},
    kubernetes::{account_namespace, text},
    rights::Lease,
};
use crate::leader;
use consul_client::clock;

/// The longest time for which a Lease is believed to count, in seconds.
const LONGEST_LEASE: u64 = 3600;

/// The namespace of the operator, if it is installed as the docs say.
const USUAL_NAMESPACE: &str = "consul-semaphore-system";

/// The Lease to look for. It is looked for also if the operator is elected otherwise, because the Lease of its identity
/// is in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    /// The Lease in the namespace that was named, or else in the most likely one.
    lease: Lease,
    namespace: Namespace,
}

/// Source from which the namespace of the Lease is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    /// The namespace was named, by its flag or with the account that is checked.
    Named,
    /// This process runs in a pod there, as the operator or as anything else.
    Pod,
    /// The namespace is the default of the kubeconfig.
    Guessed,
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseSearchResult {
    pub(super) lease: Lease,
    pub(super) lead: Answer<Lead>,
    pub(super) searched: Searched,
}

/// The namespaces in which the Lease was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Searched {
    /// The Lease was looked for in the one namespace that was named, or in which this pod runs.
    Named,
    /// The Lease was looked for in all namespaces.
    All,
    /// The Lease was looked for in these namespaces, because the user may not list the Leases of all.
    Only(Vec<String>),
}

/// The facts in a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    /// The replica that leads; empty when the last one released the Lease.
    pub(super) holder: String,
    /// The time since the Lease was renewed, and the time for which a renewal counts, in seconds.
    pub(super) age: i64,
    pub(super) duration: i64,
}

impl Lead {
    fn read(lease: &Value) -> Self {
        let spec = &lease["spec"];
        let renew_time: Option<Timestamp> = text(&spec["renewTime"]).parse().ok();
        let renewed = renew_time.unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            holder: text(&spec["holderIdentity"]),
            age: clock::time().as_second() - renewed.as_second(),
            duration: spec["leaseDurationSeconds"].as_i64().unwrap_or(0),
        }
    }

    /// Whether no replica has renewed the Lease for long. A time far in the future was not written by a replica.
    pub(super) fn is_over(&self) -> bool {
        self.age.unsigned_abs() > 2 * self.duration.unsigned_abs().min(LONGEST_LEASE)
    }

    /// Returns a rank by which the best comes first: a replica that leads, then the one that led last.
    fn rank(&self) -> (bool, u64) {
        let over = self.holder.is_empty() || self.is_over();
        (over, self.age.unsigned_abs())
    }
}

impl Sought {
    /// Returns the operator's Lease: in the namespace of the flag, of the account that is checked, or where the
    /// operator would look for the Lease.
    pub(super) fn new(
        election: &leader::ElectionSettings,
        as_user: Option<&str>,
        config: &Config,
    ) -> Self {
        let named = election
            .namespace
            .clone()
            .or_else(|| account_namespace(as_user?));
        let in_pod = || {
            let own = Config::incluster();
            own.is_ok_and(|own| own.cluster_url == config.cluster_url)
        };
        Self {
            namespace: match named {
                Some(_) => Namespace::Named,
                None if in_pod() => Namespace::Pod,
                None => Namespace::Guessed,
            },
            lease: Lease {
                namespace: named.unwrap_or_else(|| config.default_namespace.clone()),
                name: election.lease_name.as_ref().to_owned(),
            },
        }
    }

    /// Looks for the Lease.
    pub(super) async fn find(&self, server: &ApiServer) -> LeaseSearchResult {
        if self.namespace == Namespace::Named {
            return self
                .get_in(server, &self.lease.namespace, Searched::Named)
                .await;
        }
        let name = &self.lease.name;
        let all =
            format!("/apis/coordination.k8s.io/v1/leases?fieldSelector=metadata.name%3D{name}");
        match server.get(&all).await {
            Ok(list) => self.best_of(&list),
            Err(ApiError::Forbidden(_)) => self.find_where_allowed(server).await,
            Err(why) => LeaseSearchResult {
                lease: self.lease.clone(),
                lead: Err(why),
                searched: Searched::All,
            },
        }
    }

    /// Returns the Lease by which a replica leads, or else led last.
    fn best_of(&self, list: &Value) -> LeaseSearchResult {
        let items = list["items"].as_array().into_iter().flatten();
        let found = items.map(|item| (text(&item["metadata"]["namespace"]), Lead::read(item)));
        // A user that may write Leases in some namespace may write one of this name, so the likely namespace goes
        // first.
        let best = found.min_by_key(|(namespace, lead)| {
            let (over, age) = lead.rank();
            (
                over,
                *namespace != self.lease.namespace && namespace != USUAL_NAMESPACE,
                age,
            )
        });
        let (namespace, lead) = best.map_or_else(
            || (self.lease.namespace.clone(), Err(ApiError::NotThere)),
            |(namespace, lead)| (namespace, Ok(lead)),
        );
        LeaseSearchResult {
            lease: self.lease_in(&namespace),
            lead,
            searched: Searched::All,
        }
    }

    /// Looks in the likely namespaces.
    async fn find_where_allowed(&self, server: &ApiServer) -> LeaseSearchResult {
        let namespace = &self.lease.namespace;
        let mut places = vec![namespace.clone()];
        if namespace != USUAL_NAMESPACE {
            places.push(USUAL_NAMESPACE.to_owned());
        }
        let searched = Searched::Only(places);
        let likely = self.get_in(server, namespace, searched.clone()).await;
        match likely.lead {
            Ok(_) => return likely,
            // An operator may look where its own Lease is, and nowhere else.
            Err(ApiError::NotThere) if self.namespace == Namespace::Pod => {
                return LeaseSearchResult {
                    searched: Searched::Named,
                    ..likely
                };
            }
            Err(_) => {}
        }
        let usual = self.get_in(server, USUAL_NAMESPACE, searched).await;
        if usual.lead.is_ok() { usual } else { likely }
    }

    async fn get_in(
        &self,
        server: &ApiServer,
        namespace: &str,
        searched: Searched,
    ) -> LeaseSearchResult {
        let lease = self.lease_in(namespace);
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}",
            lease.namespace, lease.name
        );
        let lead = server.get(&path).await.map(|found| Lead::read(&found));
        LeaseSearchResult {
            lease,
            lead,
            searched,
        }
    }

    fn lease_in(&self, namespace: &str) -> Lease {
        Lease {
            namespace: namespace.to_owned(),
            ..self.lease.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_lease_is_where_the_account_is_unless_a_namespace_is_named() {
        let election = |mode, namespace: Option<&str>| leader::ElectionSettings {
            mode,
            identity: "a".to_owned(),
            namespace: namespace.map(str::to_owned),
            lease_name: "shard-a".parse().unwrap(),
            lease: Duration::from_secs(15),
        };
        let mut config = Config::new("https://kubernetes".parse().unwrap());
        config.default_namespace = "mine".to_owned();
        let found = |mode, namespace, user: Option<&str>| {
            let sought = Sought::new(&election(mode, namespace), user, &config);
            let Lease { namespace, name } = sought.lease;
            let is_named = sought.namespace == Namespace::Named;
            (format!("{namespace}/{name}"), is_named)
        };
        let account = "system:serviceaccount:ops:op";
        for (namespace, user, lease, is_named) in [
            (None, None, "mine/shard-a", false),
            (None, Some("jane"), "mine/shard-a", false),
            (None, Some(account), "ops/shard-a", true),
            (Some("named"), Some(account), "named/shard-a", true),
        ] {
            let expected = (lease.to_owned(), is_named);
            for mode in [leader::Mode::Kubernetes, leader::Mode::Off] {
                assert_eq!(found(mode, namespace, user), expected);
            }
        }
    }

    #[test]
    fn of_several_leases_the_one_of_a_leader_counts() {
        let sought = Sought {
            lease: Lease {
                namespace: "default".to_owned(),
                name: "op".to_owned(),
            },
            namespace: Namespace::Guessed,
        };
        let lease = |namespace: &str, holder: &str, age: i64| {
            let renewed = Timestamp::from_second(clock::time().as_second() - age).unwrap();
            json!({
                "metadata": { "namespace": namespace },
                "spec": {
                    "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed.to_string(),
                },
            })
        };
        let best = |leases: &[Value]| {
            let found = sought.best_of(&json!({ "items": leases }));
            let Lease { namespace, name } = found.lease;
            (
                format!("{namespace}/{name}"),
                found.lead.map(|lead| lead.holder),
            )
        };
        let released = lease("released", "", 1);
        let old = lease("old", "a", 4_000);
        let leads = lease("leads", "b", 9);
        let expected = |lease: &str, holder: &str| (lease.to_owned(), Ok(holder.to_owned()));
        assert_eq!(
            best(&[old.clone(), released.clone(), leads.clone()]),
            expected("leads/op", "b")
        );
        let usual = lease(USUAL_NAMESPACE, "c", 20);
        let forged = lease("tenant", "d", -1_000_000);
        let newer = lease("tenant", "e", 0);
        assert_eq!(
            best(&[forged.clone(), newer, leads, usual]),
            expected(&format!("{USUAL_NAMESPACE}/op"), "c")
        );
        assert_eq!(
            best(&[forged, released.clone()]),
            expected("released/op", "")
        );
        assert_eq!(best(&[old.clone(), released]), expected("released/op", ""));
        assert_eq!(best(&[old]), expected("old/op", "a"));
        assert_eq!(
            best(&[]),
            ("default/op".to_owned(), Err(ApiError::NotThere))
        );
    }
}
