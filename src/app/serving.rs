//! Socket that answers API requests until it is handed to another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use axum::Router;
use convey_admin::AdminListener;
use tokio::sync::oneshot;

/// Answers API requests on a socket until it is dropped.
pub(super) struct Serving<L> {
    /// All clones of the socket are dropped when it is given up.
    socket: Option<Arc<L>>,
    stop: Option<oneshot::Sender<()>>,
    stopped: Option<oneshot::Receiver<()>>,
}

impl<L: AdminListener + AsFd> Serving<L> {
    /// Starts to answer requests. Must be called within the runtime.
    pub(super) fn begin(socket: L, routes: Router) -> Serving<L> {
        let socket = Arc::new(socket);
        let ((stop, stops), (ended, stopped)) = (oneshot::channel(), oneshot::channel());
        tokio::spawn(convey_admin::serve_until(socket.clone(), routes, stops, ended));
        Serving { socket: Some(socket), stop: Some(stop), stopped: Some(stopped) }
    }

    /// Duplicates the socket for another process. `None` once the socket is given up.
    pub(super) fn socket(&self) -> Option<io::Result<OwnedFd>> {
        self.socket.as_ref().map(|socket| socket.as_fd().try_clone_to_owned())
    }

    /// Closes the socket. Clients that have already sent a request still get an answer.
    pub(super) async fn close(&mut self) {
        self.socket = None;
        drop(self.stop.take());
        if let Some(stopped) = self.stopped.take() {
            let _ = stopped.await;
        }
    }
}
