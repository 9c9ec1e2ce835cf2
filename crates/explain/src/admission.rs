//! Admission checks for a client: access lists, the client's share, and the limits of its source.
//! Pure.

use std::net::IpAddr;

use convey_forward::ClientShare;
use convey_http_core::{BodyFraming, RequestHead};
use convey_model::{DropReason, Prefix, Protocol, client_of};
use convey_proxy::{ClientShortage, WorkersShared, excess_counter};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;

use super::access::why;
use super::choice::eviction_note;
use super::question::AskedPlace;
use super::route::{AskedLimit, AskedTotal};
use super::{ClientVerdict, End, ExplainSources, Steps};

/// Checks the connection slots of the frontend.
pub(super) fn check_slots(place: &AskedPlace, steps: &mut Steps) {
    let (config, slots) = (&place.frontend.config, &place.frontend.live.slots);
    let Some(most) = config.max_connections else { return };
    let message =
        format!("frontend {} has {} open connections, of at most {most}", config.name, slots.open());
    match slots.has_room(config.max_connections) {
        true => steps.note("limit", message),
        false => steps.end("limit", full(place), message + eviction_note(place)),
    }
}

/// Checks for a loop: if the client's address is also the address of a UDP server, answers would go
/// back and forth endlessly.
pub(super) fn check_loop(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    let (client, protocol) = (place.client_addr(), place.frontend.config.protocol);
    if sources.snapshot.server_endpoints.contain(protocol, client, place.vip.port()) {
        let message = format!("a server listens on {client}, so its answers would loop");
        steps.refuse("client", Counter::DroppedLoop.drop_label(), message);
    }
}

/// Outcome for a client while all slots of the frontend are in use.
fn full(place: &AskedPlace) -> End {
    let config = &place.frontend.config;
    let waits = config.mode.is_proxied() && is_tcp(place);
    End {
        verdict: if waits { ClientVerdict::Waits } else { ClientVerdict::Refused },
        reason: "max_connections",
    }
}

fn is_tcp(place: &AskedPlace) -> bool {
    match place.frontend.config.protocol {
        Protocol::Tcp => true,
        Protocol::Udp => false,
    }
}

/// Checks the access lists.
pub(super) fn check_access(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    let (access, ip) = (&place.frontend.config.access, place.client.ip);
    let peer = place.peer.ip;
    if place.frontend.config.accept_proxy {
        steps.note(
            "client",
            format!("the frontend expects a PROXY header; explain takes {peer} as the client in this header"),
        );
    }
    if let Some(naming) = place.naming() {
        steps.note("client", naming);
    } else if place.frontend.config.is_http_proxy(peer) {
        let message = format!(
            "{peer} is in trusted_proxies: access lists apply to the client of each request, not to {peer}"
        );
        return steps.note("access", message);
    }
    if access.is_open() {
        return steps.note("access", "no access list: all clients are allowed");
    }
    let why = why(access, place, sources.network);
    match access.admits(ip) {
        true => steps.note("access", why),
        false => steps.refuse("access", Counter::RefusedAccess.label(), why),
    }
}

/// Checks the client's share of the frontend in proxy mode.
pub(super) fn check_share(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    let Some(proxy) = sources.proxy else { return };
    let (frontend, ip) = (&place.frontend, place.peer.ip);
    let quota = proxy.client_quota(ip, frontend, &sources.snapshot.totals);
    if frontend.config.trusts(ip) && quota.shortage.is_none() {
        let message = format!("{ip} is in {}: its connections are not counted", trusting(place, ip));
        steps.note("share", message);
        return check_share_of_named(sources, proxy, place, steps);
    }
    let who = source(client_of(ip));
    let config = &frontend.config;
    let of = match (config.max_connections_per_client, config.max_connections) {
        (Some(most), _) => format!(" at this frontend, and may have {most}"),
        (None, Some(_)) => " at this frontend, which divides its max_connections among clients".to_owned(),
        (None, None) => {
            " in this process, which limits each client to a share of the connections that are left"
                .to_owned()
        }
    };
    let message = format!("{who} has {} open connections{of}", quota.open);
    let Some(shortage) = quota.shortage else { return steps.note("share", message) };
    let (is_tcp, limit) = (is_tcp(place), Counter::ClientLimit.label());
    let (waits, reason, message) = match shortage {
        ClientShortage::Descriptors => (
            is_tcp,
            Counter::DroppedNoResources.drop_label(),
            "this process has too few free file descriptors to accept a client".to_owned(),
        ),
        ClientShortage::Process => {
            (false, limit, format!("{message}: the client has used its share of this process"))
        }
        ClientShortage::LocalPorts => {
            (false, limit, format!("{message}: the client has used its share of the local ports"))
        }
        ClientShortage::Frontend => (is_tcp && config.max_connections_per_client.is_none(), limit, message),
    };
    let verdict = if waits { ClientVerdict::Waits } else { ClientVerdict::Refused };
    steps.end("share", End { verdict, reason }, message);
}

/// Checks the share of the client that a trusted proxy names. Each of its requests counts in the
/// process, like a connection.
fn check_share_of_named(
    sources: ExplainSources<'_>,
    proxy: &WorkersShared,
    place: &AskedPlace,
    steps: &mut Steps,
) {
    let (frontend, ip) = (&place.frontend, place.client.ip);
    if ip == place.peer.ip || frontend.config.trusts(ip) {
        return;
    }
    let who = source(client_of(ip));
    match proxy.client_quota(ip, frontend, &sources.snapshot.totals).shortage {
        None | Some(ClientShortage::Frontend | ClientShortage::LocalPorts) => {
            steps.note("share", format!("each request of {who} counts in its share of this process"));
        }
        Some(ClientShortage::Descriptors | ClientShortage::Process) => {
            let message = format!("{who} has used its share of this process: the request gets a 503");
            steps.refuse("share", Counter::AnsweredQueueTimeout.answer_label(), message);
        }
    }
}

/// Checks the client's share of flows in passthrough mode.
pub(super) fn check_packet_share(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    let ip = place.client.ip;
    if place.frontend.config.mode.has_snat() && place.frontend.config.trusts(ip) {
        return steps.note("share", format!("{ip} is in trusted_clients: no limit applies"));
    }
    let share = match sources.share {
        None | Some(Ok(None)) => return,
        Some(Ok(Some(share))) => share,
        Some(Err(why)) => return steps.note("share", format!("not known: {why}")),
    };
    let ClientShare { of, own, used, free, is_refused } = share;
    let who = source(client_of(ip));
    let message =
        format!("the open flows of {who} use {own} {of}, those of all clients {used}; {free} are free");
    match is_refused {
        true => steps.refuse(
            "share",
            DropReason::ClientLimit.label(),
            format!("{message}. One client may use at most eight times as many as are free"),
        ),
        false => steps.note("share", message),
    }
}

/// Checks the limits of the client's source.
pub(super) fn check_source(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    let (Frontend { config, sources: counts, .. }, ip) = (&*place.frontend, place.peer.ip);
    let (Some(counts), limits) = (counts.as_ref(), &config.limits) else { return };
    if config.trusts(ip) {
        return steps.note("source", format!("{ip} is in {}: limits do not apply", trusting(place, ip)));
    }
    let mut has = Vec::new();
    if let Some(most) = limits.connections_per_source {
        has.push(format!("{} of {most} open connections", counts.open(ip)));
    }
    if let (Some(rate), Some(left)) = (limits.rate_per_source, counts.left_of_rate(ip, limits, sources.now)) {
        has.push(format!(
            "{left} new connections are allowed immediately, further ones at {rate} per second"
        ));
    }
    let message = format!("{}: {}", source(counts.source_of(ip)), has.join("; "));
    match counts.may_begin(ip, limits, sources.now) {
        Ok(()) => steps.note("source", message),
        Err(excess) => steps.refuse("source", excess_counter(excess).label(), message),
    }
}

/// Checks the length of the body that the request announces.
pub(super) fn check_body(place: &AskedPlace, steps: &mut Steps) {
    let most = place.asked.as_ref().and_then(|asked| asked.max_body);
    if let (Some(BodyFraming::Length(length)), Some(most)) = (place.head().map(RequestHead::framing), most)
        && length > most
    {
        let message = format!("Content-Length is {length}, and max_body_size {most}: the request gets a 413");
        steps.end("body", End::BODY_TOO_LONG, message);
    }
}

/// Checks the limits on request rates of the request's source.
pub(super) fn check_requests(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    let (ip, limits) = (place.client.ip, place.asked.as_ref().map_or(&[][..], |asked| &asked.limits));
    let has_no_limit = place.frontend.config.trusts_client(ip) || place.is_of_proxy();
    if !limits.is_empty() && has_no_limit {
        let message = format!("{ip} is in {}: its requests are not limited", trusting(place, ip));
        return steps.note("requests", message);
    }
    for AskedLimit { of, limit } in limits {
        let Some(rate) = limit.rate() else { continue };
        let (left, who) = (limit.left(ip, sources.now), source(limit.source_of(ip)));
        let message = format!(
            "{who}: {left} requests are allowed immediately, further ones at {rate} per second (limit of {of})"
        );
        match left {
            0 => steps.refuse("requests", Counter::AnsweredRateLimit.answer_label(), message),
            _ => steps.note("requests", message),
        }
    }
}

/// Checks the limits on request rates of all clients together.
pub(super) fn check_totals(sources: ExplainSources<'_>, place: &AskedPlace, steps: &mut Steps) {
    for AskedTotal { of, rate, counted, reason } in place.asked.iter().flat_map(|asked| &asked.totals) {
        let left = counted.left(*rate, sources.now);
        let message = format!(
            "all clients together: {left} requests are allowed immediately, further ones at {} per second (limit of {of})",
            rate.per_second
        );
        match left {
            0 => steps.refuse("requests", reason.answer_label(), message),
            _ => steps.note("requests", message),
        }
    }
}

/// Configuration key that exempts this address from the frontend's limits.
fn trusting(place: &AskedPlace, ip: IpAddr) -> &'static str {
    match place.frontend.config.trusts_client(ip) {
        true => "trusted_clients",
        false => "trusted_proxies",
    }
}

fn source(network: Prefix) -> String {
    let is_one = network.len() == if network.first().is_ipv4() { 32 } else { 128 };
    if is_one { network.first().to_string() } else { network.to_string() }
}
