//! Checks of a frontend's TLS settings against its mode. Pure.

use super::super::{ParsedFrontend, ParsedTls};
use crate::problem::Report;
use convey_model::{Mode, Protocol};
use convey_tls::TlsAcceptor;

/// Reports TLS in packet modes and with UDP, and in mode `http` reports protocols other than HTTP.
pub(crate) fn check(frontend: &ParsedFrontend, mode: Mode, report: &Report<'_>) {
    let Some(tls) = &frontend.tls else { return };
    if mode.forwards_packets() {
        let message = format!(
            "needs mode = \"http\" or \"proxy\"; frontend {:?} is in {} mode, in which convey does not terminate connections",
            frontend.name,
            mode.name()
        );
        report.error(&tls.place, message);
    } else if frontend.protocol() == Protocol::Udp {
        report.error(&tls.place, "needs protocol = \"tcp\"; the frontend has \"udp\"");
    }
    let usual = TlsAcceptor::HTTP;
    let other = tls.alpn.iter().flatten().find(|other| !usual.contains(&&*other.value));
    if let Some(other) = other.filter(|_| mode.is_http()) {
        let (found, allowed) = (&other.value, usual.join("\", \""));
        report.error(&other.place, format!("found {found:?}; allowed in http mode: \"{allowed}\""));
    }
    http3(frontend, tls, mode, report);
}

/// Reports HTTP/3 where it is impossible: outside mode http, and with PROXY headers, which clients
/// of HTTP/3 cannot send because they use UDP.
fn http3(frontend: &ParsedFrontend, tls: &ParsedTls, mode: Mode, report: &Report<'_>) {
    let Some(http3) = tls.keys.http3.as_ref().filter(|http3| http3.value) else { return };
    if !mode.is_http() {
        let message = format!("needs mode = \"http\"; the frontend is in {} mode", mode.name());
        report.error(&http3.place, message);
    } else if frontend.accepts_proxy() {
        let message = "HTTP/3 clients cannot send the PROXY headers that accept_proxy requires; keep one of the two keys";
        report.error(&http3.place, message);
    }
}
