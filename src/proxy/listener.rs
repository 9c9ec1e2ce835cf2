//! Accepting: one task for each listen address of each worker.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::session::Session;
use super::socket::{self, Leg};
use super::worker::Context;
use crate::model::is_shortage;
use crate::stats::Counter;

/// A listener that runs.
pub(super) struct Listener {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Empties the accept queue, closes the socket and returns when both are done.
    pub(super) async fn close(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Starts to accept on `socket`, which is bound to `vip`.
pub(super) fn start(vip: SocketAddr, socket: std::net::TcpListener, context: Arc<Context>) -> Listener {
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        match TcpListener::from_std(socket) {
            Ok(listener) => {
                let (backoff, refusals) = Default::default();
                Acceptor { vip, listener, context, backoff, refusals }.run(stopped).await
            }
            Err(error) => warn!("cannot accept on {vip}: {error}"),
        }
    });
    Listener { stop, task }
}

struct Acceptor {
    vip: SocketAddr,
    listener: TcpListener,
    context: Arc<Context>,
    backoff: Backoff,
    refusals: Seldom,
}

impl Acceptor {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut stopped => break,
                accepted = self.accept() => accepted,
            };
            let Some((client, mut session)) = accepted else { continue };
            if session.is_beyond_share() {
                tokio::spawn(session.serve(client));
                continue;
            }
            // While the frontend is full its clients wait in the kernel's queue, all but this one.
            if !session.try_seat() {
                tokio::select! {
                    biased;
                    _ = &mut stopped => {
                        tokio::spawn(session.serve(client));
                        break;
                    }
                    () = session.wait_for_seat() => {}
                }
            }
            tokio::spawn(session.serve(client));
        }
        self.empty_queue();
    }

    /// The next connection; `None` if there is none just now. Loses none when dropped.
    async fn accept(&mut self) -> Option<(Leg, Session)> {
        if self.context.connections_left() == 0 {
            self.back_off("too few descriptors left").await;
            return None;
        }
        match self.listener.accept().await {
            Ok((stream, client)) => {
                self.backoff.pauses = 0;
                self.session(stream, client)
            }
            Err(error) if is_shortage(&error) => {
                self.back_off(&error.to_string()).await;
                None
            }
            // The client gave up while it waited in the queue: nothing to serve, nothing to tell.
            Err(_) => None,
        }
    }

    /// Serves what is still queued, and closes the listener.
    fn empty_queue(mut self) {
        socket::queue_no_more(&self.listener);
        loop {
            // Not through the runtime: "would block" must mean that the queue is empty.
            let accepted = SockRef::from(&self.listener).accept();
            match accepted {
                Ok((socket, client)) => {
                    let stream =
                        socket.set_nonblocking(true).and_then(|()| TcpStream::from_std(socket.into()));
                    if let (Ok(stream), Some(client)) = (stream, client.as_socket())
                        && let Some((client, session)) = self.session(stream, client)
                    {
                        tokio::spawn(session.serve(client));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return warn!("clients queued at {} are lost: {error}", self.vip),
            }
        }
    }

    /// The session of a client that may be served; others are reset.
    fn session(&mut self, stream: TcpStream, client: SocketAddr) -> Option<(Leg, Session)> {
        let leg = Leg::new(stream);
        let frontend = self.context.frontend(self.vip)?;
        let mut session = Session::new(client, self.vip, frontend, self.context.clone());
        match session.admit(&leg.stream) {
            Ok(()) => {
                if session.is_beyond_share() {
                    self.tell(client, None);
                }
                Some((leg, session))
            }
            Err(reason) => {
                session.end(Some(reason));
                self.tell(client, Some(reason));
                None
            }
        }
    }

    /// Says that a connection was refused for this reason, or waits for its client's share.
    fn tell(&mut self, client: SocketAddr, refused: Option<Counter>) {
        if !self.refusals.is_time() {
            return;
        }
        let (vip, ip) = (self.vip, client.ip());
        if refused == Some(Counter::Loop) {
            warn!(
                "{vip}: a connection of convey's own came back ({client}): a server leads here; it is reset"
            );
        } else {
            let fate = if refused.is_some() { "are reset" } else { "wait" };
            warn!(
                "{vip}: client {ip} has its share of connections, more {fate} \
                 (max_connections_per_client, trusted_clients)"
            );
        }
    }

    async fn back_off(&mut self, why: &str) {
        if let Some(frontend) = self.context.frontend(self.vip) {
            frontend.live.traffic.add(self.context.core, Counter::AcceptBackoff, 1);
        }
        self.backoff.pause(self.vip, why).await;
    }
}

/// Growing pauses after failed accepts.
#[derive(Default)]
struct Backoff {
    pauses: u32,
    told: Seldom,
}

impl Backoff {
    async fn pause(&mut self, vip: SocketAddr, why: &str) {
        if self.told.is_time() {
            warn!("cannot accept on {vip}: {why}; its clients wait");
        }
        sleep(Duration::from_millis(5 << self.pauses.min(7))).await;
        self.pauses += 1;
    }
}

/// Has what happens often be told seldom.
#[derive(Default)]
struct Seldom(Option<Instant>);

impl Seldom {
    const EVERY: Duration = Duration::from_secs(10);

    /// Whether it may be told now.
    fn is_time(&mut self) -> bool {
        let is_time = self.0.is_none_or(|told| told.elapsed() >= Self::EVERY);
        if is_time {
            self.0 = Some(Instant::now());
        }
        is_time
    }
}
