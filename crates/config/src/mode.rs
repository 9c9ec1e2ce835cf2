//! Checks of frontends in their modes, on this host. Pure.

mod snat;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::file::ParsedFile;
use super::keys::OnlyIn;
use super::problem::{Place, Placed, Problem, Report};
use super::tables::{ParsedBackend, ParsedFrontend, ParsedServer};
use super::{Config, Loaded, hint, validate};
use convey_model::{FrontendConfig, Interface, Mode, RouteHop};

/// Maximum number of ports in a range in proxied modes.
const MAX_PROXIED_PORTS: usize = 1_024;

/// Maximum number of ports of all frontends in packet modes. The guard's map has twice as many
/// entries, because ports that a reload removes stay in it while they drain.
const MAX_FORWARDED_PORTS: usize = 32_768;

/// Network of this host, for checks of a configuration.
pub struct HostNetwork<'a> {
    /// All interfaces.
    pub interfaces: &'a [Interface],
    /// All addresses of this host; set in every mode.
    pub own: &'a BTreeSet<IpAddr>,
    /// Next hop to an address; `None` without a route.
    pub hop_to: &'a dyn Fn(IpAddr) -> Option<RouteHop>,
    /// Operator-facing reason why packet modes must not send to a server; `None` if they may.
    pub refusal: &'a dyn Fn(IpAddr) -> Option<String>,
}

/// Checks whether a valid file can run on a host with this network, in the modes of its
/// configuration. Returns warnings. In proxy mode, this function checks only the addresses of this
/// host; the kernel later reports addresses that cannot be bound.
///
/// # Errors
/// All settings that cannot work, in the order of the file.
pub fn validate_mode(loaded: &Loaded, network: &HostNetwork<'_>) -> Result<Vec<Problem>, Vec<Problem>> {
    let (source, config) = (&loaded.source, &loaded.config);
    let report = Report::new(&source.texts);
    for backend in source.file.backends.iter().filter(|backend| backend.keys.algorithm.is_none()) {
        if let Some(chosen) = config.backend(&backend.name) {
            backend.check_algorithm(chosen.algorithm, &report);
        }
    }
    HostCheck::new(loaded, network, &report).all();
    report.finish()
}

/// Checks whether a file can run on any host: all checks of [`validate_mode`] that need only the
/// file. Returns warnings.
///
/// # Errors
/// All settings that cannot work, in the order of the file.
pub fn validate_without_host(loaded: &Loaded) -> Result<Vec<Problem>, Vec<Problem>> {
    let report = Report::new(&loaded.source.texts);
    let network =
        HostNetwork { interfaces: &[], own: &BTreeSet::new(), hop_to: &|_| None, refusal: &|_| None };
    let check = HostCheck::new(loaded, &network, &report);
    HostCheck { is_host_known: false, ..check }.all();
    report.finish()
}

/// Check of a file for a host.
pub(crate) struct HostCheck<'a> {
    pub(crate) file: &'a ParsedFile,
    /// All frontends, with their modes.
    pub(crate) frontends: Vec<(&'a ParsedFrontend, Mode)>,
    pub(crate) config: &'a Config,
    pub(crate) network: &'a HostNetwork<'a>,
    /// Whether `network` is the network of this host; `false` if only the file is checked.
    pub(crate) is_host_known: bool,
    pub(crate) report: &'a Report<'a>,
    pub(crate) backends: HashMap<&'a str, &'a ParsedBackend>,
    /// Frontends of each backend.
    pub(crate) users: HashMap<&'a str, Vec<(&'a ParsedFrontend, Mode)>>,
    /// First frontend that listens on each address.
    pub(crate) listening: HashMap<IpAddr, &'a ParsedFrontend>,
    /// Interface that has each address.
    pub(crate) holders: HashMap<IpAddr, &'a Interface>,
}

impl<'a> HostCheck<'a> {
    fn new(loaded: &'a Loaded, network: &'a HostNetwork<'a>, report: &'a Report<'a>) -> HostCheck<'a> {
        let (file, config) = (&loaded.source.file, &loaded.config);
        // While a process drains, its configuration lacks some frontends of the file.
        let modes: HashMap<&str, Mode> =
            config.frontends.iter().map(|frontend| (&*frontend.name, frontend.mode)).collect();
        let with_mode = |frontend: &'a ParsedFrontend| Some((frontend, modes.get(&*frontend.name).copied()?));
        let frontends: Vec<(&ParsedFrontend, Mode)> = file.frontends.iter().filter_map(with_mode).collect();
        let (mut users, mut listening, mut holders) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (frontend, mode) in &frontends {
            for backend in frontend.backends() {
                users.entry(&*backend.value).or_insert_with(Vec::new).push((*frontend, *mode));
            }
            for listen in &frontend.listen {
                listening.entry(listen.value.ip()).or_insert(*frontend);
            }
        }
        for interface in network.interfaces {
            interface.addresses.iter().for_each(|ip| _ = holders.entry(*ip).or_insert(interface));
        }
        let backends = file.backends.iter().map(|backend| (&*backend.name, backend)).collect();
        HostCheck {
            file,
            frontends,
            config,
            network,
            is_host_known: true,
            report,
            backends,
            users,
            listening,
            holders,
        }
    }
}

impl HostCheck<'_> {
    /// Reports keys that have no effect in the mode of their frontends.
    fn keys(&self) {
        for (frontend, mode) in &self.frontends {
            self.frontend(frontend, *mode);
        }
        for backend in &self.file.backends {
            backend.check_modes(self.users_of(backend), self.report);
        }
    }

    /// Frontends of a backend, with their modes.
    pub(crate) fn users_of(&self, backend: &ParsedBackend) -> &[(&ParsedFrontend, Mode)] {
        self.users.get(&*backend.name).map_or(&[][..], Vec::as_slice)
    }

    fn all(&self) {
        self.keys();
        for (frontend, mode) in &self.frontends {
            if mode.forwards_packets() {
                self.vips(frontend, *mode);
            }
        }
        self.file.backends.iter().for_each(|backend| self.backend(backend));
        let proxied = self.frontends.iter().filter(|(_, mode)| mode.is_proxied());
        let proxied = proxied.map(|(frontend, _)| *frontend);
        validate::loops(proxied, &self.file.backends, self.network.own, self.report);
        self.timeouts();
        self.ports();
        if self.is_host_known && self.config.frontends_where(Mode::forwards_packets).next().is_some() {
            self.file.passthrough.keys.interfaces.iter().for_each(|name| self.interface(name));
        }
        if self.has_snat() {
            self.snat();
        }
        self.announcing();
    }

    /// Reports timeouts, of the file and of backends, that have no effect in any frontend.
    fn timeouts(&self) {
        self.without_effect(self.file.timeouts.of_some_modes(), "", |_| true);
        for backend in &self.file.backends {
            let uses_it = |frontend: &FrontendConfig| frontend.uses(&backend.name);
            self.without_effect(backend.timeouts.of_some_modes(), " that uses this backend", uses_it);
        }
    }

    /// Reports keys that have an effect only in some modes, if no frontend that `has_them` selects
    /// is in such a mode. `whose` is a text about these frontends.
    fn without_effect(
        &self,
        keys: Vec<(&Place, OnlyIn)>,
        whose: &str,
        has_them: impl Fn(&FrontendConfig) -> bool,
    ) {
        let frontends = self.config.frontends.iter().filter(|frontend| has_them(frontend));
        let frontends: Vec<_> = frontends.map(|frontend| (frontend.mode, frontend.protocol)).collect();
        for (place, only) in keys {
            if let Some(fault) = only.common_fault(whose, &frontends) {
                self.report.warning(place, fault);
            }
        }
    }

    /// Checks the interface of `[announce]`. Without `passthrough.interfaces`, packet modes capture
    /// packets on the interface that has the frontend's address, and so would use the announce
    /// interface; only the loopback interface is exempt.
    fn announcing(&self) {
        let Some(announce) = &self.file.announce else { return };
        let name = &announce.config.interface;
        let interface = self.network.interfaces.iter().find(|interface| interface.name == *name);
        // `network.interfaces` is empty unless there are packet modes.
        if interface.is_none() && !self.network.interfaces.is_empty() {
            let all: Vec<&str> =
                self.network.interfaces.iter().map(|interface| interface.name.as_str()).collect();
            let meant = hint::did_you_mean(name, all.iter().copied());
            let message = format!(
                "no interface {name:?}{meant} (this host has: {}); convey announces no address until the interface exists",
                or_none(&all)
            );
            self.report.warning(announce.interface_place(), message);
        }
        let is_loopback = match self.is_host_known {
            true => interface.is_some_and(|interface| interface.loopback),
            false => name == "lo",
        };
        let forwarded = self.frontends.iter().find(|(_, mode)| mode.forwards_packets());
        let Some((frontend, mode)) = forwarded else { return };
        if !is_loopback && self.file.passthrough.keys.interfaces.is_empty() {
            let message = format!(
                "needs passthrough.interfaces, such as [\"eth0\"]: without it, convey captures the packets of frontend {:?} ({} \
                 mode) on {name}, the interface with the frontend's address; interface = \"lo\" does not need it",
                frontend.name,
                mode.name()
            );
            self.report.error(announce.interface_place(), message);
        }
    }

    /// Limits the number of ports. In proxied modes a port needs sockets; in packet modes it needs
    /// a descriptor and an entry of the guard's map.
    fn ports(&self) {
        let mut forwarded = 0;
        for (frontend, mode) in &self.frontends {
            for Placed { value, place } in &frontend.listen {
                let ports = value.ports().len();
                forwarded += if mode.forwards_packets() { ports } else { 0 };
                if mode.is_proxied() && ports > MAX_PROXIED_PORTS {
                    let message = format!(
                        "{value} has {ports} ports; a range in proxy mode has at most {MAX_PROXIED_PORTS}, because each port \
                         needs a socket in each worker (packet modes need no sockets)"
                    );
                    self.report.error(place, message);
                } else if mode.forwards_packets() && forwarded > MAX_FORWARDED_PORTS {
                    let message = format!(
                        "with {value}, the frontends in packet modes have {forwarded} ports in total; the limit is {MAX_FORWARDED_PORTS}"
                    );
                    return self.report.error(place, message);
                }
            }
        }
    }

    fn interface(&self, name: &Placed<String>) {
        let usable = self.network.interfaces.iter().filter(|i| carries_packets(i));
        let names: Vec<&str> = usable.map(|interface| interface.name.as_str()).collect();
        if names.contains(&name.value.as_str()) {
            return;
        }
        let found = match self.network.interfaces.iter().any(|interface| interface.name == name.value) {
            true => format!("{:?} is not an Ethernet interface", name.value),
            false => format!("no interface {:?}", name.value),
        };
        let meant = hint::did_you_mean(&name.value, names.iter().copied());
        self.report.error(&name.place, format!("{found}{meant} (this host has: {})", or_none(&names)));
    }

    fn has_snat(&self) -> bool {
        self.config.frontends_where(Mode::has_snat).next().is_some()
    }

    /// Interface of this host that has this address; `None` if none has it.
    pub(crate) fn holder(&self, ip: IpAddr) -> Option<&Interface> {
        self.holders.get(&ip).copied()
    }

    /// Servers of a frontend that have addresses.
    pub(crate) fn servers_of(&self, frontend: &ParsedFrontend) -> impl Iterator<Item = Placed<SocketAddr>> {
        let backend = frontend.keys.backend.as_ref().and_then(|name| self.backends.get(&*name.value));
        backend.into_iter().flat_map(|backend| &backend.servers).filter_map(ParsedServer::ip)
    }
}

pub(crate) fn carries_packets(interface: &Interface) -> bool {
    interface.mac.is_some() && !interface.loopback
}

/// Whether hosts outside the link can reach this address of an interface.
pub(crate) fn can_be_reached(own: IpAddr) -> bool {
    !own.is_loopback() && !is_link_local(own)
}

/// Whether an address is link-local in IPv6: such addresses need the name of an interface.
/// Link-local IPv4 addresses work like any other.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether both addresses are IPv4, or both are IPv6.
pub(crate) fn is_like(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// The name of the family of an address.
pub(crate) fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

pub(crate) fn or_none<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
