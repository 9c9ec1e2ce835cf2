//! Listening sockets of TCP that systemd keeps from a process that stops to the next one: its file descriptor store, sd_notify(3).
//! So a restart refuses nobody: clients wait in the accept queues while old connections drain.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use convey_model::Endpoint;
use convey_proxy::HandedSockets;
use listenfd::ListenFd;
use log::warn;
use rustix::io::{FdFlags, fcntl_setfd};

/// What the unit writes into the runtime directory before it stops this process in order to start another one.
const MARK: &str = "restart";

/// Whether this process stops so that another one is started. Asked once.
pub(super) fn is_restart() -> bool {
    mark().is_some_and(|mark| fs::remove_file(mark).is_ok())
}

/// The sockets that were kept, by their addresses.
pub(super) fn take() -> HandedSockets {
    // Of a restart that never was.
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
            Err(error) => warn!("the service manager hands over what is no listening socket of TCP: {error}"),
        }
    }
    sockets
}

/// No process that is started from here gets it, and nobody waits in `accept`.
fn checked(socket: TcpListener) -> std::io::Result<(Endpoint, OwnedFd)> {
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    socket.set_nonblocking(true)?;
    Ok((Endpoint::tcp(socket.local_addr()?), socket.into()))
}

/// systemd names one directory, or several with colons between.
fn mark() -> Option<PathBuf> {
    let directories = std::env::var_os("RUNTIME_DIRECTORY")?;
    Some(std::env::split_paths(&directories).next()?.join(MARK))
}
