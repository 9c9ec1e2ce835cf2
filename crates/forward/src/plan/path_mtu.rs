//! Validation of ICMP errors about outer packets. Pure.

use std::collections::HashMap;

use super::{ForwardingMethod, Plan, PlannedFrontend};
use convey_model::{Addr, Listen, NarrowPath, Tunnel};
use convey_wire::TunnelMtuReport;

/// Every IPv6 link carries packets of this length, in bytes (RFC 8200, section 5).
const LEAST_V6: u32 = 1280;

/// Every IPv4 host accepts packets of this length, in bytes (RFC 791, section 3.1).
const LEAST_V4: u32 = 576;

/// Users of each server address with a tunnel: the index of each frontend in the plan, with the
/// number of its server. Anybody can send errors about any address, so an error must not cost a
/// search through all frontends.
#[derive(Debug, Default)]
pub struct TunnelUsers {
    /// Generation of the plan that the users belong to.
    generation: Option<u64>,
    of: HashMap<Addr, Vec<(usize, u32)>>,
}

impl TunnelUsers {
    /// Path to a server that takes shorter packets than known so far. `None` if convey cannot have
    /// sent the quoted packet, or the error does not shorten the path.
    ///
    /// An attacker needs the addresses of convey and a server to forge an error, and a VIP if the
    /// error quotes the inner packet. A forged error can only shorten packets to that server, and
    /// no further than to a length that every path takes.
    pub fn narrower_path(&mut self, plan: &Plan, report: &TunnelMtuReport) -> Option<NarrowPath> {
        if self.generation != Some(plan.generation) {
            *self = TunnelUsers { generation: Some(plan.generation), of: users(plan) };
        }
        let users = self.of.get(&report.server)?;
        let users =
            || users.iter().filter_map(|(at, id)| Some((plan.frontends.get(*at)?, plan.tunnels.get(id)?)));
        let server = report.server.ip();
        let hop = plan.network.get(plan.network.lookup_from(report.source.ip(), server).ok()?)?;
        if report.mtu >= hop.mtu || !plan.network.is_own(report.source.ip()) {
            return None;
        }
        let is_quoted = |tunnel: &Tunnel| {
            tunnel.encapsulation == report.encapsulation && tunnel.source.contains(report.source.ip())
        };
        let is_vip = |inner: Addr| move |listen: &Listen| listen.ip() == inner.ip();
        users().filter(|(_, tunnel)| is_quoted(tunnel)).find(|(frontend, _)| {
            report.inner_destination.is_none_or(|inner| frontend.listen.iter().any(is_vip(inner)))
        })?;
        // Senders do not go below this length: with a shorter MTU, their connections would end, or
        // each packet would be cut.
        let inner_least = |frontend: &PlannedFrontend| {
            let has_v6 = frontend.listen.iter().any(|listen| !listen.is_ipv4());
            if has_v6 { LEAST_V6 } else { LEAST_V4 }
        };
        let inner_least = users().map(|(frontend, tunnel)| inner_least(frontend) + tunnel.overhead()).max();
        let outer_least = if report.server.is_v4() { LEAST_V4 } else { LEAST_V6 };
        let least = outer_least.max(inner_least.unwrap_or_default());
        let mtu = report.mtu.max(least);
        (mtu < hop.mtu).then_some(NarrowPath { server, mtu, least })
    }
}

fn users(plan: &Plan) -> HashMap<Addr, Vec<(usize, u32)>> {
    let mut of: HashMap<Addr, Vec<(usize, u32)>> = HashMap::new();
    let frontends = plan.frontends.iter().enumerate();
    for (at, frontend) in frontends.filter(|(_, frontend)| frontend.method() == ForwardingMethod::Tunneled) {
        for server in &frontend.pool.servers {
            if let Some(tunnel) = plan.tunnels.get(&server.id) {
                of.entry(tunnel.server).or_default().push((at, server.id));
            }
        }
    }
    of
}
