//! Takes SNAT addresses that servers begin to see while packets are forwarded.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use convey_control::UnreachableServers;
use convey_forward::SnatAddresses;
use convey_snapshot::Snapshot;
use log::warn;

use super::{PacketPath, servers_with_snat};
use crate::app::attachments::Attachments;
use crate::app::ownership::SnatOwnership;

impl PacketPath {
    /// Servers without an available SNAT address, with the reason. With `again`, first retries to
    /// take the ports.
    pub(in crate::app) fn unreachable(&mut self, again: bool) -> UnreachableServers {
        if again && !self.unreachable.is_empty() {
            self.snat.retry_withheld();
            let snapshot = self.packet_state.load().snapshot().clone();
            self.take_snat_addresses(&snapshot);
        }
        self.unreachable.clone()
    }

    /// Takes the SNAT addresses that servers see according to this snapshot, and captures the
    /// replies to these addresses.
    pub(super) fn take_snat_addresses(&mut self, snapshot: &Snapshot) {
        let (network, servers) = (&snapshot.network, servers_with_snat(snapshot));
        let (choice, addresses) = (self.snat_choice, &self.snat_addresses);
        let seen = |server: IpAddr, withheld: &[IpAddr]| {
            choice.among_free(network, server, SnatAddresses { all: addresses, withheld })
        };
        let needed =
            |withheld: &[IpAddr]| servers.iter().flat_map(|server| seen(*server, withheld)).collect();
        let before = self.snat.addresses().len();
        for refusal in self.snat.take_needed(needed) {
            warn!("{refusal}; no new flow uses this address");
        }
        if self.snat.addresses().len() > before {
            capture_snat(&mut self.attachments, &self.snat);
        }
        let withheld = self.snat.withheld();
        let refused = servers.iter().filter_map(|server| {
            let wanted = seen(*server, &[]);
            let reason = wanted.first().and_then(|ip| self.snat.reason(*ip))?;
            let is_without = seen(*server, &withheld).is_empty();
            is_without.then(|| (*server, format!("convey has no SNAT address for this server: {reason}")))
        });
        let refused: BTreeMap<IpAddr, String> = refused.collect();
        if *self.unreachable != refused {
            self.unreachable = Arc::new(refused);
        }
    }
}

/// Captures and guards the replies to the SNAT addresses of this process.
pub(super) fn capture_snat(attachments: &mut Attachments, snat: &SnatOwnership) {
    let selection = attachments.selection().clone().with_snat(snat.addresses());
    let dsr = attachments.dsr().clone();
    attachments.select(selection, dsr);
}
