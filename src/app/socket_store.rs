//! Listening TCP sockets that systemd stores between two processes, in its file descriptor store
//! (sd_notify(3)). With them a restart refuses no client: clients wait in the accept queues while
//! old connections drain.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use convey_model::Endpoint;
use convey_proxy::HandedSockets;
use listenfd::ListenFd;
use log::warn;
use rustix::io::{FdFlags, fcntl_setfd};

/// Name of the mark: a file that the unit writes into the runtime directory before it stops this
/// process for a restart.
const MARK: &str = "restart";

/// Whether this process stops because of a restart. Removes the mark.
pub(super) fn is_restart() -> bool {
    mark().is_some_and(|mark| fs::remove_file(mark).is_ok())
}

/// Takes the stored sockets, by their addresses.
pub(super) fn take() -> HandedSockets {
    // The mark is outdated if an announced restart did not happen.
    let _ = is_restart();
    let mut stored = ListenFd::from_env();
    let mut sockets = HandedSockets::new();
    for index in 0..stored.len() {
        match stored.take_tcp_listener(index) {
            Ok(Some(socket)) => match checked(socket) {
                Ok((at, socket)) => sockets.entry(at).or_default().push(socket),
                Err(error) => warn!("a socket of the service manager cannot be used: {error}"),
            },
            Ok(None) => {}
            Err(error) => {
                warn!("a descriptor from the service manager is not a listening TCP socket: {error}")
            }
        }
    }
    sockets
}

/// Sets the socket close-on-exec and non-blocking.
fn checked(socket: TcpListener) -> std::io::Result<(Endpoint, OwnedFd)> {
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    socket.set_nonblocking(true)?;
    Ok((Endpoint::tcp(socket.local_addr()?), socket.into()))
}

/// Path of the mark, in the first runtime directory that systemd passes. `None` if systemd passes
/// none.
fn mark() -> Option<PathBuf> {
    let directories = std::env::var_os("RUNTIME_DIRECTORY")?;
    Some(std::env::split_paths(&directories).next()?.join(MARK))
}
