//! Filter of the events that a trace shows.

use std::net::SocketAddr;
use std::str::FromStr;

use convey_model::{Prefix, Protocol};

use crate::event::{TraceEvent, TraceStep, flow_hash};
use crate::request_filter::RequestPattern;

/// Filter of trace events. An empty filter shows all events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Clients to show; `None`: all clients.
    pub client: Option<ClientPattern>,
    /// Frontends to show, by the numbers that the control path assigned; `None`: all frontends.
    pub frontends: Option<Vec<u32>>,
    /// Servers to show, by the numbers that the control path assigned; `None`: all servers.
    pub servers: Option<Vec<u32>>,
    /// Reason of the drops, refusals and early ends to show. Other events are not shown. `None`:
    /// all events are shown.
    pub drops: Option<DropPattern>,
    /// Requests to show. Unless it is empty, events that concern no request are not shown.
    pub requests: RequestPattern,
    /// Sampling rate: with `n`, the trace shows one of `n` flows, with all events of the flow; with
    /// 0 or 1, it shows all flows.
    pub sample: u32,
}

/// Drop reasons to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropPattern {
    /// Any reason.
    Any,
    /// The reason with this label.
    Reason(&'static str),
}

/// Client network, with an optional port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientPattern {
    network: Prefix,
    port: Option<u16>,
}

impl ClientPattern {
    /// Whether the pattern includes a client.
    pub fn includes(&self, client: SocketAddr) -> bool {
        self.network.contains(client.ip()) && self.port.is_none_or(|port| port == client.port())
    }
}

impl FromStr for ClientPattern {
    type Err = String;

    /// Parses `IP`, `IP/LEN`, `IP:PORT` or `IP/LEN:PORT`; an IPv6 address with a port is in
    /// brackets.
    fn from_str(text: &str) -> Result<ClientPattern, String> {
        let wrong = || {
            format!(
                "client: found {text:?}, expected: IP[/LEN][:PORT], such as 192.0.2.0/24 or [2001:db8::9]:4711"
            )
        };
        let (network, port) = split(text).ok_or_else(wrong)?;
        let port = port.map(str::parse).transpose().map_err(|_| wrong())?;
        let network = Prefix::around(network).ok_or_else(wrong)?;
        Ok(ClientPattern { network, port })
    }
}

/// Splits the network from the port.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((ip, Some(port))),
            None => rest.is_empty().then_some((ip, None)),
        };
    }
    // A second colon means that the text is an IPv6 address without a port.
    match text.split_once(':') {
        Some((network, port)) if !port.contains(':') => Some((network, Some(port))),
        _ => Some((text, None)),
    }
}

impl TraceFilter {
    /// Whether the filter shows an event.
    pub fn shows(&self, event: &TraceEvent) -> bool {
        let is_dropped = |drops: DropPattern| match (drops, event.drop_reason()) {
            (_, None) => false,
            (DropPattern::Any, Some(_)) => true,
            (DropPattern::Reason(wanted), Some(reason)) => wanted == reason,
        };
        self.drops.is_none_or(is_dropped)
            && self.is_of_request(event)
            && self.is_of_client(event)
            && has(self.frontends.as_deref(), event.frontend)
            && has(self.servers.as_deref(), event.server)
            && self.is_sampled(event)
    }

    /// Whether the filter may show forwarded packets of a flow. False if the filter shows none of
    /// them.
    pub fn may_show_forwarded(
        &self,
        (client, vip, protocol): (SocketAddr, SocketAddr, Protocol),
        (frontend, server): (u32, u32),
    ) -> bool {
        self.drops.is_none()
            && self.requests.is_empty()
            && self.client.is_none_or(|pattern| pattern.includes(client))
            && has(self.frontends.as_deref(), Some(frontend))
            && has(self.servers.as_deref(), Some(server))
            && (self.sample <= 1 || self.picks(client, vip, protocol))
    }

    fn is_of_request(&self, event: &TraceEvent) -> bool {
        match &event.step {
            TraceStep::Request(request) => self.requests.needs(request),
            TraceStep::Connection(_) | TraceStep::Packet(_) => self.requests.is_empty(),
        }
    }

    fn is_of_client(&self, event: &TraceEvent) -> bool {
        self.client.is_none_or(|pattern| {
            [event.client, event.proxy].into_iter().flatten().any(|client| pattern.includes(client))
        })
    }

    /// Whether sampling selects the event. Sampling uses a hash of the peer that opened the
    /// connection. All events of a connection have the same hash, so sampling selects either all of
    /// them or none.
    fn is_sampled(&self, event: &TraceEvent) -> bool {
        if self.sample <= 1 {
            return true;
        }
        match (event.proxy.or(event.client), event.vip, event.protocol) {
            (Some(client), Some(vip), Some(protocol)) => self.picks(client, vip, protocol),
            _ => true,
        }
    }

    fn picks(&self, client: SocketAddr, vip: SocketAddr, protocol: Protocol) -> bool {
        flow_hash(client, vip, protocol).is_multiple_of(self.sample.into())
    }
}

fn has(wanted: Option<&[u32]>, id: Option<u32>) -> bool {
    wanted.is_none_or(|wanted| id.is_some_and(|id| wanted.contains(&id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ConnectionStep;
    use convey_model::Timestamp;

    fn event(client: &str, step: ConnectionStep) -> TraceEvent {
        TraceEvent {
            at: Timestamp(0),
            protocol: Some(Protocol::Tcp),
            client: client.parse().ok(),
            proxy: None,
            vip: "10.0.0.1:80".parse().ok(),
            frontend: Some(3),
            server: None,
            step: TraceStep::Connection(step),
        }
    }

    fn pattern(text: &str) -> ClientPattern {
        text.parse().unwrap()
    }

    #[test]
    fn client_pattern_is_an_address_or_network_with_optional_port() {
        for (text, inside, outside) in [
            ("192.0.2.9", "192.0.2.9:1", "192.0.2.8:1"),
            ("192.0.2.9/24", "192.0.2.200:1", "192.0.3.9:1"),
            ("192.0.2.0/24:4711", "192.0.2.7:4711", "192.0.2.7:4712"),
            ("192.0.2.9:4711", "192.0.2.9:4711", "192.0.2.9:1"),
            ("2001:db8::9", "[2001:db8::9]:1", "[2001:db8::8]:1"),
            ("[2001:db8::/32]:443", "[2001:db8:1::1]:443", "[2001:db8:1::1]:444"),
            ("[2001:db8::9]", "[2001:db8::9]:9", "192.0.2.9:9"),
        ] {
            assert!(pattern(text).includes(inside.parse().unwrap()), "{text}");
            assert!(!pattern(text).includes(outside.parse().unwrap()), "{text}");
        }
        for wrong in ["", "web", "192.0.2.9:", "192.0.2.9:70000", "192.0.2.0/33", "[2001:db8::9", "[::1]x"] {
            assert!(wrong.parse::<ClientPattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_event_is_shown_if_all_that_is_asked_holds() {
        let accepted = event("192.0.2.9:4711", ConnectionStep::Accepted);
        let refused = event("192.0.2.9:4711", ConnectionStep::Refused { reason: "access_denied" });
        assert!(TraceFilter::default().shows(&accepted));
        let drops = |drops| TraceFilter { drops: Some(drops), ..TraceFilter::default() };
        assert!(!drops(DropPattern::Any).shows(&accepted) && drops(DropPattern::Any).shows(&refused));
        assert!(drops(DropPattern::Reason("access_denied")).shows(&refused));
        assert!(!drops(DropPattern::Reason("no_server")).shows(&refused));
        let of = |frontend| TraceFilter { frontends: Some(vec![frontend]), ..TraceFilter::default() };
        assert!(of(3).shows(&accepted) && !of(4).shows(&accepted));
        let server = TraceFilter { servers: Some(vec![7]), ..TraceFilter::default() };
        assert!(!server.shows(&accepted), "it has none yet");
        let chosen =
            TraceEvent { server: Some(7), ..event("192.0.2.9:4711", ConnectionStep::Chosen { attempt: 1 }) };
        assert!(server.shows(&chosen));
    }

    #[test]
    fn client_behind_a_proxy_matches_by_either_address() {
        let event = TraceEvent {
            proxy: "198.51.100.1:9".parse().ok(),
            ..event("192.0.2.9:4711", ConnectionStep::Header)
        };
        for client in ["192.0.2.9", "198.51.100.1"] {
            let filter = TraceFilter { client: Some(pattern(client)), ..TraceFilter::default() };
            assert!(filter.shows(&event), "{client}");
        }
    }

    #[test]
    fn sampled_flow_shows_all_of_its_events_and_others_none() {
        let filter = TraceFilter { sample: 4, ..TraceFilter::default() };
        let mut shown = 0;
        for port in 1..=400 {
            let client = format!("192.0.2.9:{port}");
            let steps = [ConnectionStep::Accepted, ConnectionStep::Chosen { attempt: 1 }];
            let seen = steps.map(|step| filter.shows(&event(&client, step)));
            assert_eq!(seen[0], seen[1]);
            shown += u32::from(seen[0]);
            let flow = (client.parse().unwrap(), "10.0.0.1:80".parse().unwrap(), Protocol::Tcp);
            assert_eq!(filter.may_show_forwarded(flow, (3, 7)), seen[0]);
            // A PROXY header replaces the client of the event; the peer that opened the connection
            // is a proxy.
            let by_proxy =
                TraceEvent { proxy: client.parse().ok(), ..event("203.0.113.1:5", ConnectionStep::Header) };
            assert_eq!(filter.shows(&by_proxy), seen[0]);
        }
        assert!((60..=140).contains(&shown), "{shown} of 400");
    }

    #[test]
    fn drop_filter_excludes_forwarded_packets() {
        let flow = ("192.0.2.9:1".parse().unwrap(), "10.0.0.1:80".parse().unwrap(), Protocol::Tcp);
        let drops = TraceFilter { drops: Some(DropPattern::Any), ..TraceFilter::default() };
        assert!(!drops.may_show_forwarded(flow, (3, 7)));
        assert!(TraceFilter::default().may_show_forwarded(flow, (3, 7)));
    }
}
