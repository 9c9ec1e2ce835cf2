//! Configurations of convey in the soak.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use convey_testkit::{Loopback, NAME, Setup, TestNameServer};
use fastrand::Rng;
use serde_json::Value;

/// Servers of each protocol. A reload may remove all but the first.
pub(crate) const SERVERS: u8 = 3;

/// Listen address of the frontend with servers by name.
pub(crate) fn named_vip(lab: &Loopback) -> SocketAddr {
    SocketAddr::new(lab.ip(2), 8080)
}

/// Frontends for TCP, for UDP, and for TCP servers by name. Every server has weight 1.
pub(crate) fn usual(lab: &Loopback) -> Setup {
    setup(lab, [1; SERVERS as usize])
}

/// The usual configuration with other weights, perhaps without some servers. Another frontend comes
/// and goes.
pub(crate) fn other(lab: &Loopback, random: &mut Rng) -> Setup {
    let setup = setup(lab, [random.u64(1..5), random.u64(0..5), random.u64(0..5)]);
    let second = format!("[frontends.second]\nlisten_addr = \"{}\"\nbackend = \"pool\"\n", lab.second_vip());
    if random.bool() { setup.and(&second) } else { setup }
}

/// Configuration with these weights. A weight of 0 leaves a server out.
fn setup(lab: &Loopback, weights: [u64; SERVERS as usize]) -> Setup {
    // convey checks a blocked connection four times in its idle timeout.
    let mut setup = Setup::new(lab).timeouts("idle = 20\nudp_idle = 1");
    let mut datagrams = format!(
        "[frontends.datagrams]\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"datagrams\"\n\
         [backends.datagrams]\nhealth_check = {{ kind = \"none\" }}\n",
        lab.vip()
    );
    for (n, weight) in (1..).zip(weights).filter(|(_, weight)| *weight > 0) {
        let (name, weight) = (format!("s{n}"), format!("weight = {weight}"));
        setup = setup.server(&name, lab.server(n), &weight);
        datagrams += &server("datagrams", &name, lab.server(n), &weight);
    }
    datagrams += &server("datagrams", "unsteady", lab.server(SERVERS + 1), "");
    let named = format!(
        "[frontends.named]\nlisten_addr = \"{}\"\nbackend = \"named\"\n\
         [backends.named]\nhealth_check = {{ kind = \"none\" }}\n",
        named_vip(lab)
    );
    let named = named + &server("named", "app", format!("{NAME}:8000"), "");
    setup.and(&datagrams).and(&named).and(&TestNameServer::dns(lab))
}

fn server(backend: &str, name: &str, addr: impl std::fmt::Display, lines: &str) -> String {
    format!("[backends.{backend}.servers.{name}]\naddr = \"{addr}\"\n{lines}\n")
}

/// Whether the usual configuration runs with all servers of the name, and every gauge of
/// connections is at 0.
pub(crate) fn is_at_rest(lab: &Loopback, stats: &Value) -> bool {
    fn idle(value: &Value) -> bool {
        match value {
            Value::Object(fields) => fields.iter().all(|(name, value)| match name.as_str() {
                "current_connections" => *value == 0,
                _ => idle(value),
            }),
            _ => true,
        }
    }
    let servers = |backend: &str| stats["backends"][backend]["servers"].as_object();
    let usual = |backend: &str, count: u8| {
        servers(backend).is_some_and(|servers| {
            servers.len() == usize::from(count) && servers.values().all(|server| server["weight"] == 1)
        })
    };
    let named = servers("named").map(|servers| servers.keys().cloned().collect::<BTreeSet<_>>());
    usual("pool", SERVERS)
        && usual("datagrams", SERVERS + 1)
        && named == Some((1..=SERVERS).map(|n| format!("app/{}", lab.server(n).ip())).collect())
        && stats["frontends"].get("second").is_none()
        && idle(stats)
}
