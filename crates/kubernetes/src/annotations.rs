//! Watches the annotations of a Service.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;

use convey_config::Annotations;
use convey_model::{KubernetesService, SourceSettings};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Client};
use tokio::time::{sleep, timeout_at};

use crate::bounds::now;
use crate::cluster::{bounded, connect};
use crate::watch::{LIST_TIMEOUT, MAX_PAUSE, WATCH_SECONDS};

/// Watches as long as it runs, and has `tell` hear what the annotations say whenever that changes, and what is wrong. While the API
/// server cannot be asked, all stays as it was.
pub(crate) async fn watch(
    service: &KubernetesService,
    mut tell: impl FnMut(SourceSettings, BTreeSet<String>) + Send,
) -> Infallible {
    let (mut annotations, mut pauses) = (Annotations::default(), DefaultBackoff::default());
    loop {
        let refusal = match connect(&service.cluster).await {
            Ok(client) => watch_service(client, service, &mut annotations, &mut tell).await,
            Err(_) => None,
        };
        // The watch of slices tells of an API server that is gone.
        if let Some(why) = refusal {
            let note = format!("its annotations cannot be read, they stay as they were: {why}");
            tell(annotations.settings(), BTreeSet::from([note]));
        }
        sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
    }
}

/// Lists and watches the one Service until something fails. Returns why, if we may not.
pub(crate) async fn watch_service(
    client: Client,
    service: &KubernetesService,
    annotations: &mut Annotations,
    tell: &mut (impl FnMut(SourceSettings, BTreeSet<String>) + Send),
) -> Option<String> {
    let mut tell = |found: Option<&Service>| {
        let all = found.and_then(|service| service.metadata.annotations.as_ref());
        annotations.take(all.into_iter().flatten().map(|(name, text)| (&**name, &**text)));
        // An API server may send anything as the value of an annotation.
        let problems = annotations.problems().iter().map(|problem| bounded(problem)).collect();
        tell(annotations.settings(), problems);
    };
    let services: Api<Service> = Api::namespaced(client, &service.namespace);
    let wanted =
        watcher::Config::default().fields(&format!("metadata.name={}", service.name)).timeout(WATCH_SECONDS);
    let mut events = pin!(watcher::watcher(services, wanted));
    let (mut listed, mut is_listing, deadline) = (None, true, now() + LIST_TIMEOUT);
    loop {
        let event =
            if is_listing { timeout_at(deadline, events.next()).await.ok()? } else { events.next().await };
        match event? {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(found)) => listed = Some(found),
            Ok(Event::InitDone) => {
                is_listing = false;
                tell(listed.take().as_ref());
            }
            Ok(Event::Apply(found)) => tell(Some(&found)),
            Ok(Event::Delete(_)) => tell(None),
            Err(error) => return refusal(&error),
        }
    }
}

/// Why we may not.
fn refusal(error: &watcher::Error) -> Option<String> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status,
        _ => return None,
    };
    matches!(status.code, 401 | 403).then(|| bounded(&format!("{} ({})", status.message, status.code)))
}
