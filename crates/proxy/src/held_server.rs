//! Servers that streams of one client hold beside the one that comes with each connection of a
//! client.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::client_stream::ClientStream;
use super::clients::{Clients, Counted};

/// A connection to a server, or a stream of one over HTTP/2, counted for its client for as long as
/// this lives.
#[derive(Debug)]
pub struct HeldServer {
    of_connection: Arc<AtomicUsize>,
    share: HeldShare,
}

/// Share that a held server counts in.
#[derive(Debug)]
enum HeldShare {
    /// None of its own: the server comes with the client's connection.
    OfConnection,
    /// The share of the client that a trusted proxy has named.
    Named { _counted: Counted },
    /// The client's share, as one more connection of the process.
    Further { clients: Arc<Clients>, _counted: Counted },
}

impl ClientStream {
    /// Counts a connection or a stream to a server that a client's stream is about to take. The
    /// first one at once comes with the client's connection, and each further one counts in the
    /// client's share as a connection does. `None`: the client has its share.
    ///
    /// Behind a trusted proxy, whose connections are in nobody's share, each server counts for the client that the proxy has
    /// `named`.
    pub fn hold_server(&self, named: Option<IpAddr>, is_stream: bool) -> Option<HeldServer> {
        let of_connection = self.held_servers();
        let is_first = of_connection.fetch_add(1, Ordering::Relaxed) == 0;
        let mut held = HeldServer { of_connection: of_connection.clone(), share: HeldShare::OfConnection };
        let is_further = is_stream && !is_first;
        if is_further || named.is_some() {
            let (clients, left) = self.clients_and_left();
            let left = left.checked_sub(u64::from(is_further))?;
            let client = named.unwrap_or_else(|| self.client().ip());
            let counted = clients.count_in_process(client, self.frontend(), left)?;
            held.share = if is_further {
                clients.add_held_server();
                HeldShare::Further { clients: clients.clone(), _counted: counted }
            } else {
                HeldShare::Named { _counted: counted }
            };
        }
        Some(held)
    }
}

impl HeldServer {
    /// Servers that streams of the same client's connection hold, this one among them.
    pub fn count_of_connection(&self) -> usize {
        self.of_connection.load(Ordering::Relaxed)
    }
}

impl Drop for HeldServer {
    fn drop(&mut self) {
        self.of_connection.fetch_sub(1, Ordering::Relaxed);
        if let HeldShare::Further { clients, .. } = &self.share {
            clients.remove_held_server();
        }
    }
}
