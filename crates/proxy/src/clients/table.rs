//! Connections of each client, which each worker counts in a table of its own. So a new connection
//! takes no lock that another worker uses. The number of a client's connections is the sum over the
//! tables; convey needs it only when few connections are left.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::HashMap;

use super::ClientUsage;
use convey_model::{ClientNetwork, Prefix, Protocol, networks_of};

/// Number of tables. Workers beyond it share tables.
const TABLES: usize = 64;

/// Tables of all workers.
#[derive(Debug)]
pub(super) struct ClientTables([Arc<ClientTable>; TABLES]);

/// Clients with open connections of one worker.
// The alignment keeps tables of different workers in different cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ClientTable {
    clients: Mutex<HashMap<Prefix, ClientCounts>>,
    /// Number of entries. Readers skip the lock of an empty table.
    len: AtomicUsize,
}

/// Scope of a count in the tables. The numbers are the ids of frontends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableScope {
    Process(Protocol),
    /// Local ports towards the servers of a frontend.
    LocalPorts(u32),
}

/// Counts of one client, or of a network that contains clients.
#[derive(Debug, Default)]
struct ClientCounts {
    /// Number of TCP connections in the process.
    tcp: u32,
    /// UDP sessions in the process.
    udp: ClientUsage,
    /// Number of TCP connections that need local ports, by the id of the frontend.
    local_ports: FrontendCounts,
}

/// Small map from the ids of frontends to numbers. A client rarely uses several frontends, so the
/// first one needs no allocation.
#[derive(Debug, Default)]
struct FrontendCounts {
    first: (u32, u32),
    others: Vec<(u32, u32)>,
}

/// Guard that counts a connection or UDP session in a table until it is dropped. The connection
/// also counts in the networks that contain the client.
#[derive(Debug)]
pub(super) struct TableCount {
    table: Arc<ClientTable>,
    client: Prefix,
    unit: TableUnit,
}

/// Scopes in which one connection counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TableUnit {
    /// Protocol, if the connection counts in the process.
    pub(super) process: Option<Protocol>,
    /// Id of the frontend towards whose servers the connection needs a local port.
    pub(super) local_port: Option<u32>,
    /// Whether this is a UDP session that any new session may evict.
    pub(super) is_question: bool,
}

impl ClientTables {
    /// Counts a connection of this worker. Returns `None` if the connection counts nowhere.
    pub(super) fn add(&self, worker: usize, client: Prefix, unit: TableUnit) -> Option<TableCount> {
        if unit.process.is_none() && unit.local_port.is_none() {
            return None;
        }
        let table = &self.0[worker % TABLES];
        let mut clients = table.clients();
        for ClientNetwork { network, .. } in networks_of(client) {
            clients.entry(network).or_default().add(unit);
        }
        table.len.store(clients.len(), Ordering::Relaxed);
        drop(clients);
        Some(TableCount { table: table.clone(), client, unit })
    }

    /// Usage of a client or network in the connections of all workers.
    pub(super) fn usage(&self, scope: TableScope, client: Prefix) -> ClientUsage {
        let tables = self.0.iter().filter(|table| table.len.load(Ordering::Relaxed) > 0);
        let usages = tables.filter_map(|table| Some(table.clients().get(&client)?.usage(scope)));
        usages.fold(ClientUsage::default(), |sum, usage| ClientUsage {
            all: sum.all + usage.all,
            questions: sum.questions + usage.questions,
        })
    }

    /// Whether no client has an open connection.
    #[cfg(test)]
    pub(super) fn are_empty(&self) -> bool {
        self.0.iter().all(|table| table.clients().is_empty())
    }
}

impl Default for ClientTables {
    fn default() -> ClientTables {
        ClientTables(std::array::from_fn(|_| Arc::default()))
    }
}

impl ClientTable {
    fn clients(&self) -> MutexGuard<'_, HashMap<Prefix, ClientCounts>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableCount {
    /// Turns a question into a stream, which new sessions of other clients cannot evict.
    pub(super) fn become_stream(&mut self) {
        if !std::mem::take(&mut self.unit.is_question) {
            return;
        }
        let mut clients = self.table.clients();
        for ClientNetwork { network, .. } in networks_of(self.client) {
            if let Some(counts) = clients.get_mut(&network) {
                counts.udp.questions -= 1;
            }
        }
    }
}

impl Drop for TableCount {
    fn drop(&mut self) {
        let mut clients = self.table.clients();
        for ClientNetwork { network, .. } in networks_of(self.client) {
            if clients.get_mut(&network).is_some_and(|counts| counts.remove(self.unit)) {
                clients.remove(&network);
            }
        }
        self.table.len.store(clients.len(), Ordering::Relaxed);
    }
}

impl ClientCounts {
    fn add(&mut self, unit: TableUnit) {
        match unit.process {
            Some(Protocol::Tcp) => self.tcp += 1,
            Some(Protocol::Udp) => self.udp.add(unit.is_question),
            None => {}
        }
        if let Some(frontend) = unit.local_port {
            *self.local_ports.of_mut(frontend) += 1;
        }
    }

    /// Removes a connection. Returns whether there is none left.
    fn remove(&mut self, unit: TableUnit) -> bool {
        match unit.process {
            Some(Protocol::Tcp) => self.tcp -= 1,
            Some(Protocol::Udp) => self.udp.remove(unit.is_question),
            None => {}
        }
        if let Some(frontend) = unit.local_port {
            *self.local_ports.of_mut(frontend) -= 1;
        }
        self.tcp == 0 && self.udp.all == 0 && self.local_ports.are_zero()
    }

    fn usage(&self, scope: TableScope) -> ClientUsage {
        match scope {
            TableScope::Process(Protocol::Tcp) => ClientUsage { all: self.tcp, questions: 0 },
            TableScope::Process(Protocol::Udp) => self.udp,
            TableScope::LocalPorts(frontend) => {
                ClientUsage { all: self.local_ports.of(frontend), questions: 0 }
            }
        }
    }
}

impl FrontendCounts {
    fn of(&self, frontend: u32) -> u32 {
        let of_frontend = self.iter().filter(|(id, _)| *id == frontend);
        of_frontend.map(|(_, count)| *count).sum()
    }

    /// Number of a frontend. Reuses the place of a frontend whose number is zero.
    fn of_mut(&mut self, frontend: u32) -> &mut u32 {
        if self.first.0 != frontend && self.first.1 == 0 && !self.others.iter().any(|(id, _)| *id == frontend)
        {
            self.first = (frontend, 0);
        }
        if self.first.0 == frontend {
            return &mut self.first.1;
        }
        let place = self.others.iter().position(|(id, _)| *id == frontend);
        let place = place.or_else(|| self.others.iter().position(|(_, count)| *count == 0));
        let place = place.unwrap_or_else(|| {
            self.others.push((frontend, 0));
            self.others.len() - 1
        });
        let (id, count) = &mut self.others[place];
        *id = frontend;
        count
    }

    fn are_zero(&self) -> bool {
        self.iter().all(|(_, count)| *count == 0)
    }

    fn iter(&self) -> impl Iterator<Item = &(u32, u32)> {
        std::iter::once(&self.first).chain(&self.others)
    }
}
