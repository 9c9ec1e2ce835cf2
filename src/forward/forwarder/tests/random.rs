//! Anything a few clients and servers may send, in any order.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::lab::{Lab, Outcome, Seen, Size, VIP, client, client_addr};
use crate::forward::FlowState;
use crate::model::OnDown;
use crate::wire::TcpPacket;

const CLIENTS: u16 = 12;
const SIZE: Size = Size { capacity: 8, ports: 3 };

#[derive(Debug, Clone)]
enum Step {
    /// Client number, flags and payload.
    Client(u16, u8, usize),
    /// Whoever got the packet before the last so many answers it.
    Server(usize, u8, usize),
    Wait(Duration),
    /// Server number, whether it is up, whether its flows are kept if not.
    Health(usize, bool, bool),
}

fn step() -> impl Strategy<Value = Step> {
    // Mostly what makes connections go on, and now and then what does not fit.
    let flags = || prop_oneof![Just(0x02), Just(0x10), Just(0x12), Just(0x11), Just(0x14), 0..0x20u8];
    let payload = || prop_oneof![8 => 0..50usize, 1 => 1_300..1_500usize];
    let wait = prop_oneof![0..300_000u64, 50_000_000..90_000_000u64].prop_map(Duration::from_micros);
    prop_oneof![
        8 => (0..CLIENTS, flags(), payload()).prop_map(|(n, flags, len)| Step::Client(n, flags, len)),
        8 => (0..6usize, flags(), payload()).prop_map(|(back, flags, len)| Step::Server(back, flags, len)),
        2 => wait.prop_map(Step::Wait),
        1 => (0..3usize, any::<bool>(), any::<bool>()).prop_map(|(n, up, keep)| Step::Health(n, up, keep)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_finds_its_client_and_the_counts_add_up(
        dsr in any::<bool>(),
        steps in vec(step(), 0..150),
    ) {
        let mut lab = if dsr { Lab::dsr() } else { Lab::passthrough_of(SIZE) };
        let mut story = Story::default();
        for step in steps {
            match step {
                Step::Client(n, flags, len) => story.client(&mut lab, n, flags, len)?,
                Step::Server(back, flags, len) => story.server(&mut lab, back, flags, len)?,
                Step::Wait(duration) => {
                    lab.wait(duration);
                }
                Step::Health(n, up, keep) => {
                    lab.change(|world| {
                        world.on_down = if keep { OnDown::Keep } else { OnDown::Reset };
                        world.servers[n].up = up;
                    });
                }
            }
            story.counts_add_up(&mut lab, dsr)?;
        }
    }
}

#[derive(Default)]
struct Story {
    /// What servers got, the latest last.
    delivered: Vec<Seen>,
    /// Whose packets a server last got from one of our ports.
    owners: HashMap<(SocketAddr, SocketAddr), String>,
    ended: usize,
}

impl Story {
    fn client(&mut self, lab: &mut Lab, n: u16, flags: u8, len: usize) -> Result<(), TestCaseError> {
        let sent = packet(client(n), flags, len);
        match lab.handle(&sent) {
            Outcome::Sent(seen) => {
                prop_assert_eq!(seen.payload.len(), len);
                self.owners.insert((seen.from, seen.to), client_addr(n));
                self.delivered.push(seen);
            }
            Outcome::Answered(reset, _) => {
                prop_assert_eq!(reset.route(), (VIP.to_owned(), client_addr(n)));
                prop_assert!(reset.flags.contains('R') && flags & 0x04 == 0);
            }
            Outcome::Dropped(_) => {}
            Outcome::Passed => prop_assert!(false, "a packet to the VIP is ours"),
        }
        Ok(())
    }

    fn server(&mut self, lab: &mut Lab, back: usize, flags: u8, len: usize) -> Result<(), TestCaseError> {
        let Some(at) = self.delivered.len().checked_sub(1 + back) else { return Ok(()) };
        let got = &self.delivered[at];
        match lab.handle(&packet(got.reply(), flags, len)) {
            Outcome::Sent(seen) => {
                prop_assert_eq!(seen.route(), (VIP.to_owned(), self.owners[&(got.from, got.to)].clone()));
                prop_assert_eq!((seen.seq, seen.payload.len()), (77, len));
            }
            Outcome::Answered(..) => prop_assert!(false, "servers are not answered"),
            Outcome::Dropped(_) | Outcome::Passed => {}
        }
        Ok(())
    }

    fn counts_add_up(&mut self, lab: &mut Lab, dsr: bool) -> Result<(), TestCaseError> {
        self.ended += lab.ended();
        let flows = lab.forwarder.flows();
        let mut over = vec![FlowState::Closing, FlowState::TimeWait, FlowState::Closed];
        if dsr {
            over.push(FlowState::HalfClosedByClient);
        } else {
            prop_assert!(flows.len() <= SIZE.capacity);
            prop_assert_eq!(lab.forwarder.snat_ports_in_use(), flows.len() as usize);
        }
        let over: u32 = over.into_iter().map(|state| flows.count(state)).sum();
        prop_assert_eq!(Some((flows.len() - over) as usize), lab.opened.checked_sub(self.ended));
        Ok(())
    }
}

fn packet(packet: TcpPacket, flags: u8, len: usize) -> TcpPacket {
    let packet = if flags & 0x01 != 0 { packet.fin() } else { packet };
    let packet = if flags & 0x02 != 0 { packet.syn() } else { packet };
    let packet = if flags & 0x04 != 0 { packet.rst() } else { packet };
    let packet = if flags & 0x08 != 0 { packet.psh() } else { packet };
    let packet = if flags & 0x10 != 0 { packet.ack(99) } else { packet };
    packet.seq(77).payload(&vec![0xa5; len])
}
