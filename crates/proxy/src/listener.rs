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
use tokio::time::sleep;

use super::lines::Event;
use super::session::Session;
use super::socket::{self, Leg};
use super::worker::Context;
use convey_model::is_shortage;
use convey_snapshot::stats::Counter;

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
            Ok(listener) => Acceptor { vip, listener, context, pauses: 0 }.run(stopped).await,
            Err(error) => warn!("cannot accept on {vip}: {error}"),
        }
    });
    Listener { stop, task }
}

struct Acceptor {
    vip: SocketAddr,
    listener: TcpListener,
    context: Arc<Context>,
    /// Failed accepts in a row.
    pauses: u32,
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
                self.pauses = 0;
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
                    self.tell(&session, None);
                }
                Some((leg, session))
            }
            Err(reason) => {
                session.end(Some(reason));
                self.tell(&session, Some(reason));
                None
            }
        }
    }

    /// Says that a connection was refused for this reason, or waits for its client's share.
    fn tell(&self, session: &Session, refused: Option<Counter>) {
        let event = match refused {
            Some(Counter::Loop) => Event::Loop,
            Some(_) => Event::Refused,
            None => Event::Waits,
        };
        let Some(untold) = self.context.shared.lines.take(session.frontend_id(), event) else { return };
        let (vip, client, ip) = (self.vip, session.client, session.client.ip());
        match event {
            Event::Loop => warn!(
                "{vip}: a connection of convey's own came back ({client}): a server leads here; it is reset{untold}"
            ),
            _ => {
                let (of, fate) = match refused {
                    Some(_) => ("connections, descriptors or local ports", "are reset"),
                    None => ("connections", "wait"),
                };
                warn!(
                    "{vip}: client {ip} has its share of {of}, more {fate} \
                     (max_connections_per_client, trusted_clients){untold}"
                );
            }
        }
    }

    /// Pauses after a failed accept, longer each time.
    async fn back_off(&mut self, why: &str) {
        let vip = self.vip;
        if let Some(frontend) = self.context.frontend(vip) {
            frontend.live.traffic.add(self.context.core, Counter::AcceptBackoff, 1);
            if let Some(untold) = self.context.shared.lines.take(frontend.live.id, Event::Backoff) {
                warn!("cannot accept on {vip}: {why}; its clients wait{untold}");
            }
        }
        sleep(Duration::from_millis(5 << self.pauses.min(7))).await;
        self.pauses += 1;
    }
}
