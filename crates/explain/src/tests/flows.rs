//! Compares explanations for clients that have flows with the handling of their next packets.

use convey_dataplane::PacketFlow;
use convey_forward::Verdict;
use convey_model::{
    FlowActivity, FlowAnswer, FlowGroup, FlowKey, FlowKind, FlowsUnavailable, ListedFlow, ListedFlowId,
    Protocol,
};

use super::*;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn listed(client: SocketAddr, server: Option<(&str, &str)>) -> ListedFlow {
    let known = |seconds: u64| Some(Duration::from_millis(seconds * 1_000 + 900));
    ListedFlow {
        id: ListedFlowId { kind: FlowKind::Connection, worker: 0, place: 1, serial: 2 },
        mode: Mode::Proxy,
        protocol: Protocol::Tcp,
        frontend: "web".into(),
        server: server.map(|(name, addr)| ("app".into(), name.into(), addr.parse().unwrap())),
        client,
        listen: "192.0.2.1:80".parse().unwrap(),
        snat: None,
        state: if server.is_some() { "established" } else { "connecting" },
        is_offloaded: false,
        activity: FlowActivity { age: known(75), idle: known(3), bytes_rx: None, bytes_tx: None },
    }
}

/// Finds the flow of a client in its worker.
fn found(
    forwarder: &mut Forwarder,
    plan: &Plan,
    snapshot: &Snapshot,
    client: SocketAddr,
) -> Option<PacketFlow> {
    let key = FlowKey::tcp(client, "192.0.2.1:80".parse().unwrap());
    let (info, activity) = forwarder.find_flow(&key, NOW)?;
    let config = &snapshot.server(info.owners.server).unwrap().config;
    let snat = (!plan.frontends[0].is_dsr()).then(|| info.server.destination());
    let addr = info.server.source().to_string();
    let known = listed(client, Some((&config.name, &addr)));
    let listed = ListedFlow { snat, activity, state: info.state.name(), ..known };
    Some(PacketFlow { listed, info, next_hop: plan.network.get(info.to_server).copied() })
}

fn message<'a>(explanation: &'a Explanation, subject: &str) -> &'a str {
    explanation.steps.iter().find(|step| step.subject == subject).map_or("", |step| &step.message)
}

/// Handles a packet. Returns the verdict, and the source address that the receiver sees.
fn handle(forwarder: &mut Forwarder, plan: &Plan, packet: TestPacket) -> (Verdict, SocketAddr) {
    let mut bytes = packet.bytes();
    let headers = parse(&bytes);
    let verdict = forwarder.handle_frame(&mut Frame::new(&mut bytes, &headers), plan, NOW);
    (verdict, parse(&bytes).unwrap().key.source())
}

#[test]
fn explanation_predicts_outcome_of_open_and_new_flows() {
    let rng = &mut Rng::with_seed(13);
    let mut told = std::collections::BTreeMap::<&str, usize>::new();
    for n in 0..400 {
        let (snapshot, facts) = any_packet_world(rng, n);
        let plan = plan(&snapshot);
        let ports = NatPorts::new(vec![facts.snat_addresses[0].into()], 40_000..=49_999, 7);
        let mut forwarder = Forwarder::new(Settings { ports: Some(ports), ..Settings::alone(1_000, 7) });
        forwarder.handle_timeout(&plan, NOW, |_, _| {});
        for port in 0..20 {
            let client = any_client(rng, 4_000 + port);
            let packet = || TestPacket::from(client.to_string()).to("192.0.2.1:80");
            let (Verdict::Transmit(_), _) = handle(&mut forwarder, &plan, packet().syn().seq(100)) else {
                continue;
            };
            let (ends, resets) = (rng.bool(), rng.bool());
            match found(&mut forwarder, &plan, &snapshot, client).filter(|_| ends) {
                Some(_) if resets => _ = handle(&mut forwarder, &plan, packet().rst().seq(101)),
                Some(flow) => close(&mut forwarder, &plan, packet, flow.info.server),
                None => {}
            }
            let flow = found(&mut forwarder, &plan, &snapshot, client).unwrap();
            assert_eq!(flow.info.is_over(), ends);
            let (snat, before) = (flow.listed.snat, flow.info.owners.server);
            let flows = ClientFlows::One(Some(Box::new(FoundFlow::Packets(flow))));
            let sources =
                ExplainSources { plan: Some(&plan), packets: Some(&facts), flows: &flows, ..of(&snapshot) };
            let explanation = explain_client(sources, client);
            assert_eq!(explanation.flow.as_ref().map(|flow| flow.over), Some(ends));
            let next = if ends { packet().syn().seq(9_000) } else { packet().seq(101).ack(501) };
            let handled = handle(&mut forwarder, &plan, next);
            // The data path may evict a connection that is not open yet in favour of the client.
            // The explanation mentions this.
            if explanation.reason.as_deref() == Some("max_connections") {
                assert_eq!(explanation.depends_on, Some(Dependence::OtherConnections));
                continue;
            }
            match handled {
                (Verdict::Transmit(forwarded), seen) => {
                    let server = &snapshot.server(forwarded.flow.server).unwrap().config.name;
                    assert_eq!(
                        (explanation.verdict, explanation.server.as_ref()),
                        (ClientVerdict::Server, Some(server)),
                        "{explanation:#?}"
                    );
                    let is_same = snat == Some(seen);
                    assert!(ends || snat.is_none() || is_same);
                    let is_said_same =
                        message(&explanation, "snat").ends_with("as in the flow that has ended");
                    let is_same_server = forwarded.flow.server == before;
                    assert!(!ends || snat.is_none() || is_said_same == is_same_server, "{explanation:#?}");
                    assert!(!is_said_same || is_same, "{seen} {explanation:#?}");
                    let is_previous = message(&explanation, "server").contains(" again: ");
                    *told
                        .entry(match (ends, is_previous) {
                            (false, _) => "goes on",
                            (true, true) => "again",
                            (true, false) => "anew",
                        })
                        .or_default() += 1;
                }
                (Verdict::Drop(reason) | Verdict::Reply(reason), _) => {
                    assert!(ends, "a flow goes on");
                    assert_eq!(explanation.reason.as_deref(), Some(reason.label()), "{explanation:#?}");
                    *told.entry("refused").or_default() += 1;
                }
                (Verdict::Pass, _) => panic!("{explanation:#?}"),
            }
        }
    }
    assert!(["goes on", "again", "anew", "refused"].iter().all(|way| told.get(way) > Some(&20)), "{told:?}");
}

/// Opens a connection and closes it from both sides, if the packets for this are forwarded.
fn close(forwarder: &mut Forwarder, plan: &Plan, client: impl Fn() -> TestPacket, server: FlowKey) {
    let answer = || TestPacket::from(server.source()).to(server.destination());
    let packets = [
        (true, answer().syn().seq(500).ack(101)),
        (false, client().seq(101).ack(501)),
        (false, client().fin().seq(101).ack(501)),
        (true, answer().fin().seq(501).ack(102)),
        (false, client().seq(102).ack(502)),
    ];
    let passes = |is_answer: &bool| !(*is_answer && plan.frontends[0].is_dsr());
    packets.into_iter().filter(|(is_answer, _)| passes(is_answer)).for_each(|(_, packet)| {
        handle(forwarder, plan, packet);
    });
}

/// Snapshot in which server `a` drains, so new clients get `b`.
fn draining() -> Snapshot {
    let pool = fixture::pool(
        "app",
        vec![
            (fixture::server("a", "10.0.0.11:80"), fixture::up()),
            (fixture::server("b", "10.0.0.12:80"), fixture::up()),
        ],
    );
    let servers = pool.servers.iter().map(|server| {
        let admin = if server.config.name == "a" { AdminState::Drain } else { AdminState::Ready };
        let Server { config, health, live, .. } = &**server;
        Arc::new(Server { config: config.clone(), admin, health: health.clone(), live: live.clone() })
    });
    let pool = fixture::with_servers(&pool, servers.collect());
    fixture::snapshot(vec![fixture::frontend("web", &["192.0.2.1:80"], &pool)], vec![pool])
}

fn text(flows: &ClientFlows, client: &str) -> (Explanation, String) {
    let snapshot = draining();
    let sources = ExplainSources { flows, ..of(&snapshot) };
    let explanation = explain(sources, client.parse().unwrap(), "web").unwrap();
    let text = as_text(&explanation);
    (explanation, text)
}

#[test]
fn open_connection_keeps_its_server_and_the_next_pick_is_predicted() {
    let client: SocketAddr = "198.51.100.7:4242".parse().unwrap();
    let flow = ListedFlow {
        snat: Some("10.0.0.254:50000".parse().unwrap()),
        ..listed(client, Some(("a", "10.0.0.11:80")))
    };
    let (explanation, text) =
        text(&ClientFlows::One(Some(Box::new(FoundFlow::Proxied(flow)))), "198.51.100.7:4242");
    assert_eq!((explanation.verdict, explanation.server.as_deref()), (ClientVerdict::Server, Some("a")));
    assert_eq!(explanation.flow.as_ref().unwrap().age_seconds, Some(75.9));
    for line in [
        "198.51.100.7:4242 at frontend web (192.0.2.1:80, proxy tcp) has a flow with app/a at 10.0.0.11:80\n",
        "  1. flow       established, began 1m 15s ago, silent for 3s: the flow stays with app/a\n",
        "  2. way        10.0.0.11:80 sees 10.0.0.254:50000, an address of this host, as the client\n",
        "  3. new        the next flow gets app/b, as things are now\n",
        "share 0 %: has the flow; new flows skip it: draining, set by an operator\n",
        "share 100 %: another server has the flow\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn explanation_without_an_open_connection_covers_a_new_one() {
    let client: SocketAddr = "198.51.100.7:4242".parse().unwrap();
    let waits = ClientFlows::One(Some(Box::new(FoundFlow::Proxied(listed(client, None)))));
    let groups = [("app/a", 7), ("-", 1)].map(|(name, flows)| FlowGroup {
        name: name.to_owned(),
        flows,
        bytes_rx: Some(0),
        bytes_tx: Some(0),
    });
    let counted = |groups: &[FlowGroup], matching, more_flows| {
        let groups = groups.to_vec();
        ClientFlows::All(FlowAnswer {
            flows: Vec::new(),
            matching,
            bytes_rx: Some(0),
            bytes_tx: Some(0),
            groups,
            more_groups: 0,
            more_flows,
        })
    };
    for (flows, client, expected) in [
        (
            waits,
            "198.51.100.7:4242",
            "connecting, began 1m 15s ago, silent for 3s: the flow has no server yet\n",
        ),
        (
            ClientFlows::One(None),
            "198.51.100.7:4242",
            "198.51.100.7:4242 has no flow here: the answer is for a new flow\n",
        ),
        (counted(&[], 0, 0), "198.51.100.7", "198.51.100.7 has no open flow here\n"),
        (
            counted(&groups, 10, 2),
            "198.51.100.7",
            "198.51.100.7 has 10 open flows here: 7 with app/a, 1 without a server yet, 2 with other servers; these flows stay with their servers\n",
        ),
        (
            ClientFlows::Unknown(FlowsUnavailable::Late),
            "198.51.100.7",
            "not known: a worker did not answer in time; try again. The answer is for a new flow\n",
        ),
    ] {
        let (explanation, text) = text(&flows, client);
        assert_eq!((explanation.verdict, explanation.server.as_deref()), (ClientVerdict::Server, Some("b")));
        assert!(text.contains(&format!("  1. flow       {expected}")), "{text}");
    }
}

#[test]
fn workers_are_asked_for_one_flow_where_the_question_says_which() {
    let pool = fixture::pool("app", vec![(fixture::server("a", "10.0.0.11:80"), fixture::up())]);
    let mut config = convey_model::fixture::frontend("web", &["192.0.2.1:80", "192.0.2.2:80"], "app");
    config.mode = Mode::Dsr;
    let snapshot = fixture::snapshot(vec![fixture::frontend_of(config, &pool)], vec![pool]);
    let question =
        |client: &str, frontend| FlowQuestion::new(&snapshot, client.parse().unwrap(), frontend).unwrap();
    let client: SocketAddr = "198.51.100.7:4242".parse().unwrap();
    let exact = question("198.51.100.7:4242", "192.0.2.2:80");
    assert_eq!(exact.key, Some(FlowKey::tcp(client, "192.0.2.2:80".parse().unwrap())));
    let either = question("198.51.100.7:4242", "web");
    assert!(either.key.is_none() && either.is_for_one && !either.query.filter.only_open);
    let elsewhere = ListedFlow { listen: "192.0.2.9:80".parse().unwrap(), ..listed(client, None) };
    let here = listed(client, None);
    assert_eq!(either.choose(vec![here.clone(), elsewhere.clone()]), Some(here));
    assert_eq!(either.choose(vec![elsewhere]), None);
    let all = question("198.51.100.7", "web");
    assert!(all.key.is_none() && !all.is_for_one && all.query.filter.only_open);
}
