//! Checks of a frontend in its mode, on this host.

use std::net::{IpAddr, Ipv4Addr};

use super::checks::requests;
use super::{ParsedFrontend, REQUIRED, sni, tls};
use crate::keys::OnlyIn;
use crate::mode::{HostCheck, can_be_reached, carries_packets, family, is_like, is_link_local, or_none};
use crate::problem::{Place, Placed};
use crate::reader::join;
use convey_model::{Interface, Listen, Mode};

impl HostCheck<'_> {
    /// Reports keys that have no effect in the mode of a frontend, or are not allowed in it.
    pub(crate) fn frontend(&self, frontend: &ParsedFrontend, mode: Mode) {
        self.in_other_modes(frontend, mode);
        self.requests(frontend, mode);
        tls::check_mode(frontend, mode, self.report);
        if mode.forwards_packets() {
            self.of_trusted_clients(frontend, mode);
            self.no_headers(frontend, mode);
        }
    }

    /// Checks the addresses of a frontend in a packet mode.
    pub(crate) fn vips(&self, frontend: &ParsedFrontend, mode: Mode) {
        frontend.listen.iter().for_each(|vip| self.vip(vip, mode));
        self.one_family(frontend, mode);
    }

    /// Reports keys that have an effect only in other modes. Skips keys of mode http, because
    /// `requests` reports them as errors.
    fn in_other_modes(&self, frontend: &ParsedFrontend, mode: Mode) {
        let keys = frontend.keys.of_some_modes().into_iter().filter(|(_, only)| *only != OnlyIn::Http);
        let limits = frontend.limits.keys.of_some_modes();
        for (place, only) in keys.chain(frontend.timeouts.of_some_modes()).chain(limits) {
            if let Some(fault) = only.fault(mode, frontend.protocol()) {
                self.report.warning(place, fault);
            }
        }
    }

    /// Reports `trusted_clients` without limits per source in mode DSR. The key exempts clients
    /// from limits, and DSR has no limits per client: packets that open a flow can be forged with
    /// any client's address.
    fn of_trusted_clients(&self, frontend: &ParsedFrontend, mode: Mode) {
        let has_no_limit = mode.is_dsr() && !frontend.limits.are_per_source();
        if let Some(network) = frontend.keys.trusted_clients.first().filter(|_| has_no_limit) {
            self.report.warning(
                &network.place,
                format!(
                    "has no effect in {} mode without connections_per_source or rate_per_source",
                    mode.name()
                ),
            );
        }
    }

    /// Reports PROXY headers in packet modes. A PROXY header comes between the handshake and the
    /// first byte; packet modes neither open connections nor change their payload.
    fn no_headers(&self, frontend: &ParsedFrontend, mode: Mode) {
        let backend = frontend.keys.backend.as_ref().and_then(|name| self.backends.get(&*name.value));
        let accept =
            frontend.keys.accept_proxy.as_ref().filter(|accept| accept.value).map(|accept| &accept.place);
        let send = backend.and_then(|backend| backend.keys.send_proxy.as_ref()).map(|send| &send.place);
        for place in accept.into_iter().chain(send) {
            let (name, mode) = (&frontend.name, mode.name());
            let message = format!(
                "PROXY headers need mode = \"proxy\" or \"http\"; frontend {name:?} is in {mode} mode, in which convey does not \
                 change the data in packets"
            );
            self.report.error(place, message);
        }
    }

    /// Checks routes and the backend of a frontend in this mode, which may differ from the mode of
    /// the file. Without routes, a backend is required.
    fn requests(&self, frontend: &ParsedFrontend, mode: Mode) {
        requests(frontend, mode, self.report);
        sni::check(frontend, mode, self.report);
        if frontend.keys.backend.is_none() && sni::needs_backend(frontend, mode) {
            let place = Place { key: join(&frontend.place.key, "backend"), ..frontend.place.clone() };
            self.report.missing(&place, REQUIRED);
        }
    }

    fn vip(&self, vip: &Placed<Listen>, mode: Mode) {
        let ip = vip.value.ip();
        let kind = match ip {
            _ if ip.is_unspecified() => "a wildcard",
            _ if ip.is_loopback() => "a loopback address",
            _ if ip == Ipv4Addr::BROADCAST => "the broadcast address",
            _ if is_link_local(ip) => "a link-local address",
            _ => return self.concrete_vip(vip),
        };
        let addresses = match self.is_host_known {
            true => format!("; this host has: {}", self.addresses(ip)),
            false => String::new(),
        };
        let message = format!("{} mode needs a concrete address, but {ip} is {kind}{addresses}", mode.name());
        self.report.error(&vip.place, message);
    }

    fn concrete_vip(&self, vip: &Placed<Listen>) {
        if let Some(holder) = self.holder(vip.value.ip()).filter(|holder| holder.mac.is_none()) {
            let message = format!(
                "{} is on {}, which carries no Ethernet frames; packet modes need a VIP on an Ethernet interface (mode proxy \
                 does not)",
                vip.value.ip(),
                holder.name
            );
            self.report.error(&vip.place, message);
        }
        // With `[announce]`, convey adds the address to the interface itself.
        let is_announced = self.file.announce.as_ref().is_some_and(|announce| {
            self.network.interfaces.iter().any(|interface| interface.name == announce.config.interface)
        });
        if self.is_host_known && self.holder(vip.value.ip()).is_none() && !is_announced {
            self.report.warning(&vip.place, self.on_no_interface(vip.value.ip()));
        }
    }

    /// Checks that every address has a server of the same family: forwarding does not change the
    /// family of a packet.
    fn one_family(&self, frontend: &ParsedFrontend, mode: Mode) {
        let Some(first) = frontend.listen.first().map(|first| first.value.ip()) else { return };
        if mode.is_dsr() && frontend.backends().all(|name| self.has_tunnel(&name.value)) {
            return;
        }
        let families = |found: IpAddr| {
            format!(
                "{found} is {}, but {first} is {}; in {} mode all addresses of a frontend and of its servers must be of one \
                 family: write a frontend and a backend for each family",
                family(found),
                family(first),
                mode.name()
            )
        };
        if let Some(other) = frontend.listen.iter().find(|other| !is_like(other.value.ip(), first)) {
            return self.report.error(&other.place, families(other.value.ip()));
        }
        for server in self.servers_of(frontend).filter(|server| !is_like(server.value.ip(), first)) {
            self.report.error(&server.place, families(server.value.ip()));
        }
    }

    /// Addresses of this host that the user may have meant instead of `ip`, as a list.
    fn addresses(&self, ip: IpAddr) -> String {
        let of = |interface: &Interface| -> Vec<String> {
            let is_usable = |own: &&IpAddr| can_be_reached(**own) && is_like(**own, ip);
            let usable = interface.addresses.iter().filter(is_usable).filter(|_| interface.mac.is_some());
            usable.map(|ip| format!("{ip} ({})", interface.name)).collect()
        };
        or_none(&self.network.interfaces.iter().flat_map(of).collect::<Vec<_>>())
    }

    /// Warning about an address that no interface has.
    pub(crate) fn on_no_interface(&self, ip: IpAddr) -> String {
        let interfaces = self.network.interfaces;
        let on_the_way = (self.network.hop_to)(ip).map(|hop| hop.interface);
        let on_the_way = interfaces.iter().find(|i| Some(i.index) == on_the_way && carries_packets(i));
        let device = on_the_way.or_else(|| interfaces.iter().find(|i| carries_packets(i)));
        let device = device.map_or("INTERFACE", |interface| interface.name.as_str());
        // Without `nodad`, an IPv6 address works only after duplicate address detection.
        let add = match ip {
            IpAddr::V4(_) => format!("ip addr add {ip}/32 dev {device}"),
            IpAddr::V6(_) => format!("ip -6 addr add {ip}/128 dev {device} nodad preferred_lft 0"),
        };
        format!(
            "{ip} is on no interface of this host, so packets to it arrive only if they are routed here; \
             to add it: {add}"
        )
    }
}
