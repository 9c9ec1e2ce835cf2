//! Servers that listen on unix sockets: settings that need an IP address or a port.

use super::{ParsedBackend, ParsedServer};
use crate::problem::{Place, Placed, Report};
use crate::tables::ParsedFrontend;
use convey_model::{Mode, ProbeKind, Protocol, UnixSocket};

/// Reports settings of a backend that do not fit its unix sockets.
pub(super) fn check(backend: &ParsedBackend, report: &Report<'_>) {
    let Some(server) = sockets(backend).next() else { return };
    let Placed { value: socket, place } = &server;
    let at = |place: &Place| report.line(place, &server.place);
    if let Some(source) = backend.keys.source.first() {
        let (source, line) = (source.value, at(&source.place));
        let message = format!(
            "{socket} has no IP address, so connections to it cannot come from the source {source} ({line}); remove \
             source, or move the server to another backend"
        );
        report.error(place, message);
    }
    let check = &backend.health_check;
    if let Some(port) = &check.keys.port {
        let line = at(&port.place);
        let message = format!(
            "{socket} has no ports, but health_check.port ({line}) is set; remove it: health checks connect to the socket"
        );
        report.error(place, message);
    }
    if let (ProbeKind::Udp, Some(kind)) = (&check.default.kind, &check.kind_at) {
        let line = at(kind);
        let message = format!(
            "{socket} takes no datagrams, but the health check ({line}) is of kind udp; use tcp, http or grpc"
        );
        report.error(place, message);
    }
    if let Some(message) = missing_name(backend, *socket, report, place) {
        report.error(place, message);
    }
}

/// Message about TLS without a name that the server's certificate is verified by; `None` if there
/// is a name or no TLS.
fn missing_name(
    backend: &ParsedBackend,
    socket: UnixSocket,
    report: &Report<'_>,
    place: &Place,
) -> Option<String> {
    if let Some(tls) = &backend.tls {
        let line = report.line(&tls.place, place);
        return tls.value.server_name.is_none().then(|| {
            format!(
                "{socket} has no address to verify its certificate by; set tls.server_name in the backend (tls is in {line})"
            )
        });
    }
    let ProbeKind::Http(check) = &backend.health_check.default.kind else { return None };
    (check.tls.is_some() && check.host.is_none()).then(|| {
        format!(
            "{socket} has no address to verify its certificate by; set health_check.host for the https check"
        )
    })
}

/// Reports unix sockets in packet modes and for UDP: convey can use a unix socket only for TCP
/// connections that it accepts itself.
pub(super) fn check_modes(backend: &ParsedBackend, used: &[(&ParsedFrontend, Mode)], report: &Report<'_>) {
    let others =
        used.iter().find(|(frontend, mode)| mode.forwards_packets() || frontend.protocol() == Protocol::Udp);
    let Some((frontend, mode)) = others else { return };
    let (name, mode, protocol) = (&frontend.name, mode.name(), frontend.protocol().name());
    for Placed { value: socket, place } in sockets(backend) {
        let message = format!(
            "{socket} needs mode proxy or http with protocol tcp; frontend {name:?} is in {mode} mode with protocol {protocol}; \
             write the server's IP:port"
        );
        report.error(&place, message);
    }
}

fn sockets(backend: &ParsedBackend) -> impl Iterator<Item = Placed<UnixSocket>> {
    backend.servers.iter().filter_map(ParsedServer::unix_socket)
}
