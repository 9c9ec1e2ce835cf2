//! Quota of a client: the number of its open connections, and whether it may open another one. The
//! functions of this module only read the counts.

use std::net::IpAddr;

use convey_model::Protocol;
use convey_snapshot::stats::Traffic;
use convey_snapshot::{Frontend, Pool};

use crate::WorkersShared;
use crate::clients::Left;

/// Open connections of a client, and whether it may open another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientQuota {
    /// Number of open connections or sessions of the client: at the frontend if the frontend has a
    /// limit, otherwise in the whole process.
    pub open: u32,
    /// First limit that another connection would exceed; `None` if there is room.
    pub shortage: Option<ClientShortage>,
}

/// Limit that another connection of a client would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientShortage {
    /// The process has too few descriptors for further connections of any client.
    Descriptors,
    /// The client's share of the process.
    Process,
    /// The client's share of the local ports towards the servers.
    LocalPorts,
    /// The client's share of the frontend.
    Frontend,
}

impl WorkersShared {
    /// Returns the quota of the client at the frontend; `totals` are the counters of all traffic.
    pub fn client_quota(&self, client: IpAddr, frontend: &Frontend, totals: &Traffic) -> ClientQuota {
        let connections = self.connections_left(totals);
        let left = match frontend.config.protocol {
            Protocol::Tcp => Left { connections, local_ports: self.ports_left(frontend), is_ample: false },
            Protocol::Udp => {
                let (_, left) = self.udp_sessions.room(self.descriptors.connections(), connections);
                Left { connections: left, local_ports: u64::MAX, is_ample: false }
            }
        };
        let (open, beyond) = self.clients.quota(client, frontend, left);
        let shortage = if connections == 0 { Some(ClientShortage::Descriptors) } else { beyond };
        ClientQuota { open, shortage }
    }

    /// Number of further connections that the process may have, so that enough descriptors are left
    /// for other uses.
    pub(super) fn connections_left(&self, totals: &Traffic) -> u64 {
        let taken = totals.current_in(self.columns.clone()) + self.clients.held_resources();
        self.descriptors.connections().saturating_sub(taken)
    }

    /// Number of further connections to the frontend's servers for which local ports are certainly
    /// free.
    pub(super) fn ports_left(&self, frontend: &Frontend) -> u64 {
        match &frontend.sni {
            None => self.ports_left_to(&frontend.pool, frontend),
            // The ClientHello selects the pool.
            Some(_) => {
                let left = frontend.pools().iter().map(|pool| self.ports_left_to(pool, frontend));
                left.fold(0, u64::saturating_add)
            }
        }
    }

    fn ports_left_to(&self, pool: &Pool, frontend: &Frontend) -> u64 {
        // Each local port can have one connection to each port of each server.
        let asked: usize = frontend.config.listen.iter().map(|listen| listen.ports().len()).sum();
        let keep_ports = asked > 1 && pool.servers.iter().any(|server| server.config.keeps_port());
        let ports = if keep_ports { asked } else { 1 };
        let all = u64::from(self.local_ports.count()).saturating_mul((pool.servers.len() * ports) as u64);
        // A pool without servers needs no ports.
        if all == 0 {
            u64::MAX
        } else {
            all.saturating_sub(pool.live.traffic.current_in(self.columns.clone()))
        }
    }
}
