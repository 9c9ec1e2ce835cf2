//! HTTP server of the statistics address and the control socket, with limits for connections and
//! time.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use convey_pacing::LogLimit;
use convey_proxy::Contained;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::listener::{AdminListener, Requester};
use super::progress::AnswerProgress;

/// Answers requests until the future is dropped. Each connection serves one request. The number of
/// connections and their lifetime are limited, so that slow clients cannot keep others out. Long
/// answers (`AnswerProgress::mark_long`) are exempt, because their handlers have limits of their
/// own.
pub async fn serve(listener: impl AdminListener, routes: Router) {
    serve_within(LIMITS, &listener, routes, &mut JoinSet::new()).await;
}

/// Answers requests like [`serve`] until the sender of `stop` is dropped. After that, closes the
/// listener, drops `stopped`, and finishes the answers to accepted clients.
pub async fn serve_until(
    listener: Arc<impl AdminListener>,
    routes: Router,
    stop: oneshot::Receiver<()>,
    stopped: oneshot::Sender<()>,
) {
    let mut tasks = JoinSet::new();
    tokio::select! {
        () = serve_within(LIMITS, &*listener, routes, &mut tasks) => {}
        _ = stop => {}
    }
    drop((listener, stopped));
    while tasks.join_next().await.is_some() {}
}

#[derive(Clone, Copy)]
struct ConnectionLimits {
    /// Maximum number of open connections. A further connection replaces a connection whose minimum
    /// time has passed.
    connections: usize,
    /// Maximum time from accepting a connection to its end.
    lifetime: Duration,
}

const LIMITS: ConnectionLimits = ConnectionLimits { connections: 64, lifetime: Duration::from_secs(10) };

/// Minimum time for a client to send its request. After it, a new connection may replace the
/// client's connection. Honest clients need less time.
const TIME_TO_ASK: Duration = Duration::from_millis(50);

/// Minimum time for a client to read the answer. After it, a new connection may replace the
/// client's connection. With this limit, a thousand clients that read nothing delay a scraper only
/// by seconds.
const TIME_TO_READ: Duration = Duration::from_millis(500);

/// Maximum size of a request head, in bytes. Requests for convey take about 200 bytes, but browsers
/// add cookies of other services on the host.
const MAX_REQUEST: usize = 16 << 10;

/// Pause after a failed accept. Without it, the server would try again without pause while file
/// descriptors are lacking.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Minimum interval between log lines about a lack of descriptors.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Open connection.
struct Open {
    task: AbortHandle,
    since: Instant,
    progress: AnswerProgress,
}

impl Open {
    /// Time from which the connection of a new client may replace this connection.
    fn evictable_from(&self) -> Instant {
        self.since + if self.progress.has_arrived() { TIME_TO_READ } else { TIME_TO_ASK }
    }
}

async fn serve_within(
    limits: ConnectionLimits,
    listener: &impl AdminListener,
    routes: Router,
    tasks: &mut JoinSet<()>,
) {
    let mut open: Vec<Open> = Vec::new();
    let mut log_limit = LogLimit::once_in(LOG_PERIOD);
    loop {
        let (stream, who) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(suppressed) = log_limit.admit(Instant::now()) {
                    log::warn!(
                        "cannot accept a connection ({} listener): {error}{suppressed}",
                        listener.name()
                    );
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        make_room(&mut open, limits, tasks).await;
        let progress = AnswerProgress::default();
        let client = Client { routes: routes.clone(), who, progress: progress.clone() };
        let task = tasks.spawn(Contained::new(converse(stream, client, limits.lifetime)));
        open.push(Open { task, since: Instant::now(), progress });
    }
}

/// Waits until the limits allow another connection. Ends the connection of a slow client if
/// necessary.
async fn make_room(open: &mut Vec<Open>, limits: ConnectionLimits, tasks: &mut JoinSet<()>) {
    loop {
        open.retain(|open| !open.task.is_finished());
        let short = || open.iter().filter(|open| !open.progress.is_long());
        let Some(first) = short().min_by_key(|open| open.evictable_from()) else { return };
        if short().count() < limits.connections {
            return;
        }
        // In a burst of honest clients, one connection ends soon. A connection is aborted only if
        // all are slow.
        if timeout_at(first.evictable_from(), tasks.join_next()).await.is_err() {
            first.task.abort();
            tasks.join_next().await;
        }
    }
}

/// Request context of a connection: routes, requester and progress.
struct Client {
    routes: Router,
    who: Requester,
    progress: AnswerProgress,
}

/// Serves one connection. Errors of the client are ignored. hyper answers invalid HTTP with 400,
/// and a head longer than [`MAX_REQUEST`] with 431, both without a body.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, client: Client, lifetime: Duration) {
    let Client { routes, who, progress } = client;
    let routes = TowerToHyperService::new(routes.layer(Extension(who)).layer(Extension(progress.clone())));
    let service = service_fn(|request: Request<Incoming>| {
        progress.mark_arrived();
        routes.call(request)
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(MAX_REQUEST);
    tokio::select! {
        _ = http.serve_connection(TokioIo::new(stream), service) => {}
        () = progress.is_over(lifetime) => {}
    }
}

#[cfg(test)]
mod tests;
