//! Behaviour of a flow cache: the table of cases that both the kernel's programs and the mock of
//! other tests pass.

#[path = "cases/twins.rs"]
mod twins;

use convey_forward::{
    CacheEvent, CachedRoute, Direction, FlowCache, FlowOwners, Frame, Progress, Segment, Verdict,
};
use convey_model::{DsrKind, FlowKey, Mode, Protocol};
use convey_wire::TestPacket;

use self::twins::Twins;
use super::balancer::{BalancerSetup, TestBalancer};
use super::ends::{Ends, THEM, US};
use super::tunnels::{envelope, tunnels, within};

/// Interface where frames arrive, and another interface.
pub(crate) const HERE: u32 = 1;
const ELSEWHERE: u32 = 2;

/// An interface whose index has 0 in its lower 16 bits.
const ROUND_INDEX: u32 = 1 << 16;

/// A cache without flows, in front of a balancer.
pub(crate) trait Cache {
    fn new(setup: &BalancerSetup, balancer: &TestBalancer) -> Self;

    /// The balancer's side of the cache.
    fn writer(&self) -> Box<dyn FlowCache>;

    /// A frame comes in [`HERE`]. Returns what it is sent on as; `None`: it is left to the
    /// balancer.
    fn forward(&mut self, frame: &[u8], balancer: &TestBalancer) -> Option<Vec<u8>>;

    /// Whether workers receive the last frame that was left to the balancer.
    fn is_accepted(&self) -> bool {
        true
    }

    /// Events since the last call.
    fn events(&mut self) -> Vec<CacheEvent>;

    /// Number of forwarded packets so far: to the server, to the client.
    fn counted(&mut self, keys: &[FlowKey; 2]) -> [u64; 2];

    /// Ends a case that has passed. The cache has no flows.
    fn end(self);
}

/// A frame, and the expected outcome.
struct Step {
    frame: Vec<u8>,
    then: Then,
    /// Progress of its sender afterwards: `sent` and `acked`.
    progress: Option<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The cache sends the packet exactly as the core would.
    Sent,
    /// Like `Sent`, with an event.
    SentWithEvent,
    Left,
}

fn sent(packet: TestPacket) -> Step {
    Step { frame: packet.bytes(), then: Then::Sent, progress: None }
}

fn event(packet: TestPacket) -> Step {
    Step { then: Then::SentWithEvent, ..sent(packet) }
}

fn left(packet: TestPacket) -> Step {
    Step { then: Then::Left, ..sent(packet) }
}

impl Step {
    fn knows(self, sent: u32, acked: u32) -> Step {
        Step { progress: Some((sent, acked)), ..self }
    }
}

/// A sequence of steps for one flow.
struct Case {
    name: &'static str,
    is_for: fn(&BalancerSetup) -> bool,
    begin: Begin,
    steps: fn(&BalancerSetup, Ends) -> Vec<Step>,
}

/// State of the flow in the cache at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// The next sequence number of both sides is 0.
    Open,
    /// Like `Open`, with the server behind another interface.
    OpenElsewhere,
    OpenOnRoundIndex,
    /// Like `Open`, without a route to its server.
    OpenWithoutRoute,
    /// Only the SYN has been seen, with the number 0.
    Opening,
    OpeningElsewhere,
    /// Like `Open`, with the numbers from another process.
    Restored,
}

fn any(_: &BalancerSetup) -> bool {
    true
}

/// Whether the setup uses TCP.
pub(crate) fn is_tcp(setup: &BalancerSetup) -> bool {
    setup.protocol == Protocol::Tcp
}

fn is_passthrough(setup: &BalancerSetup) -> bool {
    setup.mode == Mode::Passthrough
}

const CASES: &[Case] = &[
    Case { name: "packets of every kind", is_for: any, begin: Begin::Open, steps: packets_of_every_kind },
    Case { name: "what takes a decision", is_for: any, begin: Begin::Open, steps: what_takes_a_decision },
    Case { name: "flows that are not known", is_for: any, begin: Begin::Open, steps: unknown_flows },
    Case {
        name: "a server's name from elsewhere",
        is_for: is_passthrough,
        begin: Begin::OpenElsewhere,
        steps: in_a_servers_name,
    },
    Case {
        name: "a server's name, and its interface has a round index",
        is_for: is_passthrough,
        begin: Begin::OpenOnRoundIndex,
        steps: in_a_servers_name,
    },
    Case {
        name: "a server's name, and no route leads to it",
        is_for: is_passthrough,
        begin: Begin::OpenWithoutRoute,
        steps: in_a_servers_name,
    },
    Case {
        name: "a FIN",
        is_for: is_tcp,
        begin: Begin::Open,
        steps: |_, ends| {
            let fin = || ends.to_server().seq(7).ack(9).fin().payload(b"bye");
            vec![
                sent(ends.to_server().ack(9).payload(b"begins ")).knows(7, 9),
                event(fin()).knows(11, 9),
                sent(fin()).knows(11, 9),
            ]
        },
    },
    Case {
        name: "a FIN behind a gap",
        is_for: |setup| is_tcp(setup) && is_passthrough(setup),
        begin: Begin::Open,
        steps: |_, ends| {
            let fin_behind_a_gap = |side: TestPacket, back: TestPacket| {
                let fin = side.seq(5_000).ack(0).fin();
                [
                    left(fin.clone()),
                    left(fin.clone().seq(u32::MAX - 5_000)),
                    sent(back.ack(5_000)),
                    event(fin),
                ]
            };
            let mut steps =
                fin_behind_a_gap(ends.to_server(), ends.to_client()).into_iter().collect::<Vec<_>>();
            // The other side finishes like the first.
            let fin = ends.to_client().seq(3_000).ack(5_001).fin();
            steps.extend([left(fin.clone()), sent(ends.to_server().seq(5_001).ack(3_000)), event(fin)]);
            steps
        },
    },
    Case {
        name: "a lost FIN of a handshake",
        is_for: |setup| is_tcp(setup) && is_passthrough(setup),
        begin: Begin::Opening,
        steps: |_, ends| {
            vec![
                event(answer(ends)),
                event(ends.to_server().seq(2).ack(501)).knows(1, 501),
                event(ends.to_server().seq(1).ack(501).fin()).knows(2, 501),
            ]
        },
    },
    Case {
        name: "numbers in passthrough",
        is_for: |setup| is_tcp(setup) && is_passthrough(setup),
        begin: Begin::Open,
        steps: |_, ends| {
            let bytes = [7; 1_000];
            vec![
                sent(ends.to_server().ack(7).payload(&bytes)).knows(1_000, 7),
                sent(ends.to_server().seq(9_000).ack(1_000_000)).knows(1_000, 7),
                sent(ends.to_server().seq(10).payload(&[7; 100]).ack(1_000_000)).knows(1_000, 7),
                // One segment is lost.
                sent(ends.to_server().seq(2_000).ack(8).payload(&bytes)).knows(1_000, 7),
                sent(ends.to_server().seq(1_000).ack(9).payload(&bytes)).knows(2_000, 9),
                sent(ends.to_client().ack(3_000).payload(b"ok")).knows(2, 3_000),
                // The server has all segments.
                sent(ends.to_server().seq(3_000).ack(2)).knows(3_000, 9),
            ]
        },
    },
    Case {
        name: "gaps in passthrough",
        is_for: |setup| is_tcp(setup) && is_passthrough(setup),
        begin: Begin::Open,
        steps: |_, ends| {
            vec![
                sent(ends.to_server().ack(7).payload(&[7; 1_000])).knows(1_000, 7),
                sent(ends.to_client().ack(3_000).payload(b"ok")).knows(2, 3_000),
                // While bulk data continues shortly after a gap, the cache does not check whether
                // the gap is closed.
                sent(ends.to_server().seq(2_000).ack(8).payload(&[7; 1_000])).knows(1_000, 7),
                sent(ends.to_server().seq(3_000).ack(8)).knows(3_000, 8),
                // The segment acknowledges all bytes of the server so far, far beyond the last
                // known number.
                sent(ends.to_client().seq(2 << 20).ack(3_000).payload(b"ok")).knows((2 << 20) + 2, 3_000),
                sent(ends.to_server().seq(9_000).ack(2 << 20).payload(b"hi")).knows(3_000, 2 << 20),
                sent(ends.to_server().seq(9_000).ack(4 << 20).payload(b"hi")).knows(3_000, 2 << 20),
            ]
        },
    },
    Case {
        name: "numbers with direct server return",
        is_for: |setup| is_tcp(setup) && !is_passthrough(setup),
        begin: Begin::Open,
        steps: |_, ends| {
            let guess = |(seq, ack)| sent(ends.to_server().seq(seq).ack(ack)).knows(1_000, 7);
            let mut steps = vec![sent(ends.to_server().ack(7).payload(&[7; 1_000])).knows(1_000, 7)];
            steps.extend([(5 << 20, 7), (2_000, 2 << 20), (2_000, 6), (u32::MAX - 5_000, 2_000)].map(guess));
            steps.push(sent(ends.to_server().seq(1_000).ack(8 << 20)).knows(1_000, 8 << 20));
            let behind_a_gap = ends.to_server().seq(3 << 20).ack((8 << 20) + 9).payload(b"hi");
            steps.push(sent(behind_a_gap).knows((3 << 20) + 2, (8 << 20) + 9));
            steps
        },
    },
    Case {
        name: "a handshake",
        is_for: is_tcp,
        begin: Begin::Opening,
        steps: |setup, ends| {
            let mut steps = Vec::from_iter(is_passthrough(setup).then(|| event(answer(ends))));
            steps.push(event(ends.to_server().seq(1).ack(501)).knows(1, 501));
            steps.push(sent(ends.to_server().seq(1).ack(501).payload(b"GET")).knows(4, 501));
            if is_passthrough(setup) {
                steps.push(sent(ends.to_client().seq(501).ack(4).payload(b"hello")).knows(506, 4));
            }
            steps
        },
    },
    Case {
        name: "who has not heard the other side",
        is_for: is_tcp,
        begin: Begin::Opening,
        steps: who_has_not_heard,
    },
    Case {
        name: "another answer",
        is_for: |setup| is_tcp(setup) && is_passthrough(setup),
        begin: Begin::Opening,
        steps: |_, ends| {
            vec![
                event(answer(ends)),
                event(answer(ends)),
                left(answer(ends).seq(7_000_000)),
                left(ends.to_server().seq(1).ack(7_000_001)),
                event(ends.to_server().seq(1).ack(501)),
            ]
        },
    },
    Case {
        name: "an answer from elsewhere",
        is_for: |setup| is_tcp(setup) && is_passthrough(setup),
        begin: Begin::OpeningElsewhere,
        steps: |_, ends| {
            // The forger of the answer cannot complete the handshake either.
            vec![left(answer(ends)), left(ends.to_server().seq(1).ack(501))]
        },
    },
    Case {
        name: "numbers that went on while another process had the flow",
        is_for: is_tcp,
        begin: Begin::Restored,
        steps: restored_flow,
    },
    Case {
        name: "data instead of the last acknowledgement",
        is_for: is_tcp,
        begin: Begin::Opening,
        steps: |setup, ends| {
            let mut steps = Vec::from_iter(is_passthrough(setup).then(|| event(answer(ends))));
            steps.push(event(ends.to_server().seq(1).ack(501).payload(b"GET")).knows(4, 501));
            steps
        },
    },
];

fn answer(ends: Ends) -> TestPacket {
    ends.to_client().syn().seq(500).ack(1)
}

/// Packets of both directions, or of the only one that passes.
fn ways(setup: &BalancerSetup, ends: Ends) -> Vec<TestPacket> {
    let mut ways = vec![ends.to_server()];
    ways.extend(is_passthrough(setup).then(|| ends.to_client()));
    ways
}

fn in_a_servers_name(_: &BalancerSetup, ends: Ends) -> Vec<Step> {
    let of_server = || ends.to_client().seq(1).ack(1);
    vec![
        left(of_server().payload(b"a lie")),
        left(of_server().fin()),
        left(of_server().ack(9)),
        sent(ends.to_server().ack(1)),
    ]
}

fn packets_of_every_kind(setup: &BalancerSetup, ends: Ends) -> Vec<Step> {
    let (mut packets, mut steps) = (Vec::new(), Vec::new());
    for packet in ways(setup, ends).into_iter().map(|packet| packet.seq(7).ack(9)) {
        packets
            .extend([0, 1, 2, 7, 17, 18, 64, 999, 1000].map(|len| packet.clone().payload(&vec![0xa5; len])));
        packets.extend([2, 64, 128, 255].map(|ttl| packet.clone().ttl(ttl)));
        if is_tcp(setup) {
            packets.push(packet.clone().psh().window(9).payload(b"hello"));
            packets.push(packet.clone().tcp_options(&[1; 12]).payload(b"hello"));
            packets.push(packet.clone().tcp_options(&[1; 40]));
        }
        if !setup.is_v6 {
            packets.push(packet.clone().may_be_cut(77).payload(b"hello"));
            let without_checksum = packet.without_checksum().payload(b"hello");
            let needs_one = setup.dsr == DsrKind::Gue && setup.is_mixed && !is_tcp(setup);
            packets.extend((!needs_one).then(|| without_checksum.clone()));
            steps.extend(needs_one.then(|| left(without_checksum)));
        }
    }
    let padded = |packet: TestPacket| {
        [0, 1, 30].map(|padding| Step {
            frame: [packet.bytes(), vec![0; padding]].concat(),
            then: Then::Sent,
            progress: None,
        })
    };
    steps.extend(packets.into_iter().flat_map(padded));
    steps
}

fn what_takes_a_decision(setup: &BalancerSetup, ends: Ends) -> Vec<Step> {
    let mut steps = Vec::new();
    for packet in ways(setup, ends).into_iter().map(|packet| packet.ack(1)) {
        let packet = || packet.clone();
        if is_tcp(setup) {
            let far = 20 << 20;
            let unbelieved = [packet().fin().seq(far), packet().fin().seq(0).ack(far)];
            steps.extend([packet().syn(), packet().rst()].into_iter().chain(unbelieved).map(left));
        }
        steps.extend([0, 1].map(|ttl| left(packet().ttl(ttl))));
        let most = 1500 - setup.overhead() - (packet().bytes().len() - 14);
        steps.push(left(packet().payload(&vec![0; most + 1])));
        steps.push(sent(packet().payload(&vec![0; most])));
        steps.push(left(match setup.is_v6 {
            true => packet().extension(60, &[0, 1, 4, 0, 0, 0, 0]),
            false => packet().ip_options(&[1; 4]),
        }));
        let fragments = packet().payload(&[0; 100]).fragments(7, 64);
        steps.extend(fragments.into_iter().map(|frame| Step { frame, then: Then::Left, progress: None }));
    }
    steps
}

fn restored_flow(setup: &BalancerSetup, ends: Ends) -> Vec<Step> {
    const CLIENT: u32 = 40 << 20;
    const SERVER: u32 = 100 << 20;
    let to_server = |seq, ack| ends.to_server().seq(seq).ack(ack);
    let to_client = |seq, ack| ends.to_client().seq(seq).ack(ack);
    let guess = || sent(to_server(7, 9));
    if !is_passthrough(setup) {
        return vec![
            sent(to_server(CLIENT, SERVER).payload(&[7; 100])),
            guess(),
            sent(to_server(CLIENT + 100, SERVER).payload(&[7; 100])),
            sent(to_server(CLIENT + 100, SERVER).payload(&[7; 100])).knows(CLIENT + 200, SERVER),
            sent(to_server(CLIENT + 200, SERVER).payload(&[7; 100])).knows(CLIENT + 300, SERVER),
            guess().knows(CLIENT + 300, SERVER),
            event(to_server(CLIENT + 300, SERVER).fin()).knows(CLIENT + 301, SERVER),
        ];
    }
    vec![
        sent(to_server(CLIENT, SERVER)),
        sent(to_client(SERVER, CLIENT).payload(&[7; 100])),
        sent(to_server(CLIENT, SERVER)),
        sent(to_client(SERVER + 100, CLIENT).payload(&[7; 100])).knows(SERVER + 200, CLIENT),
        guess(),
        sent(to_server(CLIENT, SERVER + 100)).knows(CLIENT, SERVER + 100),
        guess().knows(CLIENT, SERVER + 100),
        event(to_client(SERVER + 200, CLIENT).fin()).knows(SERVER + 201, CLIENT),
        event(to_server(CLIENT, SERVER + 201).fin()).knows(CLIENT + 1, SERVER + 201),
    ]
}

fn unknown_flows(setup: &BalancerSetup, ends: Ends) -> Vec<Step> {
    let other = if setup.is_v6 { "[2001:db8:9::7]:4243" } else { "198.51.100.7:4243" };
    let of_other_protocol = if is_tcp(setup) { Protocol::Udp } else { Protocol::Tcp };
    let to_us = |setup: &BalancerSetup, from: &str| setup.packet(from).macs(THEM, US).ack(1);
    let mapped =
        TestPacket::from("[::ffff:198.51.100.7]:4242").to("[::ffff:192.0.2.1]:80").ack(1).macs(THEM, US);
    vec![
        left(to_us(setup, other)),
        left(to_us(&BalancerSetup { protocol: of_other_protocol, ..*setup }, client(setup))),
        left(setup.speak(mapped)),
        sent(ends.to_server().ack(1)),
    ]
}

fn who_has_not_heard(setup: &BalancerSetup, ends: Ends) -> Vec<Step> {
    const FAR: u32 = 1 << 20;
    let last = || ends.to_server().seq(1).ack(501);
    let mut steps = Vec::new();
    if is_passthrough(setup) {
        steps.push(left(last()));
        steps.extend([answer(ends).ack(FAR), answer(ends).fin(), answer(ends).rst()].map(left));
        steps.push(left(ends.to_client().seq(501).ack(1)));
        steps.push(event(answer(ends)));
        steps.push(left(ends.to_server().seq(1).ack(FAR)));
    }
    steps.extend([last().seq(FAR), last().seq(0), last().fin(), last().rst()].map(left));
    steps
}

/// All modes without a tunnel, families and protocols, with one server.
pub(crate) fn setups() -> Vec<BalancerSetup> {
    let l2 = BalancerSetup { dsr: DsrKind::L2, ..BalancerSetup::dsr(1, 100) };
    let modes = [BalancerSetup::passthrough(1, 100), BalancerSetup::dsr(1, 100), l2];
    let families = modes.into_iter().flat_map(|setup| [setup, setup.over_ipv6()]);
    families.flat_map(|setup| [setup, setup.udp()]).collect()
}

/// Address and port of a client.
pub(crate) fn client(setup: &BalancerSetup) -> &'static str {
    if setup.is_v6 { "[2001:db8:9::7]:4242" } else { "198.51.100.7:4242" }
}

/// Checks a kind of cache against all cases.
pub(crate) fn run<C: Cache>() {
    let setups = [setups(), tunnels()].concat();
    for (setup, case) in setups.iter().flat_map(|setup| CASES.iter().map(move |case| (setup, case))) {
        if !(case.is_for)(setup) {
            continue;
        }
        let mut twins = Twins::<C>::new(setup, case.begin);
        for (n, step) in (case.steps)(setup, twins.ends).iter().enumerate() {
            twins.step(step, &format!("{}, step {n} ({:?}), {setup:?}", case.name, step.then));
        }
        assert_eq!(twins.cache.counted(&twins.keys), twins.sent, "{}, {setup:?}", case.name);
        twins.end();
    }
}

/// Cuts frames, and changes each byte of their headers: the cache sends only frames that the core
/// would send identically.
pub(crate) fn run_on_damaged_headers<C: Cache>() {
    for setup in [setups(), tunnels()].concat() {
        let mut twins = Twins::<C>::new(&setup, Begin::Open);
        let packet = twins.ends.to_server().ack(1).payload(b"hello, world");
        let packet = if is_tcp(&setup) { packet.tcp_options(&[1; 8]) } else { packet };
        let frame = packet.bytes();
        assert!(twins.cache.forward(&frame, &twins.core).is_some(), "as it is: {setup:?}");
        for len in 14 + if setup.is_v6 { 40 } else { 20 }..frame.len() {
            assert_eq!(
                twins.cache.forward(&frame[..len], &twins.core),
                None,
                "cut to {len} bytes, {setup:?}"
            );
        }
        for (at, flip) in
            (12..frame.len() - 12).flat_map(|at| [0x01, 0x10, 0x80, 0xff].map(|flip| (at, flip)))
        {
            let mut frame = frame.clone();
            frame[at] ^= flip;
            if let Some(sent) = twins.cache.forward(&frame, &twins.core) {
                assert_eq!(twins.core(&frame), Some(sent), "byte {at} is not as it was, {setup:?}");
            }
        }
        twins.end();
    }
}
