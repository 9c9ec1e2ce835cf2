//! Frames one after another, some of them damaged or random, with time passing in between: each
//! packet that a balancer sends follows a flow, and its counts stay balanced.

#![no_main]

use std::time::Duration;

use balancer::{BalancerSetup, TestBalancer};
use convey_forward::{
    Cut, Direction, FlowState, Forwarded, Fragments, Frame, IpIds, Later, FirstFragment, PacketRole, Verdict, cut,
};
use convey_model::{Addr, DsrKind, Mode, Protocol};
use convey_wire::{
    Envelope, Headers, IcmpError, Kind, TestPacket, enclose, icmp_error, parse, update_header_checksum,
};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/balancer/mod.rs"]
mod balancer;

const CAPACITY: u32 = 8;

fuzz_target!(|input: &[u8]| {
    let Some((&setup, mut steps)) = input.split_first() else { return };
    let clock = setup >> 6;
    let tunnel = (setup & 16 != 0).then_some(if setup & 2 == 0 { DsrKind::Ipip } else { DsrKind::Gue });
    let setup = BalancerSetup {
        mode: if setup & 1 == 0 && tunnel.is_none() { Mode::Passthrough } else { Mode::Dsr },
        dsr: tunnel.unwrap_or(if setup & 2 == 0 { DsrKind::L3 } else { DsrKind::L2 }),
        is_v6: setup & 4 != 0,
        is_mixed: setup & 32 != 0 && tunnel.is_some(),
        protocol: if setup & 8 == 0 { Protocol::Tcp } else { Protocol::Udp },
        ..BalancerSetup::passthrough(3, CAPACITY)
    };
    let setup = setup.with_clock(clock);
    let (balancer, fragments) = (TestBalancer::new(setup), Fragments::new(IpIds::new(0)));
    let mut scenario = Scenario { setup, balancer, fragments, delivered: Vec::new(), opened: 0, ended: 0 };
    while let Some((step, rest)) = steps.split_first_chunk::<4>() {
        steps = scenario.take(*step, rest);
        scenario.check_books();
    }
});

struct Scenario {
    setup: BalancerSetup,
    balancer: TestBalancer,
    fragments: Fragments<Vec<u8>>,
    /// Packets that servers got.
    delivered: Vec<Vec<u8>>,
    opened: usize,
    ended: usize,
}

impl Scenario {
    /// Runs one step: its kind, client or server, flags, a number. Returns the rest of the input.
    fn take<'a>(&mut self, [what, who, flags, number]: [u8; 4], rest: &'a [u8]) -> &'a [u8] {
        let how = what / 16;
        match what % 16 {
            0..5 => self.send(self.client(who), how, flags, number),
            5..10 => {
                let Some(packet) = self.server(who) else { return rest };
                self.send(packet, how, flags, number);
            }
            10..13 => {
                let Some(frame) = self.error(who, how, flags, number) else { return rest };
                self.arrive(frame);
            }
            13 | 14 => {
                let passes = Duration::from_millis(u64::from(who) * u64::from(flags) * u64::from(number));
                self.balancer.pass_time(passes);
            }
            _ => {
                // Random bytes, over a valid packet or alone.
                let (bytes, rest) = rest.split_at(rest.len().min(usize::from(number)));
                let mut frame =
                    if flags & 1 == 0 { Vec::new() } else { packet(self.client(who), flags, 0).bytes() };
                let at = if frame.is_empty() { 0 } else { usize::from(flags) % frame.len() };
                frame.splice(at..frame.len().min(at + bytes.len()), bytes.iter().copied());
                // With the checksum of its sender, or damaged on its way.
                if flags & 2 != 0 {
                    update_header_checksum(&mut frame);
                }
                self.arrive(frame);
                return rest;
            }
        }
        rest
    }

    /// The beginning of a packet of a client.
    fn client(&self, who: u8) -> TestPacket {
        let who = who % 16;
        self.setup.packet(match self.setup.is_v6 {
            false => format!("198.51.100.{who}:4000"),
            true => format!("[2001:db8:9::{who:x}]:4000"),
        })
    }

    /// The beginning of an answer to a packet that a server got.
    fn server(&self, which: u8) -> Option<TestPacket> {
        let got = parse(self.delivered.get(usize::from(which))?).expect("what was sent is a packet");
        let key = got.key.reversed();
        Some(self.setup.speak(TestPacket::from(key.source()).to(key.destination())))
    }

    /// An ICMP error of a router about a packet that a server got, or, with DSR, about its answer.
    fn error(&self, which: u8, how: u8, flags: u8, number: u8) -> Option<Vec<u8>> {
        let about = match how % 2 {
            0 => self.delivered.get(usize::from(which))?.clone(),
            _ => {
                let key = parse(&self.client(which).bytes()).expect("a packet").key.reversed();
                let answer = TestPacket::from(key.source()).to(key.destination());
                packet(self.setup.speak(answer), flags, number).seq(number.into()).bytes()
            }
        };
        let router = if self.setup.is_v6 { Addr::v6([7; 16]) } else { Addr::v4([7; 4]) };
        let errors =
            [IcmpError::PortUnreachable, IcmpError::TimeExceeded, IcmpError::TooBig { mtu: number.into() }];
        let (headers, mut error) = (parse(&about).expect("a packet"), Vec::new());
        icmp_error(&about, &headers, errors[usize::from(how / 2) % 3], router, &mut error);
        Some(error)
    }

    fn send(&mut self, packet_to: TestPacket, how: u8, flags: u8, number: u8) {
        let packet = packet(packet_to, flags, number);
        match how {
            1 => self.arrive(packet.ttl(number % 4).bytes()),
            2 | 3 => {
                // As if its sender had options for the destination, as some have.
                let has_options = self.setup.is_v6 && how == 3;
                let packet =
                    if has_options { packet.cut_extension(60, &[0, 1, 4, 0, 0, 0, 0]) } else { packet };
                let mut fragments = packet.fragments(number.into(), 24 + usize::from(how) * 128);
                if number % 2 == 1 {
                    fragments.reverse();
                }
                fragments.into_iter().for_each(|fragment| self.arrive(fragment));
            }
            4 => self.arrive(packet.may_be_cut(number.into()).bytes()),
            5 => self.arrive(packet.without_checksum().bytes()),
            6 => {
                let mut frame = packet.bytes();
                let at = usize::from(number) % frame.len();
                frame[at] ^= 1 << (flags % 8);
                self.arrive(frame);
            }
            _ => self.arrive(packet.bytes()),
        }
    }

    /// Handles a frame as a capture thread does: later fragments follow the first one.
    fn arrive(&mut self, frame: Vec<u8>) {
        let Some((headers, key)) = parse(&frame).ok().and_then(|h| Some((h, h.fragment()?))) else {
            return self.handle(frame, None);
        };
        let now = self.balancer.now;
        self.fragments.expire(now, drop);
        if let Kind::LaterFragment { .. } = headers.kind {
            if let Later::Follows(first_fragment, frame) = self.fragments.later(key, frame, now, drop) {
                self.handle(frame, Some(first_fragment));
            }
            return;
        }
        let (first_fragment, held) = self.fragments.first(key, (&headers.key, 0), now, drop);
        self.handle(frame, Some(first_fragment));
        held.into_iter().for_each(|frame| self.handle(frame, Some(first_fragment)));
    }

    fn handle(&mut self, mut bytes: Vec<u8>, first_fragment: Option<FirstFragment>) {
        let before = bytes.clone();
        let mut headers = parse(&bytes);
        if let (Some(first_fragment), Ok(headers)) = (first_fragment, &mut headers) {
            first_fragment.complete(headers);
        }
        let mut frame = Frame { first_fragment, ..Frame::new(&mut bytes, &headers) };
        match self.balancer.handle_frame(&mut frame) {
            Verdict::Transmit(forwarded) => self.check_sent(&before, bytes, forwarded),
            Verdict::Reply(_) => {
                assert_eq!(bytes, before);
                check_answer(&parse(&before).expect("answered"), self.balancer.forwarder.answer());
            }
            Verdict::Pass => assert_eq!(bytes, before),
            Verdict::Drop(_) => {}
        }
    }

    fn check_sent(&mut self, before: &[u8], frame: Vec<u8>, forwarded: Forwarded) {
        let (was, is) = (parse(before).expect("forwarded"), parse(&frame).expect("still a packet"));
        assert_eq!((is.ttl + 1, is.packet_len(), is.flags), (was.ttl, was.packet_len(), was.flags));
        assert_eq!((is.is_error(), is.l4), (was.is_error(), was.l4));
        if !was.is_error() {
            let header = match was.kind {
                Kind::LaterFragment { .. } => 0,
                _ if was.is_tcp() => 20,
                _ => 8,
            };
            assert_eq!(frame[is.l4 + header..], before[was.l4 + header..]);
        }
        self.opened += usize::from(forwarded.role == PacketRole::First);
        assert_eq!(forwarded.envelope.is_some(), self.setup.dsr.has_tunnel());
        if let Some(envelope) = forwarded.envelope.filter(|_| forwarded.cut.is_none()) {
            check_enclosed(&frame[..is.end], &envelope);
        }
        if let Some(how) = forwarded.cut {
            let most = match how {
                Cut::Segments(payload) => {
                    assert!(is.is_tcp() && is.payload_len > payload);
                    is.end - usize::from(is.payload_len - payload)
                }
                Cut::Datagrams(payload) => {
                    assert!(!is.is_tcp() && is.payload_len > payload);
                    is.end - usize::from(is.payload_len - payload)
                }
                Cut::Fragments { mtu, .. } => {
                    assert!(is.packet_len() > mtu as usize && !(is.is_v4() && is.dont_fragment));
                    14 + mtu as usize
                }
            };
            cut(&mut Frame::new(&mut frame.clone(), &Ok(was)), how, &mut IpIds::new(0), |piece| {
                assert!(piece.len() <= most, "{} bytes of {most}: {how:?}", piece.len());
            });
        }
        match forwarded.direction {
            Direction::ToServer if is.kind == Kind::Whole => self.delivered.push(frame),
            Direction::ToServer => {}
            Direction::ToClient => {
                let vip = self.setup.vip().parse::<std::net::SocketAddr>().expect("an address");
                assert_eq!(is.key.src, vip.ip().into());
            }
        }
    }

    fn check_books(&mut self) {
        self.ended += self.balancer.forwarder.events().ended.drain(..).count();
        let flows = self.balancer.forwarder.flows();
        let is_dsr = self.setup.mode == Mode::Dsr;
        let over = |state: &FlowState| match state {
            FlowState::Closing | FlowState::TimeWait | FlowState::Closed => true,
            FlowState::HalfClosedByClient => is_dsr,
            _ => false,
        };
        let over: u32 =
            FlowState::ALL.iter().filter(|state| over(state)).map(|state| flows.count(*state)).sum();
        assert!(flows.len() <= CAPACITY);
        assert_eq!(self.opened - self.ended, (flows.len() - over) as usize);
        if !is_dsr {
            assert_eq!(self.balancer.forwarder.snat_ports_in_use(), flows.len() as usize);
        }
    }
}

/// Checks that a tunnel carries the packet unmodified, within headers that have the right lengths.
fn check_enclosed(frame: &[u8], envelope: &Envelope) {
    let mut outer = frame.to_vec();
    enclose(&mut outer, 14, envelope);
    let (before, packet) = outer.split_at(outer.len() - (frame.len() - 14));
    assert_eq!(packet, &frame[14..]);
    let len = outer.len() - 14;
    let told = match before[14] >> 4 {
        4 => usize::from(u16::from_be_bytes([before[16], before[17]])),
        _ => 40 + usize::from(u16::from_be_bytes([before[18], before[19]])),
    };
    assert!(told == len && len <= 1_500, "{told} of {len} bytes");
}

/// Checks that errors, resets and later fragments, which have no ports, are never answered.
fn check_answer(was: &Headers, answer: &[u8]) {
    assert!(!was.is_error() && !was.flags.rst() && !matches!(was.kind, Kind::LaterFragment { .. }));
    // Extension headers may be so long that the quote has nothing after them.
    if was.l4 + 8 > was.l3 + 1_280 - 48 {
        return;
    }
    let is = parse(answer).expect("a packet");
    assert!(is.key == was.key.reversed() && (is.is_error() || is.flags.rst()));
}

fn packet(packet: TestPacket, flags: u8, number: u8) -> TestPacket {
    let packet = if flags & 0x01 != 0 { packet.fin() } else { packet };
    let packet = if flags & 0x02 != 0 { packet.syn() } else { packet };
    let packet = if flags & 0x04 != 0 { packet.rst() } else { packet };
    let packet = if flags & 0x10 != 0 { packet.ack(number.into()) } else { packet };
    // Numbers that fit begin at 0.
    let packet = packet.seq(u32::from(flags & 0x02 == 0));
    packet.payload(&vec![number; usize::from(flags >> 5) * usize::from(number)])
}
