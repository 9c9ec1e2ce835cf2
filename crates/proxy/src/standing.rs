//! How much room there is for one more client, and what it has already. Nothing is counted here.

use std::net::IpAddr;

use convey_model::Protocol;
use convey_snapshot::stats::Traffic;
use convey_snapshot::{Frontend, Pool};

use crate::WorkersShared;
use crate::clients::Left;

/// What a client has now, and whether it may have more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientStanding {
    /// Its open connections or sessions: at the frontend if that has a limit, else in the process.
    pub open: u32,
    /// Where there is no room for one more; `None`: there is.
    pub shortage: Option<ClientShortage>,
}

/// Where there is no room for one more connection of a client. The first that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientShortage {
    /// Nobody may have more: the process is short of descriptors.
    Descriptors,
    /// Its share of the process.
    Process,
    /// Its share of the local ports towards the servers.
    LocalPorts,
    /// Its share of the frontend.
    Frontend,
}

impl WorkersShared {
    /// What would become of one more connection or session of the client at the frontend; `totals` are the counters of all traffic.
    pub fn standing(&self, client: IpAddr, frontend: &Frontend, totals: &Traffic) -> ClientStanding {
        let connections = self.connections_left(totals);
        let left = match frontend.config.protocol {
            Protocol::Tcp => Left { connections, local_ports: self.ports_left(frontend) },
            Protocol::Udp => {
                let (_, left) = self.udp_sessions.room(self.descriptors.connections(), connections);
                Left { connections: left, local_ports: u64::MAX }
            }
        };
        let (open, beyond) = self.clients.standing(client, frontend, left);
        let shortage = if connections == 0 { Some(ClientShortage::Descriptors) } else { beyond };
        ClientStanding { open, shortage }
    }

    /// How many more connections leave enough descriptors for everything else.
    pub(super) fn connections_left(&self, totals: &Traffic) -> u64 {
        let taken = totals.current_in(self.columns.clone()) + self.clients.held_resources();
        self.descriptors.connections().saturating_sub(taken)
    }

    /// How many more connections a frontend's servers can have from local ports for sure.
    pub(super) fn ports_left(&self, frontend: &Frontend) -> u64 {
        match &frontend.sni {
            None => self.ports_left_to(&frontend.pool, frontend),
            // Where a connection goes is not known before its hello.
            Some(_) => {
                let left = frontend.pools().iter().map(|pool| self.ports_left_to(pool, frontend));
                left.fold(0, u64::saturating_add)
            }
        }
    }

    fn ports_left_to(&self, pool: &Pool, frontend: &Frontend) -> u64 {
        // Towards each port of a server there is each local port.
        let asked: usize = frontend.config.listen.iter().map(|listen| listen.ports().len()).sum();
        let keep_ports = asked > 1 && pool.servers.iter().any(|server| server.config.keeps_port());
        let ports = if keep_ports { asked } else { 1 };
        let all = u64::from(self.local_ports.count()).saturating_mul((pool.servers.len() * ports) as u64);
        // Without a server it is not for want of ports that nobody is served.
        if all == 0 {
            u64::MAX
        } else {
            all.saturating_sub(pool.live.traffic.current_in(self.columns.clone()))
        }
    }
}
