//! What must hold in the mode a configuration is run in, on this host. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::file::{Backend, File, Frontend};
use super::problem::{Placed, Problem, Report};
use super::{Config, Loaded, hint, validate};
use crate::model::{Algorithm, Interface, Mode};

/// What of this host's network a configuration is held against.
pub struct Network<'a> {
    /// All interfaces.
    pub interfaces: &'a [Interface],
    /// Index of the interface on which packets to an address leave; `None` without a route.
    pub interface_to: &'a dyn Fn(IpAddr) -> Option<u32>,
}

/// Whether a file that is right in itself can run in the mode of its configuration ([`Loaded::for_mode`]) on a
/// host with this network. Returns what is odd about it. In proxy mode the network is not looked at: the kernel
/// says what it cannot bind.
///
/// # Errors
/// Everything that cannot work, in the order of the file.
pub fn validate_mode(loaded: &Loaded, network: &Network<'_>) -> Result<Vec<Problem>, Vec<Problem>> {
    let source = &loaded.source;
    let report = Report::new(&source.name, &source.text, &[]);
    match loaded.config.mode {
        Mode::Proxy => {
            let by_default = source.file.backends.iter().filter(|backend| backend.algorithm.is_none());
            by_default.for_each(|b| validate::hash_is_read(b, Algorithm::RoundRobin, &report));
        }
        Mode::Passthrough | Mode::Dsr => {
            PacketMode { file: &source.file, config: &loaded.config, network, report: &report }.check();
        }
    }
    report.finish()
}

/// A file that is to run in a packet mode.
struct PacketMode<'a> {
    file: &'a File,
    config: &'a Config,
    network: &'a Network<'a>,
    report: &'a Report<'a>,
}

impl PacketMode<'_> {
    fn check(&self) {
        for frontend in &self.file.frontends {
            frontend.listen.iter().for_each(|vip| self.vip(vip));
        }
        for (backend, frontends) in self.used_backends() {
            for server in backend.servers.iter().filter_map(|server| server.addr.as_ref()) {
                self.server(server);
                if self.config.mode == Mode::Dsr {
                    frontends.iter().for_each(|frontend| self.same_port(frontend, server));
                }
            }
        }
        for timeout in [&self.file.timeouts.connect, &self.file.timeouts.idle].into_iter().flatten() {
            self.report.warning(&timeout.place, self.no_effect());
        }
        self.file.passthrough.interfaces.iter().for_each(|name| self.interface(name));
        if self.config.mode == Mode::Passthrough {
            self.snat();
        }
    }

    fn vip(&self, vip: &Placed<SocketAddr>) {
        let mode = self.config.mode.name();
        let ip = vip.value.ip();
        let kind = match ip {
            IpAddr::V6(_) => return self.report.error(&vip.place, self.no_ipv6(ip)),
            _ if ip.is_unspecified() => "a wildcard",
            _ if ip.is_loopback() => "a loopback address",
            _ if ip == Ipv4Addr::BROADCAST => "the broadcast address",
            _ => return self.concrete_vip(vip),
        };
        let message = format!(
            "{mode} mode needs a concrete address, {ip} is {kind}; this host has: {}",
            self.addresses()
        );
        self.report.error(&vip.place, message);
    }

    fn concrete_vip(&self, vip: &Placed<SocketAddr>) {
        let (ip, port) = (vip.value.ip(), vip.value.port());
        let settings = &self.config.passthrough;
        let may_be_snat = match settings.snat_addresses.as_slice() {
            [] => self.holder(ip).is_some(),
            addresses => addresses.contains(&ip),
        };
        if self.config.mode == Mode::Passthrough && may_be_snat && settings.snat_ports.contains(&port) {
            let (first, last) = (settings.snat_ports.start(), settings.snat_ports.end());
            let message = format!(
                "port {port} is among the SNAT ports of {ip} ({first}-{last}); take another one, or set \
                 passthrough.snat_ports or passthrough.snat_addresses"
            );
            self.report.error(&vip.place, message);
        }
        if self.holder(ip).is_none() {
            self.report.warning(&vip.place, self.on_no_interface(ip));
        }
    }

    fn server(&self, server: &Placed<SocketAddr>) {
        let mode = self.config.mode.name();
        let ip = server.value.ip();
        let listens = |frontend: &&Frontend| frontend.listen.iter().any(|vip| vip.value.ip() == ip);
        let own = if let Some(interface) = self.holder(ip) {
            format!("{ip} is this host's own address ({})", interface.name)
        } else if ip.is_loopback() {
            format!("{ip} is this host itself")
        } else if let Some(frontend) = self.file.frontends.iter().find(listens) {
            format!("{ip} is where frontend {:?} listens", frontend.name)
        } else if ip.is_ipv6() {
            return self.report.error(&server.place, self.no_ipv6(ip));
        } else {
            if (self.network.interface_to)(ip).is_none() {
                self.report.warning(&server.place, format!("no route leads to {ip}"));
            }
            return;
        };
        let message = format!("{own}; in {mode} mode servers are other machines (proxy mode can do this)");
        self.report.error(&server.place, message);
    }

    /// Ports are left as they are: what is rewritten on the server is the address alone.
    fn same_port(&self, frontend: &Frontend, server: &Placed<SocketAddr>) {
        let port = server.value.port();
        let ports: BTreeSet<u16> = frontend.listen.iter().map(|vip| vip.value.port()).collect();
        let other: Vec<_> = ports.iter().filter(|other| **other != port).map(u16::to_string).collect();
        if !other.is_empty() {
            let message = format!(
                "port {port} is not that of frontend {:?}, {}; in dsr mode both must be the same",
                frontend.name,
                other.join(" and ")
            );
            self.report.error(&server.place, message);
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

    fn snat(&self) {
        let ports = self.config.passthrough.snat_ports.len();
        if let Some(workers) = self.file.passthrough.workers.as_ref().filter(|w| usize::from(w.value) > ports)
        {
            let message = format!(
                "{} workers cannot share {ports} SNAT ports; each needs one of its own, better thousands",
                workers.value
            );
            self.report.error(&workers.place, message);
        }
        for address in &self.file.passthrough.snat_addresses {
            let ip = address.value;
            if ip.is_ipv6() {
                self.report.error(&address.place, self.no_ipv6(ip));
            } else if self.holder(ip).is_none() {
                self.report.warning(&address.place, self.on_no_interface(ip));
            }
        }
    }

    /// The backends that serve clients, and the frontends they serve.
    fn used_backends(&self) -> impl Iterator<Item = (&Backend, Vec<&Frontend>)> {
        let uses = |frontend: &&Frontend, backend: &Backend| {
            frontend.backend.as_ref().is_some_and(|name| name.value == backend.name)
        };
        let frontends_of = move |b: &Backend| -> Vec<&Frontend> {
            self.file.frontends.iter().filter(|f| uses(f, b)).collect()
        };
        let all = self.file.backends.iter().map(move |backend| (backend, frontends_of(backend)));
        all.filter(|(_, frontends)| !frontends.is_empty())
    }

    /// The interface that has this address.
    fn holder(&self, ip: IpAddr) -> Option<&Interface> {
        self.network.interfaces.iter().find(|interface| interface.addresses.contains(&ip))
    }

    /// The addresses that could be meant.
    fn addresses(&self) -> String {
        let of = |interface: &Interface| -> Vec<String> {
            let usable = interface.addresses.iter().filter(|ip| ip.is_ipv4() && !ip.is_loopback());
            usable.map(|ip| format!("{ip} ({})", interface.name)).collect()
        };
        or_none(&self.network.interfaces.iter().flat_map(of).collect::<Vec<_>>())
    }

    fn on_no_interface(&self, ip: IpAddr) -> String {
        let interfaces = self.network.interfaces;
        let on_the_way = (self.network.interface_to)(ip);
        let on_the_way = interfaces.iter().find(|i| Some(i.index) == on_the_way && carries_packets(i));
        let device = on_the_way.or_else(|| interfaces.iter().find(|i| carries_packets(i)));
        let device = device.map_or("INTERFACE", |interface| interface.name.as_str());
        format!(
            "{ip} is on no interface of this host, so packets to it only come if they are routed here; \
             to add it: ip addr add {ip}/32 dev {device}"
        )
    }

    fn no_ipv6(&self, ip: IpAddr) -> String {
        format!("IPv6 is not built yet in {} mode, found {ip}; allowed: IPv4", self.config.mode.name())
    }

    fn no_effect(&self) -> String {
        format!("has no effect in {} mode", self.config.mode.name())
    }
}

fn carries_packets(interface: &Interface) -> bool {
    interface.mac.is_some() && !interface.loopback
}

fn or_none<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
