//! Counts of requests from clients behind trusted proxies, and of descriptors that streams hold
//! beside those of their client's connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_snapshot::Frontend;

use super::client_stream::ClientStream;
use super::clients::{Clients, Counted};

/// Count of a request for the client that a trusted proxy has named, until the drop.
///
/// The proxy's connections count in no client's share, and with HTTP/1.1 each request occupies one.
/// A request without a named client counts nowhere, because its client's connection counts.
#[derive(Debug, Default)]
pub struct RequestCharge(Option<Box<Counted>>);

/// Count of a connection to a server, a stream of an HTTP/2 connection, or an open file that a
/// client's stream holds, until the drop.
#[derive(Debug)]
pub struct HeldResource {
    of_connection: Arc<AtomicUsize>,
    /// Count of the resource; `None` for the first concurrent resource, which the client's
    /// connection covers.
    _further: Option<FurtherResource>,
}

/// Server or file beside the resource that a client's connection covers.
#[derive(Debug)]
pub(super) struct FurtherResource {
    clients: Arc<Clients>,
    _counted: Counted,
}

impl Clients {
    /// Counts a server or a file in the share of this client, as one more connection; `left` is the
    /// number of further connections that the process may have. `None` if the client has used up
    /// its share.
    pub(super) fn hold(
        self: &Arc<Self>,
        client: IpAddr,
        frontend: &Frontend,
        left: u64,
    ) -> Option<FurtherResource> {
        let counted = self.count_in_process(client, frontend, left.checked_sub(1)?)?;
        self.add_held_resource();
        Some(FurtherResource { clients: self.clone(), _counted: counted })
    }
}

impl ClientStream {
    /// Counts a request for the client that a trusted proxy has `named`. `None` if the client has
    /// used up its share.
    pub fn charge(&self, named: Option<IpAddr>) -> Option<RequestCharge> {
        let Some(client) = named else { return Some(RequestCharge::default()) };
        let (clients, left) = self.clients_and_left();
        let counted = clients.count_in_process(client, self.frontend(), left)?;
        Some(RequestCharge(Some(Box::new(counted))))
    }

    /// Counts a server or a file that a client's stream is about to use. The client's connection
    /// covers the first concurrent one. Each further one counts like a connection, in the share of
    /// the client that a trusted proxy has `named`, or else of the connection's client. `None` if
    /// the client has used up its share.
    pub fn hold(&self, named: Option<IpAddr>) -> Option<HeldResource> {
        // All streams of a connection run on one thread.
        let of_connection = self.held_resources();
        let further = match of_connection.load(Ordering::Relaxed) {
            0 => None,
            _ => {
                let (clients, left) = self.clients_and_left();
                let client = named.unwrap_or_else(|| self.client().ip());
                Some(clients.hold(client, self.frontend(), left)?)
            }
        };
        of_connection.fetch_add(1, Ordering::Relaxed);
        Some(HeldResource { of_connection: of_connection.clone(), _further: further })
    }
}

impl RequestCharge {
    /// Whether the request counts for a client.
    pub fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

impl HeldResource {
    /// Number of servers and files that streams of the client's connection hold, including this
    /// one.
    pub fn count_of_connection(&self) -> usize {
        self.of_connection.load(Ordering::Relaxed)
    }
}

impl Drop for HeldResource {
    fn drop(&mut self) {
        self.of_connection.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for FurtherResource {
    fn drop(&mut self) {
        self.clients.remove_held_resource();
    }
}
