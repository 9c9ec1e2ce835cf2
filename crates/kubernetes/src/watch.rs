//! Lists and watches the EndpointSlices of a Service.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{sleep, timeout, timeout_at};

use crate::bounds::{ATTEMPTS, now};
use crate::client::{ApiClient, ApiFault, Transport};
use crate::cluster::{bounded, connect};
use crate::endpoints::Endpoints;
use crate::watcher::{Collection, ObjectEvent, events};
use convey_model::{DiscoveryState, KubernetesService};
use convey_pacing::Backoff;

/// Time limit of a list, including all its pages.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a fault after which a watch counts as settled. A fault such as an expired version
/// is an event of the watch, so it arrives after a successful response.
const SETTLED: Duration = Duration::from_secs(5);
/// Maximum delay between attempts while lists succeed but watches fail, because then only lists
/// show changes.
const LIST_ATTEMPTS_CAP: Duration = Duration::from_secs(10);
/// Delay before a new list that convey requests although nothing has failed.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// Reason for the end of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchEnd {
    /// Slices that exceeded the maximum number of slices would now be accepted, so a new list is
    /// needed.
    HasRoom,
    Failed(WatchFailure),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchFailure {
    /// Operator-facing reason of the failure.
    why: String,
    /// Whether the API server had answered the list when the failure occurred.
    has_listed: bool,
    /// Whether convey has the permission to list slices, but not to watch them.
    is_watch_refused: bool,
}

/// State of the watch over successive attempts, and the reports to send. Pure.
#[derive(Debug, Default)]
pub(crate) struct WatchAttempts {
    known: DiscoveryState,
    failures_in_a_row: u32,
    /// Whether the last attempt has listed slices, and then failed to watch them.
    has_failed_to_watch: bool,
}

impl WatchAttempts {
    /// Updates the servers from the slices, and returns the state to report. `is_settled`: whether
    /// the watch has settled.
    pub(crate) fn on_slices(&mut self, endpoints: &Endpoints, is_settled: bool) -> DiscoveryState {
        if is_settled {
            (self.failures_in_a_row, self.has_failed_to_watch) = (0, false);
        }
        // A list alone does not clear the fault. Otherwise each attempt would report a recovery and
        // then the fault again.
        if !self.has_failed_to_watch {
            self.known.fault = None;
        }
        (self.known.servers, self.known.notes) = (Some(endpoints.servers()), endpoints.notes());
        self.known.clone()
    }

    pub(crate) fn on_failure(&mut self, failure: WatchFailure) -> DiscoveryState {
        self.known.failures += 1;
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        self.has_failed_to_watch = failure.has_listed;
        // A single broken connection is not reported as a fault: the next list shows whether the
        // API server is reachable.
        if self.failures_in_a_row > 1 || failure.is_watch_refused || self.known.servers.is_none() {
            self.known.fault = Some(failure.why);
        }
        self.known.clone()
    }
}

/// Watches EndpointSlices until the future is dropped. Calls `tell` with the full state after each
/// change. While the API server is unreachable, the last state stays.
pub(crate) async fn watch(
    service: &KubernetesService,
    mut tell: impl FnMut(DiscoveryState) + Send,
) -> Infallible {
    let mut attempts = WatchAttempts::default();
    let mut backoff = Backoff::new(ATTEMPTS);
    loop {
        let end = watch_once(service, |endpoints, is_settled| {
            tell(attempts.on_slices(endpoints, is_settled));
        })
        .await;
        if attempts.failures_in_a_row == 0 {
            backoff.reset();
        }
        let pause = match end {
            WatchEnd::HasRoom => LIST_AGAIN,
            WatchEnd::Failed(failure) => {
                let cap = if failure.has_listed { LIST_ATTEMPTS_CAP } else { ATTEMPTS.cap };
                tell(attempts.on_failure(failure));
                backoff.next_delay_up_to(cap, fastrand::f64())
            }
        };
        sleep(pause).await;
    }
}

/// Lists and watches slices until a request fails. Calls `tell` with the slices after the list and
/// after each change; the flag is `true` once the watch has settled.
async fn watch_once(service: &KubernetesService, tell: impl FnMut(&Endpoints, bool) + Send) -> WatchEnd {
    let client = match connect(&service.cluster).await {
        Ok(client) => client,
        Err(why) => return WatchEnd::Failed(WatchFailure { why, ..WatchFailure::default() }),
    };
    watch_slices(client, service, tell).await
}

/// Lists and watches slices with a connected client, until a request fails.
pub(crate) async fn watch_slices<T: Transport>(
    client: ApiClient<T>,
    service: &KubernetesService,
    mut tell: impl FnMut(&Endpoints, bool) + Send,
) -> WatchEnd {
    let end =
        |why: String, has_listed| WatchEnd::Failed(WatchFailure { why, has_listed, is_watch_refused: false });
    let mut events = pin!(events(client, Collection::slices(service)));
    let mut endpoints = Endpoints::new(service.port.clone(), service.protocol);
    let (mut is_listing, mut is_answered, mut is_settled) = (true, false, false);
    let deadline = now() + LIST_TIMEOUT;
    loop {
        let event = match (is_listing, is_answered && !is_settled) {
            (true, _) => match timeout_at(deadline, events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    return end(
                        format!("no list of EndpointSlices within {} s", LIST_TIMEOUT.as_secs()),
                        false,
                    );
                }
            },
            (false, true) => match timeout(SETTLED, events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    is_settled = true;
                    tell(&endpoints, true);
                    continue;
                }
            },
            // The client limits the wait for the answer and for events.
            (false, false) => events.next().await,
        };
        match event {
            Some(Ok(ObjectEvent::ListBegins)) => {
                is_listing = true;
                endpoints.begin_list();
            }
            Some(Ok(ObjectEvent::Listed(slice))) => endpoints.apply(&slice),
            Some(Ok(ObjectEvent::ListEnds)) => {
                is_listing = false;
                endpoints.end_list();
                tell(&endpoints, is_settled);
            }
            Some(Ok(ObjectEvent::WatchBegins)) => is_answered = true,
            Some(Ok(ObjectEvent::Applied(slice))) => {
                is_settled = true;
                endpoints.apply(&slice);
                tell(&endpoints, true);
            }
            Some(Ok(ObjectEvent::Deleted(slice))) => {
                is_settled = true;
                endpoints.remove(&slice);
                tell(&endpoints, true);
                if endpoints.has_room() {
                    return WatchEnd::HasRoom;
                }
            }
            Some(Err(fault)) => return WatchEnd::Failed(WatchFailure::new(&fault, !is_listing)),
            None => return end("the watch has ended".to_owned(), !is_listing),
        }
    }
}

impl WatchFailure {
    fn new(fault: &ApiFault, has_listed: bool) -> WatchFailure {
        let (why, is_refused) = match fault {
            ApiFault::Refused(status) => {
                let said = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
                let why = match said {
                    Some(text) => bounded(&format!("{text} ({})", status.code)),
                    // A line that is not an event is parsed as a status without fields.
                    None => "invalid watch event from the API server".to_owned(),
                };
                (why, matches!(status.code, 401 | 403))
            }
            ApiFault::Broken(why) => (bounded(why), false),
        };
        WatchFailure { why, has_listed, is_watch_refused: has_listed && is_refused }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Response;
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt, Full, StreamBody};
    use hyper::body::Frame;

    use super::*;
    use crate::bounds::SILENCE;
    use crate::objects::ApiStatus;
    use convey_model::{KubernetesCluster, ServicePort};

    fn failure(has_listed: bool) -> WatchFailure {
        WatchFailure { why: "broken".into(), has_listed, is_watch_refused: false }
    }

    fn endpoints() -> Endpoints {
        Endpoints::new(ServicePort::Number(80), None)
    }

    /// API server with an empty list. If `answers` is true, the server responds to a watch, but
    /// sends no events. Otherwise it never responds to a watch.
    struct SilentWatches {
        answers: bool,
    }

    impl Transport for SilentWatches {
        type Body = UnsyncBoxBody<Bytes, Infallible>;

        async fn get(&mut self, target: &str) -> Result<Response<Self::Body>, String> {
            if !target.contains("watch=true") {
                let list = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;
                return Ok(Response::new(Full::from(list).boxed_unsync()));
            }
            if self.answers {
                let silence = futures_util::stream::pending::<Result<Frame<Bytes>, Infallible>>();
                return Ok(Response::new(StreamBody::new(silence).boxed_unsync()));
            }
            sleep(SILENCE).await;
            Err("no answer".to_owned())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watch_counts_as_begun_once_the_api_server_has_answered_it() {
        let service = KubernetesService {
            namespace: "shop".into(),
            name: "web".into(),
            port: ServicePort::Number(80),
            protocol: None,
            cluster: KubernetesCluster::default(),
        };
        for (answers, expected) in [(true, &[false, true][..]), (false, &[false])] {
            let mut told = Vec::new();
            let client = ApiClient::new(SilentWatches { answers });
            let end = watch_slices(client, &service, |_, is_settled| told.push(is_settled)).await;
            assert_eq!(told, expected, "{answers}");
            assert!(matches!(end, WatchEnd::Failed(WatchFailure { has_listed: true, .. })), "{end:?}");
        }
    }

    #[test]
    fn watches_that_fail_after_each_list_are_one_fault_until_one_holds() {
        let mut attempts = WatchAttempts::default();
        attempts.on_slices(&endpoints(), false);
        assert_eq!(attempts.on_failure(failure(true)).fault, None, "once is no trouble");
        attempts.on_slices(&endpoints(), false);
        assert!(attempts.on_failure(failure(true)).fault.is_some());
        for _ in 0..3 {
            assert!(attempts.on_slices(&endpoints(), false).fault.is_some(), "a list is no watch");
            assert!(attempts.on_failure(failure(true)).fault.is_some());
        }
        attempts.on_slices(&endpoints(), false);
        assert_eq!(attempts.on_slices(&endpoints(), true).fault, None);
    }

    #[test]
    fn a_list_ends_the_fault_of_an_api_server_that_was_gone() {
        let mut attempts = WatchAttempts::default();
        attempts.on_slices(&endpoints(), true);
        attempts.on_failure(failure(true));
        assert!(attempts.on_failure(failure(false)).fault.is_some());
        assert_eq!(attempts.on_slices(&endpoints(), false).fault, None);
    }

    #[test]
    fn an_event_that_cannot_be_read_is_told_in_words() {
        let error = |status: ApiStatus| WatchFailure::new(&ApiFault::Refused(status), true).why;
        assert_eq!(error(ApiStatus::default()), "invalid watch event from the API server");
        let gone = ApiStatus { reason: "Expired".into(), code: 410, ..ApiStatus::default() };
        assert_eq!(error(gone), "Expired (410)");
    }
}
