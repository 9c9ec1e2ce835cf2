//! Accepting: one task for each listen address of each worker.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::session;
use super::socket;
use super::worker::Context;
use crate::snapshot::Frontend;
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
                Acceptor { vip, listener, context, backoff: Backoff::default() }.run(stopped).await
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
}

impl Acceptor {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = self.accept_one() => {}
            }
        }
        self.empty_queue();
    }

    /// Accepts a connection and starts to serve it. Never cancelled between the two, so none is lost.
    async fn accept_one(&mut self) {
        self.wait_for_room().await;
        match self.listener.accept().await {
            Ok((stream, client)) => {
                self.backoff = Backoff { last_told: self.backoff.last_told, ..Backoff::default() };
                self.serve(stream, client);
            }
            Err(error) if is_shortage(&error) => {
                if let Some(frontend) = self.frontend() {
                    frontend.live.traffic.add(self.context.core, Counter::AcceptBackoff, 1);
                }
                self.backoff.pause(self.vip, &error).await;
            }
            // The client gave up while it waited in the queue: nothing to serve, nothing to tell.
            Err(_) => {}
        }
    }

    /// While the frontend is full its clients wait in the kernel's queue.
    async fn wait_for_room(&self) {
        while let Some(frontend) = self.frontend() {
            let freed = frontend.live.freed.notified();
            if frontend.live.slots.has_room(frontend.config.max_connections) {
                return;
            }
            freed.await;
        }
    }

    fn empty_queue(self) {
        socket::queue_no_more(&self.listener);
        let Ok(listener) = self.listener.into_std() else { return };
        while let Ok((stream, client)) = listener.accept() {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            if let (Ok(stream), Some(frontend)) = (stream, self.context.frontend(self.vip)) {
                tokio::spawn(session::serve(stream, client, self.vip, frontend, self.context.clone()));
            }
        }
    }

    fn serve(&self, stream: TcpStream, client: SocketAddr) {
        if let Some(frontend) = self.frontend() {
            tokio::spawn(session::serve(stream, client, self.vip, frontend, self.context.clone()));
        }
    }

    fn frontend(&self) -> Option<Arc<Frontend>> {
        self.context.frontend(self.vip)
    }
}

/// Descriptors or memory ran out: accepting again at once would spin.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortages.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Growing pauses after failed accepts.
#[derive(Default)]
struct Backoff {
    pauses: u32,
    last_told: Option<Instant>,
}

impl Backoff {
    const TELL_EVERY: Duration = Duration::from_secs(10);

    async fn pause(&mut self, vip: SocketAddr, error: &io::Error) {
        if self.last_told.is_none_or(|told| told.elapsed() >= Self::TELL_EVERY) {
            self.last_told = Some(Instant::now());
            warn!("cannot accept on {vip}: {error}; trying again until it works");
        }
        sleep(Duration::from_millis(5 << self.pauses.min(7))).await;
        self.pauses += 1;
    }
}
