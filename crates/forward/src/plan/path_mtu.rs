//! Which ICMP errors about outer packets are believed. Pure.

use std::net::IpAddr;

use super::{Plan, PlannedFrontend, ServerWay};
use convey_model::{Addr, Listen, Tunnel};
use convey_wire::TunnelMtuReport;

/// Every link of IPv6 takes this, in bytes (RFC 8200, section 5).
const LEAST_V6: u32 = 1280;

/// Every host of IPv4 takes this, in bytes (RFC 791, section 3.1).
const LEAST_V4: u32 = 576;

impl Plan {
    /// The server whose path takes shorter packets than known so far, and how long, in bytes. `None`: the error is about no packet
    /// that we may have sent, or says nothing new.
    ///
    /// Anybody can forge one who knows our address, a server's and a VIP. So it can do no more than shorten packets to that
    /// server, and no further than to what every path takes.
    pub fn narrower_path(&self, report: &TunnelMtuReport) -> Option<(IpAddr, u32)> {
        let server = report.server.ip();
        let hop = self.network.get(self.network.lookup(server).ok()?)?;
        // It costs the least to find out, and is so of most that are repeated.
        if report.mtu >= hop.mtu || !self.network.is_own(report.source.ip()) {
            return None;
        }
        let is_quoted = |tunnel: &Tunnel| {
            tunnel.encapsulation == report.encapsulation && tunnel.source.contains(report.source.ip())
        };
        let users: Vec<(&PlannedFrontend, &Tunnel)> = self.users(report.server).collect();
        let mut quoted = users.iter().filter(|(_, tunnel)| is_quoted(tunnel));
        let is_vip = |inner: Addr| move |listen: &Listen| listen.ip() == inner.ip();
        quoted.find(|(frontend, _)| {
            report.inner_destination.is_none_or(|inner| frontend.listen.iter().any(is_vip(inner)))
        })?;
        let outer_least = if report.server.is_v4() { LEAST_V4 } else { LEAST_V6 };
        // Senders of IPv6 make no shorter packets than that: to want them to would end their connections.
        let has_v6 = |(frontend, _): &&(&PlannedFrontend, &Tunnel)| {
            frontend.listen.iter().any(|listen| !listen.is_ipv4())
        };
        let inner_least = users.iter().filter(has_v6).map(|(_, tunnel)| LEAST_V6 + tunnel.overhead()).max();
        let mtu = report.mtu.max(outer_least).max(inner_least.unwrap_or_default());
        (mtu < hop.mtu).then_some((server, mtu))
    }

    /// The frontends whose packets go to this server through a tunnel, each with the tunnel.
    fn users(&self, server: Addr) -> impl Iterator<Item = (&PlannedFrontend, &Tunnel)> {
        let tunneled = self.frontends.iter().filter(|frontend| frontend.way() == ServerWay::Tunneled);
        tunneled.filter_map(move |frontend| {
            let mut tunnels = frontend.pool.servers.iter().filter_map(|server| self.tunnels.get(&server.id));
            Some((&**frontend, tunnels.find(|tunnel| tunnel.server == server)?))
        })
    }
}
