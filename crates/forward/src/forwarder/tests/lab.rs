//! Test lab: clients behind a router, a balancer and three servers, in virtual time.

mod seen;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

pub(super) use self::seen::Seen;
pub(super) use self::world::{TestFrontend, TestServer, World, wanted};
use crate::Plan;
use crate::forwarder::{Path, fit};
use crate::plan::ByView;
pub(super) use crate::testing::{MockKernel, run_with_cache};
use crate::{
    Cut, Ended, FlowEnd, Forwarder, Fragments, Frame, IpIds, Later, Loops, NatPorts, PacketRole, PortSplit,
    Settings, SnatChoice, Verdict, WorkerPeers, cut, number_segments,
};
pub(super) use convey_model::fixture::network::{Family, LAN, WAN, neighbour};
use convey_model::{
    Algorithm, DrainingEndpoints, DropReason, DsrKind, FlowTimeouts, Mode, NextHop, OnDown, Protocol,
    Timestamp,
};
use convey_wire::{self as wire, Checksum, Headers, IcmpError, Kind, TestPacket};

/// The balancer, in front of servers 11 to 13.
pub(super) struct Lab {
    pub(super) family: Family,
    pub(super) forwarder: Forwarder,
    pub(super) now: Timestamp,
    pub(super) plan: Plan,
    pub(super) world: World,
    /// Mock of the kernel's flow cache, in scenarios with a cache.
    pub(super) kernel: Option<MockKernel>,
    /// Whether cache events only reach the balancer when the scenario delivers them.
    pub(super) is_deaf: bool,
    /// Number of begun flows, according to verdicts.
    pub(super) opened: usize,
    /// Number of packets forwarded without a record of their flow.
    pub(super) untracked: usize,
    /// Numbers of forwarded datagrams of servers, and of refusals by servers.
    pub(super) server_messages: [usize; 2],
    /// Resets that servers got for evicted handshakes.
    pub(super) server_resets: Vec<Seen>,
    /// Tunnel of the last packet.
    pub(super) envelope: Option<wire::Envelope>,
    fragments: Fragments<Vec<u8>>,
    ids: IpIds,
}

/// Sizes of the lab; `ports` is the number of SNAT ports from 40000 on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) capacity: u32,
    pub(super) ports: u16,
}

/// Sizes for every scenario that is not about a shortage.
pub(super) const ENOUGH: Size = Size { capacity: 10_000, ports: 10_000 };

impl Lab {
    pub(super) fn passthrough(family: Family) -> Lab {
        Lab::passthrough_of(family, ENOUGH)
    }

    pub(super) fn passthrough_of(family: Family, size: Size) -> Lab {
        Lab::passthrough_from(family, family.snat(), size)
    }

    /// Passthrough with this SNAT address.
    pub(super) fn passthrough_from(family: Family, snat: &str, size: Size) -> Lab {
        let snat = snat.parse::<IpAddr>().unwrap().into();
        let ports = NatPorts::new(vec![snat], 40_000..=39_999 + size.ports, 7);
        Lab::new(family, Some(ports), size.capacity)
    }

    /// Passthrough with two SNAT addresses: a server sees the address that the kernel would choose
    /// among the local addresses `lan`.
    pub(super) fn passthrough_by_kernel(
        family: Family,
        addresses: [&'static str; 2],
        lan: &[&'static str],
        ports: u16,
    ) -> Lab {
        let snat = addresses.map(|ip| ip.parse::<IpAddr>().unwrap().into());
        let ports = NatPorts::new(snat.into(), 40_000..=39_999 + ports, 7).choosing(SnatChoice::Kernel);
        let mut lab = Lab::new(family, Some(ports), ENOUGH.capacity);
        lab.change(|world| {
            world.servers.truncate(1);
            world.lan = lan.to_vec();
        });
        lab
    }

    /// Direct server return by rewritten destination address.
    pub(super) fn dsr(family: Family) -> Lab {
        Lab::dsr_of(family, ENOUGH.capacity)
    }

    pub(super) fn dsr_of(family: Family, capacity: u32) -> Lab {
        Lab::new(family, None, capacity)
    }

    /// Direct server return by link-layer address.
    pub(super) fn l2(family: Family) -> Lab {
        let mut lab = Lab::dsr(family);
        lab.change(|world| world.frontends[0].dsr = DsrKind::L2);
        lab
    }

    /// One lab in passthrough mode and one in DSR mode.
    pub(super) fn both_modes(family: Family) -> [Lab; 2] {
        [Lab::passthrough(family), Lab::dsr(family)]
    }

    /// Changes the frontend to UDP.
    pub(super) fn udp(mut self) -> Lab {
        self.change(|world| world.frontends[0].protocol = Protocol::Udp);
        self
    }

    fn new(family: Family, ports: Option<NatPorts>, capacity: u32) -> Lab {
        let servers: Vec<_> = [11, 12, 13].map(|id| TestServer::new(family, id)).into();
        let known = [11, 12, 13].map(|id| neighbour(LAN, family.server_ip(id), id));
        let mode = if ports.is_some() { Mode::Passthrough } else { Mode::Dsr };
        let world = World {
            neighbours: known.into_iter().chain([family.router()]).collect(),
            servers,
            on_down: ByView::both(OnDown::Reset),
            algorithm: Algorithm::Ring,
            frontends: vec![TestFrontend::new(0, mode, family.vip())],
            draining: DrainingEndpoints::default(),
            stopping: false,
            outlasting: BTreeSet::new(),
            flow_timeouts: FlowTimeouts::default(),
            lan_mtu: 1400,
            wan_mtu: 1500,
            router: None,
            server_router: None,
            path_mtus: BTreeMap::new(),
            tunnel: Default::default(),
            servers_by_both: false,
            servers_by_wan: false,
            more_routes: Vec::new(),
            rules: Vec::new(),
            policies: Vec::new(),
            lan: Vec::new(),
        };
        let kernel = MockKernel::of_test();
        let cache = kernel.as_ref().map(MockKernel::cache);
        let settings = Settings {
            ports,
            capacity,
            workers: WorkerPeers::alone(),
            seed: 42,
            cache,
            loops: Loops::new(7),
        };
        let mut lab = Lab {
            family,
            forwarder: Forwarder::new(settings),
            now: Timestamp(0),
            plan: Plan::default(),
            world,
            kernel,
            is_deaf: false,
            opened: 0,
            untracked: 0,
            server_messages: [0; 2],
            envelope: None,
            server_resets: Vec::new(),
            fragments: Fragments::new(IpIds::new(0)),
            ids: IpIds::new(0),
        };
        lab.change(|_| {});
        lab
    }

    /// Creates `others` more workers beside this one, each with its part of the SNAT ports. The
    /// scenario dispatches the packets.
    pub(super) fn colleagues(&mut self, others: u16) -> Vec<Forwarder> {
        let snat = self.family.snat().parse::<IpAddr>().unwrap().into();
        let split = PortSplit::new(40_000..=49_999, others + 1);
        let has_ports = self.world.frontends[0].mode == Mode::Passthrough;
        let together = WorkerPeers::together(usize::from(others) + 1).into_iter().zip(0..);
        let mut all = together.map(|(workers, n)| {
            let ports = has_ports.then(|| NatPorts::of_worker(vec![snat], &split, n, 7));
            let cache = self.kernel.as_ref().map(MockKernel::cache);
            let (capacity, loops) = (ENOUGH.capacity, Loops::new(7));
            Forwarder::new(Settings { ports, capacity, workers, seed: 42, cache, loops })
        });
        let own = all.next().unwrap();
        let others = all.collect();
        self.forwarder = own;
        others
    }

    /// Beginning of a packet from client `n` to the VIP.
    pub(super) fn client(&self, n: u16) -> TestPacket {
        TestPacket::from(self.family.client_addr(n)).to(self.family.vip())
    }

    /// Changes the world, publishes the plan and applies it in the balancer. Returns the frames
    /// that the balancer sends.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut World)) -> Vec<Seen> {
        self.publish(change);
        self.tick()
    }

    /// Changes the world and publishes the plan.
    pub(super) fn publish(&mut self, change: impl FnOnce(&mut World)) {
        change(&mut self.world);
        self.plan = self.world.publish(&self.plan, self.now);
    }

    /// Advances the time. Returns the frames that the balancer sends.
    pub(super) fn wait(&mut self, duration: Duration) -> Vec<Seen> {
        self.now.0 += duration.as_nanos() as u64;
        self.tick()
    }

    /// Runs the balancer's periodic work. Returns the frames that the balancer sends.
    pub(super) fn tick(&mut self) -> Vec<Seen> {
        let mut sent = Vec::new();
        self.forwarder.handle_timeout(&self.plan, self.now, |frame, interface| {
            sent.push(Seen::read(frame, interface));
        });
        self.take_server_resets();
        self.forwarder.flush_cache();
        sent
    }

    /// Handles a packet.
    pub(super) fn handle(&mut self, packet: &TestPacket) -> Outcome {
        self.handle_frame(&mut packet.bytes(), None)
    }

    /// Handles a frame; with a segment size, the frame is a super-frame.
    pub(super) fn handle_frame(&mut self, bytes: &mut [u8], segment_size: Option<u16>) -> Outcome {
        let headers = wire::parse(bytes);
        let mut frame = Frame { segment_size, ..Frame::new(bytes, &headers) };
        self.decide(&mut frame)
    }

    /// Handles a frame that arrives on an interface.
    pub(super) fn handle_from(&mut self, interface: u32, bytes: &[u8]) -> Outcome {
        let mut bytes = bytes.to_vec();
        let headers = wire::parse(&bytes);
        self.decide(&mut Frame { interface: Some(interface), ..Frame::new(&mut bytes, &headers) })
    }

    /// Handles a frame that may be a fragment. As in a capture thread, fragments that arrive before
    /// the first one of their packet wait for it.
    pub(super) fn handle_fragment(&mut self, bytes: &[u8]) -> Vec<Outcome> {
        let key = wire::parse(bytes).unwrap();
        let whole = key.fragment().expect("a fragment");
        self.fragments.expire(self.now, drop);
        let (first, frames) = if let Kind::LaterFragment { .. } = key.kind {
            match self.fragments.later(whole, bytes.to_vec(), self.now, drop) {
                Later::Follows(first, frame) => (first, vec![frame]),
                Later::Queued => return Vec::new(),
                Later::Full(_) => return vec![Outcome::Dropped(DropReason::FragmentQueueFull)],
            }
        } else {
            let (first, held) = self.fragments.first(whole, (&key.key, 0), self.now, drop);
            (first, [vec![bytes.to_vec()], held].concat())
        };
        let decide = |mut frame: Vec<u8>| {
            let mut headers = wire::parse(&frame).unwrap();
            first.complete(&mut headers);
            self.decide(&mut Frame { first_fragment: Some(first), ..Frame::new(&mut frame, &Ok(headers)) })
        };
        frames.into_iter().map(decide).collect()
    }

    fn decide(&mut self, frame: &mut Frame<'_>) -> Outcome {
        let fits = |frame: &Frame<'_>, headers: &Headers, hop: &NextHop| {
            matches!(fit(frame, headers, Path::to(hop, true)), Ok(None))
        };
        if let Some((interface, envelope)) =
            self.kernel.as_ref().and_then(|kernel| kernel.forward(frame, fits, &self.plan, self.now))
        {
            self.envelope = envelope;
            if !self.is_deaf {
                self.apply_cache_events();
            }
            return Outcome::Sent(Seen::read(frame.bytes, interface));
        }
        let before = frame.bytes.to_vec();
        let verdict = self.forwarder.handle_frame(frame, &self.plan, self.now);
        self.take_server_resets();
        self.forwarder.flush_cache();
        let forwarded = match verdict {
            Verdict::Transmit(forwarded) => forwarded,
            Verdict::Reply(reason) => {
                assert_eq!(frame.bytes, before, "it is told of what it sent");
                return Outcome::Answered(Seen::read(self.forwarder.answer(), 0), reason);
            }
            Verdict::Drop(reason) => return Outcome::Dropped(reason),
            Verdict::Pass => {
                assert_eq!(frame.bytes, before, "what is not ours is not touched");
                return Outcome::Passed;
            }
        };
        self.opened += usize::from(forwarded.role == PacketRole::First);
        self.untracked += usize::from(forwarded.role == PacketRole::Untracked);
        for (n, role) in [PacketRole::Answer, PacketRole::Refusal].into_iter().enumerate() {
            self.server_messages[n] += usize::from(forwarded.role == role);
        }
        self.envelope = forwarded.envelope;
        let headers = wire::parse(frame.bytes).unwrap();
        match forwarded.cut {
            Some(Cut::Segments(payload)) if frame.segment_size.is_some() && forwarded.envelope.is_none() => {
                number_segments(frame, payload, &self.ids);
                Outcome::Segments(Seen::read(frame.bytes, forwarded.interface), payload)
            }
            Some(how) => {
                let mut pieces = Vec::new();
                cut(frame, how, &mut self.ids, |piece| pieces.push(piece.to_vec()));
                Outcome::Fragments(pieces, forwarded.interface)
            }
            None if headers.fragment().is_some() => {
                Outcome::Fragments(vec![frame.bytes.to_vec()], forwarded.interface)
            }
            None if frame.checksum == Checksum::Partial => panic!("no case has one"),
            None => Outcome::Sent(Seen::read(frame.bytes, forwarded.interface)),
        }
    }

    fn take_server_resets(&mut self) {
        while let Some((frame, interface)) = self.forwarder.next_server_reset(&self.plan) {
            self.server_resets.push(Seen::read(frame, interface));
        }
    }

    /// Passes the events of the cache to the balancer.
    pub(super) fn apply_cache_events(&mut self) {
        for event in self.kernel.iter().flat_map(MockKernel::events) {
            self.forwarder.on_cached(event, self.now);
            self.server_messages[0] += self.forwarder.events().answered.drain(..).count();
        }
        self.forwarder.flush_cache();
    }

    /// Handles a packet that must be forwarded.
    #[track_caller]
    pub(super) fn send(&mut self, packet: TestPacket) -> Seen {
        self.forwarded(&packet.bytes())
    }

    /// Handles a frame that must be forwarded.
    #[track_caller]
    pub(super) fn forwarded(&mut self, frame: &[u8]) -> Seen {
        match self.handle_frame(&mut frame.to_vec(), None) {
            Outcome::Sent(seen) => seen,
            other => panic!("{} was not forwarded: {other:?}", short(frame)),
        }
    }

    /// Handles a packet that must be answered.
    #[track_caller]
    pub(super) fn answer(&mut self, packet: TestPacket) -> (Seen, DropReason) {
        match self.handle(&packet) {
            Outcome::Answered(seen, reason) => (seen, reason),
            other => panic!("{} was not answered: {other:?}", short(&packet.bytes())),
        }
    }

    /// Connects client `n`; both sides send data. Returns the SYN that the server received.
    #[track_caller]
    pub(super) fn connect(&mut self, n: u16) -> Seen {
        self.connect_at(n, 100)
    }

    /// Like [`Lab::connect`], with this number of the client's SYN.
    #[track_caller]
    pub(super) fn connect_at(&mut self, n: u16, seq: u32) -> Seen {
        let syn = self.send(self.client(n).syn().seq(seq));
        if self.world.frontends[0].mode.has_snat() {
            self.send(syn.reply().syn().seq(500).ack(seq + 1));
        }
        self.send(self.client(n).seq(seq + 1).ack(501));
        syn
    }

    /// Both sides close the connection of client `n`, whose SYN the server received.
    #[track_caller]
    pub(super) fn close(&mut self, n: u16, syn: &Seen) {
        self.send(self.client(n).fin().seq(101).ack(501));
        self.send(syn.reply().fin().seq(501).ack(102));
        self.send(self.client(n).seq(102).ack(502));
    }

    /// Number of flows that the balancer has reported as over since the last call.
    pub(super) fn ended(&mut self) -> usize {
        self.ends().len()
    }

    /// Reasons for the ends of flows that the balancer has reported since the last call. Releases
    /// their slots.
    pub(super) fn ends(&mut self) -> Vec<FlowEnd> {
        let ended: Vec<Ended> = self.forwarder.events().ended.drain(..).collect();
        for Ended { flow, .. } in &ended {
            let frontends = self.world.frontends.iter();
            frontends.filter(|f| f.id == flow.frontend).for_each(|f| f.slots.release());
            let servers = self.world.servers.iter();
            servers.filter(|s| s.id == flow.server).for_each(|s| s.slots.release());
        }
        // The slots are given back.
        self.forwarder.events();
        ended.into_iter().map(|ended| ended.how).collect()
    }

    /// Connection slots taken at the frontend.
    pub(super) fn frontend_slots(&self) -> u32 {
        self.world.frontends[0].slots.open()
    }
}

/// An ICMP error from `from` about a packet, as it arrives at the balancer.
pub(super) fn error_about(frame: &[u8], error: IcmpError, from: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    let from = from.parse::<IpAddr>().unwrap().into();
    wire::icmp_error(frame, &wire::parse(frame).unwrap(), error, from, &mut answer);
    answer
}

/// Outcome of a packet.
#[derive(PartialEq)]
pub(super) enum Outcome {
    Sent(Seen),
    /// A super-frame that will be cut into segments with this many bytes of payload.
    Segments(Seen, u16),
    /// Fragments, and the interface they are sent on.
    Fragments(Vec<Vec<u8>>, u32),
    Answered(Seen, DropReason),
    Dropped(DropReason),
    Passed,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Sent(seen) => write!(f, "sent {seen:?}"),
            Outcome::Segments(seen, size) => write!(f, "sent {seen:?} in segments of {size}"),
            Outcome::Fragments(frames, _) => write!(f, "sent {} fragments", frames.len()),
            Outcome::Answered(seen, reason) => write!(f, "{reason:?}, answered {seen:?}"),
            Outcome::Dropped(reason) => write!(f, "dropped: {reason:?}"),
            Outcome::Passed => write!(f, "passed"),
        }
    }
}

/// A frame in one line.
pub(super) fn short(frame: &[u8]) -> String {
    match wire::parse(frame) {
        Ok(headers) => format!("{:?} {:?} of {} bytes", headers.key, headers.flags, frame.len()),
        Err(error) => format!("{error:?} of {} bytes", frame.len()),
    }
}
