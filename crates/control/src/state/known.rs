//! State of servers, for the process that takes over in an upgrade. With this state, the next
//! process starts with the servers' health. Both processes measure time from the same origin. Pure.

use super::ControlState;
use crate::discoveries::KnownSource;
use crate::names::KnownName;
use convey_model::{HttpOverlay, Overlay, SaidLogLevel, ServerKey, Timestamp};

/// State of servers and backends, for the process that takes over in an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// Servers, in no order.
    pub servers: Vec<KnownServer>,
    /// Round-robin positions, by backend.
    pub turns: Vec<(String, usize)>,
    /// Overlays of operators.
    pub overlays: Vec<Overlay>,
    /// Overlays of mode `http`. Several of one route are parts of one overlay.
    pub http_overlays: Vec<HttpOverlay>,
    /// Log level that an operator set.
    pub log_level: Option<SaidLogLevel>,
    /// Host names that have addresses.
    pub names: Vec<KnownName>,
    /// Discovery sources that have reported their servers.
    pub sources: Vec<KnownSource>,
}

/// State of a server, for the process that takes over in an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownServer {
    /// Identity of the server.
    pub server: ServerKey,
    /// Whether checks of the server succeed.
    pub up: bool,
    /// Whether an outcome of the configured check has confirmed `up`.
    pub proven: bool,
    /// Number of consecutive checks that contradict `up`.
    pub against: u32,
    /// Digest of the check without its intervals and thresholds; `None`: the other process does not
    /// send the digest.
    pub check: Option<u64>,
    /// Whether a check has ever succeeded.
    pub has_answered: bool,
    /// Operator-facing reason why the server is up or down.
    pub reason: String,
    /// Time at which `up` last changed.
    pub since: Timestamp,
    /// Time at which the ejection ends; `None`: the server is not ejected.
    pub ejected_until: Option<Timestamp>,
    /// Number of ejections in short succession.
    pub ejections: u32,
    /// Time at which the last ejection ended.
    pub returned: Timestamp,
    /// Operator-facing reason of the ejection.
    pub ejected_for: String,
    /// Time at which the slow start began; `None`: no slow start is under way.
    pub warmup_since: Option<Timestamp>,
}

impl ControlState {
    /// State that convey passes to the next process.
    pub fn known(&self) -> Known {
        let (overlays, http_overlays, log_level) = self.operators.known();
        let (names, sources) = self.membership.known();
        Known {
            servers: self.servers.known(),
            turns: self.pools.turns(),
            overlays,
            http_overlays,
            log_level,
            names,
            sources,
        }
    }

    /// Takes over the state of the previous process. Servers, backends, names and sources start
    /// with this state once they are configured.
    pub fn expect(&mut self, known: Known, now: Timestamp) {
        let Known { servers, turns, overlays, http_overlays, log_level, names, sources } = known;
        self.membership.expect(names, sources, now);
        self.operators.expect(overlays, http_overlays, log_level);
        self.servers.expect(servers);
        self.pools.expect(turns);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use super::*;
    use convey_config::parse;
    use convey_model::fixture::kubernetes_source;
    use convey_model::{DiscoveredServer, DiscoveryConfig, ServerAddr, ServerSettings, SourceSettings};

    const FILE: &str = "\
        [frontends.web]\nlisten_addr = '10.0.0.1:80'\nbackend = 'pool'\n\
        [backends.pool]\nslow_start = 10\noutlier_detection = {}\nhealth_check = { fall = 3, rise = 2 }\n\
        servers = { a = { addr = '10.0.0.2:80' }, b = { addr = '10.0.0.3:80' } }\n";

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default().after(Duration::from_secs(seconds))
    }

    fn configured(known: Option<Known>, now: Timestamp) -> ControlState {
        let mut state = ControlState::new(1);
        known.into_iter().for_each(|known| state.expect(known, now));
        state.configure(parse("test.toml", FILE).unwrap().config, now);
        state
    }

    fn key(name: &str, ip: [u8; 4]) -> ServerKey {
        ServerKey { backend: "pool".into(), server: name.into(), addr: (ip, 80).into() }
    }

    #[test]
    fn the_next_process_knows_of_servers_what_the_first_knew() {
        let (a, b) = (key("a", [10, 0, 0, 2]), key("b", [10, 0, 0, 3]));
        let mut first = configured(None, at(0));
        first.on_probe(&a, false, "refused".into(), at(1));
        first.on_probe(&b, true, "connected".into(), at(1));
        first.on_probe(&b, false, "timed out".into(), at(2));
        let mut known = first.known();
        known.turns = vec![("pool".into(), 7)];

        let mut second = configured(Some(known.clone()), at(5));
        let mut again = second.known();
        let by_name = |known: &mut Known| known.servers.sort_by(|x, y| x.server.cmp(&y.server));
        by_name(&mut known);
        by_name(&mut again);
        assert_eq!(known, again);
        let health = |state: &mut ControlState| {
            let snapshot = state.snapshot();
            snapshot.pools[0].servers.iter().map(|server| server.health.up).collect::<Vec<_>>()
        };
        assert_eq!(health(&mut second), [false, true]);
        // Two more failures make three consecutive failures. Without the state of the first
        // process, the first failure would decide alone.
        second.on_probe(&b, false, "timed out".into(), at(6));
        assert_eq!(health(&mut second), [false, true]);
        second.on_probe(&b, false, "timed out".into(), at(7));
        second.take_update();
        assert_eq!(health(&mut second), [false, false]);
    }

    #[test]
    fn first_probe_of_a_changed_check_decides_after_an_upgrade() {
        let a = key("a", [10, 0, 0, 2]);
        let mut first = configured(None, at(0));
        first.on_probe(&a, true, "connected".into(), at(1));
        let is_up_after_a_failure = |file: &str, check: fn(Option<u64>) -> Option<u64>| {
            let mut known = first.known();
            known.servers.iter_mut().for_each(|server| server.check = check(server.check));
            let mut second = ControlState::new(1);
            second.expect(known, at(2));
            second.configure(parse("test.toml", file).unwrap().config, at(2));
            second.on_probe(&a, false, "404".into(), at(3));
            second.take_update();
            second.snapshot().pools[0].servers[0].health.up
        };
        let other = FILE.replace("fall = 3", "kind = 'http', path = '/ready', fall = 3");
        assert!(!is_up_after_a_failure(&other, |check| check), "another question");
        let slower = FILE.replace("fall = 3", "fall = 2, interval = 9");
        assert!(is_up_after_a_failure(&slower, |check| check), "the same question in another rhythm");
        assert!(is_up_after_a_failure(&other, |_| None), "a version that hands no digest over");
    }

    #[test]
    fn names_and_sources_serve_in_the_next_process_at_once() {
        let file = FILE.replace("b = { addr = '10.0.0.3:80' }", "b = { addr = 'app.internal:80' }");
        let config = || {
            let mut config = parse("test.toml", &file).unwrap().config;
            config.backends[0].discovery = Some(DiscoveryConfig {
                source: kubernetes_source("web"),
                settings: ServerSettings::default(),
                zone: None,
            });
            config
        };
        let mut known = Known::default();
        let addresses =
            ["10.0.0.3", "127.0.0.1", "0.0.0.0"].map(|ip| ServerAddr::from(ip.parse::<IpAddr>().unwrap()));
        let (host, fault) = ("app.internal".to_owned(), Some("timed out".to_owned()));
        known.names = vec![KnownName { host, addresses: addresses.into(), from_hosts: false, fault }];
        let pod = |name: &str, addr: &str| DiscoveredServer {
            name: name.into(),
            addr: addr.parse().unwrap(),
            is_draining: false,
            zone: None,
        };
        let servers = vec![pod("web-1", "10.1.0.1:80"), pod("web-2", "[::1]:80"), pod("web-3", "0.0.0.0:80")];
        let settings = SourceSettings { weight: Some(3), ..SourceSettings::default() };
        known.sources =
            vec![KnownSource { source: kubernetes_source("web"), servers, settings, fault: None }];
        let web =
            ServerKey { backend: "pool".into(), server: "web-1".into(), addr: ([10, 1, 0, 1], 80).into() };
        let mut first = configured(None, at(0));
        first.on_probe(&key("a", [10, 0, 0, 2]), true, "connected".into(), at(1));
        let up = first.known().servers.into_iter().find(|server| server.server.server == "a").unwrap();
        known.servers = vec![KnownServer { server: web, up: false, reason: "refused".into(), ..up }];

        let mut second = ControlState::new(1);
        second.expect(known, at(5));
        assert!(second.unknown_names(&config()).is_empty() && second.unknown_sources(&config()).is_empty());
        let snapshot = second.configure(config(), at(5));
        let servers: Vec<_> = snapshot.pools[0]
            .servers
            .iter()
            .map(|server| (&*server.config.name, server.health.up, server.config.settings.weight))
            .collect();
        assert_eq!(servers, [("a", true, 1), ("b/10.0.0.3", true, 1), ("web-1", false, 3)]);
        assert!(!snapshot.names[0].is_resolved() && snapshot.discoveries[0].is_connected());
        let handed_on = second.known();
        assert_eq!((handed_on.names.len(), handed_on.sources[0].servers.len()), (1, 1));
    }

    #[test]
    fn an_ejection_and_a_slow_start_go_on_where_they_were() {
        let server = |warmup_since, ejected_until| KnownServer {
            server: key("a", [10, 0, 0, 2]),
            up: true,
            proven: true,
            against: 0,
            check: None,
            has_answered: true,
            reason: "connected".into(),
            since: at(1),
            ejected_until,
            ejections: 1,
            returned: at(0),
            ejected_for: "5 failed".into(),
            warmup_since,
        };
        let health = |known| {
            let mut state = configured(Some(Known { servers: vec![known], ..Known::default() }), at(25));
            state.snapshot().pools[0].servers[0].health.clone()
        };
        assert_eq!(health(server(Some(at(20)), None)).percent, 50);
        assert_eq!(health(server(Some(at(10)), None)).percent, 100, "it is over");
        let ejected = health(server(None, Some(at(40)))).ejected.unwrap();
        assert_eq!((ejected.until, ejected.times, ejected.reason.as_str()), (at(40), 1, "5 failed"));
    }
}
