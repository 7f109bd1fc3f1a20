//! Watches that receive their first list as a stream of objects, so that a list with other people's large objects
//! does not need much memory.

use futures::{Stream, StreamExt as _, future};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

/// How many objects a page of a list has if the API server can't stream it. An object takes up to about 9 MiB: 1.5
/// MiB, whose characters may be escaped.
const PAGE: u32 = 5;

/// Watches these objects, with backoff: the list is streamed, or arrives in small pages if the API server can't do
/// that. By default those before Kubernetes 1.34 can't.
pub(crate) fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let streamed = watcher(api.clone(), config.clone().streaming_lists()).default_backoff();
    let streamed = streamed.take_while(|event| future::ready(!is_not_streamed(event)));
    streamed.chain(watcher(api, config.page_size(PAGE)).default_backoff())
}

/// Whether the API server says that it can't stream lists.
fn is_not_streamed<K>(event: &watcher::Result<Event<K>>) -> bool {
    matches!(
        event,
        Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) if status.code == 422
    )
}
