//! Socket that answers API requests until it is handed to another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use axum::Router;
use convey_admin::AdminListener;
use tokio::sync::oneshot;

/// Answers requests until dropped.
pub(super) struct Serving<L> {
    /// All clones are dropped when the socket is given up.
    socket: Option<Arc<L>>,
    stop: Option<oneshot::Sender<()>>,
    stopped: Option<oneshot::Receiver<()>>,
}

impl<L: AdminListener + AsFd> Serving<L> {
    /// Starts to answer requests. To be called in the runtime.
    pub(super) fn begin(socket: L, routes: Router) -> Serving<L> {
        let socket = Arc::new(socket);
        let ((stop, stops), (ended, stopped)) = (oneshot::channel(), oneshot::channel());
        tokio::spawn(convey_admin::serve_until(socket.clone(), routes, stops, ended));
        Serving { socket: Some(socket), stop: Some(stop), stopped: Some(stopped) }
    }

    /// Duplicate of the socket for another process.
    pub(super) fn socket(&self) -> Option<io::Result<OwnedFd>> {
        self.socket.as_ref().map(|socket| socket.as_fd().try_clone_to_owned())
    }

    /// Closes the socket. Clients that have sent a request are still answered.
    pub(super) async fn give_up(&mut self) {
        self.socket = None;
        drop(self.stop.take());
        if let Some(stopped) = self.stopped.take() {
            let _ = stopped.await;
        }
    }
}
