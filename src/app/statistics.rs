//! The statistics address: bound, taken over from another process, or given up to one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::balancer::statistics_problem;
use super::serving::Serving;
use super::upgrade::{self, Handed};

/// How often an address is tried that another process has promised to give up, and the pause between.
const MAX_BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// The address is bound: clients that ask wait.
pub(super) struct Bound {
    listen: SocketAddr,
    socket: TcpListener,
    is_handed: bool,
}

/// Statistics are served.
pub(super) struct Statistics {
    listen: SocketAddr,
    serving: Serving<TcpListener>,
}

impl Bound {
    /// Binds, unless another process has handed over a socket of this address.
    pub(super) async fn new(listen: SocketAddr, handed: Option<&mut Handed>) -> anyhow::Result<Bound> {
        let handed = handed.and_then(|handed| handed.take_statistics(listen));
        let is_handed = handed.is_some();
        let socket = match handed {
            Some(socket) => TcpListener::from_std(socket.into()),
            None => bind(listen).await,
        };
        let socket = socket.map_err(|error| statistics_problem(listen, &error))?;
        Ok(Bound { listen, socket, is_handed })
    }

    /// Whether another process has the same socket.
    pub(super) fn is_handed(&self) -> bool {
        self.is_handed
    }

    /// Answers from now on.
    pub(super) fn serve(self, routes: Router) -> Statistics {
        Statistics { listen: self.listen, serving: Serving::begin(self.socket, routes) }
    }
}

impl Statistics {
    /// The socket once more, for another process.
    pub(super) fn socket(&self) -> Option<(SocketAddr, OwnedFd)> {
        Some((self.listen, self.serving.socket()?.ok()?))
    }

    /// Closes the socket: another process may have the address. Clients that have asked are still answered.
    pub(super) async fn give_up(&mut self) {
        self.serving.give_up().await;
    }
}

/// Binds. A convey that is stopping gives the address up if it is asked to.
async fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let mut bound = TcpListener::bind(listen).await;
    let is_taken = |bound: &io::Result<TcpListener>| {
        bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    if is_taken(&bound) && upgrade::release(listen) {
        for _ in 0..MAX_BIND_TRIES {
            bound = TcpListener::bind(listen).await;
            if !is_taken(&bound) {
                break;
            }
            sleep(BIND_PAUSE).await;
        }
    }
    bound
}
