//! A reload of a configuration leads to the same state as a fresh start with the configuration.

use std::collections::BTreeMap;
use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use convey_config::parse;
use convey_model::DnsRecords;

const HOST: &str = "app.internal";
const KINDS: [&str; 4] =
    ["kind = 'none'", "kind = 'tcp'", "kind = 'http', path = '/a'", "kind = 'http', path = '/b'"];
const ALGORITHMS: [&str; 4] = ["ring", "maglev", "round_robin", "least_connections"];

/// Generated configuration.
#[derive(Debug, Clone)]
struct Choices {
    /// Weight of each server; `None`: the configuration does not have the server.
    servers: [Option<u16>; 4],
    kind: usize,
    fall: u32,
    algorithm: usize,
    has_outlier_detection: bool,
    has_name: bool,
    allow_local: bool,
    has_second_frontend: bool,
}

fn choices() -> impl Strategy<Value = Choices> {
    let servers = prop::array::uniform4(prop::option::of(0..3_u16));
    let switches = prop::array::uniform4(any::<bool>());
    (servers, 0..KINDS.len(), 1..4_u32, 0..ALGORITHMS.len(), switches).prop_map(
        |(mut servers, kind, fall, algorithm, switches)| {
            servers[0] = Some(servers[0].unwrap_or(1).max(1));
            let [has_outlier_detection, has_name, allow_local, has_second_frontend] = switches;
            Choices {
                servers,
                kind,
                fall,
                algorithm,
                has_outlier_detection,
                has_name,
                allow_local,
                has_second_frontend,
            }
        },
    )
}

impl Choices {
    fn config(&self) -> Config {
        let mut text = format!("[frontends.web]\nlisten_addr = '{VIP}'\nbackend = 'pool'\n");
        if self.has_second_frontend {
            text += "[frontends.other]\nlisten_addr = '10.0.0.1:81'\nbackend = 'pool'\n";
        }
        let (kind, fall, algorithm) = (KINDS[self.kind], self.fall, ALGORITHMS[self.algorithm]);
        let _ = writeln!(text, "[dns]\nallow_local = {}", self.allow_local);
        let _ = writeln!(
            text,
            "[backends.pool]\nalgorithm = '{algorithm}'\nhealth_check = {{ {kind}, fall = {fall} }}"
        );
        if self.has_outlier_detection {
            text += "outlier_detection = {}\n";
        }
        for (n, weight) in self.servers.iter().enumerate().filter_map(|(n, weight)| Some((n, (*weight)?))) {
            let _ = writeln!(text, "servers.s{n} = {{ addr = '10.0.1.{n}:80', weight = {weight} }}");
        }
        if self.has_name {
            let _ = writeln!(text, "servers.app = {{ addr = '{HOST}:80' }}");
        }
        parse("test.toml", &text).unwrap_or_else(|wrong| panic!("{wrong:?}\n{text}")).config
    }

    fn lookup(&self) -> Lookup {
        let addresses = ["10.0.2.1", "127.0.0.9"].map(|ip| ip.parse().unwrap());
        let lookup = Lookup {
            host: HOST.into(),
            name_servers: vec![],
            v4: Ok(DnsRecords::new(addresses, 60 * SECOND)),
            v6: Ok(DnsRecords::default()),
            from_hosts: false,
            refused: BTreeSet::new(),
        };
        if self.allow_local { lookup } else { lookup.without_local() }
    }

    /// Whether a server passes the check. `truths` has a bit for each server and kind of check.
    fn passes(&self, server: &ServerKey, truths: u64) -> bool {
        let last = match server.addr.ip() {
            IpAddr::V4(ip) => ip.octets()[2] * 4 + ip.octets()[3],
            IpAddr::V6(_) => 0,
        };
        truths >> ((u32::from(last) * 4 + self.kind as u32) % 64) & 1 == 1
    }

    /// Applies the configuration, applies a lookup of the name, and probes each server `probes`
    /// times.
    fn run(&self, state: &mut ControlState, probes: u32, truths: u64, now: Timestamp) {
        state.configure(self.config(), now);
        state.on_lookup(self.lookup(), now);
        for _ in 0..probes {
            for server in state.probes().into_keys() {
                let passes = self.passes(&server, truths);
                state.on_probe(&server, passes, "probed".into(), now);
            }
        }
    }
}

/// State that clients and operators can observe.
#[derive(Debug, PartialEq)]
struct Seen {
    servers: BTreeMap<ServerKey, (bool, u16)>,
    probed: BTreeSet<ServerKey>,
    names: Vec<(String, BTreeSet<model::ServerAddr>, bool)>,
    frontends: BTreeSet<String>,
    picks: Vec<String>,
}

fn seen(state: &mut ControlState, now: Timestamp, hashes: bool) -> Seen {
    // Lets slow starts and ejections end.
    state.on_time(now.after(3_600 * SECOND));
    state.take_update();
    let snapshot = state.snapshot();
    let pool = &snapshot.pools[0];
    let vip: SocketAddr = VIP.parse().unwrap();
    let servers = pool
        .servers
        .iter()
        .map(|server| (key(&pool.config, &server.config), (server.health.up, server.config.settings.weight)));
    let pick = |port| match pool.pick(SocketAddr::new([192, 0, 2, 1].into(), port), vip, &[]) {
        Pick::Server(index) => pool.servers[index].config.name.clone(),
        Pick::Busy | Pick::Nobody => String::new(),
    };
    let mut picks: Vec<String> = (1_000..1_200).map(pick).collect();
    if !hashes {
        picks.sort();
        picks.dedup();
    }
    Seen {
        servers: servers.collect(),
        probed: state.probes().into_keys().collect(),
        names: snapshot
            .names
            .iter()
            .map(|name| (name.host.clone(), name.addresses.clone(), name.is_resolved()))
            .collect(),
        frontends: snapshot.frontends.iter().map(|frontend| frontend.config.name.clone()).collect(),
        picks,
    }
}

proptest! {
    #[test]
    fn reload_ends_where_a_fresh_start_begins(
        first in choices(), second in choices(), truths in any::<u64>(), is_upgrade in any::<bool>(),
    ) {
        let now = Timestamp(0).after(10 * SECOND);
        let mut before = ControlState::new(1);
        first.run(&mut before, 4, truths, Timestamp(0));
        let mut reloaded = if is_upgrade {
            let mut next = ControlState::new(1);
            next.expect(before.known(), now);
            next
        } else {
            before
        };
        second.run(&mut reloaded, 1, truths, now);
        let mut started = ControlState::new(1);
        second.run(&mut started, 1, truths, now);
        let hashes = second.algorithm < 2;
        prop_assert_eq!(seen(&mut reloaded, now, hashes), seen(&mut started, now, hashes));
    }
}
