//! Frames one after another, some of them any bytes at all, with time passing in between: what a balancer sends
//! is a packet that goes where a flow says, and its books stay balanced.

#![no_main]

use std::time::Duration;

use balancer::{Balancer, VIP};
use convey::forward::{Direction, Part, TcpState, Verdict};
use convey::wire::{TcpPacket, parse};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/balancer/mod.rs"]
mod balancer;

const CAPACITY: u32 = 8;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, mut steps)) = input.split_first() else { return };
    let is_dsr = mode & 1 == 1;
    let balancer = if is_dsr { Balancer::dsr(3, CAPACITY) } else { Balancer::passthrough(3, CAPACITY) };
    let mut story = Story { balancer, is_dsr, delivered: Vec::new(), opened: 0, ended: 0 };
    while let Some((step, rest)) = steps.split_first_chunk::<4>() {
        steps = story.take(*step, rest);
        story.check_books();
    }
});

struct Story {
    balancer: Balancer,
    is_dsr: bool,
    /// What servers got.
    delivered: Vec<Vec<u8>>,
    opened: usize,
    ended: usize,
}

impl Story {
    /// One step: what it is, who, flags, a number. Returns what is left of the input.
    fn take<'a>(&mut self, [what, who, flags, number]: [u8; 4], rest: &'a [u8]) -> &'a [u8] {
        match what % 8 {
            0..3 => self.handle(packet(client(who), flags, number)),
            3..6 => {
                let Some(got) = self.delivered.get(usize::from(who)) else { return rest };
                let key = parse(got).expect("what was sent is a packet").key.reversed();
                let reply = TcpPacket::from(key.source()).to(key.destination());
                self.handle(packet(reply, flags, number));
            }
            6 => {
                let passes = Duration::from_millis(u64::from(who) * u64::from(flags) * u64::from(number));
                self.balancer.pass_time(passes);
            }
            _ => {
                // Any bytes, over a valid packet or as they are.
                let (bytes, rest) = rest.split_at(rest.len().min(usize::from(number)));
                let mut frame = if flags & 1 == 0 { Vec::new() } else { packet(client(who), flags, 0) };
                let at = if frame.is_empty() { 0 } else { usize::from(flags) % frame.len() };
                frame.splice(at..frame.len().min(at + bytes.len()), bytes.iter().copied());
                self.handle(frame);
                return rest;
            }
        }
        rest
    }

    fn handle(&mut self, mut frame: Vec<u8>) {
        let before = frame.clone();
        match self.balancer.handle(&mut frame) {
            Verdict::Transmit(forwarded) => {
                let (was, is) = (parse(&before).expect("forwarded"), parse(&frame).expect("still a packet"));
                assert_eq!((is.ttl + 1, is.packet_len(), is.flags), (was.ttl, was.packet_len(), was.flags));
                assert_eq!(frame[is.l4 + 20..], before[was.l4 + 20..]);
                self.opened += usize::from(forwarded.part == Part::First);
                match forwarded.direction {
                    Direction::ToServer => self.delivered.push(frame),
                    Direction::ToClient => assert_eq!(is.key.source().to_string(), VIP),
                }
            }
            Verdict::Reply { len, .. } => {
                let (was, is) = (parse(&before).expect("answered"), parse(&frame[..len]).expect("a packet"));
                assert!(is.flags.rst() && !was.flags.rst() && is.key == was.key.reversed());
            }
            Verdict::Pass => assert_eq!(frame, before),
            Verdict::Drop(_) => {}
        }
    }

    fn check_books(&mut self) {
        self.ended += self.balancer.forwarder.news().ended.drain(..).count();
        let flows = self.balancer.forwarder.flows();
        let over = |state: &TcpState| match state {
            TcpState::Closing | TcpState::TimeWait | TcpState::Closed => true,
            TcpState::HalfClosedByClient => self.is_dsr,
            _ => false,
        };
        let over: u32 =
            TcpState::ALL.iter().filter(|state| over(state)).map(|state| flows.count(*state)).sum();
        assert!(flows.len() <= CAPACITY);
        assert_eq!(self.opened - self.ended, (flows.len() - over) as usize);
        if !self.is_dsr {
            assert_eq!(self.balancer.forwarder.snat_ports_in_use(), flows.len() as usize);
        }
    }
}

fn client(who: u8) -> TcpPacket {
    TcpPacket::from(format!("198.51.100.{}:4000", who % 16)).to(VIP)
}

fn packet(packet: TcpPacket, flags: u8, number: u8) -> Vec<u8> {
    let packet = if flags & 0x01 != 0 { packet.fin() } else { packet };
    let packet = if flags & 0x02 != 0 { packet.syn() } else { packet };
    let packet = if flags & 0x04 != 0 { packet.rst() } else { packet };
    let packet = if flags & 0x10 != 0 { packet.ack(number.into()) } else { packet };
    packet.payload(&vec![number; usize::from(flags >> 5) * usize::from(number)]).bytes()
}
