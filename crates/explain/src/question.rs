//! Parses the question of an explanation: the client and the frontend. Pure.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use convey_config::{did_you_mean, listed};
use convey_http_core::{FieldTrust, NamedClient, RequestHead};
use convey_model::{FlowKey, HashOn};
use convey_snapshot::{Frontend, Snapshot};

use super::route::AskedRoute;

/// Maximum number of addresses that an error lists.
const MAX_LISTED: usize = 8;

/// Client address, with its port if the port is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddr {
    /// The address.
    pub ip: IpAddr,
    /// The port.
    pub port: Option<u16>,
}

/// Operator-facing reason why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswerable {
    /// No such frontend exists.
    #[error("{0}")]
    Unknown(String),
    /// The question is incomplete or contradictory.
    #[error("{0}")]
    Unclear(String),
}

/// Frontend at one of its listen addresses, and the client that the question is about.
pub(super) struct AskedPlace {
    pub(super) frontend: Arc<Frontend>,
    /// Listen address as the data path uses it: the wildcard address if the frontend listens on all
    /// addresses.
    pub(super) vip: SocketAddr,
    /// All listen addresses of the frontend that the question can refer to.
    pub(super) fitting: Vec<SocketAddr>,
    /// Other end of the connection: the client, or a proxy.
    pub(super) peer: ClientAddr,
    /// Client: the one that a trusted proxy names in the request in question, or the peer.
    pub(super) client: ClientAddr,
    /// Client that the trusted proxy `peer` names. `None` if the question is about no request of
    /// such a proxy.
    pub(super) named: Option<NamedClient>,
    /// Route of the request in question. `None` without a request.
    pub(super) asked: Option<AskedRoute>,
}

impl AskedPlace {
    /// Client's address and port. If the question contains no port, an arbitrary port is used.
    pub(super) fn client_addr(&self) -> SocketAddr {
        SocketAddr::new(self.client.ip, self.client.port.unwrap_or(1))
    }

    /// Head of the request in question.
    pub(super) fn head(&self) -> Option<&RequestHead> {
        self.asked.as_ref()?.head.as_deref()
    }

    /// Trust in the headers of the request in question that describe its client.
    pub(super) fn field_trust(&self) -> FieldTrust<'_> {
        let config = &self.frontend.config;
        config.field_trust(config.trusts_fields_of(self.peer.ip))
    }

    /// Flow key of the client's packets. `None` if the client's port is unknown.
    pub(super) fn key(&self) -> Option<FlowKey> {
        let client = SocketAddr::new(self.client.ip, self.client.port?);
        Some(FlowKey::new(self.frontend.config.protocol, client, self.vip))
    }

    /// Whether the choice of a server depends on the client's port.
    pub(super) fn depends_on_port(&self) -> bool {
        depends_on_tuple(&self.frontend)
    }
}

impl FromStr for ClientAddr {
    type Err = String;

    /// Parses `IP` or `IP:PORT`, for IPv6 `[IP]:PORT`.
    fn from_str(text: &str) -> Result<ClientAddr, String> {
        let with_port = text.parse::<SocketAddr>().map(|addr| (addr.ip(), Some(addr.port())));
        let found = with_port.or_else(|_| text.parse::<IpAddr>().map(|ip| (ip, None)));
        let (ip, port) = found.map_err(|_| {
            format!("client: found {text:?}, expected an address such as 203.0.113.9, 203.0.113.9:4242 or [2001:db8::9]:4242")
        })?;
        if port == Some(0) {
            return Err(format!("client: found {text:?}, expected a port from 1 to 65535, or no port"));
        }
        Ok(ClientAddr { ip: ip.to_canonical(), port })
    }
}

impl fmt::Display for ClientAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

/// Finds the frontend by name, name with port, or address with or without port.
pub(super) fn place(snapshot: &Snapshot, client: ClientAddr, text: &str) -> Result<AskedPlace, Unanswerable> {
    let (frontend, places) = named(snapshot, text).unwrap_or_else(|| at_address(snapshot, text))?;
    let is_ours = |addr: &SocketAddr| {
        // An IPv6 wildcard socket also accepts IPv4 clients.
        let is_dual = frontend.config.mode.is_proxied() && addr.is_ipv6() && addr.ip().is_unspecified();
        addr.is_ipv4() == client.ip.is_ipv4() || is_dual
    };
    let fitting: Vec<SocketAddr> = places.into_iter().filter(is_ours).collect();
    let keeps_port = frontend.pool.servers.iter().any(|server| server.config.keeps_port());
    let matters = depends_on_tuple(&frontend) || keeps_port;
    let name = &frontend.config.name;
    match fitting[..] {
        [] => Err(Unanswerable::Unclear(format!(
            "frontend {name} listens on no {family} address, but the client {client} has an {family} address",
            family = if client.ip.is_ipv4() { "IPv4" } else { "IPv6" }
        ))),
        [first, _, ..] if matters => Err(Unanswerable::Unclear(format!(
            "frontend {name} listens on {} addresses and ports, and the choice of the server depends on them: name one, such as {name}:{} or {first}",
            fitting.len(),
            first.port()
        ))),
        [vip, ..] => {
            Ok(AskedPlace { frontend, vip, fitting, peer: client, client, named: None, asked: None })
        }
    }
}

fn depends_on_tuple(frontend: &Frontend) -> bool {
    let config = &frontend.pool.config;
    let is_by_tuple = match config.hash {
        HashOn::Tuple | HashOn::QuicCid => true,
        HashOn::Source => false,
    };
    config.algorithm.hashes() && is_by_tuple
}

/// Frontend, and the listen addresses of this frontend that the question can refer to.
type Meant = (Arc<Frontend>, Vec<SocketAddr>);

/// Finds a frontend by its name, or by its name and a port. `None` if no frontend has the name.
fn named(snapshot: &Snapshot, text: &str) -> Option<Result<Meant, Unanswerable>> {
    let called = |name: &str| snapshot.frontends.iter().find(|frontend| frontend.config.name == name);
    if let Some(frontend) = called(text) {
        return Some(Ok((frontend.clone(), frontend.config.addrs().collect())));
    }
    let (name, port) = text.rsplit_once(':')?;
    let (frontend, port) = (called(name)?, port.parse::<u16>().ok()?);
    let at_port: Vec<SocketAddr> = frontend.config.addrs().filter(|addr| addr.port() == port).collect();
    if at_port.is_empty() {
        let listens = listed(frontend.config.listen.iter(), MAX_LISTED);
        let why = format!("frontend {name} does not listen on port {port}; it listens on {listens}");
        return Some(Err(Unanswerable::Unknown(why)));
    }
    Some(Ok((frontend.clone(), at_port)))
}

/// Finds a frontend by its listen address, or by a wildcard address that includes the address.
fn at_address(snapshot: &Snapshot, text: &str) -> Result<Meant, Unanswerable> {
    let with_port = text.parse::<SocketAddr>().map(|addr| (addr.ip(), Some(addr.port())));
    let Ok((ip, port)) = with_port.or_else(|_| text.parse::<IpAddr>().map(|ip| (ip, None))) else {
        let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
        let names = snapshot.frontends.iter().map(|frontend| frontend.config.name.as_str());
        let meant = did_you_mean(name, names);
        return Err(Unanswerable::Unknown(format!("there is no frontend {text}{meant}")));
    };
    let places = |is_it: &dyn Fn(IpAddr) -> bool| -> Vec<(Arc<Frontend>, Vec<SocketAddr>)> {
        let of = |frontend: &Arc<Frontend>| {
            let fits = |addr: &SocketAddr| is_it(addr.ip()) && port.is_none_or(|port| addr.port() == port);
            let addrs: Vec<SocketAddr> = frontend.config.addrs().filter(fits).collect();
            (!addrs.is_empty()).then(|| (frontend.clone(), addrs))
        };
        snapshot.frontends.iter().filter_map(of).collect()
    };
    let mut found = places(&|at| at == ip);
    if found.is_empty() {
        found = places(&|at| at.is_unspecified() && at.is_ipv4() == ip.is_ipv4());
    }
    match found.len() {
        0 => {
            let of = |frontend: &Arc<Frontend>| {
                format!("{} on {}", frontend.config.name, listed(frontend.config.listen.iter(), MAX_LISTED))
            };
            let all = listed(snapshot.frontends.iter().map(of), MAX_LISTED);
            Err(Unanswerable::Unknown(format!("no frontend listens on {text}; existing frontends: {all}")))
        }
        1 => Ok(found.remove(0)),
        _ => {
            let names: Vec<&str> = found.iter().map(|(frontend, _)| frontend.config.name.as_str()).collect();
            let names = names.join(", ");
            Err(Unanswerable::Unclear(format!(
                "several frontends listen on {text}: select one by its name ({names})"
            )))
        }
    }
}
