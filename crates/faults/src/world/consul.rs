//! The Consul servers, and the doors to them.

use anyhow::{Context as _, Result, anyhow};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use reqwest::Method;
use serde_json::Value;
use testbed::{Bed, ConsulCluster, ConsulServer, Link, Process, Proxy, until};
use tokio::time::timeout;

use super::{CALL, PATIENCE, access::MANAGEMENT};
use crate::{
    certificates::Mutual,
    consul_record::{ConsulReader, LockBook},
    door,
    record::Writer,
    timeline::Timeline,
};

/// How many Consul servers there are. One can be lost.
const SERVERS: usize = 3;

/// The Consul servers, and the doors to them.
pub(crate) struct Consul {
    pub(crate) cluster: ConsulCluster,
    /// Reads Consul directly, past the doors.
    pub(crate) reader: ConsulReader,
    /// What is known of each `.lock`.
    pub(crate) book: LockBook,
    /// The external node that the operator's sessions belong to.
    pub(crate) node: String,
    pub(crate) doors: Doors,
    /// A client through the campaign's own door.
    own: testbed::Consul,
}

/// The doors to Consul.
pub(crate) struct Doors {
    /// Accepts only clients that know the certificates.
    pub(crate) operator: Proxy,
    /// The certificates that the operator and its door present to each other.
    pub(crate) certificates: Mutual,
    /// The link from the operator to its door. Its connections can be cut.
    pub(crate) link: Link,
    pub(crate) foreign: Proxy,
    _own: Proxy,
}

impl Consul {
    /// Starts the servers, and opens all doors.
    pub(super) async fn start(bed: &Bed, timeline: &Timeline) -> Result<Self> {
        let kubernetes = bed.kubernetes().context("the bed has no Kubernetes")?;
        let folder = bed.shared_folder().clone();
        let cluster = ConsulCluster::start_in(folder, SERVERS, Some(MANAGEMENT)).await?;
        let urls = urls(&cluster);
        let reader = ConsulReader::at(urls.clone(), Some(MANAGEMENT))?;
        let etcd = kubernetes.etcd().clone();
        let book = LockBook::new(reader.clone(), etcd, timeline.clone());
        let door = |writer| door::to_consul(&urls, writer, timeline, &book);
        let certificates = Mutual::make(bed.folder().path()).await?;
        let operator = door(Writer::Operator).showing(certificates.server());
        let operator = operator.start().await?;
        let own = door(Writer::Fault).start().await?;
        Ok(Self {
            cluster,
            reader,
            node: node(bed.client()).await?,
            own: testbed::Consul::at(&own.url(), Some(MANAGEMENT))?,
            doors: Doors {
                link: Link::start(operator.address()).await?,
                operator,
                certificates,
                foreign: door(Writer::Foreign).start().await?,
                _own: own,
            },
            book,
        })
    }

    /// The servers' processes, the leader first.
    pub(crate) async fn leader_first(&self) -> Result<[&Process; SERVERS]> {
        let leader = self.cluster.try_leader().await?;
        let servers = self.cluster.servers().iter().cycle().skip(leader);
        let processes: Vec<_> = servers.take(SERVERS).map(ConsulServer::process).collect();
        processes.try_into().map_err(|_| anyhow!("no servers"))
    }

    /// Opens one more door for a kind of writer, with a client that has all rights.
    pub(crate) async fn open(
        &self,
        writer: Writer,
        timeline: &Timeline,
    ) -> Result<(Proxy, testbed::Consul)> {
        let door = door::to_consul(&urls(&self.cluster), writer, timeline, &self.book);
        let door = door.start().await?;
        let consul = testbed::Consul::at(&door.url(), Some(MANAGEMENT))?;
        Ok((door, consul))
    }

    /// Writes through the campaign's own door, and returns the answer. Retries, because another fault may get in the
    /// way for a while.
    pub(crate) async fn put(&self, path: &str, body: impl Into<String>) -> Result<Value> {
        self.insist(Method::PUT, path, body.into()).await
    }

    /// Deletes through the campaign's own door.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.insist(Method::DELETE, path, String::new()).await
    }

    async fn insist(&self, method: Method, path: &str, body: String) -> Result<Value> {
        let call = || self.own.try_call(method.clone(), path, body.clone());
        until(&format!("{method} {path}"), PATIENCE, call).await
    }
}

fn urls(cluster: &ConsulCluster) -> Vec<String> {
    let servers = cluster.servers().iter();
    servers.map(|server| server.address().to_owned()).collect()
}

/// The external node's name, from the uid of a namespace that every cluster has.
async fn node(client: &Client) -> Result<String> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let system = timeout(CALL, namespaces.get("kube-system")).await??;
    let id = system.metadata.uid.context("a namespace without a uid")?;
    Ok(format!("k8s-{id}"))
}
