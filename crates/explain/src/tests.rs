//! Compares explanations with the data path: with pools, and with forwarders that process real
//! packets.

mod flows;
mod requests;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use convey_dataplane::plan;
use convey_forward::{Dispatch, Forwarder, Frame, NatPorts, PortSplit, Settings, SnatChoice};
use convey_model::fixture::network::{Family, LAN, interfaces, neighbour, routes};
use convey_model::{
    Access, AdminState, Algorithm, BackendConfig, DsrKind, HashOn, Limits, Mode, NextHops, Prefix,
    ServerSettings, Sources,
};
use convey_snapshot::{Ejected, Frontend, Health, Pick, Pool, Server, ServerLive, fixture};
use convey_wire::{TestPacket, parse};
use fastrand::Rng;

use super::*;

const CLIENTS: usize = 10_000;

/// Creates a pool whose servers are in random states.
fn any_pool(rng: &mut Rng, algorithm: Algorithm, port: u16) -> Arc<Pool> {
    let config = BackendConfig {
        algorithm,
        hash: if rng.bool() { HashOn::Source } else { HashOn::Tuple },
        dsr: if rng.bool() { DsrKind::L2 } else { DsrKind::L3 },
        ..convey_model::fixture::backend("app", Vec::new())
    };
    let empty = fixture::pool_of(config);
    let servers = (0..rng.u8(0..7)).map(|n| any_server(rng, 11 + n, port)).collect();
    fixture::with_servers(&empty, servers)
}

fn any_server(rng: &mut Rng, n: u8, port: u16) -> Arc<Server> {
    let mut config = fixture::server(&format!("s{n}"), &format!("10.0.0.{n}:{port}"));
    let max_connections = (rng.u8(0..4) == 0).then(|| rng.u32(0..4));
    config.settings = ServerSettings { weight: rng.u16(0..5), backup: rng.u8(0..5) == 0, max_connections };
    let live = ServerLive::new(u32::from(n), 1);
    (0..rng.u8(0..4)).for_each(|_| _ = live.slots.try_take(None));
    let ejected = (rng.u8(0..5) == 0).then(|| Ejected {
        until: Timestamp(9_000_000_000),
        times: 1,
        reason: "5 connections failed in a row".into(),
    });
    let up = if rng.u8(0..5) == 0 { fixture::down("refused", Duration::ZERO) } else { fixture::up() };
    let health = Health { ejected, percent: rng.u8(1..=100), ..up };
    let admin = match rng.u8(0..8) {
        0 => AdminState::Drain,
        1 => AdminState::Maint,
        _ => AdminState::Ready,
    };
    Arc::new(Server { config, admin, health, live: Arc::new(live) })
}

fn any_access(rng: &mut Rng) -> Access {
    let mut networks = |most: u8| -> Vec<Prefix> {
        let network = |rng: &mut Rng| Prefix::of(IpAddr::from([198, 51, 100, rng.u8(..)]), rng.u8(20..=32));
        (0..rng.u8(0..most)).map(|_| network(rng)).collect()
    };
    Access::new(networks(2), networks(4))
}

fn any_client(rng: &mut Rng, port: u16) -> SocketAddr {
    ([198, 51, 100, rng.u8(..)], port).into()
}

fn explain_client(sources: ExplainSources<'_>, client: SocketAddr) -> Explanation {
    explain(sources, ClientAddr { ip: client.ip(), port: Some(client.port()) }, "web").unwrap()
}

fn of(snapshot: &Snapshot) -> ExplainSources<'_> {
    ExplainSources {
        request: None,
        snapshot,
        plan: None,
        packets: None,
        proxy: None,
        flows: &ClientFlows::NotAsked,
        network: None,
        share: None,
        now: Timestamp(1_000_000_000),
    }
}

#[test]
fn ten_thousand_clients_of_proxies_get_what_was_explained() {
    let rng = &mut Rng::with_seed(7);
    let mut verdicts = std::collections::BTreeMap::<String, usize>::new();
    for n in 0..CLIENTS / 20 {
        let algorithm = Algorithm::ALL[n % Algorithm::ALL.len()];
        let pool = any_pool(rng, algorithm, 80);
        let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80"], "app");
        config.access = any_access(rng);
        let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool.clone()]);
        for port in 0..20 {
            let client = any_client(rng, 4_000 + port);
            let explanation = explain_client(of(&snapshot), client);
            *verdicts.entry(format!("{:?}", explanation.verdict)).or_default() += 1;
            let is_let_in = snapshot.frontends[0].config.access.admits(client.ip());
            let expected = is_let_in.then(|| pool.pick(client, explanation.vip, &[]));
            let (verdict, reason) = match expected {
                None => (ClientVerdict::Refused, Some("access_denied")),
                Some(Pick::Server(_)) => (ClientVerdict::Server, None),
                Some(Pick::Busy) => (ClientVerdict::Waits, Some("queue_timeout")),
                Some(Pick::Nobody) => (ClientVerdict::Refused, Some("no_server")),
            };
            assert_eq!(
                (explanation.verdict, explanation.reason.as_deref()),
                (verdict, reason),
                "{explanation:#?}"
            );
            if let Some(Pick::Server(index)) = expected {
                assert_eq!(
                    explanation.server.as_ref(),
                    Some(&pool.servers[index].config.name),
                    "{explanation:#?}"
                );
                assert!(
                    explanation.servers[index].chosen
                        && explanation.servers.iter().filter(|s| s.chosen).count() == 1
                );
            }
            for (index, note) in explanation.servers.iter().enumerate() {
                let is_out = pool.passed_over(index).is_some();
                assert_eq!(is_out, !pool.is_eligible(index));
                assert!(!note.why.is_empty() && (!is_out || note.share == 0.0), "{note:?}");
            }
        }
    }
    assert!(verdicts.len() == 3 && verdicts.values().all(|count| *count > 300), "{verdicts:?}");
}

/// Creates a frontend of a packet mode. Its servers are on a link, and some of their next hops are
/// not resolved.
fn any_packet_world(rng: &mut Rng, n: usize) -> (Snapshot, PacketFacts) {
    let mode = if rng.bool() { Mode::Passthrough } else { Mode::Dsr };
    let pool = any_pool(rng, Algorithm::ALL[n % Algorithm::ALL.len()], 80);
    let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80"], "app");
    (config.mode, config.access) = (mode, any_access(rng));
    config.limits =
        Limits { rate_per_source: NonZeroU32::new(rng.u32(0..3)), ipv4_prefix: 28, ..Limits::default() };
    let sources = config.limits.are_per_source().then(|| Arc::new(Sources::new(&config.limits)));
    let frontend = fixture::frontend_of(config, &pool);
    let Frontend { config, live, .. } = &*frontend;
    let (config, live) = (config.clone(), live.clone());
    let frontend = Frontend {
        config,
        pool: pool.clone(),
        http: None,
        tls: None,
        sni: None,
        challenges: None,
        sources,
        live,
    };
    let resolved = (11..18).filter(|_| rng.u8(0..6) > 0);
    let mut neighbours: Vec<_> = resolved.map(|id| neighbour(LAN, Family::V4.server_ip(id), id)).collect();
    neighbours.push(Family::V4.router());
    let server_router = (rng.u8(0..5) == 0).then(|| Family::V4.server_ip(11));
    let network = NextHops::new(&interfaces(1500, 1500), routes(None, server_router).to_vec(), &neighbours);
    let snapshot = fixture::snapshot(vec![Arc::new(frontend)], vec![pool]);
    let snapshot = Snapshot { network: Arc::new(network), stopping: rng.u8(0..20) == 0, ..snapshot };
    let facts = PacketFacts {
        snat_addresses: vec!["10.0.0.254".parse().unwrap()],
        snat_choice: SnatChoice::Named,
        split: Some(PortSplit::new(40_000..=49_999, 1)),
        dispatch: Some(Dispatch::new(1, None)),
        layers: [("eth1".to_owned(), convey_model::Layer::Tc)].into(),
        without_kernel: String::new(),
    };
    (snapshot, facts)
}

#[test]
fn ten_thousand_first_packets_fare_as_was_explained() {
    let rng = &mut Rng::with_seed(11);
    let mut reasons = std::collections::BTreeMap::<&str, usize>::new();
    for n in 0..CLIENTS / 20 {
        let (snapshot, facts) = any_packet_world(rng, n);
        let plan = plan(&snapshot);
        let ports = NatPorts::new(vec![facts.snat_addresses[0].into()], 40_000..=49_999, 7);
        let mut forwarder = Forwarder::new(Settings { ports: Some(ports), ..Settings::alone(1_000, 7) });
        let now = Timestamp(1_000_000_000);
        forwarder.handle_timeout(&plan, now, |_, _| {});
        let (mut forwarded_before, mut asked) = (0, std::collections::BTreeSet::new());
        for port in 0..20 {
            let client = match rng.u8(0..12) {
                // Sometimes the client is a server, an address of convey, or an address that no
                // packet may have.
                0 => ([10, 0, 0, rng.u8(11..18)], 80 + port % 2).into(),
                1 => ([192, 0, 2, 2], 4_000 + port).into(),
                2 => ([127, 0, 0, 1], 4_000 + port).into(),
                _ => any_client(rng, 4_000 + port),
            };
            if !asked.insert(client) {
                // A flow of this client exists already.
                continue;
            }
            let sources = ExplainSources { plan: Some(&plan), packets: Some(&facts), ..of(&snapshot) };
            let explanation = explain_client(sources, client);
            let mut syn = TestPacket::from(client.to_string()).to("192.0.2.1:80").syn().bytes();
            let headers = parse(&syn);
            let verdict = forwarder.handle_frame(&mut Frame::new(&mut syn, &headers), &plan, now);
            // The data path may evict a connection that is not open yet in favour of the client.
            // The explanation mentions this.
            if explanation.reason.as_deref() == Some("max_connections") && forwarded_before > 0 {
                assert_eq!(explanation.depends_on, Some(Dependence::OtherConnections));
                *reasons.entry("may give way").or_default() += 1;
                continue;
            }
            match verdict {
                convey_forward::Verdict::Transmit(forwarded) => {
                    forwarded_before += 1;
                    let server = snapshot.server(forwarded.flow.server).unwrap().config.name.clone();
                    assert_eq!(
                        (explanation.verdict, &explanation.server),
                        (ClientVerdict::Server, &Some(server)),
                        "{explanation:#?}"
                    );
                    *reasons.entry("forwarded").or_default() += 1;
                }
                convey_forward::Verdict::Drop(reason) | convey_forward::Verdict::Reply(reason) => {
                    assert_eq!(
                        explanation.reason.as_deref(),
                        Some(reason.label()),
                        "{client}: {explanation:#?}"
                    );
                    assert_eq!((explanation.verdict, explanation.server), (ClientVerdict::Refused, None));
                    *reasons.entry(reason.label()).or_default() += 1;
                }
                convey_forward::Verdict::Pass => panic!("{client}: {explanation:#?}"),
            }
        }
    }
    assert!(reasons["may give way"] < CLIENTS / 10, "{reasons:?}");
    let told = [
        "forwarded",
        "access_denied",
        "martian",
        "vip_loop",
        "client_is_server",
        "stopping",
        "no_server",
        "max_connections",
        "next_hop_unresolved",
        "server_not_on_link",
        "source_rate",
    ];
    assert!(told.iter().all(|reason| reasons.get(reason) > Some(&10)), "{reasons:?}");
}

#[test]
fn a_frontend_is_told_by_its_name_its_port_or_its_address() {
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let hashed =
        BackendConfig { algorithm: Algorithm::Maglev, hash: HashOn::Tuple, ..(*pool.config).clone() };
    let pool = fixture::pool_of(hashed);
    let web = fixture::frontend("web", &["192.0.2.1:80", "192.0.2.1:443", "[2001:db8::1]:80"], &pool);
    let any = fixture::frontend("any", &["0.0.0.0:53"], &pool);
    let snapshot = fixture::snapshot(vec![web, any], vec![pool]);
    let vip = |client: &str, frontend: &str| match explain(of(&snapshot), client.parse().unwrap(), frontend) {
        Ok(explanation) => explanation.vip.to_string(),
        Err(why) => why.to_string(),
    };
    for (client, frontend, expected) in [
        ("198.51.100.1:5", "web:443", "192.0.2.1:443"),
        ("198.51.100.1:5", "192.0.2.1:80", "192.0.2.1:80"),
        ("[2001:db8::9]:5", "web", "[2001:db8::1]:80"),
        ("198.51.100.1:5", "192.0.2.7:53", "0.0.0.0:53"),
        ("198.51.100.1:5", "any", "0.0.0.0:53"),
        ("198.51.100.1:5", "wob", "there is no frontend wob; did you mean `web`?"),
        (
            "198.51.100.1:5",
            "10.9.9.9:80",
            "no frontend listens on 10.9.9.9:80; existing frontends: web on WEB, any on 0.0.0.0:53",
        ),
        ("198.51.100.1:5", "web:444", "frontend web does not listen on port 444; it listens on WEB"),
    ] {
        let listens: Vec<String> =
            snapshot.frontends[0].config.listen.iter().map(ToString::to_string).collect();
        let expected = expected.replace("WEB", &listens.join(", "));
        assert_eq!(vip(client, frontend), expected);
    }
    assert!(vip("198.51.100.1:5", "web").contains("name one, such as web:80 or 192.0.2.1:80"));
    assert!(vip("[2001:db8::9]:5", "any").contains("listens on no IPv6 address"));
    assert!("198.51.100.300".parse::<ClientAddr>().unwrap_err().contains("expected an address such as"));
}

#[test]
fn verdict_names_its_dependence_on_port_or_load() {
    let servers = || ["a", "b"].map(|name| fixture::server(name, "10.0.0.11:80")).to_vec();
    let explain_client = |algorithm, client: &str| {
        let config = BackendConfig {
            algorithm,
            hash: HashOn::Tuple,
            ..convey_model::fixture::backend("app", servers())
        };
        let pool = fixture::pool_of(config);
        let snapshot =
            fixture::snapshot(vec![fixture::frontend("web", &["192.0.2.1:80"], &pool)], vec![pool]);
        let explanation = explain(of(&snapshot), client.parse().unwrap(), "web").unwrap();
        (explanation.verdict, explanation.depends_on, as_text(&explanation))
    };
    let (verdict, depends_on, text) = explain_client(Algorithm::Maglev, "198.51.100.1");
    assert_eq!((verdict, depends_on), (ClientVerdict::OneOfThem, Some(Dependence::Port)));
    assert!(text.contains("gets a server of app; the choice depends on the client's port"), "{text}");
    let (verdict, depends_on, _) = explain_client(Algorithm::Maglev, "198.51.100.1:4242");
    assert_eq!((verdict, depends_on), (ClientVerdict::Server, None));
    let (verdict, depends_on, text) = explain_client(Algorithm::RoundRobin, "198.51.100.1");
    assert_eq!((verdict, depends_on), (ClientVerdict::Server, Some(Dependence::OtherConnections)));
    assert!(text.contains("turn 1 of 2 belongs to a") && text.contains(", as things are now\n"), "{text}");
}

#[test]
fn text_has_a_line_for_each_step_and_marks_the_last() {
    let down = fixture::down("connect failed: refused", Duration::ZERO);
    let pool = fixture::pool(
        "app",
        vec![
            (fixture::server("a", "10.0.0.11:80"), down),
            (fixture::server("b", "10.0.0.12:80"), fixture::up()),
        ],
    );
    let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80"], "app");
    config.access = Access::new([], ["198.51.100.0/24".parse().unwrap()]);
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let text = |client: &str| {
        let explanation = explain(of(&snapshot), client.parse().unwrap(), "web").unwrap();
        as_text(&explanation)
    };
    let refused = text("198.51.100.7");
    assert!(
        refused.starts_with(
            "198.51.100.7 at frontend web (192.0.2.1:80, proxy tcp) is refused: access_denied\n"
        ),
        "{refused}"
    );
    assert!(
        refused.contains("198.51.100.7 is in 198.51.100.0/24 of frontends.web.access.deny  <-- ends here\n"),
        "{refused}"
    );
    assert!(refused.contains("b  10.0.0.12:80  weight 1, share 100 %: would be chosen\n"), "{refused}");
    let served = text("203.0.113.9");
    assert!(
        served.starts_with(
            "203.0.113.9 at frontend web (192.0.2.1:80, proxy tcp) gets app/b at 10.0.0.12:80\n"
        ),
        "{served}"
    );
    assert!(
        served.contains("a  10.0.0.11:80  weight 1, share 0 %: down: connect failed: refused\n"),
        "{served}"
    );
}
