//! Watches the annotations of a Service.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;

use convey_config::Annotations;
use convey_model::{KubernetesService, SourceSettings};
use convey_pacing::Backoff;
use futures_util::StreamExt;
use tokio::time::{sleep, timeout_at};

use crate::bounds::{ATTEMPTS, now};
use crate::client::{ApiClient, ApiFault, Transport};
use crate::cluster::{bounded, connect};
use crate::objects::ServiceObject;
use crate::watch::LIST_TIMEOUT;
use crate::watcher::{Collection, ObjectEvent, events};

/// Server settings from the annotations of a Service, and faults of the annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationState {
    /// Settings of the servers.
    pub settings: SourceSettings,
    /// Operator-facing messages about faults of annotations.
    pub notes: BTreeSet<String>,
}

/// Watches the annotations of a Service until the future is dropped. Calls `tell` with the settings
/// and the faults after each change. While the API server is unreachable, all settings stay.
pub(crate) async fn watch(
    service: &KubernetesService,
    mut tell: impl FnMut(AnnotationState) + Send,
) -> Infallible {
    let (mut annotations, mut backoff) = (Annotations::default(), Backoff::new(ATTEMPTS));
    loop {
        let begun = now();
        let refusal = match connect(&service.cluster).await {
            Ok(client) => watch_service(client, service, &mut annotations, &mut tell).await,
            Err(_) => None,
        };
        // The watch of EndpointSlices reports an unreachable API server.
        if let Some(why) = refusal {
            let note = format!(
                "the annotations of the Service cannot be read, and the previous ones stay in effect: {why}"
            );
            tell(AnnotationState { settings: annotations.settings(), notes: BTreeSet::from([note]) });
        }
        backoff.on_success(now() - begun);
        sleep(backoff.next_delay(fastrand::f64())).await;
    }
}

/// Lists and watches the Service until a request fails. Returns the reason if the API server denies
/// access; `None` for other failures.
pub(crate) async fn watch_service<T: Transport>(
    client: ApiClient<T>,
    service: &KubernetesService,
    annotations: &mut Annotations,
    tell: &mut (impl FnMut(AnnotationState) + Send),
) -> Option<String> {
    let mut tell = |found: Option<&ServiceObject>| {
        let all = found.and_then(|service| service.metadata.annotations.as_ref());
        annotations.take(all.into_iter().flatten().map(|(name, text)| (&**name, &**text)));
        // The value of an annotation may contain anything.
        let notes = annotations.problems().iter().map(|problem| bounded(problem)).collect();
        tell(AnnotationState { settings: annotations.settings(), notes });
    };
    let mut events = pin!(events(client, Collection::service(service)));
    let (mut listed, mut is_listing, deadline) = (None, true, now() + LIST_TIMEOUT);
    loop {
        let event =
            if is_listing { timeout_at(deadline, events.next()).await.ok()? } else { events.next().await };
        match event? {
            Ok(ObjectEvent::WatchBegins) => {}
            Ok(ObjectEvent::ListBegins) => listed = None,
            Ok(ObjectEvent::Listed(found)) => listed = Some(found),
            Ok(ObjectEvent::ListEnds) => {
                is_listing = false;
                tell(listed.take().as_ref());
            }
            Ok(ObjectEvent::Applied(found)) => tell(Some(&found)),
            Ok(ObjectEvent::Deleted(_)) => tell(None),
            Err(fault) => return refusal(&fault),
        }
    }
}

/// Reason why the API server denies access; `None` for other faults.
fn refusal(fault: &ApiFault) -> Option<String> {
    let ApiFault::Refused(status) = fault else { return None };
    matches!(status.code, 401 | 403).then(|| bounded(&format!("{} ({})", status.message, status.code)))
}
