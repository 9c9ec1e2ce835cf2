//! Checks of backends that packet modes use, on this host.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::{ParsedBackend, ParsedServer};
use crate::mode::{HostCheck, is_link_local};
use crate::problem::Placed;
use crate::tables::ParsedFrontend;
use convey_model::{Mode, ProbeVia, Protocol};

impl HostCheck<'_> {
    /// Checks a backend for every packet mode of its frontends.
    pub(crate) fn backend(&self, backend: &ParsedBackend) {
        let used = self.users_of(backend);
        let in_dsr = || used.iter().filter(|(_, mode)| mode.is_dsr());
        let l2 = backend.keys.dsr.as_ref().filter(|dsr| dsr.value.needs_link());
        if let Some(l2) = l2.filter(|_| !used.is_empty() && in_dsr().next().is_none()) {
            self.report.warning(&l2.place, "has no effect: no frontend in dsr mode uses this backend");
        }
        self.tunnel(backend, used);
        let via = backend.health_check.keys.via.as_ref().filter(|via| via.value == ProbeVia::Vip);
        if let Some(via) = via.filter(|_| {
            !used.is_empty() && in_dsr().all(|(frontend, _)| frontend.protocol() != Protocol::Tcp)
        }) {
            let message = "\"vip\" needs a TCP frontend in dsr mode, and no such frontend uses this backend";
            self.report.error(&via.place, message);
        }
        let is_unseen =
            |frontend: &ParsedFrontend, mode: Mode| mode.is_dsr() && frontend.protocol() == Protocol::Udp;
        let is_unseen = !used.is_empty() && used.iter().all(|(frontend, mode)| is_unseen(frontend, *mode));
        if let Some(outlier) = backend.outlier_detection.as_ref().filter(|_| is_unseen) {
            let message = "has no effect with UDP in dsr mode: servers answer clients directly, so convey sees no failures";
            self.report.warning(&outlier.place, message);
        }
        let Some((_, mode)) = used.iter().find(|(_, mode)| mode.forwards_packets()) else { return };
        for server in backend.servers.iter().filter_map(ParsedServer::ip) {
            self.server(&server, *mode);
            in_dsr().for_each(|(frontend, _)| self.same_port(frontend, &server));
            if l2.is_some() && in_dsr().next().is_some() {
                self.on_link(&server);
            }
        }
        for place in backend.servers.iter().filter_map(ParsedServer::name_place) {
            let mode = mode.name();
            let message = format!(
                "in {mode} mode a server needs an IP address; host names work only in modes proxy and http"
            );
            self.report.error(place, message);
        }
        if let Some(Placed { place, .. }) = &backend.discovery {
            let message = format!(
                "Services work only in modes proxy and http; in {} mode write each server with its IP address",
                mode.name()
            );
            self.report.error(place, message);
        }
    }

    fn server(&self, server: &Placed<SocketAddr>, mode: Mode) {
        let ip = server.value.ip();
        let own = if let Some(interface) = self.holder(ip) {
            format!("{ip} is this host's own address ({})", interface.name)
        } else if ip.is_loopback() {
            format!("{ip} is this host itself")
        } else if let Some(frontend) = self.listening.get(&ip) {
            format!("{ip} is the address of frontend {:?}", frontend.name)
        } else if is_link_local(ip) {
            let message =
                format!("{ip} is a link-local address, which a server cannot have in {} mode", mode.name());
            return self.report.error(&server.place, message);
        } else {
            if self.is_host_known && (self.network.hop_to)(ip).is_none() {
                self.report.warning(&server.place, format!("no route leads to {ip}"));
            } else if let Some(why) = (self.network.refusal)(ip) {
                self.report.warning(&server.place, format!("{ip} counts as down: {why}"));
            }
            return;
        };
        let mode = mode.name();
        let message = format!(
            "{own}; in {mode} mode a server must be another machine (in proxy mode it may be this host)"
        );
        self.report.error(&server.place, message);
    }

    /// Checks that the server has the same port as the frontend: in mode dsr the server rewrites
    /// only the address.
    fn same_port(&self, frontend: &ParsedFrontend, server: &Placed<SocketAddr>) {
        let port = server.value.port();
        let ports: BTreeSet<(u16, u16)> =
            frontend.listen.iter().map(|vip| vip.value.ports().into_inner()).collect();
        let is_other = |ports: &&(u16, u16)| port != 0 && **ports != (port, port);
        let shown = |(first, last): &(u16, u16)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        let other: Vec<_> = ports.iter().filter(is_other).map(shown).collect();
        if !other.is_empty() {
            let message = format!(
                "port {port} differs from the port of frontend {:?}, {}; in dsr mode both must be equal. A server without \
                 a port uses the frontend's",
                frontend.name,
                other.join(" and ")
            );
            self.report.error(&server.place, message);
        }
    }

    /// Checks that the server is on the link. A router would send packets to the VIP back to
    /// convey.
    fn on_link(&self, server: &Placed<SocketAddr>) {
        let ip = server.value.ip();
        if let Some(router) = (self.network.hop_to)(ip).and_then(|hop| hop.gateway) {
            let message = format!(
                "{ip} is behind the router {router}; dsr = \"l2\" needs servers on the link, \"l3\" does not"
            );
            self.report.error(&server.place, message);
        }
    }
}
