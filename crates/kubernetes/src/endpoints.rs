//! Derives servers from the EndpointSlices of a Service (discovery.k8s.io/v1). Pure: the input is
//! slices, the output is servers.
//!
//! The rules are those of kube-proxy. A ready endpoint becomes a server. An endpoint that is
//! terminating but still serving becomes a draining server; if no endpoint is ready, it becomes a
//! server that is not draining. All other endpoints do not become servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::cluster::bounded;
use crate::objects::{EndpointConditions, EndpointPort, EndpointSlice, SliceEndpoint};
use convey_model::{DiscoveredServer, Protocol, ServicePort};

/// Maximum number of slices of a Service. Kubernetes creates slices of 100 endpoints.
const MAX_SLICES: usize = 256;
/// Maximum number of endpoints of a slice; the API allows no more.
const MAX_ENDPOINTS: usize = 1_000;
/// Maximum length of an object name in Kubernetes, in bytes.
const MAX_NAME: usize = 253;

/// EndpointSlices of a Service, and the servers at one of its ports.
#[derive(Debug)]
pub(crate) struct Endpoints {
    wanted: WantedPort,
    slices: BTreeMap<String, Slice>,
    /// Slices of a list that is not complete yet; `None` if no list is in progress.
    listed: Option<BTreeMap<String, Slice>>,
    is_cut: bool,
    has_room: bool,
}

/// Port of a Service whose endpoints become servers.
#[derive(Debug)]
struct WantedPort {
    port: ServicePort,
    /// Protocol of the port; `None` means TCP or UDP.
    protocol: Option<Protocol>,
}

/// Formats the wanted port, such as `http`, or `53/UDP`.
impl fmt::Display for WantedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(Protocol::Udp) => write!(f, "{}/UDP", self.port),
            _ => self.port.fmt(f),
        }
    }
}

/// Part of an EndpointSlice that convey uses.
#[derive(Debug, Default)]
struct Slice {
    endpoints: Vec<Found>,
    /// Operator-facing reason why convey ignores parts of the slice; `None` if it uses the whole
    /// slice.
    note: Option<String>,
}

/// Endpoint that may become a server. If several endpoints have the same name, the first in sort
/// order becomes the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    name: String,
    terminates: bool,
    addr: SocketAddr,
    zone: Option<String>,
}

impl Endpoints {
    /// Creates an empty set of slices for this port. `None` as `protocol` means TCP or UDP.
    pub(crate) fn new(port: ServicePort, protocol: Option<Protocol>) -> Endpoints {
        let wanted = WantedPort { port, protocol };
        Endpoints { wanted, slices: BTreeMap::new(), listed: None, is_cut: false, has_room: false }
    }

    /// Begins a new list of all slices. The previous slices stay until the list is complete.
    pub(crate) fn begin_list(&mut self) {
        self.listed = Some(BTreeMap::new());
        (self.is_cut, self.has_room) = (false, false);
    }

    /// Adds or updates a slice.
    pub(crate) fn apply(&mut self, slice: &EndpointSlice) {
        let slices = self.listed.as_mut().unwrap_or(&mut self.slices);
        let name = slice.metadata.name.clone().unwrap_or_default();
        if slices.len() >= MAX_SLICES && !slices.contains_key(&name) {
            self.is_cut = true;
            return;
        }
        slices.insert(name.clone(), Slice::read(&name, slice, &self.wanted));
    }

    /// Removes a slice.
    pub(crate) fn remove(&mut self, slice: &EndpointSlice) {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        self.has_room |= self.is_cut;
        self.listed.as_mut().unwrap_or(&mut self.slices).remove(name);
    }

    /// Whether slices that exceeded the maximum number of slices would now be accepted. convey then
    /// needs a new list to find them.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room
    }

    /// Completes the list. Slices that are not in the list are removed.
    pub(crate) fn end_list(&mut self) {
        if let Some(listed) = self.listed.take() {
            self.slices = listed;
        }
    }

    /// Servers, sorted by name. The name of a server is the name of the pod, or address and port if
    /// there is no pod. A pod with addresses of both families is one server, at its IPv4 address.
    /// If an endpoint is terminating in one slice and ready in another slice, it counts as ready.
    pub(crate) fn servers(&self) -> Vec<DiscoveredServer> {
        let mut all: Vec<&Found> = self.slices.values().flat_map(|slice| &slice.endpoints).collect();
        all.sort_unstable();
        all.dedup_by(|a, b| a.name == b.name);
        let is_any_ready = all.iter().any(|found| !found.terminates);
        let server = |found: &Found| DiscoveredServer {
            name: found.name.clone(),
            addr: found.addr,
            is_draining: found.terminates && is_any_ready,
            zone: found.zone.clone(),
        };
        all.into_iter().map(server).collect()
    }

    /// Operator-facing reasons why endpoints and slices are ignored.
    pub(crate) fn notes(&self) -> BTreeSet<String> {
        if self.slices.is_empty() {
            return BTreeSet::from(["the Service has no EndpointSlice, or does not exist".to_owned()]);
        }
        // One note is enough, because all slices of a Service are alike.
        let first = self.slices.values().find_map(|slice| slice.note.clone());
        let cut = self.is_cut.then(|| {
            format!("the Service has more than {MAX_SLICES} EndpointSlices; convey ignores the others")
        });
        first.into_iter().chain(cut).collect()
    }
}

impl Slice {
    fn read(name: &str, slice: &EndpointSlice, wanted: &WantedPort) -> Slice {
        let note = |why: String| Slice {
            note: Some(bounded(&format!("EndpointSlice {name} {why}"))),
            ..Slice::default()
        };
        if !matches!(&*slice.address_type, "IPv4" | "IPv6") {
            return note(format!("has addresses of type {:?}, which cannot be servers", slice.address_type));
        }
        let ports = slice.ports.as_deref().unwrap_or_default();
        let Some(number) = ports.iter().find_map(|found| number_of(found, wanted)) else {
            // If the pods of a Service have no addresses yet, the slice has no ports.
            return match slice.endpoints.is_empty() {
                true => Slice::default(),
                false => note(format!("has no port {wanted} (its ports: {})", shown(ports))),
            };
        };
        let looked_at = slice.endpoints.iter().take(MAX_ENDPOINTS);
        Slice { endpoints: looked_at.filter_map(|endpoint| found(endpoint, number)).collect(), note: None }
    }
}

/// Number of this port; `None` if the port is not the wanted port.
fn number_of(found: &EndpointPort, wanted: &WantedPort) -> Option<u16> {
    let number = u16::try_from(found.port?).ok().filter(|number| *number != 0)?;
    let protocol = match found.protocol.as_deref() {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some(_) => return None,
    };
    if wanted.protocol.is_some_and(|wanted| wanted != protocol) {
        return None;
    }
    let is_wanted = match &wanted.port {
        ServicePort::Name(name) => found.name.as_ref() == Some(name),
        ServicePort::Number(wanted) => number == *wanted,
    };
    is_wanted.then_some(number)
}

fn shown(ports: &[EndpointPort]) -> String {
    let shown = |port: &EndpointPort| {
        let mut number = port.port.map_or("any".to_owned(), |number| number.to_string());
        if let Some(protocol) = port.protocol.as_deref().filter(|protocol| *protocol != "TCP") {
            number = format!("{number}/{protocol}");
        }
        port.name
            .as_ref()
            .filter(|name| !name.is_empty())
            .map_or(number.clone(), |name| format!("{name} {number}"))
    };
    match ports {
        [] => "none".to_owned(),
        ports => ports.iter().take(8).map(shown).collect::<Vec<_>>().join(", "),
    }
}

/// Server of an endpoint; `None` if the endpoint does not serve. Missing conditions have the
/// defaults of the API.
fn found(endpoint: &SliceEndpoint, port: u16) -> Option<Found> {
    let conditions = endpoint.conditions.as_ref();
    let is = |of: fn(&EndpointConditions) -> Option<bool>| conditions.and_then(of);
    let is_ready = is(|conditions| conditions.ready).unwrap_or(true);
    let is_serving = is(|conditions| conditions.serving).unwrap_or(is_ready);
    let terminates = is(|conditions| conditions.terminating).unwrap_or(false);
    // An endpoint that is ready and terminating belongs to a Service that publishes all addresses.
    if !(is_ready || (is_serving && terminates)) {
        return None;
    }
    // All addresses of an endpoint belong to the same server; the API tells consumers to use the
    // first.
    let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let addr = SocketAddr::new(ip, port);
    let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
    let name = pod.and_then(|pod| pod.name.clone()).filter(|name| is_object_name(name));
    let name = name.unwrap_or_else(|| addr.to_string());
    Some(Found { name, terminates, addr, zone: endpoint.zone.clone().filter(|zone| is_object_name(zone)) })
}

/// Whether the text is a valid object name. Object names become server names, which appear in logs,
/// metrics and paths of the control API.
fn is_object_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests;
