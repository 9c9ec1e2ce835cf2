//! Findings for servers that fail, with likely causes. Pure.

use std::net::{IpAddr, SocketAddr};

use convey_config::listed;
use convey_model::HealthCheck;

use crate::Diagnosis;

/// A server of a backend that a frontend uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetServer {
    /// Name of the server: `BACKEND/SERVER`.
    pub name: String,
    /// Address that the server listens on.
    pub addr: SocketAddr,
    /// Health check of the server.
    pub check: HealthCheck,
    /// Whether convey opens TCP connections to the server.
    pub uses_tcp: bool,
    /// Whether the server itself has the VIP (`dsr = "l2"`, or a tunnel).
    pub has_vip: bool,
    /// Further ports of the server, from frontends with port ranges. If there are many such ports,
    /// a sample of them.
    pub more_ports: Vec<u16>,
    /// Request that the server must answer. Set only in mode http, for a server whose health check
    /// sends no request.
    pub request: Option<HealthCheck>,
}

impl TargetServer {
    /// Address that the health check connects to.
    pub fn probed(&self) -> SocketAddr {
        SocketAddr::new(self.addr.ip(), self.check.port.unwrap_or(self.addr.port()))
    }

    /// Description for messages, such as `server web/app1 (10.0.0.11)`.
    pub fn description(&self) -> String {
        format!("server {} ({})", self.name, self.addr.ip())
    }
}

/// Outcome of a connection to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    /// The connection was opened.
    Opened,
    /// The connection was opened, and the server ended it immediately.
    Ended {
        /// Whether the server ended the connection with a reset instead of a close.
        is_reset: bool,
    },
    /// The server answered the SYN with a reset.
    Refused,
    /// An ICMP error rejected the connection.
    Rejected {
        /// Sender of the ICMP error, usually the server itself.
        by: IpAddr,
        /// Description of the ICMP error.
        how: String,
    },
    /// No answer arrived.
    Silent,
    /// There is no route, or the next hop did not answer on the link.
    Unreachable(String),
    /// The connection was not attempted, because this host lacks a resource.
    NotTried(String),
}

/// Further facts about a server, which help to find the cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hints {
    /// Whether the host of the server answers pings, ARP or neighbour discovery.
    pub(super) is_there: bool,
    /// Other ports of the server that accept connections.
    pub(super) open_ports: Vec<u16>,
    /// Configuration file, if the file contains the address of the server; otherwise `None`.
    pub(super) file: Option<String>,
}

/// Finding for a server that does not work; `None` if it works.
pub(super) fn diagnose(server: &TargetServer, reached: &Reached, hints: &Hints) -> Option<Diagnosis> {
    match reached {
        Reached::Opened | Reached::NotTried(_) => None,
        Reached::Ended { is_reset } => Some(ended(server, *is_reset)),
        Reached::Refused => Some(refused(server, hints)),
        Reached::Rejected { by, how } => Some(rejected(server, *by, how)),
        Reached::Silent => Some(silent(server, hints)),
        Reached::Unreachable(why) => Some(unreachable(server, why)),
    }
}

fn ended(server: &TargetServer, is_reset: bool) -> Diagnosis {
    let does = if is_reset { "resets" } else { "closes" };
    let port = server.probed().port();
    let seen =
        format!("{} accepts connections to port {port}, but {does} them immediately", server.description());
    let why = "The service does not serve this host: its program fails, its limit of connections is reached, or its access list does not \
               contain this host. Look at the log of the service.";
    Diagnosis::error("server-ends", seen, why).on(server.description())
}

/// Finding for a server of mode http that accepts connections but answers no request.
pub(super) fn mute(server: &TargetServer, words: &str) -> Diagnosis {
    let seen =
        format!("{} accepts connections, but does not answer an HTTP request: {words}", server.description());
    let why = "Clients of mode http get an error. Look at the log of the service. A health check with `kind = \"http\"` takes such a \
               server out of rotation.";
    Diagnosis::error("server-mute", seen, why).on(server.description())
}

/// Finding for a server that refuses connections to some ports of a range. `tried` is the number of
/// ports that doctor tried.
pub(super) fn closed_ports(server: &TargetServer, refused: &[u16], tried: usize) -> Option<Diagnosis> {
    if refused.is_empty() {
        return None;
    }
    let seen = format!(
        "{} refuses connections to {} of {tried} tested ports of its frontends: {}",
        server.description(),
        refused.len(),
        listed(refused.iter(), 4)
    );
    let why = "No process listens on these ports, so their clients are refused. If the service opens ports on demand, as FTP does, this is no \
               fault. On the server, `ss -ltn` lists the open ports.";
    let found = if refused.len() == tried { Diagnosis::error } else { Diagnosis::warning };
    Some(found("range-refused", seen, why.to_owned()).on(server.description()))
}

fn refused(server: &TargetServer, hints: &Hints) -> Diagnosis {
    let at = server.probed();
    let seen = format!("{} refuses connections to port {}", server.description(), at.port());
    let why = "No process listens on this address and port: the service does not run, or it uses another address or port.";
    if let [port] = hints.open_ports[..]
        && server.check.port.is_none()
        && let Some(file) = &hints.file
    {
        let mut right = at;
        right.set_port(port);
        let pattern = at.to_string().replace('.', "\\.").replace('[', "\\[").replace(']', "\\]");
        return Diagnosis::error("server-refused", format!("{seen}, but accepts them at port {port}"), why)
            .fix(format!("sed -i 's/\"{pattern}\"/\"{right}\"/' {file}"));
    }
    let of_vip = if server.has_vip {
        " The service has to listen on the server's own address, too, for health checks."
    } else {
        ""
    };
    let look = format!("On the server, `ss -ltnp 'sport = :{}'` should show the service.", at.port());
    Diagnosis::error("server-refused", seen, format!("{why}{of_vip} {look}")).on(server.description())
}

fn rejected(server: &TargetServer, by: IpAddr, how: &str) -> Diagnosis {
    let port = server.probed().port();
    let whose =
        if by == server.addr.ip() { "its own firewall".to_owned() } else { format!("{by}, on the path") };
    let seen = format!(
        "connections to port {port} of {} are rejected: ICMP \"{how}\" from {by}",
        server.description()
    );
    let why = format!(
        "The ICMP error comes from {whose}: a server on which no process listens would send a TCP reset. {}",
        elsewhere(port)
    );
    let place = if by == server.addr.ip() { server.description() } else { by.to_string() };
    Diagnosis::error("server-rejected", seen, why).on(place).fix(accept(server.addr.ip(), port))
}

fn silent(server: &TargetServer, hints: &Hints) -> Diagnosis {
    let port = server.probed().port();
    let seen = format!("{} does not answer at port {port}", server.description());
    if hints.is_there {
        let why = format!(
            "The host is up. So a firewall on the server or on the path drops the packets, or the answers take another path. {}",
            elsewhere(port)
        );
        return Diagnosis::error("server-silent", seen, why)
            .on(server.description())
            .fix(accept(server.addr.ip(), port));
    }
    let why = "The host sends no answer at all: it is off, a router on the path has no route to it, or a firewall drops all packets.";
    let look = format!("`traceroute -n {}` shows how far packets get.", server.addr.ip());
    Diagnosis::error("server-silent", seen, format!("{why} {look}")).on(server.description())
}

fn unreachable(server: &TargetServer, why: &str) -> Diagnosis {
    let seen = format!("{} cannot be reached: {why}", server.description());
    let ip = server.addr.ip();
    let look = format!(
        "The server is off, is on another link, or has another address. `ip route get {ip}` and `ip neigh show {ip}` show the path to it."
    );
    Diagnosis::error("server-unreachable", seen, look).on(server.description())
}

/// Command that inserts a rule to accept connections before the existing rules.
fn accept(ip: IpAddr, port: u16) -> String {
    let program = if ip.is_ipv4() { "iptables" } else { "ip6tables" };
    format!("{program} -I INPUT -p tcp --dport {port} -j ACCEPT")
}

fn elsewhere(port: u16) -> String {
    format!(
        "If the server's firewall is nftables, use `nft insert rule inet filter input tcp dport {port} accept`."
    )
}

/// Finding for a server that accepts connections but fails its HTTP or UDP health check.
pub(super) fn wrong_reply(server: &TargetServer, words: &str) -> Diagnosis {
    let seen = format!("the health check of {} fails: {words}", server.description());
    let why = "The host can be reached, but the service does not answer as `health_check` expects. Look at the service's log, or \
               change `health_check`.";
    Diagnosis::error("server-reply", seen, why).on(server.description())
}

/// Ports to try if the server's port refuses connections: ports of servers on other hosts, and
/// common ports. Ports of other servers on the same host are not tried.
pub(super) fn other_ports(server: &TargetServer, all: &[TargetServer]) -> Vec<u16> {
    const USUAL: [u16; 6] = [80, 443, 3000, 8000, 8080, 8443];
    let own = server.probed().port();
    let mut ports: Vec<u16> = all.iter().map(|other| other.probed().port()).chain(USUAL).collect();
    let host = server.addr.ip();
    let is_of_another =
        |port: u16| all.iter().any(|other| other.probed().ip() == host && other.probed().port() == port);
    ports.retain(|port| *port != own && *port != 0 && !is_of_another(*port));
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(16);
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::ProbeKind;

    fn server() -> TargetServer {
        TargetServer {
            name: "web/a".to_owned(),
            addr: "10.0.0.11:80".parse().unwrap(),
            check: HealthCheck::new(ProbeKind::Tcp),
            uses_tcp: true,
            has_vip: false,
            more_ports: Vec::new(),
            request: None,
        }
    }

    fn judged(reached: &Reached, hints: &Hints) -> (&'static str, Vec<String>) {
        let found = diagnose(&server(), reached, hints).unwrap();
        (found.check, found.fix)
    }

    #[test]
    fn each_way_to_fail_has_its_name() {
        let there = Hints { is_there: true, ..Hints::default() };
        let by = "10.0.0.11".parse().unwrap();
        let accept = vec!["iptables -I INPUT -p tcp --dport 80 -j ACCEPT".to_owned()];
        let rejected = Reached::Rejected { by, how: "port unreachable".to_owned() };
        for (reached, hints, expected) in [
            (Reached::Refused, &there, ("server-refused", Vec::new())),
            (Reached::Ended { is_reset: true }, &there, ("server-ends", Vec::new())),
            (Reached::Silent, &there, ("server-silent", accept.clone())),
            (Reached::Silent, &Hints::default(), ("server-silent", Vec::new())),
            (rejected, &there, ("server-rejected", accept)),
            (Reached::Unreachable("no route".to_owned()), &there, ("server-unreachable", Vec::new())),
        ] {
            assert_eq!(judged(&reached, hints), expected);
        }
        assert_eq!(diagnose(&server(), &Reached::Opened, &there), None);
        assert_eq!(diagnose(&server(), &Reached::NotTried("no descriptor".to_owned()), &there), None);
    }

    #[test]
    fn range_without_listeners_is_an_error_and_one_with_some_a_warning() {
        use crate::Severity;
        let found = |refused: &[u16]| closed_ports(&server(), refused, 3).map(|found| found.severity);
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[81]), Some(Severity::Warning));
        assert_eq!(found(&[81, 82, 83]), Some(Severity::Error));
    }

    #[test]
    fn single_open_port_is_suggested_for_a_refusing_server() {
        let mut hints = Hints { open_ports: vec![8080], file: Some("a.toml".to_owned()), is_there: true };
        let (_, fix) = judged(&Reached::Refused, &hints);
        assert_eq!(fix, [r#"sed -i 's/"10\.0\.0\.11:80"/"10.0.0.11:8080"/' a.toml"#]);
        hints.open_ports.push(443);
        assert!(judged(&Reached::Refused, &hints).1.is_empty(), "nobody knows which of two it is");
    }
}
