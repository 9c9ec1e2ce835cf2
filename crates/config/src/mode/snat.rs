//! Checks of source NAT (SNAT) towards servers, which passthrough mode uses.

use std::collections::BTreeMap;

use super::{HostCheck, can_be_reached, family, is_like};
use crate::problem::Placed;
use crate::tables::ParsedFrontend;
use convey_model::Listen;

impl HostCheck<'_> {
    /// Checks that SNAT has ports for every worker, and an address of each family.
    pub(super) fn snat(&self) {
        let ports = self.config.passthrough.snat_ports.len();
        if let Some(workers) =
            self.file.passthrough.keys.workers.as_ref().filter(|w| usize::from(w.value) > ports)
        {
            let message = format!(
                "{} workers cannot share {ports} SNAT ports; each worker needs at least one, preferably thousands",
                workers.value
            );
            self.report.error(&workers.place, message);
        }
        self.snat_ports_left();
        for address in &self.file.passthrough.keys.snat_addresses {
            if self.is_host_known && self.holder(address.value).is_none() {
                self.report.warning(&address.place, self.on_no_interface(address.value));
            }
        }
        let passthrough = self.frontends.iter().filter(|(_, mode)| mode.has_snat());
        passthrough.for_each(|(frontend, _)| self.snat_address(frontend));
    }

    /// Checks that enough SNAT ports are left for the workers. SNAT excludes the ports of
    /// frontends, because a packet to a SNAT port belongs to an open connection, and a packet to a
    /// frontend begins a new one.
    fn snat_ports_left(&self) {
        let settings = &self.config.passthrough;
        let listen = self.frontends.iter().flat_map(|(frontend, _)| &frontend.listen);
        let may_be_snat = |vip: &&Placed<Listen>| match settings.snat_addresses.as_slice() {
            [] => self.holder(vip.value.ip()).is_some(),
            addresses => addresses.contains(&vip.value.ip()),
        };
        let ports = listen.filter(may_be_snat);
        let taken = ports.flat_map(|vip| vip.value.ports().map(move |port| (port, vip)));
        let taken: BTreeMap<u16, &Placed<Listen>> =
            taken.filter(|(port, _)| settings.snat_ports.contains(port)).collect();
        let workers = settings.workers.map_or(1, usize::from).max(1);
        if let Some((port, vip)) = taken.first_key_value()
            && taken.len() >= settings.snat_ports.len() / workers
        {
            let (first, last) = (settings.snat_ports.start(), settings.snat_ports.end());
            let message = format!(
                "frontends use so many of the SNAT ports of {} ({first}-{last}), such as {port}, that too few are left; choose \
                 another port here, or set passthrough.snat_ports or passthrough.snat_addresses",
                vip.value.ip()
            );
            self.report.error(&vip.place, message);
        }
    }

    /// Checks that there is a SNAT address of the servers' family.
    fn snat_address(&self, frontend: &ParsedFrontend) {
        let Some(vip) = frontend.listen.first() else { return };
        let ip = vip.value.ip();
        if let Some(named) = self.file.passthrough.keys.snat_addresses.first() {
            if !self.file.passthrough.keys.snat_addresses.iter().any(|address| is_like(address.value, ip)) {
                let message =
                    format!("frontend {:?} needs an {} address here; add one", frontend.name, family(ip));
                self.report.error(&named.place, message);
            }
            return;
        }
        let ways = self.servers_of(frontend).filter_map(|server| (self.network.hop_to)(server.value.ip()));
        let ways: Vec<u32> = ways.map(|hop| hop.interface).collect();
        let mut towards = self.network.interfaces.iter().filter(|i| ways.contains(&i.index)).peekable();
        let Some(first) = towards.peek().map(|interface| &interface.name) else { return };
        let mut own = towards.flat_map(|interface| &interface.addresses);
        if !own.any(|own| can_be_reached(*own) && is_like(*own, ip)) {
            let message = format!(
                "interface {first}, which leads to the servers, has no {} address for SNAT; add one, or set \
                 passthrough.snat_addresses",
                family(ip)
            );
            self.report.error(&vip.place, message);
        }
    }
}
