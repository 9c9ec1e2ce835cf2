//! Routes in packet modes: servers that convey must not send to, and policy rules that convey
//! ignores. Pure.

use convey_model::Mode;

use super::{Explained, Host};
use crate::Diagnosis;

/// Findings for servers of packet modes that are down because of routes, interfaces or IPsec
/// policies, and for ignored policy rules.
pub(super) fn examine(host: &Host<'_>, explained: &mut Explained) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    let forwarded = host.config.backends_in(Mode::forwards_packets);
    if forwarded.is_empty() {
        return found;
    }
    let backends = host.config.backends.iter().filter(|backend| forwarded.contains(&*backend.name));
    for (backend, server) in backends.flat_map(|one| one.servers.iter().map(move |server| (one, server))) {
        let ip = server.addr.ip();
        let Some(reason) = host.network.refusal_of(ip, host.config.snat_addresses()) else { continue };
        explained.servers.insert(ip);
        let seen = format!("server {}/{} ({ip}) is down: {reason}", backend.name, server.name);
        let why = "In packet modes convey sends this server no packets. Give the server a route over Ethernet without \
                   IPsec and kernel tunnels, or use mode proxy.";
        found.push(Diagnosis::error("server-way", seen, why));
    }
    let why = "Health checks and services of this host may take other routes than packets of clients. If the routes have to be \
               the same, write the rule so that it selects only by source or destination address.";
    let rules = host.network.rules_not_followed();
    found.extend(rules.into_iter().map(|rule| Diagnosis::warning("policy-rule", rule, why)));
    found
}

/// Finding for a server that convey and the kernel reach by different routes.
pub(super) fn differs(difference: &str) -> Diagnosis {
    let why = "Health checks take the kernel's route, but packets of clients take convey's route. Look at `ip rule`, `ip route show \
               table all` and `ip nexthop`.";
    Diagnosis::warning("route-differs", difference, why)
}
