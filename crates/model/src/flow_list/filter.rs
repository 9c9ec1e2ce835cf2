//! Filter for lists of flows. Pure.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use super::{FlowActivity, FlowFacts};
use crate::Prefix;

/// Filter for flows. A condition that is `None` admits all flows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowFilter {
    /// Addresses of the clients.
    pub client: Option<ClientFilter>,
    /// Name of the frontend.
    pub frontend: Option<String>,
    /// Name of the backend.
    pub backend: Option<String>,
    /// Name of the server. The name of a server with a host name selects all addresses of the host
    /// name.
    pub server: Option<String>,
    /// Name of the state.
    pub state: Option<String>,
    /// Minimum age of a flow.
    pub older_than: Option<Duration>,
    /// Minimum idle time of a flow.
    pub idle: Option<Duration>,
    /// Minimum number of bytes in both directions.
    pub min_bytes: Option<u64>,
    /// Whether to exclude flows that are over and of which convey only keeps the record.
    pub only_open: bool,
}

impl FlowFilter {
    /// Whether the filter may admit a flow, regardless of its age, idle time and bytes.
    pub fn admits(&self, flow: &FlowFacts<'_>) -> bool {
        let is_of = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        let is_served = |server: &str| {
            let one_of = |wanted: &String| {
                server
                    .strip_prefix(wanted.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            self.server.as_ref().is_none_or(one_of)
        };
        let server = match flow.server {
            Some(server) => is_of(&self.backend, server.backend) && is_served(server.name),
            None => self.backend.is_none() && self.server.is_none(),
        };
        server
            && !(self.only_open && flow.is_over)
            && is_of(&self.frontend, flow.frontend.1)
            && is_of(&self.state, flow.state)
            && self.client.is_none_or(|wanted| wanted.admits(flow.client))
    }

    /// Whether the filter admits the age, idle time and bytes of a flow that is
    /// [admitted](FlowFilter::admits) otherwise. An unknown value is below every minimum.
    pub fn admits_activity(&self, activity: &FlowActivity) -> bool {
        let is_over = |wanted: Option<Duration>, time: Option<Duration>| {
            wanted.is_none_or(|wanted| time.is_some_and(|time| time >= wanted))
        };
        is_over(self.older_than, activity.age)
            && is_over(self.idle, activity.idle)
            && self.min_bytes.is_none_or(|wanted| activity.bytes() >= wanted)
    }
}

/// Client network, with an optional port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFilter {
    /// Network of the clients.
    pub network: Prefix,
    /// Source port of the clients; `None`: any port.
    pub port: Option<u16>,
}

impl ClientFilter {
    fn admits(self, client: SocketAddr) -> bool {
        self.network.contains(client.ip()) && self.port.is_none_or(|port| port == client.port())
    }
}

/// Parses `192.0.2.1`, `192.0.2.0/24:4242`, `2001:db8::/32` or `[2001:db8::1]:4242`.
impl FromStr for ClientFilter {
    type Err = ();

    fn from_str(text: &str) -> Result<ClientFilter, ()> {
        let (network, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (network, port) = rest.split_once(']').ok_or(())?;
                (network, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(())?) })
            }
            // A text with several colons is an IPv6 address without a port.
            None if text.matches(':').count() == 1 => {
                let (network, port) = text.split_once(':').ok_or(())?;
                (network, Some(port))
            }
            None => (text, None),
        };
        let port = port.map(|port| port.parse().map_err(|_| ())).transpose()?;
        Ok(ClientFilter { network: Prefix::around(network).ok_or(())?, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_list::{FlowServer, ListedFlowId};
    use crate::{FlowKind, Mode, Protocol};
    use std::sync::Arc;

    #[test]
    fn clients_are_told_by_address_network_and_port() {
        let admits = |filter: &str, client: &str| {
            filter.parse::<ClientFilter>().unwrap().admits(client.parse().unwrap())
        };
        for (filter, client) in [
            ("192.0.2.1", "192.0.2.1:7"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("192.0.2.9/24", "192.0.2.1:7"),
            ("192.0.2.0/24:7", "192.0.2.1:7"),
            ("2001:db8::1", "[2001:db8::1]:7"),
            ("2001:db8::/32", "[2001:db8::1]:7"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
            ("[2001:db8::/32]", "[2001:db8::1]:7"),
        ] {
            assert!(admits(filter, client), "{filter} {client}");
        }
        for (filter, client) in [
            ("192.0.2.1", "192.0.2.2:7"),
            ("192.0.2.1:8", "192.0.2.1:7"),
            ("192.0.2.0/24", "192.0.3.1:7"),
            ("[2001:db8::1]:8", "[2001:db8::1]:7"),
            ("::/0", "192.0.2.1:7"),
        ] {
            assert!(!admits(filter, client), "{filter} {client}");
        }
        for wrong in ["", "web", "192.0.2.1:", "192.0.2.1:port", "192.0.2.1/33", "[2001:db8::1", "[::1]7"] {
            assert_eq!(wrong.parse::<ClientFilter>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn each_part_of_a_filter_has_to_hold() {
        let (frontend, backend, name): (Arc<str>, Arc<str>, Arc<str>) =
            ("www".into(), "web".into(), "app/10.0.0.1".into());
        let addr = "10.0.0.1:80".parse().unwrap();
        let flow = FlowFacts {
            id: ListedFlowId { kind: FlowKind::Packets, worker: 0, place: 1, serial: 2 },
            mode: Mode::Dsr,
            protocol: Protocol::Tcp,
            frontend: (1, &frontend),
            server: Some(FlowServer { id: 1, backend: &backend, name: &name, addr }),
            client: "192.0.2.1:7".parse().unwrap(),
            listen: "198.51.100.1:80".parse().unwrap(),
            snat: None,
            state: "established",
            is_over: false,
            is_offloaded: false,
        };
        let none = FlowFilter::default();
        let word = |word: &str| Some(word.to_owned());
        assert!(none.admits(&flow));
        type With = fn(Option<String>) -> FlowFilter;
        let filters: [(With, &str, &str); 4] = [
            (|frontend| FlowFilter { frontend, ..FlowFilter::default() }, "www", "ww"),
            (|backend| FlowFilter { backend, ..FlowFilter::default() }, "web", "webs"),
            (|state| FlowFilter { state, ..FlowFilter::default() }, "established", "closed"),
            (|server| FlowFilter { server, ..FlowFilter::default() }, "app/10.0.0.1", "app/10.0.0.10"),
        ];
        for (filter, right, wrong) in filters {
            assert!(filter(word(right)).admits(&flow) && !filter(word(wrong)).admits(&flow), "{right}");
        }
        assert!(FlowFilter { server: word("app"), ..none.clone() }.admits(&flow), "all of a host name");
        assert!(!FlowFilter { server: word("ap"), ..none.clone() }.admits(&flow));
        let waits = FlowFacts { server: None, ..flow };
        assert!(none.admits(&waits) && !FlowFilter { backend: word("web"), ..none.clone() }.admits(&waits));
        let (over, open) =
            (FlowFacts { is_over: true, ..flow }, FlowFilter { only_open: true, ..none.clone() });
        assert!(none.admits(&over) && open.admits(&flow) && !open.admits(&over));
        let second = Duration::from_secs(1);
        let activity = FlowActivity { age: Some(second), idle: None, bytes_rx: Some(5), bytes_tx: None };
        let admits = |filter: FlowFilter| filter.admits_activity(&activity);
        assert!(admits(FlowFilter { older_than: Some(second), min_bytes: Some(5), ..none.clone() }));
        assert!(!admits(FlowFilter { older_than: Some(2 * second), ..none.clone() }));
        assert!(!admits(FlowFilter { min_bytes: Some(6), ..none.clone() }));
        assert!(!admits(FlowFilter { idle: Some(second), ..none }), "it is not known");
    }
}
