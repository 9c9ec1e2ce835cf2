//! Random packets of a few clients, servers and routers, in any order.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::lab::{Family, Lab, Outcome, Seen, Size, error_about};
use crate::FlowState;
use crate::plan::ByView;
use convey_model::{DropReason, OnDown};
use convey_wire::{self as wire, IcmpError, TestPacket};

const CLIENTS: u16 = 12;
const SIZE: Size = Size { capacity: 8, ports: 3 };

#[derive(Debug, Clone)]
enum Step {
    /// Client number, and the packet.
    Client(u16, Content),
    /// The server answers an earlier packet, counted back from the last.
    Server(usize, Content),
    /// A router sends an error about an earlier forwarded packet, counted back from the last; the
    /// flag selects the direction to the servers or the clients.
    Error(usize, bool, IcmpError),
    Wait(Duration),
    /// Server number, whether the server is up, and whether its flows continue while it is down.
    Health(usize, bool, bool),
}

#[derive(Debug, Clone, Copy)]
struct Content {
    /// TCP flags.
    flags: u8,
    len: usize,
    is_last_hop: bool,
    may_be_cut: bool,
    /// TCP: from a host that does not see the connection, and guesses its numbers.
    is_forged: bool,
}

#[derive(Debug, Clone, Copy)]
enum TestMode {
    Passthrough,
    Dsr,
    L2,
}

fn content() -> impl Strategy<Value = Content> {
    // Mostly flags that continue a connection, and now and then others.
    let flags = prop_oneof![Just(0x02), Just(0x10), Just(0x12), Just(0x11), Just(0x14), 0..0x20u8];
    let len = prop_oneof![8 => 0..50usize, 1 => 1_300..1_500usize];
    (flags, len, prop::bool::weighted(0.05), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(flags, len, is_last_hop, may_be_cut, is_forged)| Content {
            flags,
            len,
            is_last_hop,
            may_be_cut,
            is_forged,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let error = prop_oneof![
        Just(IcmpError::PortUnreachable),
        Just(IcmpError::TimeExceeded),
        (68..1_500u32).prop_map(|mtu| IcmpError::TooBig { mtu })
    ];
    let wait = prop_oneof![0..300_000u64, 50_000_000..90_000_000u64].prop_map(Duration::from_micros);
    prop_oneof![
        8 => (0..CLIENTS, content()).prop_map(|(n, content)| Step::Client(n, content)),
        8 => (0..6usize, content()).prop_map(|(back, content)| Step::Server(back, content)),
        4 => (0..6usize, any::<bool>(), error).prop_map(|(back, way, error)| Step::Error(back, way, error)),
        2 => wait.prop_map(Step::Wait),
        1 => (0..3usize, any::<bool>(), any::<bool>()).prop_map(|(n, up, keep)| Step::Health(n, up, keep)),
    ]
}

fn world() -> impl Strategy<Value = (Family, TestMode, bool)> {
    let flags = prop::sample::select(vec![TestMode::Passthrough, TestMode::Dsr, TestMode::L2]);
    (prop::sample::select(&Family::BOTH[..]), flags, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// etherparse parses all sent packets, and checks their checksums.
    #[test]
    fn answers_and_errors_reach_their_flow_and_counts_add_up(
        (family, flags, is_udp) in world(),
        steps in vec(step(), 0..150),
    ) {
        let lab = match flags {
            TestMode::Passthrough => Lab::passthrough_of(family, SIZE),
            TestMode::Dsr => Lab::dsr(family),
            TestMode::L2 => Lab::l2(family),
        };
        let mut scenario = Scenario::new(if is_udp { lab.udp() } else { lab }, flags, is_udp);
        for step in steps {
            match step {
                Step::Client(n, content) => scenario.client(n, content)?,
                Step::Server(back, content) => scenario.server(back, content)?,
                Step::Error(back, to_client, error) => scenario.error(back, to_client, error)?,
                Step::Wait(duration) => {
                    scenario.lab.wait(duration);
                }
                Step::Health(n, up, keep) => {
                    scenario.lab.change(|world| {
                        world.on_down = ByView::both(if keep { OnDown::Keep } else { OnDown::Reset });
                        world.servers[n].up = up;
                    });
                }
            }
            scenario.counts_add_up()?;
        }
        scenario.open_flows_count_for_their_clients()?;
    }
}

struct Scenario {
    lab: Lab,
    mode: TestMode,
    is_udp: bool,
    /// Packets that servers received, the latest last.
    delivered: Vec<Seen>,
    /// Packets that clients received.
    answered: Vec<Seen>,
    /// Client whose packets a server last received from each SNAT port.
    owners: HashMap<(SocketAddr, SocketAddr), String>,
    ended: usize,
}

impl Scenario {
    fn new(lab: Lab, mode: TestMode, is_udp: bool) -> Scenario {
        let (delivered, answered, owners) = (Vec::new(), Vec::new(), HashMap::new());
        Scenario { lab, mode, is_udp, delivered, answered, owners, ended: 0 }
    }

    fn client(&mut self, n: u16, content: Content) -> Result<(), TestCaseError> {
        let family = self.lab.family;
        let sent = self.packet(self.lab.client(n), content, (77, 98));
        match whole(self.handle(&sent, content)?) {
            Outcome::Sent(seen) => {
                prop_assert_eq!((seen.payload.len(), seen.ttl), (content.len, 63));
                self.owners.insert((seen.from, seen.to), family.client_addr(n));
                self.delivered.push(seen);
            }
            Outcome::Answered(reply, reason) => {
                let to = family.client_addr(n);
                match &reply.error {
                    None => {
                        prop_assert_eq!(reply.route(), (family.vip().to_owned(), to));
                        prop_assert!(reply.flags.contains('R') && !self.is_udp);
                    }
                    Some((_, about)) => {
                        let from =
                            if reason == DropReason::TtlExceeded { family.own_ip() } else { family.vip_ip() };
                        prop_assert_eq!(reply.from.ip().to_string(), from);
                        prop_assert_eq!(about.route(), (to, family.vip().to_owned()));
                    }
                }
                prop_assert!(self.is_udp || content.flags & 0x04 == 0, "a reset is never answered");
            }
            Outcome::Dropped(_) => {}
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    fn server(&mut self, back: usize, content: Content) -> Result<(), TestCaseError> {
        let Some(at) = self.delivered.len().checked_sub(1 + back) else { return Ok(()) };
        let got = &self.delivered[at];
        let (from, owner) = (got.to.ip(), self.owners[&(got.from, got.to)].clone());
        let sent = self.packet(got.reply(), content, (98, 77));
        match whole(self.handle(&sent, content)?) {
            Outcome::Sent(seen) => {
                prop_assert_eq!(seen.route(), (self.lab.family.vip().to_owned(), owner));
                prop_assert_eq!((seen.ttl, seen.payload.len()), (63, content.len));
                self.answered.push(seen);
            }
            Outcome::Answered(reply, reason) => {
                prop_assert!([DropReason::TtlExceeded, DropReason::TooBig].contains(&reason), "{reply:?}");
                prop_assert_eq!(reply.to.ip(), from);
            }
            Outcome::Dropped(_) | Outcome::Passed => {}
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    /// Handles a packet. A packet with forged numbers changes no flow; in DSR, it may be the first
    /// packet of a flow.
    fn handle(&mut self, packet: &TestPacket, content: Content) -> Result<Outcome, TestCaseError> {
        let count = |lab: &Lab| FlowState::ALL.map(|state| lab.forwarder.flows().count(state));
        let before = count(&self.lab);
        let outcome = self.lab.handle(packet);
        let is_dsr = !matches!(self.mode, TestMode::Passthrough);
        if content.is_forged && !self.is_udp && !is_dsr && content.flags & 0x02 == 0 {
            prop_assert_eq!(count(&self.lab), before, "{:#04x}", content.flags);
        }
        Ok(outcome)
    }

    /// Checks that the receiver of an error had sent the quoted packet.
    fn error(&mut self, back: usize, to_client: bool, error: IcmpError) -> Result<(), TestCaseError> {
        let (family, is_nat) = (self.lab.family, matches!(self.mode, TestMode::Passthrough));
        let (router, vip) = (family.pick("10.9.9.9", "fd09::9"), family.vip().to_owned());
        let nth_last = |len: usize| len.checked_sub(1 + back);
        let delivered = nth_last(self.delivered.len()).map(|at| &self.delivered[at]);
        let frame = match (to_client, is_nat) {
            (true, _) => delivered.map(|got| got.frame.clone()),
            (false, true) => nth_last(self.answered.len()).map(|at| self.answered[at].frame.clone()),
            // The server has sent the packet to the client directly.
            (false, false) => delivered.map(|got| {
                let answer = TestPacket::from(&vip).to(got.from).seq(99);
                if self.is_udp { answer.udp().bytes() } else { answer.bytes() }
            }),
        };
        let Some(frame) = frame else { return Ok(()) };
        let untracked = self.lab.untracked;
        match self.lab.handle_frame(&mut error_about(&frame, error, router), None) {
            Outcome::Sent(reply) => {
                let (icmp_error, about) = (reply.icmp_error(), reply.about());
                let (asked, answers) =
                    if to_client { (about.from, about.to) } else { (about.to, about.from) };
                let (from, to) = match (to_client, is_nat) {
                    (true, _) => (family.vip_ip(), asked),
                    (false, true) => (family.snat(), answers),
                    (false, false) => (router, answers),
                };
                prop_assert_eq!(icmp_error, (error, from.to_owned(), to.ip().to_string()));
                if to_client {
                    prop_assert!(is_nat && answers.to_string() == vip);
                    prop_assert!(self.owners.values().any(|owner| *owner == asked.to_string()));
                } else if self.lab.untracked > untracked {
                    prop_assert!(!is_nat, "only where the hash says who has answered, or would now");
                } else {
                    prop_assert!(
                        self.owners.contains_key(&(asked, answers)),
                        "{asked} never asked {answers}"
                    );
                }
            }
            Outcome::Dropped(reason) => {
                let known = [
                    DropReason::PathMtuTooSmall,
                    DropReason::NoFlow,
                    DropReason::IcmpOutOfWindow,
                    DropReason::NextHopUnresolved,
                    DropReason::NoServer,
                ];
                prop_assert!(known.contains(&reason), "{reason:?}");
            }
            Outcome::Passed => prop_assert!(to_client && !is_nat, "in DSR it is sent to the client directly"),
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    fn counts_add_up(&mut self) -> Result<(), TestCaseError> {
        self.ended += self.lab.ended();
        let flows = self.lab.forwarder.flows();
        let mut over = vec![FlowState::Closing, FlowState::TimeWait, FlowState::Closed];
        if let TestMode::Passthrough = self.mode {
            prop_assert!(flows.len() <= SIZE.capacity);
            prop_assert_eq!(self.lab.forwarder.snat_ports_in_use(), flows.len() as usize);
        } else {
            over.push(FlowState::HalfClosedByClient);
        }
        let over: u32 = over.into_iter().map(|state| flows.count(state)).sum();
        let open = (flows.len() - over) as usize;
        prop_assert_eq!(Some(open), self.lab.opened.checked_sub(self.ended));
        prop_assert_eq!(self.lab.frontend_slots() as usize, open);
        Ok(())
    }

    fn open_flows_count_for_their_clients(&self) -> Result<(), TestCaseError> {
        let counted = match self.mode {
            TestMode::Passthrough => self.lab.forwarder.flows().open(),
            TestMode::Dsr | TestMode::L2 => 0,
        };
        prop_assert_eq!(self.lab.forwarder.counted_for_clients(), u64::from(counted));
        Ok(())
    }

    /// A packet of one side. Its own numbers begin at `here`, and the numbers of the other side at
    /// `there`.
    fn packet(&self, packet: TestPacket, content: Content, (here, there): (u32, u32)) -> TestPacket {
        let Content { flags, len, is_last_hop, may_be_cut, is_forged } = content;
        let off = if is_forged && flags & 0x02 == 0 { 1 << 30 } else { 0 };
        let packet = packet.payload(&vec![0xa5; len]).ttl(if is_last_hop { 1 } else { 64 });
        let packet = if may_be_cut { packet.may_be_cut(9) } else { packet };
        if self.is_udp {
            return packet.udp();
        }
        let packet = if flags & 0x01 != 0 { packet.fin() } else { packet };
        let packet = if flags & 0x02 != 0 { packet.syn() } else { packet };
        let packet = if flags & 0x04 != 0 { packet.rst() } else { packet };
        let packet = if flags & 0x08 != 0 { packet.psh() } else { packet };
        let packet = if flags & 0x10 != 0 { packet.ack(there + 1 + off) } else { packet };
        packet.seq(off + if flags & 0x02 != 0 { here } else { here + 1 })
    }
}

/// Reassembles an outcome that was cut into fragments or segments. The frame of the result is the
/// frame of the first piece, which errors may quote.
fn whole(outcome: Outcome) -> Outcome {
    let Outcome::Fragments(frames, interface) = outcome else { return outcome };
    if wire::parse(&frames[0]).unwrap().fragment().is_none() {
        return Outcome::Sent(joined(&frames, interface));
    }
    let seen = Seen::reassemble(&frames).pop().expect("a packet that is whole");
    Outcome::Sent(Seen { interface, frame: frames[0].clone(), ..seen })
}

/// Joins consecutive segments.
fn joined(frames: &[Vec<u8>], interface: u32) -> Seen {
    let mut all = Seen::read(&frames[0], interface);
    let first = wire::parse(&frames[0]).unwrap();
    for frame in &frames[1..] {
        let (headers, next) = (wire::parse(frame).unwrap(), Seen::read(frame, interface));
        assert_eq!(headers.seq, first.seq.wrapping_add(all.payload.len() as u32));
        all.payload.extend(next.payload);
    }
    all
}
