//! Lists all workloads of a namespace that concern the operator, for a single read.

use kube::{Api, Client, api::ListParams};

use consul_client::clock::Moment;
use consul_semaphore_workload::{Job, TrackedWorkload};

/// Number of workloads in a page.
const WORKLOADS_PER_PAGE: u32 = 500;

/// A list of workloads, page by page. The caller bounds each page's time.
pub(crate) struct Pages {
    api: Api<Job>,
    /// Parameters of the next page; `None` after the last page.
    next: Option<ListParams>,
}

impl Pages {
    pub(crate) fn of(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            next: Some(ListParams::default().limit(WORKLOADS_PER_PAGE)),
        }
    }

    /// Reads the next page; `None` after the last one.
    pub(crate) async fn next(&mut self) -> kube::Result<Option<Vec<TrackedWorkload>>> {
        let Some(params) = self.next.take() else {
            return Ok(None);
        };
        let page = self.api.list(&params).await?;
        let more = page.metadata.continue_.filter(|token| !token.is_empty());
        self.next = more.map(|token| params.continue_token(&token));
        let seen = Moment::now();
        let read = page.items.iter();
        Ok(Some(
            read.filter_map(|object| TrackedWorkload::read(object, seen))
                .collect(),
        ))
    }
}
