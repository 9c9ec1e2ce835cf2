//! Accept loop: one task for each listen address of each worker.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use log::warn;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::context::WorkerContext;
use super::lines::Event;
use super::session::TcpSession;
use super::socket;
use convey_model::Endpoint;
use convey_pacing::{Backoff, BackoffPolicy};
use convey_snapshot::is_shortage;
use convey_snapshot::stats::Counter;
use convey_stream::Leg;
use convey_trace::ConnectionStep;

/// Delays between failed accepts. A successful accept resets them.
const ACCEPTS: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(5),
    cap: Duration::from_millis(640),
    jitter: 0.5,
    reset_after: Duration::ZERO,
};

/// Handle of a running TCP listener.
pub(super) struct Listener {
    socket: Weak<TcpListener>,
    stop: oneshot::Sender<QueuedClients>,
    task: JoinHandle<()>,
}

/// Whether this process serves the clients that are in the accept queue when the listener stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueuedClients {
    /// This process empties the accept queue and serves its clients.
    Empty,
    /// Another process has the same socket, and serves the clients of the accept queue.
    Leave,
}

impl Listener {
    /// Serves the clients in the accept queue, and closes the socket. Returns when the socket is
    /// closed.
    pub(super) async fn close(self) {
        let _ = self.stop.send(QueuedClients::Empty);
        let _ = self.task.await;
    }

    /// Stops accepting, and leaves the accept queue to another process that has the same socket.
    pub(super) async fn leave(self) {
        let _ = self.stop.send(QueuedClients::Leave);
        let _ = self.task.await;
    }

    /// Returns a duplicate of the socket, for another process. `None` if the listener has closed or
    /// the duplication fails.
    pub(super) fn socket(&self) -> Option<OwnedFd> {
        self.socket.upgrade()?.as_fd().try_clone_to_owned().ok()
    }
}

/// Starts to accept on `socket`, which is bound to `vip`.
pub(super) fn start(vip: SocketAddr, socket: std::net::TcpListener, context: Arc<WorkerContext>) -> Listener {
    let (stop, stopped) = oneshot::channel();
    let listener = TcpListener::from_std(socket).map(Arc::new);
    let socket = listener.as_ref().map(Arc::downgrade).unwrap_or_default();
    let task = tokio::spawn(async move {
        match listener {
            Ok(listener) => {
                Acceptor { vip, listener, context, backoff: Backoff::new(ACCEPTS) }.run(stopped).await;
            }
            Err(error) => warn!("cannot accept connections on {vip}: {error}"),
        }
    });
    Listener { socket, stop, task }
}

struct Acceptor {
    vip: SocketAddr,
    listener: Arc<TcpListener>,
    context: Arc<WorkerContext>,
    backoff: Backoff,
}

impl Acceptor {
    async fn run(mut self, mut stopped: oneshot::Receiver<QueuedClients>) {
        let queue = loop {
            let accepted = tokio::select! {
                biased;
                queue = &mut stopped => break queue,
                accepted = self.accept() => accepted,
            };
            let Some((client, mut session)) = accepted else { continue };
            let mut denied = None;
            if session.is_beyond_share() {
                session.spawn(client);
                continue;
            }
            // While the frontend is full, this client waits here and all others wait in the accept
            // queue.
            if !session.try_take_slot() {
                tokio::select! {
                    biased;
                    queue = &mut stopped => {
                        session.spawn(client);
                        break queue;
                    }
                    waited = session.wait_for_slot_or_denial() => denied = waited.err(),
                }
            }
            match denied {
                Some(reason) => session.end(Some(reason)),
                None => session.spawn(client),
            }
        };
        if queue != Ok(QueuedClients::Leave) {
            self.empty_queue();
        }
    }

    /// Accepts the next connection. Returns `None` after a failed accept, a shortage of
    /// descriptors, or the refusal of a client. Cancel-safe.
    async fn accept(&mut self) -> Option<(Leg, Box<TcpSession>)> {
        if !self.context.has_room() {
            self.back_off("too few file descriptors are left (systemd: LimitNOFILE)").await;
            return None;
        }
        match self.listener.accept().await {
            Ok((stream, client)) => {
                self.backoff.reset();
                self.session(stream, client)
            }
            Err(error) if is_shortage(&error) => {
                self.back_off(&error.to_string()).await;
                None
            }
            // The client closed while it was in the accept queue: there is nothing to serve or log.
            Err(_) => None,
        }
    }

    /// Serves the clients that are in the accept queue, and closes the listener.
    fn empty_queue(mut self) {
        socket::queue_no_more(&self.listener);
        loop {
            // Calls the kernel directly, not through tokio: `WouldBlock` must mean that the queue
            // is empty.
            let accepted = SockRef::from(&*self.listener).accept();
            match accepted {
                Ok((socket, client)) => {
                    let stream =
                        socket.set_nonblocking(true).and_then(|()| TcpStream::from_std(socket.into()));
                    if let (Ok(stream), Some(client)) = (stream, client.as_socket())
                        && let Some((client, session)) = self.session(stream, client)
                    {
                        session.spawn(client);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return warn!("clients in the accept queue of {} are lost: {error}", self.vip),
            }
        }
    }

    /// Creates the session of an accepted client. If admission refuses the client, resets its
    /// connection and returns `None`.
    fn session(&mut self, stream: TcpStream, client: SocketAddr) -> Option<(Leg, Box<TcpSession>)> {
        let leg = Leg::new(stream);
        let snapshot = self.context.snapshot();
        let mut session = TcpSession::new(client, self.vip, &self.context, &snapshot)?;
        session.trace(None, ConnectionStep::Accepted);
        match session.admit(leg.tcp(), &snapshot) {
            Ok(()) => {
                if session.is_beyond_share() {
                    session.log_refusal(None);
                }
                Some((leg, session))
            }
            Err(reason) => {
                if session.is_dropped_for(reason) {
                    socket::limit_reset_ttl(leg.tcp());
                }
                session.end(Some(reason));
                session.log_refusal(Some(reason));
                None
            }
        }
    }

    /// Pauses after a failed accept. The pause grows with each failure in a row.
    async fn back_off(&mut self, why: &str) {
        let vip = self.vip;
        let frontend = self.context.snapshot().listener(&Endpoint::tcp(vip)).cloned();
        if let Some(frontend) = frontend {
            frontend.live.traffic.add(self.context.core, Counter::AcceptBackoff, 1);
            if let Some(untold) = self.context.shared.lines.take(frontend.live.id, Event::Backoff) {
                warn!("cannot accept connections on {vip}: {why}; new clients wait{untold}");
            }
        }
        sleep(self.backoff.next_delay(fastrand::f64())).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::yield_now;

    use super::*;
    use crate::context::tests::{LOADS, context};
    use convey_snapshot::fixture;

    /// Number of snapshot loads of one connection. With `is_refused_first`, its first server
    /// refuses the connection.
    async fn loads(is_refused_first: bool) -> u32 {
        let [vip, server, refuses] = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        vip.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        let [at_vip, at_server, nowhere] = [&vip, &server, &refuses].map(|l| l.local_addr().unwrap());
        drop(refuses);
        let server = TcpListener::from_std(server).unwrap();

        let servers = is_refused_first.then_some(nowhere).into_iter().chain([at_server]);
        let servers =
            servers.map(|addr| (fixture::server(&addr.to_string(), &addr.to_string()), fixture::up()));
        let pool = fixture::pool("web", servers.collect());
        let frontend = fixture::frontend("web", &[&at_vip.to_string()], &pool);
        let listener = start(at_vip, vip, context(fixture::snapshot(vec![frontend], vec![pool])));
        yield_now().await; // it accepts
        LOADS.set(0);
        let mut client = TcpStream::connect(at_vip).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut heard = [0; 5];
        accepted.read_exact(&mut heard).await.unwrap();
        drop((client, accepted));
        listener.close().await;
        LOADS.get()
    }

    #[tokio::test]
    async fn a_connection_loads_the_snapshot_once_and_again_after_a_failed_connect() {
        assert_eq!([loads(false).await, loads(true).await], [1, 2]);
    }
}
