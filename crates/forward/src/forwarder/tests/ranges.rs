//! Frontends with a range of ports, and servers that keep the destination port of the client.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::lab::{Family, Lab, Outcome, TestFrontend};
use crate::FlowEnd;
use convey_model::{DsrKind, Endpoint, Mode, Protocol};
use convey_wire::TestPacket;

run_cases_over_both_families! {
    portless_servers_get_each_client_at_its_requested_port,
    port_range_change_keeps_flows_of_remaining_ports,
    answer_from_another_port_of_the_range_is_dropped,
    connections_go_on_when_their_server_loses_its_port,
    flood_at_one_port_of_a_range_yields_to_others,
    snat_ports_of_a_removed_listening_port_are_released,
}

const FIRST: u16 = 21_000;
const LAST: u16 = 21_003;

/// Range of ports from the first to `last`, of one frontend.
fn range(family: Family, last: u16) -> String {
    format!("{}-{last}", at(family, FIRST))
}

fn at(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(family.vip_ip().parse().unwrap(), port)
}

/// Creates a lab with one frontend for all these ports.
fn ranging(family: Family, new: fn(Family) -> Lab) -> Lab {
    let mut lab = new(family);
    lab.change(|world| {
        world.frontends[0].listen = vec![range(family, LAST)];
        world.frontends[0].keeps_port = true;
    });
    lab
}

fn client(family: Family, n: u16, port: u16) -> TestPacket {
    TestPacket::from(family.client_addr(n)).to(at(family, port))
}

fn portless_servers_get_each_client_at_its_requested_port(family: Family) {
    for new in [Lab::passthrough, Lab::dsr, Lab::l2] {
        let mut lab = ranging(family, new);
        let mut servers = HashSet::new();
        for n in 0..40 {
            let port = FIRST + n % 4;
            let syn = lab.send(client(family, n, port).syn().seq(100));
            assert_eq!(syn.to.port(), port);
            servers.insert(syn.to.ip());
            if syn.from.ip() == family.snat().parse::<std::net::IpAddr>().unwrap() {
                let answer = lab.send(syn.reply().syn().seq(500).ack(101));
                assert_eq!(answer.route(), (at(family, port).to_string(), family.client_addr(n)));
            }
        }
        assert!(servers.len() == 3 || servers == HashSet::from([at(family, 0).ip()]), "{servers:?}");
        let (before, beyond) = (client(family, 1, FIRST - 1).syn(), client(family, 1, LAST + 1).syn());
        assert_eq!([before, beyond].map(|syn| lab.handle(&syn)), [Outcome::Passed, Outcome::Passed]);
        assert_eq!((lab.frontend_slots(), lab.opened), (40, 40), "one frontend");
    }
}

fn port_range_change_keeps_flows_of_remaining_ports(family: Family) {
    let mut lab = ranging(family, Lab::passthrough);
    let last = lab.send(client(family, 1, LAST).syn().seq(100));
    lab.send(last.reply().syn().seq(500).ack(101));
    lab.send(client(family, 1, LAST).seq(101).ack(501));
    assert_eq!(lab.change(|world| world.frontends[0].listen = vec![range(family, LAST + 9)]), []);
    assert_eq!(lab.send(client(family, 2, LAST + 9).syn()).to.port(), LAST + 9);
    lab.send(client(family, 1, LAST).seq(101).ack(501));
    // Draining ports continue until their time is over.
    let drained = [LAST, LAST + 9].map(|port| Endpoint::tcp(at(family, port)));
    let resets = lab.change(|world| {
        world.frontends[0].listen = vec![range(family, LAST - 1)];
        world.draining.listen = drained.into();
    });
    assert_eq!(resets, []);
    lab.send(client(family, 1, LAST).seq(101).ack(501));
    assert_eq!(lab.handle(&client(family, 3, LAST).syn()), Outcome::Passed);
    lab.ends();
    lab.change(|world| world.draining.listen.clear());
    assert_eq!(lab.ends(), [FlowEnd::Cut; 2]);
}

fn answer_from_another_port_of_the_range_is_dropped(family: Family) {
    let mut lab = ranging(family, Lab::passthrough);
    let syn = lab.send(client(family, 1, FIRST).syn().seq(100));
    let mut other = syn.to;
    other.set_port(FIRST + 1);
    let stray = TestPacket::from(other).to(syn.from).syn().seq(500).ack(101);
    assert!(!matches!(lab.handle(&stray), Outcome::Sent(_)));
    lab.send(syn.reply().syn().seq(500).ack(101));
}

fn connections_go_on_when_their_server_loses_its_port(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    // The server's port was 8080, and the frontend has another now: the connection drains.
    let places = lab.world.servers.iter().map(|server| Endpoint::tcp((server.ip, 8080).into()));
    let places = places.collect();
    let resets = lab.change(|world| {
        world.frontends[0].keeps_port = true;
        world.draining.servers = places;
    });
    assert_eq!(resets, []);
    assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), syn.route());
    assert_eq!(lab.send(lab.client(2).syn()).to.port(), 80);
    lab.ends();
    lab.change(|world| world.draining.servers.clear());
    assert_eq!(lab.ends(), [FlowEnd::Cut]);
}

fn flood_at_one_port_of_a_range_yields_to_others(family: Family) {
    for is_servers in [false, true] {
        let mut lab = ranging(family, Lab::passthrough);
        lab.change(|world| {
            world.servers.truncate(1);
            let limit = Some(8);
            if is_servers {
                world.servers[0].max_connections = limit;
            } else {
                world.frontends[0].max_connections = limit;
            }
        });
        for n in 0..8 {
            lab.send(client(family, n, FIRST).syn().seq(100));
        }
        lab.wait(Duration::from_secs(2));
        assert_eq!(lab.send(client(family, 8, LAST).syn().seq(100)).to.port(), LAST);
    }
}

fn snat_ports_of_a_removed_listening_port_are_released(family: Family) {
    let mut lab = ranging(family, Lab::passthrough);
    lab.change(|world| world.servers.truncate(1));
    let pools = |lab: &Lab| lab.forwarder.tracker.ports().unwrap().pools();
    for port in FIRST..=LAST {
        let syn = lab.send(client(family, port, port).syn().seq(100));
        lab.handle(&syn.reply().rst().ack(101));
    }
    let last = lab.send(client(family, 1, LAST).syn().seq(100));
    lab.send(last.reply().syn().seq(500).ack(101));
    lab.send(client(family, 1, LAST).seq(101).ack(501));
    lab.wait(Duration::from_secs(60));
    assert_eq!(pools(&lab), 4);
    lab.change(|world| {
        world.frontends[0].listen = vec![range(family, FIRST)];
        world.draining.listen = [Endpoint::tcp(at(family, LAST))].into();
    });
    assert_eq!(pools(&lab), 2, "one that is listened on, one in use");
    lab.send(client(family, 1, LAST).rst().seq(101));
    lab.wait(Duration::from_secs(60));
    assert_eq!(pools(&lab), 1, "it has gone with its last flow");
    assert_eq!(lab.send(client(family, 1, FIRST).syn()).to.port(), FIRST);
    assert_eq!(pools(&lab), 1);
}

#[derive(Debug, Clone)]
enum Step {
    /// Client number, destination port, and the packet.
    Client(u16, u16, Content),
    /// The server that received an earlier packet, counted back from the last, answers.
    Server(usize, Content),
    Wait(u64),
    /// Server number, and whether the server is up.
    Health(usize, bool),
}

#[derive(Debug, Clone, Copy)]
enum Content {
    Syn,
    Data,
    Fin,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let content = || prop_oneof![4 => Just(Content::Syn), 4 => Just(Content::Data), 1 => Just(Content::Fin), 1 => Just(Content::Reset)];
    let step = prop_oneof![
        8 => (0..6u16, FIRST - 1..=LAST + 1, content()).prop_map(|(n, port, content)| Step::Client(n, port, content)),
        6 => (0..8usize, content()).prop_map(|(back, content)| Step::Server(back, content)),
        1 => (0..90u64).prop_map(Step::Wait),
        1 => (0..3usize, any::<bool>()).prop_map(|(server, up)| Step::Health(server, up)),
    ];
    vec(step, 0..60)
}

fn filled(packet: TestPacket, is_udp: bool, content: Content, is_server: bool) -> TestPacket {
    let (seq, ack) = if is_server { (500, 101) } else { (100, 501) };
    match content {
        _ if is_udp => packet.udp().payload(b"datagram"),
        Content::Syn if is_server => packet.syn().seq(seq).ack(ack),
        Content::Syn => packet.syn().seq(seq),
        Content::Data => packet.seq(seq + 1).ack(ack),
        Content::Fin => packet.fin().seq(seq + 1).ack(ack),
        Content::Reset => packet.rst().seq(seq + 1),
    }
}

proptest! {
    #[test]
    fn a_range_is_forwarded_as_a_frontend_for_each_of_its_ports(
        steps in steps(), is_v4 in any::<bool>(), mode in 0..3usize, is_udp in any::<bool>(), keeps_port in any::<bool>(),
    ) {
        let family = if is_v4 { Family::V4 } else { Family::V6 };
        let (new, mode, dsr) = [
            (Lab::passthrough as fn(Family) -> Lab, Mode::Passthrough, DsrKind::L3),
            (Lab::dsr, Mode::Dsr, DsrKind::L3),
            (Lab::l2, Mode::Dsr, DsrKind::L2),
        ][mode];
        // In L2 DSR, servers always have the frontend's port.
        let keeps_port = keeps_port || dsr == DsrKind::L2;
        let protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
        let frontend = |id: u32, listen: String| {
            TestFrontend { protocol, dsr, keeps_port, ..TestFrontend::new(id, mode, &listen) }
        };
        let (mut one, mut each) = (new(family), new(family));
        one.change(|world| world.frontends = vec![frontend(0, range(family, LAST))]);
        each.change(|world| {
            let of_port = |port| frontend(u32::from(port), at(family, port).to_string());
            world.frontends = (FIRST..=LAST).map(of_port).collect();
        });
        let mut arrived = Vec::new();
        for step in steps {
            let packet = match step {
                Step::Client(n, port, content) => Some(filled(client(family, n, port), is_udp, content, false)),
                Step::Server(back, content) => {
                    let seen: Option<&super::lab::Seen> = arrived.iter().rev().nth(back);
                    seen.map(|seen| filled(seen.reply(), is_udp, content, true))
                }
                Step::Wait(seconds) => {
                    let time = Duration::from_secs(seconds);
                    prop_assert_eq!(one.wait(time), each.wait(time));
                    None
                }
                Step::Health(server, up) => {
                    let [one, each] = [&mut one, &mut each].map(|lab| lab.change(|world| world.servers[server].up = up));
                    prop_assert_eq!(one, each);
                    None
                }
            };
            let Some(packet) = packet else { continue };
            let outcome = one.handle(&packet);
            prop_assert_eq!(&outcome, &each.handle(&packet), "{:?}", packet);
            if let Outcome::Sent(seen) = outcome {
                arrived.push(seen);
            }
            prop_assert_eq!(one.ends(), each.ends());
        }
        prop_assert_eq!(one.forwarder.flows().len(), each.forwarder.flows().len());
        prop_assert_eq!(one.forwarder.snat_ports_in_use(), each.forwarder.snat_ports_in_use());
        let slots = each.world.frontends.iter().map(|frontend| frontend.slots.open());
        prop_assert_eq!(one.frontend_slots(), slots.sum::<u32>());
    }
}
