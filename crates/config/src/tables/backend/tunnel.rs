//! `gue_port` and `tunnel_source` of a backend: tunnels to servers, and whether this host can send
//! tunnelled packets.

use std::net::{IpAddr, SocketAddr};

use super::{ParsedBackend, ParsedServer};
use crate::keys::keys;
use crate::mode::{HostCheck, can_be_reached, family, is_like, is_link_local};
use crate::problem::{Place, Placed};
use crate::tables::ParsedFrontend;
use crate::values::{network, port};
use convey_model::{BackendConfig, DsrKind, Encapsulation, Mode, Prefix, TunnelConfig};

keys! {
    /// The keys of tunnels to servers.
    pub(crate) struct TunnelKeys => TunnelConfig, from (_unused: (), default);

    key "gue_port" => gue_port: u16 {
        read: port,
        kind: "a port from 1 to 65535, dsr: where servers take packets of `dsr = \"gue\"`",
        default: "6080",
        sample: r##"#gue_port = 6080                        # the port on which servers receive packets of "gue""##,
        example: "666",
    };

    key "tunnel_source" => source: Prefix {
        read: network,
        unset: "automatic",
        kind: "a network or an address, dsr: the outer source of tunnels, its last bits by the hash of the flow",
        default: "convey's own address",
        sample: r##"
#tunnel_source = "172.16.0.0/16"        # example; the source network of outer packets. Each flow has one address of it. By
                                        # default they come from convey's own address
"##,
        example: "'172.16.0.0/16'",
    };
}

impl HostCheck<'_> {
    /// Whether packets to a backend go through a tunnel. The outer packets may be of another family
    /// than the inner ones.
    pub(crate) fn has_tunnel(&self, backend: &str) -> bool {
        let dsr = self.backends.get(backend).and_then(|backend| backend.keys.dsr.as_ref());
        dsr.is_some_and(|dsr| dsr.value.has_tunnel())
    }

    /// Reports tunnels in modes other than dsr. Those modes rewrite packets in place.
    pub(super) fn tunnel(&self, backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)]) {
        let kind = backend.keys.dsr.as_ref().filter(|dsr| dsr.value.has_tunnel());
        let has_none = |place: &Place, wanted: &str| {
            self.report.warning(place, format!("has no effect without dsr = {wanted}"));
        };
        let has_port = kind.is_some_and(|dsr| match dsr.value {
            DsrKind::Gue => true,
            DsrKind::L3 | DsrKind::L2 | DsrKind::Ipip => false,
        });
        if let Some(port) = backend.tunnel.gue_port.as_ref().filter(|_| !has_port) {
            has_none(&port.place, "\"gue\"");
        }
        let Some(dsr) = kind else {
            if let Some(source) = &backend.tunnel.source {
                has_none(&source.place, "\"ipip\" or \"gue\"");
            }
            return;
        };
        if let Some((frontend, mode)) = used.iter().find(|(_, mode)| !mode.is_dsr()) {
            let message = format!(
                "{:?} is a tunnel, which needs mode = \"dsr\"; frontend {:?} is in {} mode and needs a backend of its own",
                dsr.value.name(),
                frontend.name,
                mode.name()
            );
            self.report.error(&dsr.place, message);
        }
        let Some(source) = &backend.tunnel.source else {
            return self.own_sources(backend);
        };
        self.source_can_be(source);
        let is_other = |server: &Placed<SocketAddr>| !is_like(server.value.ip(), source.value.first());
        if let Some(server) = backend.servers.iter().filter_map(ParsedServer::ip).find(is_other) {
            let message = format!(
                "{} is {}, but server {} is {}; both addresses of an outer packet must be of one family",
                source.value,
                family(source.value.first()),
                server.value.ip(),
                family(server.value.ip())
            );
            self.report.error(&source.place, message);
        }
    }

    /// Checks `tunnel_source`. Routers and servers drop outer packets whose source is not the
    /// address of one host.
    fn source_can_be(&self, source: &Placed<Prefix>) {
        let ip = source.value.first();
        let what = match ip {
            _ if ip.is_loopback() => "a loopback address",
            _ if ip.is_multicast() => "a multicast address",
            _ if is_link_local(ip) => "a link-local address",
            IpAddr::V4(v4) if v4.is_broadcast() || v4.octets()[0] >= 240 => "an unusable address",
            _ if ip.is_unspecified() => "an unusable address",
            _ => return,
        };
        let message =
            format!("{} is {what}; routers and servers drop packets with this source", source.value);
        self.report.error(&source.place, message);
    }

    /// Checks that this host has an address for outer packets, other than a VIP, if there is no
    /// `tunnel_source`.
    fn own_sources(&self, backend: &ParsedBackend) {
        // `holders` is empty unless there are packet modes.
        if self.holders.is_empty() {
            return;
        }
        let could_be = |ip: &&IpAddr| can_be_reached(**ip) && !self.listening.contains_key(*ip);
        let sources: Vec<IpAddr> = self.holders.keys().filter(could_be).copied().collect();
        let lacks = |server: &Placed<SocketAddr>| !sources.iter().any(|ip| is_like(*ip, server.value.ip()));
        if let Some(server) = backend.servers.iter().filter_map(ParsedServer::ip).find(lacks) {
            let message = format!(
                "no packet can reach {}: outer packets need an {} source address other than a VIP, and this host has none; add one, \
                 or set tunnel_source",
                server.value.ip(),
                family(server.value.ip())
            );
            self.report.warning(&server.place, message);
        }
    }
}

/// Text such as `gue to port 6080, from 10.0.0.0/24`.
pub(super) fn describe(backend: &BackendConfig) -> String {
    let mut text = backend.dsr.name().to_owned();
    let Some(encapsulation) = backend.dsr.encapsulation(&backend.tunnel) else { return text };
    if let Encapsulation::Gue { port } = encapsulation {
        text.push_str(&format!(" to port {port}"));
    }
    if let Some(source) = backend.tunnel.source {
        text.push_str(&format!(", from {source}"));
    }
    text
}
