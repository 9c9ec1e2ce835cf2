//! Tunnels to the servers of a backend: what goes with them, and whether this host can send them.

use std::net::{IpAddr, SocketAddr};

use super::{Check, can_be_reached, family, is_like, is_link_local};
use crate::file::{ParsedBackend, ParsedFrontend, ParsedServer};
use crate::problem::{Place, Placed};
use convey_model::{DsrKind, Mode, Prefix};

impl Check<'_> {
    /// Whether packets to a backend go within others, which may be of another family.
    pub(super) fn has_tunnel(&self, backend: &str) -> bool {
        let dsr = self.backends.get(backend).and_then(|backend| backend.dsr.as_ref());
        dsr.is_some_and(|dsr| dsr.value.has_tunnel())
    }

    /// Other modes than dsr know no tunnels, and rewrite packets in place.
    pub(super) fn tunnel(&self, backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)]) {
        let kind = backend.dsr.as_ref().filter(|dsr| dsr.value.has_tunnel());
        let has_none = |place: &Place, wanted: &str| {
            self.report.warning(place, format!("has no effect without dsr = {wanted}"));
        };
        let has_port = kind.is_some_and(|dsr| match dsr.value {
            DsrKind::Gue => true,
            DsrKind::L3 | DsrKind::L2 | DsrKind::Ipip => false,
        });
        if let Some(port) = backend.gue_port.as_ref().filter(|_| !has_port) {
            has_none(&port.place, "\"gue\"");
        }
        let Some(dsr) = kind else {
            if let Some(source) = &backend.tunnel_source {
                has_none(&source.place, "\"ipip\" or \"gue\"");
            }
            return;
        };
        if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_dsr()) {
            let message = format!(
                "{:?} is a tunnel, and those are for mode dsr; frontend {:?} uses this backend in {} mode: write a backend for each",
                dsr.value.name(),
                frontend.name,
                mode.name()
            );
            self.report.error(&dsr.place, message);
        }
        let Some(source) = &backend.tunnel_source else {
            return self.own_sources(backend);
        };
        self.source_can_be(source);
        let is_other = |server: &Placed<SocketAddr>| !is_like(server.value.ip(), source.value.first());
        if let Some(server) = backend.servers.iter().filter_map(ParsedServer::ip).find(is_other) {
            let message = format!(
                "{} is {}, and server {} is {}: outer packets have addresses of one family",
                source.value,
                family(source.value.first()),
                server.value.ip(),
                family(server.value.ip())
            );
            self.report.error(&source.place, message);
        }
    }

    /// Outer packets of hosts that are on no network, or are many, are dropped on the way.
    fn source_can_be(&self, source: &Placed<Prefix>) {
        let ip = source.value.first();
        let what = match ip {
            _ if ip.is_loopback() => "this host itself",
            _ if ip.is_multicast() => "many hosts",
            _ if is_link_local(ip) => "of one link alone",
            IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] >= 240 => "nobody's address",
            _ if ip.is_unspecified() => "nobody's address",
            _ => return,
        };
        let message = format!("{} is {what}: routers and servers drop packets from there", source.value);
        self.report.error(&source.place, message);
    }

    /// Without `tunnel_source` outer packets come from an address of this host that is no VIP.
    fn own_sources(&self, backend: &ParsedBackend) {
        // The host is looked at for the packet modes alone.
        if self.holders.is_empty() {
            return;
        }
        let could_be = |ip: &&IpAddr| can_be_reached(**ip) && !self.listening.contains_key(*ip);
        let sources: Vec<IpAddr> = self.holders.keys().filter(could_be).copied().collect();
        let lacks = |server: &Placed<SocketAddr>| !sources.iter().any(|ip| is_like(*ip, server.value.ip()));
        if let Some(server) = backend.servers.iter().filter_map(ParsedServer::ip).find(lacks) {
            let message = format!(
                "no packet gets to {}: this host has no {} address but VIPs that outer packets could come from; give it one, or \
                 set tunnel_source",
                server.value.ip(),
                family(server.value.ip())
            );
            self.report.warning(&server.place, message);
        }
    }
}
