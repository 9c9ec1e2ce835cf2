//! Lists and watches the EndpointSlices of a Service.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::Status;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Client};
use tokio::time::{sleep, timeout, timeout_at};

use crate::bounds::now;
use crate::cluster::{bounded, chain, connect};
use crate::endpoints::Endpoints;
use convey_model::{DiscoveryState, KubernetesService};

/// Slices of one answer of a list.
const PAGE: u32 = 100;
/// How long a list may take, with all its pages.
pub(crate) const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch that has not failed for so long has begun: nothing else tells.
const SETTLED: Duration = Duration::from_secs(5);
/// How long one watch lasts, in seconds. The next one begins where it has ended.
pub(crate) const WATCH_SECONDS: u32 = 30;
/// The longest pause, should there be no other.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause while lists are answered and watches fail: then lists alone tell what is new.
const MAX_PAUSE_OF_LISTS: Duration = Duration::from_secs(10);
/// From a list to the next one that has to be, although nothing has failed.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// Why there is no watch any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchEnd {
    /// Slices that were left out have room now.
    HasRoom,
    Failed(WatchFailure),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchFailure {
    /// In words for an operator.
    why: String,
    /// Whether the API server has answered the list.
    has_listed: bool,
    /// Whether we may list and not watch.
    is_watch_refused: bool,
}

/// What is known, and what is told of one attempt after the other. Pure.
#[derive(Debug, Default)]
pub(crate) struct WatchAttempts {
    known: DiscoveryState,
    failures_in_a_row: u32,
    /// Whether the last one has listed, and then failed to watch.
    has_failed_to_watch: bool,
}

impl WatchAttempts {
    /// These are the slices; if it is settled, a watch has begun.
    pub(crate) fn on_slices(&mut self, endpoints: &Endpoints, is_settled: bool) -> DiscoveryState {
        if is_settled {
            (self.failures_in_a_row, self.has_failed_to_watch) = (0, false);
        }
        // A list is no watch: otherwise each attempt would tell of a recovery and of a fault.
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
        // A connection that breaks once is no trouble: the next list says whether there is any.
        if self.failures_in_a_row > 1 || failure.is_watch_refused || self.known.servers.is_none() {
            self.known.fault = Some(failure.why);
        }
        self.known.clone()
    }
}

/// Watches as long as it runs, and has `tell` hear what is known now whenever that changes. While the API server cannot be asked,
/// what was known stays known.
pub(crate) async fn watch(
    service: &KubernetesService,
    mut tell: impl FnMut(DiscoveryState) + Send,
) -> Infallible {
    let mut attempts = WatchAttempts::default();
    // From 0.8 s up to 30 s, each up to twice as long by chance.
    let mut pauses = DefaultBackoff::default();
    loop {
        let end = watch_once(service, |endpoints, is_settled| {
            tell(attempts.on_slices(endpoints, is_settled));
        })
        .await;
        if attempts.failures_in_a_row == 0 {
            pauses.reset();
        }
        let pause = match end {
            WatchEnd::HasRoom => LIST_AGAIN,
            WatchEnd::Failed(failure) => {
                let longest = if failure.has_listed { MAX_PAUSE_OF_LISTS } else { Duration::MAX };
                tell(attempts.on_failure(failure));
                pauses.next().unwrap_or(MAX_PAUSE).min(longest)
            }
        };
        sleep(pause).await;
    }
}

/// Lists, and watches until something fails. Has `tell` see the slices after the list and after each change, and hear whether the
/// watch is known to have begun.
async fn watch_once(service: &KubernetesService, tell: impl FnMut(&Endpoints, bool) + Send) -> WatchEnd {
    let client = match connect(&service.cluster).await {
        Ok(client) => client,
        Err(why) => return WatchEnd::Failed(WatchFailure { why, ..WatchFailure::default() }),
    };
    watch_slices(client, service, tell).await
}

/// Lists and watches with a connected client, until something fails.
pub(crate) async fn watch_slices(
    client: Client,
    service: &KubernetesService,
    mut tell: impl FnMut(&Endpoints, bool) + Send,
) -> WatchEnd {
    let end =
        |why: String, has_listed| WatchEnd::Failed(WatchFailure { why, has_listed, is_watch_refused: false });
    let slices: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    let wanted = watcher::Config::default()
        .labels(&format!("kubernetes.io/service-name={}", service.name))
        .page_size(PAGE)
        .timeout(WATCH_SECONDS);
    let mut events = pin!(watcher::watcher(slices, wanted));
    let mut endpoints = Endpoints::new(service.port.clone(), service.protocol);
    let (mut is_listing, mut is_settled, deadline) = (true, false, now() + LIST_TIMEOUT);
    loop {
        let event = match (is_listing, is_settled) {
            (true, _) => match timeout_at(deadline, events.next()).await {
                Ok(event) => event,
                Err(_) => return end(format!("no list within {} s", LIST_TIMEOUT.as_secs()), false),
            },
            (false, false) => match timeout(SETTLED, events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    is_settled = true;
                    tell(&endpoints, true);
                    continue;
                }
            },
            (false, true) => events.next().await,
        };
        match event {
            Some(Ok(Event::Init)) => {
                is_listing = true;
                endpoints.begin_list();
            }
            Some(Ok(Event::InitApply(slice))) => endpoints.apply(&slice),
            Some(Ok(Event::InitDone)) => {
                is_listing = false;
                endpoints.end_list();
                tell(&endpoints, is_settled);
            }
            Some(Ok(Event::Apply(slice))) => {
                is_settled = true;
                endpoints.apply(&slice);
                tell(&endpoints, true);
            }
            Some(Ok(Event::Delete(slice))) => {
                is_settled = true;
                endpoints.remove(&slice);
                tell(&endpoints, true);
                if endpoints.has_room() {
                    return WatchEnd::HasRoom;
                }
            }
            Some(Err(error)) => return WatchEnd::Failed(WatchFailure::new(&error, !is_listing)),
            None => return end("the watch has ended".to_owned(), !is_listing),
        }
    }
}

impl WatchFailure {
    /// What an API server says is clearer than what a library makes of it.
    fn new(error: &watcher::Error, has_listed: bool) -> WatchFailure {
        use watcher::Error::{
            InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed,
        };
        let said =
            |status: &Status| match [&status.message, &status.reason].iter().find(|text| !text.is_empty()) {
                Some(text) => bounded(&format!("{text} ({})", status.code)),
                // A library makes an empty status of what it does not understand.
                None => "the API server has sent what is no event of a watch".to_owned(),
            };
        let is_refusal = |status: &Status| matches!(status.code, 401 | 403);
        let (why, is_watch_refused) = match error {
            InitialListFailed(kube::Error::Api(status)) => (said(status), false),
            WatchStartFailed(kube::Error::Api(status))
            | WatchFailed(kube::Error::Api(status))
            | WatchError(status) => (said(status), is_refusal(status)),
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => (chain(error), false),
            NoResourceVersion => (chain(error), false),
        };
        WatchFailure { why, has_listed, is_watch_refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::ServicePort;

    fn failure(has_listed: bool) -> WatchFailure {
        WatchFailure { why: "broken".into(), has_listed, is_watch_refused: false }
    }

    fn endpoints() -> Endpoints {
        Endpoints::new(ServicePort::Number(80), None)
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
        let error = |status: Status| WatchFailure::new(&watcher::Error::WatchError(status.into()), true).why;
        assert_eq!(error(Status::default()), "the API server has sent what is no event of a watch");
        let gone = Status { reason: "Expired".into(), code: 410, ..Status::default() };
        assert_eq!(error(gone), "Expired (410)");
    }
}
