//! Takes over sockets, sessions and flows from the previous process.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use convey_model::Endpoint;
use convey_proxy::{HandedSession, HandedSockets};
use convey_snapshot::Snapshot;
use log::info;

use super::Paths;
use crate::app::proxy_path::ProxyPath;
use crate::app::upgrade::{AdminInUse, LetGo, Predecessor};

/// Predecessor that waits for this process, with the operator sockets that this process already
/// uses.
pub(super) struct Awaited {
    process: Predecessor,
    admin: AdminInUse,
}

impl Paths {
    /// Uses the sockets of another process in place of new ones, and remembers the process for the
    /// handover. `admin` contains the operator sockets that this process already uses.
    pub(in crate::app) fn expect(
        &mut self,
        process: Option<Predecessor>,
        sockets: HandedSockets,
        admin: AdminInUse,
    ) {
        if let Some(proxy) = &mut self.proxy {
            proxy.expect(sockets);
        }
        self.predecessor = process.map(|process| Awaited { process, admin });
    }

    /// Takes over from the previous process, if there is one, and continues its flows with this
    /// snapshot. Returns its UDP sessions, or `None` if this process must not accept clients.
    pub(super) fn take_over_from_predecessor(
        &mut self,
        snapshot: &Arc<Snapshot>,
    ) -> Option<Vec<HandedSession>> {
        // This call also closes unused sockets, which may come from a service manager without a
        // previous process.
        let taken = self.proxy.as_mut().map(ProxyPath::taken).unwrap_or_default();
        let Some(awaited) = self.predecessor.take() else { return Some(Vec::new()) };
        let sessions = self.take_over_from(&awaited, taken, snapshot);
        sessions.map_err(|error| self.handover_error = Some(error)).ok()
    }

    fn take_over_from(
        &mut self,
        Awaited { process, admin }: &Awaited,
        taken: BTreeSet<Endpoint>,
        snapshot: &Arc<Snapshot>,
    ) -> anyhow::Result<Vec<HandedSession>> {
        if let Some(packets) = &mut self.packets {
            packets.capture()?;
        }
        let LetGo { sessions, flows } = process.prepared(taken, *admin)?;
        let flows = flows.unwrap_or_default();
        let (open, seen) = (flows.open(), flows.snat_addresses());
        let lost = match &mut self.packets {
            Some(packets) => packets.begin(flows.owned_by(snapshot), snapshot)?,
            None => open,
        };
        anyhow::ensure!(lost == 0, "{}", cannot_go_on(lost, open, self.chosen_addresses(), seen));
        if self.packets.is_some() {
            info!("{open} open flows of the old process continue in this process");
        }
        Ok(sessions)
    }

    /// SNAT addresses that convey chose on this host. `None` if the configuration names addresses,
    /// or without passthrough mode.
    fn chosen_addresses(&self) -> Option<&[IpAddr]> {
        let packets = self.packets.as_ref().filter(|packets| !packets.has_named_addresses())?;
        packets.snat().map(|snat| snat.addresses)
    }

    /// Checks that the handover has succeeded, if there was one.
    ///
    /// # Errors
    /// Reason why the handover failed. This process then serves no client.
    pub(in crate::app) fn has_taken_over(&mut self) -> anyhow::Result<()> {
        self.handover_error.take().map_or(Ok(()), Err)
    }
}

/// Error message for an upgrade in which `lost` of the `open` flows cannot continue. The cause is
/// either the new file, or a SNAT address in `seen`, which servers see, that is missing among the
/// addresses that convey has `chosen` on this host.
fn cannot_go_on(lost: usize, open: usize, chosen: Option<&[IpAddr]>, seen: BTreeSet<IpAddr>) -> String {
    let list = |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    if let Some(chosen) = chosen {
        let others: Vec<IpAddr> = seen.into_iter().filter(|ip| !chosen.contains(ip)).collect();
        if !others.is_empty() {
            let (others, chosen) = (list(&others), list(chosen));
            return format!(
                "{lost} of {open} open flows cannot continue in the new process: their SNAT addresses are {others}, and the new \
                 process has chosen {chosen} of the addresses that this host has now; name {others} in \
                 passthrough.snat_addresses if this host still has it, upgrade once the flows have ended, or restart instead"
            );
        }
    }
    format!(
        "{lost} of {open} open flows cannot continue in the new process: the file no longer has their frontend or server, or has another `dsr` \
         for their backend, other passthrough.workers, snat_ports or snat_addresses, or a smaller passthrough.max_flows; upgrade once the flows \
         have ended, or with the earlier file, or restart instead"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_upgrade_names_the_addresses_of_the_host_that_have_changed() {
        let ips = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let (old, new) = (ips(&["10.0.0.9"]), ips(&["10.0.0.1"]));
        let why = |chosen: Option<&[IpAddr]>| cannot_go_on(3, 7, chosen, old.iter().copied().collect());
        let of_host = why(Some(&new));
        assert!(
            of_host.contains("addresses are 10.0.0.9, and the new process has chosen 10.0.0.1"),
            "{of_host}"
        );
        assert!(!of_host.contains("the file"), "{of_host}");
        for chosen in [None, Some(&old[..])] {
            assert!(why(chosen).contains("other passthrough.workers"), "{}", why(chosen));
        }
    }
}
