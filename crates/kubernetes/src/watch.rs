//! Lists and watches the EndpointSlices of a Service.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::core::Status;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use tokio::time::{sleep, timeout};

use crate::cluster::{bounded, chain, connect};
use crate::endpoints::Endpoints;
use convey_model::{DiscoveryState, KubernetesService};

/// Slices of one answer of a list.
const PAGE: u32 = 100;
/// How long an answer to a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch that has not failed for so long has begun: nothing else tells.
const SETTLED: Duration = Duration::from_secs(5);
/// How long one watch lasts, in seconds. The next one begins where it has ended. An API server that is silent is noticed then.
const WATCH_SECONDS: u32 = 60;
/// The longest pause, should there be no other.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Why there is no watch any more.
struct WatchEnd {
    /// In words for an operator.
    why: String,
    /// Whether we may list and not watch.
    is_watch_refused: bool,
}

/// Watches as long as it runs, and has `tell` hear what is known now whenever that changes. While the API server cannot be asked,
/// what was known stays known.
pub async fn watch(service: &KubernetesService, mut tell: impl FnMut(DiscoveryState)) -> Infallible {
    let mut known = DiscoveryState::default();
    // From 0.8 s up to 30 s, each up to twice as long by chance.
    let mut pauses = DefaultBackoff::default();
    let (mut failures_in_a_row, mut is_watch_refused) = (0_u32, false);
    loop {
        let end = watch_once(service, |endpoints, is_settled| {
            if is_settled {
                (failures_in_a_row, is_watch_refused) = (0, false);
            }
            if !is_watch_refused {
                known.fault = None;
            }
            (known.servers, known.notes) = (Some(endpoints.servers()), endpoints.notes());
            tell(known.clone());
        })
        .await;
        if failures_in_a_row == 0 {
            pauses.reset();
        }
        known.failures += 1;
        failures_in_a_row = failures_in_a_row.saturating_add(1);
        is_watch_refused = end.is_watch_refused;
        // A connection that breaks once is no trouble: the next list says whether there is any.
        if failures_in_a_row > 1 || is_watch_refused || known.servers.is_none() {
            known.fault = Some(end.why);
        }
        tell(known.clone());
        sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
    }
}

/// Lists, and watches until something fails. Has `tell` see the slices after the list and after each change, and hear whether the
/// watch is known to have begun.
async fn watch_once(service: &KubernetesService, mut tell: impl FnMut(&Endpoints, bool)) -> WatchEnd {
    let end = |why: String| WatchEnd { why, is_watch_refused: false };
    let client = match connect(&service.cluster).await {
        Ok(client) => client,
        Err(why) => return end(why),
    };
    let slices: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    let wanted = watcher::Config::default()
        .labels(&format!("kubernetes.io/service-name={}", service.name))
        .page_size(PAGE)
        .timeout(WATCH_SECONDS);
    let mut events = pin!(watcher::watcher(slices, wanted));
    let mut endpoints = Endpoints::new(service.port.clone());
    let (mut is_listing, mut is_settled) = (true, false);
    loop {
        let event = match (is_listing, is_settled) {
            (true, _) => match timeout(LIST_TIMEOUT, events.next()).await {
                Ok(event) => event,
                Err(_) => return end(format!("no answer for {} s", LIST_TIMEOUT.as_secs())),
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
            }
            Some(Err(error)) => return WatchEnd::new(&error),
            None => return end("the watch has ended".to_owned()),
        }
    }
}

impl WatchEnd {
    /// What an API server says is clearer than what a library makes of it.
    fn new(error: &watcher::Error) -> WatchEnd {
        use watcher::Error::{
            InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed,
        };
        let said = |status: &Status| bounded(&format!("{} ({})", status.message, status.code));
        let is_refusal = |status: &Status| matches!(status.code, 401 | 403);
        let (why, is_watch_refused) = match error {
            InitialListFailed(kube::Error::Api(status)) => (said(status), false),
            WatchStartFailed(kube::Error::Api(status))
            | WatchFailed(kube::Error::Api(status))
            | WatchError(status) => (said(status), is_refusal(status)),
            InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => (chain(error), false),
            NoResourceVersion => (chain(error), false),
        };
        WatchEnd { why, is_watch_refused }
    }
}
