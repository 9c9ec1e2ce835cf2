//! Socket of the statistics address: bound by this process or taken over from another one, and
//! handed over in an upgrade.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::balancer::statistics_problem;
use super::serving::Serving;
use super::upgrade::{self, Handed, HandedStatistics};

/// Maximum number of attempts to bind an address that another process has promised to give up, and
/// the pause between them.
const MAX_BIND_TRIES: u32 = 50;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Bound statistics address. Clients can connect, but get no answer yet.
pub(super) struct Bound {
    listen: SocketAddr,
    socket: TcpListener,
    is_handed: bool,
}

/// Statistics address that answers requests.
pub(super) struct Statistics {
    listen: SocketAddr,
    serving: Serving<TcpListener>,
}

impl Bound {
    /// Binds the address, or uses the socket that another process has handed over for it.
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

    /// Whether the socket was handed over by another process, which still holds it too.
    pub(super) fn is_handed(&self) -> bool {
        self.is_handed
    }

    /// Starts to answer requests.
    pub(super) fn serve(self, routes: Router) -> Statistics {
        Statistics { listen: self.listen, serving: Serving::begin(self.socket, routes) }
    }
}

impl Statistics {
    /// Duplicates the socket for another process. `None` if it is given up or cannot be duplicated.
    pub(super) fn socket(&self) -> Option<HandedStatistics> {
        Some(HandedStatistics { listen: self.listen, socket: self.serving.socket()?.ok()? })
    }

    /// Closes the socket, so that another process can bind the address. Clients that have already
    /// sent a request still get an answer.
    pub(super) async fn close(&mut self) {
        self.serving.close().await;
    }
}

/// Binds the address. If it is taken, asks a stopping convey to give it up, and tries again.
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
