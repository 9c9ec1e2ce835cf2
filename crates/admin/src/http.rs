//! The HTTP server behind the statistics address and the control socket: who is let in, and for how long.
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

/// Answers requests until dropped. One request per connection, and a bounded time and number of
/// connections: nobody can keep others out by being slow. Answers that take long (`AnswerProgress::takes_long`) have no
/// part in this: who gives them bounds them.
pub async fn serve(listener: impl AdminListener, routes: Router) {
    serve_within(LIMITS, &listener, routes, &mut JoinSet::new()).await;
}

/// The same until the other end of `stop` is dropped: then it closes the listener, drops `stopped`, and answers whom it has
/// accepted.
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
    /// Connections open at once; one more ends another that has had its time.
    connections: usize,
    /// From accepting a connection to its end, whoever is slow.
    lifetime: Duration,
}

const LIMITS: ConnectionLimits = ConnectionLimits { connections: 64, lifetime: Duration::from_secs(10) };

/// How long a client has to ask before it gives way to another: more than it takes an honest one.
const TIME_TO_ASK: Duration = Duration::from_millis(50);

/// How long one that has asked has before it gives way. So a thousand who read nothing keep a scraper waiting for seconds.
const TIME_TO_READ: Duration = Duration::from_millis(500);

/// The longest request. Ours are 200 bytes; browsers send cookies of whatever else the host serves.
const MAX_REQUEST: usize = 16 << 10;

/// Without a pause, a lack of descriptors would make accepting spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shortest time between two log lines about that lack.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// A connection that is open.
struct Open {
    task: AbortHandle,
    since: Instant,
    progress: AnswerProgress,
}

impl Open {
    /// When it gives way to another.
    fn gives_way(&self) -> Instant {
        self.since + if self.progress.has_asked() { TIME_TO_READ } else { TIME_TO_ASK }
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
                    log::warn!("{}: cannot accept a connection: {error}{suppressed}", listener.name());
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

/// Waits until there is room for one more.
async fn make_room(open: &mut Vec<Open>, limits: ConnectionLimits, tasks: &mut JoinSet<()>) {
    loop {
        open.retain(|open| !open.task.is_finished());
        let short = || open.iter().filter(|open| !open.progress.is_long());
        let Some(first) = short().min_by_key(|open| open.gives_way()) else { return };
        if short().count() < limits.connections {
            return;
        }
        // In a burst of honest clients somebody is done at once; only if all are slow must one go.
        if timeout_at(first.gives_way(), tasks.join_next()).await.is_err() {
            first.task.abort();
            tasks.join_next().await;
        }
    }
}

/// The other side of a connection.
struct Client {
    routes: Router,
    who: Requester,
    progress: AnswerProgress,
}

/// A client that goes away or breaks the protocol is its own affair: errors are not reported. hyper answers what is no HTTP with
/// 400, and a head above [`MAX_REQUEST`] with 431. It gives neither a body.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, client: Client, lifetime: Duration) {
    let Client { routes, who, progress } = client;
    let routes = TowerToHyperService::new(routes.layer(Extension(who)).layer(Extension(progress.clone())));
    let service = service_fn(|request: Request<Incoming>| {
        progress.asks();
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
