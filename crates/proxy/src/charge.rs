//! Counts against a client's share in mode http: each request of a client behind a trusted proxy,
//! and the servers and files that a client's streams hold.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_snapshot::Frontend;

use super::client_stream::ClientStream;
use super::clients::{Counted, Left, WorkerClients};

/// Guard that counts a request in the share of its client until it is dropped.
///
/// The connection of a trusted proxy does not count in any share, so each of its requests counts in
/// the share of the client that the proxy has named. If the proxy names no client, the request is
/// not counted. Requests on the connections of other clients are not counted either, because the
/// connection already is.
#[derive(Debug, Default)]
pub struct RequestCharge(Option<Box<ChargedRequest>>);

#[derive(Debug)]
struct ChargedRequest {
    clients: WorkerClients,
    _counted: Counted,
}

/// Guard that counts a resource of a client's stream until it is dropped: a connection to a server,
/// a stream of an HTTP/2 connection to a server, or an open file.
#[derive(Debug)]
pub struct HeldResource {
    of_connection: Arc<AtomicUsize>,
    /// Guard that counts the resource in the client's share; `None` for the first concurrent
    /// resource, which the count of the client's connection covers.
    _further: Option<FurtherResource>,
}

/// Guard that counts a further server or file in the share of a client until it is dropped.
#[derive(Debug)]
pub(super) struct FurtherResource {
    clients: WorkerClients,
    _counted: Counted,
}

impl WorkerClients {
    /// Counts a server or file like one more connection of this client. Returns `None` if the
    /// client has used up its share.
    pub(super) fn hold(&self, client: IpAddr, frontend: &Frontend, left: Left) -> Option<FurtherResource> {
        let left = Left { connections: left.connections.checked_sub(1)?, ..left };
        let counted = self.count_in_process(client, frontend, left)?;
        self.add_held_resource();
        self.take_place();
        Some(FurtherResource { clients: self.clone(), _counted: counted })
    }
}

impl ClientStream {
    /// Counts a request in the share of the client that a trusted proxy has `named`. Returns `None`
    /// if this client has used up its share. If `named` is `None`, returns a charge that counts
    /// nothing.
    pub fn charge(&self, named: Option<IpAddr>) -> Option<RequestCharge> {
        let Some(client) = named else { return Some(RequestCharge::default()) };
        let (clients, left) = self.clients_and_left();
        let counted = clients.count_in_process(client, self.frontend(), left)?;
        clients.take_place();
        let charged = ChargedRequest { clients: clients.clone(), _counted: counted };
        Some(RequestCharge(Some(Box::new(charged))))
    }

    /// Counts a server or file that a client's stream is about to use. Returns `None` if the client
    /// has used up its share.
    ///
    /// The count of the client's connection covers the first concurrent server or file. Each
    /// further one counts like a connection, in the share of the client that a trusted proxy has
    /// `named`, otherwise in the share of the connection's client.
    pub fn hold(&self, named: Option<IpAddr>) -> Option<HeldResource> {
        // The load and the add below need not be one atomic operation: all streams of a connection
        // run on one thread.
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
    /// Whether the request is counted in the share of a client.
    pub fn is_counted(&self) -> bool {
        self.0.is_some()
    }
}

impl HeldResource {
    /// Number of servers and files that the streams of the client's connection hold, including this
    /// resource.
    pub fn count_of_connection(&self) -> usize {
        self.of_connection.load(Ordering::Relaxed)
    }
}

impl Drop for HeldResource {
    fn drop(&mut self) {
        self.of_connection.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ChargedRequest {
    fn drop(&mut self) {
        self.clients.put_place();
    }
}

impl Drop for FurtherResource {
    fn drop(&mut self) {
        self.clients.remove_held_resource();
        self.clients.put_place();
    }
}
