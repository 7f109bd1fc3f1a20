//! Makes watches that receive their first list as a stream of objects, so that a list with other people's large
//! objects does not need much memory.

mod pages;

use futures::{Stream, StreamExt as _, future};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

/// Watches these objects, with backoff. The list is streamed, or arrives in pages if the API server can't stream it;
/// by default, the API servers of Kubernetes 1.31 and 1.33 can't. `api` makes the API from a client.
pub(crate) fn watch<K, F>(
    client: &Client,
    api: F,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K, F>
where
    F: Fn(Client) -> Api<K>,
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let watched = watcher(api(client.clone()), config.clone().streaming_lists()).default_backoff();
    let streamed = watched.take_while(|event| future::ready(!is_not_streamed(event)));
    let in_pages = api(pages::bounded(client.clone()));
    let paged = config.page_size(pages::MAX_OBJECTS_PER_PAGE);
    streamed.chain(watcher(in_pages, paged).default_backoff())
}

/// Returns whether the API server says that it can't stream lists.
fn is_not_streamed<K>(event: &watcher::Result<Event<K>>) -> bool {
    matches!(
        event,
        Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) if status.code == 422
    )
}
