//! Health checks on the packet path of clients: the prober sends a SYN for the VIP to one server.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use convey_control::health::{PathAnswer, PathFault, PathProber};
use convey_dataplane::ProbeSocket;
use convey_forward::SnatChoice;
use convey_forward::plan::{self, tunnel};
use convey_model::{DsrKind, FlowKey, Listen, NextHop, Protocol, ServerKey, TunnelConfig, Unreachable};
use convey_snapshot::{Frontend, NewestSnapshot, Snapshot};
use convey_wire::{Envelope, VipAnswer, VipProbe, enclose};
use tokio::net::TcpSocket;

/// Maximum number of VIPs per server that one probe tries.
const MAX_VIPS: usize = 8;

/// Length of the Ethernet header before each packet, in bytes.
const ETHERNET_LEN: usize = 14;

/// Interval between checks whether the kernel has resolved the next hop.
const NEXT_HOP_EVERY: Duration = Duration::from_millis(20);

/// Prober that looks up, in the snapshot, the VIPs that lead to a server.
pub(super) struct VipProber {
    pub(super) snapshot: Arc<NewestSnapshot>,
    /// SNAT addresses from the configuration.
    pub(super) snat_addresses: Vec<IpAddr>,
}

/// Path of clients' packets: a VIP, and a server behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VipPath {
    vip: SocketAddr,
    server: SocketAddr,
    dsr: DsrKind,
    tunnel: TunnelConfig,
}

impl PathProber for VipProber {
    fn probe<'a>(&'a self, server: &'a ServerKey, timeout: Duration) -> PathAnswer<'a> {
        Box::pin(async move {
            let paths = paths(server, &self.snapshot.load());
            let Some(first) = paths.first().map(|path| path.vip) else {
                return Err(PathFault::Ours("no frontend in dsr mode leads to this server".to_owned()));
            };
            let more = if paths.len() > 1 { format!(" and {} more", paths.len() - 1) } else { String::new() };
            let probes = paths.into_iter().map(|path| self.connect(path, timeout));
            futures_util::future::try_join_all(probes).await?;
            Ok(format!("connect succeeded, and via VIP {first}{more}"))
        })
    }

    fn source(&self, server: &ServerKey) -> Option<IpAddr> {
        source(server, &self.snapshot.load(), &self.snat_addresses)
    }
}

impl VipProber {
    /// Opens one connection through the VIP, and resets it.
    async fn connect(&self, path: VipPath, timeout: Duration) -> Result<(), PathFault> {
        let ours = |error: io::Error| PathFault::Ours(format!("via VIP {}: {error}", path.vip));
        let hop = match tokio::time::timeout(timeout / 2, self.next_hop(path)).await {
            Ok(hop) => hop?,
            Err(_) => {
                return Err(ours(io::Error::other("the link-layer address of the next hop is not known")));
            }
        };
        let port = self.own_address(path).and_then(|own| reserve_port(path, own)).map_err(ours)?;
        let client = port.local_addr().map_err(ours)?;
        let VipPath { vip, server, dsr, .. } = path;
        let seq = u32::from_ne_bytes(convey_random::secret());
        let probe = VipProbe { client, vip, server, dsr, seq };
        let tunnel = self.tunnel(path).map_err(ours)?;
        let socket = ProbeSocket::open(hop.interface, client.port()).map_err(ours)?;
        match tokio::time::timeout(timeout, exchange(socket, &probe, (&hop, tunnel.as_ref()))).await {
            Ok(Ok(VipAnswer::Accepted)) => Ok(()),
            Ok(Ok(answer)) => Err(PathFault::Server(fault(&path, Some(answer)))),
            Ok(Err(error)) => Err(ours(error)),
            Err(_) => Err(PathFault::Server(fault(&path, None))),
        }
    }

    /// Address of this host to which a server with the VIP can reply. For a tunnel between address
    /// families, an address of the interface that leads to the server is preferred.
    fn own_address(&self, VipPath { vip, server, .. }: VipPath) -> io::Result<IpAddr> {
        if vip.is_ipv4() == server.is_ipv4() {
            return own_address(server);
        }
        let snapshot = self.snapshot.load();
        let vips = snapshot.frontends.iter().flat_map(|frontend| &frontend.config.listen).map(Listen::ip);
        let own = plan::own_address(vip.ip(), server.ip(), &vips.collect(), &snapshot.network);
        own.ok_or_else(|| io::Error::other("this host has no address of the VIP's family"))
    }

    /// Headers of the tunnel to the server. `None` if the backend uses no tunnel.
    fn tunnel(&self, path: VipPath) -> io::Result<Option<Envelope>> {
        if !path.dsr.has_tunnel() {
            return Ok(None);
        }
        let snapshot = self.snapshot.load();
        let vips = snapshot.frontends.iter().flat_map(|frontend| &frontend.config.listen);
        let vips = vips.map(Listen::ip).collect();
        let tunnel = tunnel((path.dsr, &path.tunnel), path.server.ip(), &vips, &snapshot.network);
        let no_address = || io::Error::other("this host has no address of the server's family");
        let tunnel = tunnel.ok_or_else(no_address)?;
        Ok(Some(Envelope::new(&tunnel, &FlowKey::tcp(path.vip, path.server))))
    }

    /// Next hop to the server. Waits until the kernel has resolved the next hop's link-layer
    /// address.
    async fn next_hop(&self, path: VipPath) -> Result<NextHop, PathFault> {
        loop {
            let network = self.snapshot.load().network.clone();
            let index = match path.dsr {
                DsrKind::L3 | DsrKind::Ipip | DsrKind::Gue => network.lookup(path.server.ip()),
                DsrKind::L2 => network.lookup_on_link(path.server.ip()),
            };
            match index {
                Ok(index) => {
                    if let Some(hop) = network.get(index) {
                        return Ok(*hop);
                    }
                }
                Err(Unreachable::Unresolved { .. }) => {}
                Err(unreachable) => {
                    return Err(PathFault::Ours(format!("via VIP {}: {unreachable}", path.vip)));
                }
            }
            tokio::time::sleep(NEXT_HOP_EVERY).await;
        }
    }
}

/// SNAT address to use as the source of a probe. `None` if the configuration names none, or if the
/// kernel chooses a suitable address anyway.
fn source(server: &ServerKey, snapshot: &Snapshot, named: &[IpAddr]) -> Option<IpAddr> {
    if named.is_empty() {
        return None;
    }
    let (network, ip) = (&snapshot.network, server.addr.ip());
    let seen = SnatChoice::Named.among(network, ip, named);
    let is_usual = network.source_to(ip, |_| true).is_some_and(|usual| seen.contains(&usual));
    let own = seen.into_iter().find(|ip| network.is_own(*ip)).filter(|_| !is_usual)?;
    let mut with_snat = snapshot.frontends.iter().filter(|frontend| frontend.config.mode.has_snat());
    with_snat.any(|frontend| frontend.config.uses(&server.backend)).then_some(own)
}

/// Sends the SYN and waits for the answer.
async fn exchange(
    mut socket: ProbeSocket,
    probe: &VipProbe,
    (hop, tunnel): (&NextHop, Option<&Envelope>),
) -> io::Result<VipAnswer> {
    let mut frame = Vec::new();
    let into_tunnel = |frame: &mut Vec<u8>| {
        if let Some(envelope) = tunnel {
            enclose(frame, ETHERNET_LEN, envelope);
        }
    };
    probe.syn(hop, &mut frame);
    into_tunnel(&mut frame);
    socket.send(&frame)?;
    let answer = socket.receive(|frame| probe.answer(frame)).await?;
    if answer == VipAnswer::Accepted {
        probe.reset(hop, &mut frame);
        into_tunnel(&mut frame);
        socket.send(&frame)?;
    }
    Ok(answer)
}

/// Reserves a local port for the probe. With `l3` the client address is the VIP itself, because the
/// NAT scripts on servers do not handle replies to the balancer's own addresses. With the other
/// kinds the client address is `own`: the server has the VIP, and would drop packets from it.
fn reserve_port(path: VipPath, own: IpAddr) -> io::Result<TcpSocket> {
    let ip = match path.dsr {
        DsrKind::L3 => path.vip.ip(),
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => own,
    };
    let socket = if ip.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind((ip, 0).into())?;
    Ok(socket)
}

/// Source address that this host uses for its own packets to this address.
fn own_address(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// VIPs whose clients are sent to this server in mode `dsr`, with the first port of each range.
fn paths(server: &ServerKey, snapshot: &Snapshot) -> Vec<VipPath> {
    let leads = |frontend: &&Arc<Frontend>| {
        let config = &frontend.config;
        config.uses(&server.backend) && config.mode.is_dsr() && config.protocol == Protocol::Tcp
    };
    let path = |frontend: &Frontend, listen: &Listen| {
        let vip = SocketAddr::new(listen.ip(), *listen.ports().start());
        let server = SocketAddr::new(server.addr.ip(), vip.port());
        let config = &frontend.pool.config;
        VipPath { vip, server, dsr: config.dsr, tunnel: config.tunnel }
    };
    let frontends = snapshot.frontends.iter().filter(leads);
    let all = frontends.flat_map(|frontend| frontend.config.listen.iter().map(move |at| path(frontend, at)));
    let fits = |path: &VipPath| path.dsr.has_tunnel() || path.vip.is_ipv4() == path.server.is_ipv4();
    all.filter(fits).take(MAX_VIPS).collect()
}

/// Operator-facing error message about a failed probe. `answer` is `None` if no answer came.
fn fault(VipPath { vip, server, dsr, .. }: &VipPath, answer: Option<VipAnswer>) -> String {
    let of_server = match dsr {
        DsrKind::L3 => "the server's NAT is for another port or interface",
        DsrKind::L2 => "the server does not have the VIP",
        DsrKind::Ipip | DsrKind::Gue => "the server has no such tunnel, or does not have the VIP",
    };
    match answer {
        Some(VipAnswer::Accepted) => format!("VIP {vip} answers"),
        None => format!(
            "no answer from VIP {vip} through server {}: {of_server}, or a firewall drops the packets",
            server.ip()
        ),
        Some(VipAnswer::WrongSource { from }) => match dsr {
            DsrKind::L3 => {
                format!("{from} answers instead of VIP {vip}: the server's NAT is missing or wrong")
            }
            DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => {
                format!("{from} answers instead of VIP {vip}: a NAT on the server changes the source")
            }
        },
        Some(VipAnswer::Refused { from }) => {
            format!(
                "{from} refuses clients of VIP {vip}: no program listens on the VIP, or a firewall rejects them"
            )
        }
        Some(VipAnswer::Unreachable { from, icmp: [kind, code] }) => format!(
            "{from} reports that VIP {vip} is unreachable (ICMP type {kind}, code {code}): a firewall rejects clients"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture as model_fixture;
    use convey_model::{FrontendConfig, Mode, NextHops};
    use convey_snapshot::fixture;

    fn path(dsr: DsrKind) -> VipPath {
        let [vip, server] = ["10.0.0.100:80", "10.0.0.11:80"].map(|addr| addr.parse().unwrap());
        VipPath { vip, server, dsr, tunnel: TunnelConfig::default() }
    }

    #[test]
    fn probes_of_passthrough_come_from_the_named_snat_address() {
        let server = ServerKey {
            backend: "pool".to_owned(),
            server: "s".to_owned(),
            addr: "10.2.0.11:80".parse().unwrap(),
        };
        let network = |own: &[&str]| {
            let links = [model_fixture::interface(2, own)];
            Arc::new(NextHops::new(&links, [model_fixture::route("10.2.0.0/24", 2, None)], &[]))
        };
        let snapshot = |mode, own: &[&str]| {
            let pool = fixture::pool("pool", Vec::new());
            let config = model_fixture::frontend("web", &["10.2.0.9:80"], "pool");
            let frontends = vec![fixture::frontend_of(FrontendConfig { mode, ..config }, &pool)];
            Snapshot { network: network(own), ..fixture::snapshot(frontends, vec![pool]) }
        };
        let from = |mode, own: &[&str], named: &str| {
            source(&server, &snapshot(mode, own), &[named.parse().unwrap()]).map(|ip| ip.to_string())
        };
        let both = ["10.2.0.1", "10.2.0.5"];
        assert_eq!(from(Mode::Passthrough, &both, "10.2.0.5").as_deref(), Some("10.2.0.5"));
        assert_eq!(from(Mode::Passthrough, &both, "10.2.0.1"), None, "the kernel chooses it");
        assert_eq!(from(Mode::Dsr, &both, "10.2.0.5"), None);
        assert_eq!(from(Mode::Passthrough, &["10.2.0.1"], "10.2.0.5"), None, "it is gone");
    }

    #[test]
    fn each_fault_is_told_by_its_likely_cause() {
        let from: SocketAddr = "10.0.0.11:80".parse().unwrap();
        let icmp = VipAnswer::Unreachable { from: from.ip(), icmp: [3, 13] };
        for (dsr, answer, cause) in [
            (DsrKind::L3, Some(VipAnswer::WrongSource { from }), "the server's NAT is missing or wrong"),
            (DsrKind::L2, Some(VipAnswer::WrongSource { from }), "a NAT on the server"),
            (
                DsrKind::L3,
                None,
                "through server 10.0.0.11: the server's NAT is for another port or interface",
            ),
            (DsrKind::L2, None, "through server 10.0.0.11: the server does not have the VIP"),
            (
                DsrKind::L2,
                Some(VipAnswer::Refused { from }),
                "no program listens on the VIP, or a firewall rejects",
            ),
            (DsrKind::L3, Some(icmp), "(ICMP type 3, code 13): a firewall rejects clients"),
        ] {
            let told = fault(&path(dsr), answer);
            assert!(told.contains(cause) && told.contains("VIP 10.0.0.100:80"), "{told}");
        }
    }

    #[test]
    fn dsr_server_is_probed_at_the_vips_of_its_family() {
        let server = ("a", "10.0.0.11:80");
        let pool = fixture::pool("web", vec![(fixture::server(server.0, server.1), fixture::up())]);
        let frontend = |name: &str, mode, listen: &[&str]| {
            let config = model_fixture::frontend(name, listen, "web");
            fixture::frontend_of(FrontendConfig { mode, ..config }, &pool)
        };
        let frontends = vec![
            frontend("proxy", Mode::Proxy, &["10.0.0.100:8080"]),
            frontend("dsr", Mode::Dsr, &["10.0.0.100:80", "[2001:db8::100]:80"]),
        ];
        let snapshot = fixture::snapshot(frontends, vec![pool.clone()]);
        let key = |backend: &str| ServerKey {
            backend: backend.into(),
            server: server.0.into(),
            addr: server.1.parse().unwrap(),
        };
        assert_eq!(paths(&key("web"), &snapshot), [path(DsrKind::L3)]);
        assert_eq!(paths(&key("other"), &snapshot), []);
    }
}
