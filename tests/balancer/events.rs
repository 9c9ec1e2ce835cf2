//! Random sequences of events: clients, servers and a forger send, packets are lost, time passes,
//! timeouts change, servers and frontends come and go, and the table, the cache, SNAT ports and
//! slots run out. Invariants of every flow are checked after each event.

mod cached;
mod changes;
mod connection;

use std::time::Duration;

use convey_forward::testing::{Flow, FlowTable};
use convey_forward::{FlowState, PacketRole, Verdict};
use convey_model::{DropReason, FlowKey, Mode};
use convey_snapshot::Frontend;
use convey_wire::{TestPacket, parse};

use self::cached::Cached;
use self::changes::{Changes, Life};
use self::connection::{Connection, Fate};
use crate::balancer::{BalancerSetup, OF_UDP, SECOND};

/// Genuine clients; forged ones are many more. The last two use UDP, the three before them connect
/// to the second frontend.
const CLIENTS: usize = 8;

/// Size of the flow table: too small for all flows.
pub(crate) const CAPACITY: u32 = 10;

/// Small size of the cache: for one flow, there is room for only one direction.
const FEW_ENTRIES: usize = 7;

/// Small number of SNAT ports for each server.
const FEW_PORTS: u16 = 4;

/// A stream that was in use within this time is not evicted.
const USE: Duration = Duration::from_secs(1);

/// Granularity to which deadlines are rounded up.
const TICKS: Duration = Duration::from_millis(500);

/// State of a sequence of events.
pub(crate) struct EventSequence {
    setup: BalancerSetup,
    balancer: Cached,
    connections: Vec<Connection>,
    opened: usize,
    ended: usize,
    forged: u16,
    changes: Changes,
}

impl EventSequence {
    /// Runs the events in these bytes, four bytes an event.
    pub(crate) fn run_events(bytes: &[u8]) {
        let Some((&setup, rest)) = bytes.split_first() else { return };
        let has = |bit: u8| setup & bit != 0;
        let mode = if has(1) { Mode::Dsr } else { Mode::Passthrough };
        // Two workers share it equally.
        let workers = if has(16) { 2 } else { 1 };
        let capacity = CAPACITY / u32::from(workers);
        let few = BalancerSetup { has_more: true, ..BalancerSetup::passthrough(2, capacity) };
        let ports = if has(8) { FEW_PORTS } else { few.ports };
        let setup = BalancerSetup { mode, is_v6: has(2), ports, ..few }.with_clock(setup >> 6);
        let room = has(4).then_some(if has(32) { FEW_ENTRIES } else { usize::MAX });
        let balancer = Cached::new(setup, workers, room);
        let connections = (0..CLIENTS).map(Connection::first).collect();
        let changes = Changes::none();
        let mut events =
            EventSequence { setup, balancer, connections, opened: 0, ended: 0, forged: 0, changes };
        for event in rest.as_chunks::<4>().0 {
            let before = events.opened;
            events.happen(*event);
            events.balancer.read_cache_events();
            events.check(events.opened > before);
        }
        events.check_clients();
    }

    fn happen(&mut self, [what, who, a, b]: [u8; 4]) {
        let n = usize::from(who) % CLIENTS;
        let (len, fate) = (usize::from(b), Fate::of(a));
        match what % 19 {
            10 => self.pass(Duration::from_millis(u64::from(a) * u64::from(b) * u64::from(who))),
            11 => self.change_timeouts(a.is_multiple_of(2)),
            16 => self.change(who, a, b),
            9 => (0..a % 32).for_each(|_| self.flood(who)),
            14 => self.balancer.is_deaf = !self.balancer.is_deaf,
            15 => self.balancer.drop_handshake_events(),
            what if is_udp(n) => self.datagram(n, what.is_multiple_of(2), fate),
            0 => self.syn(n, fate),
            1 => self.answer(n, fate),
            2 | 3 => self.client_sends(n, len, fate),
            4 => self.server_sends(n, len, fate),
            5 => self.finish(n, a),
            6 => self.reset(n, a),
            17 => self.abort(n),
            18 => self.damage(n, a, b),
            7 | 8 => self.forge(n, a, b),
            12 => self.client_sends_again(n, fate),
            _ => self.server_sends_again(n, fate),
        }
    }

    fn pass(&mut self, time: Duration) {
        // Events of the cache wait for less than that.
        self.balancer.is_deaf = false;
        self.balancer.read_cache_events();
        self.balancer.pass_time(time);
        self.settle();
    }

    /// Runs all outstanding work.
    fn settle(&mut self) {
        (0..4).for_each(|_| self.balancer.pass_time(Duration::ZERO));
    }

    /// Returns a packet of a client, to be completed.
    fn packet(&self, n: usize) -> TestPacket {
        self.speaks_as(n, ["198.51.100.", "2001:db8:9::"][usize::from(self.setup.is_v6)], n + 1)
    }

    /// A packet from host `host` of a network, to the frontend of client `n`.
    fn speaks_as(&self, n: usize, network: &str, host: usize) -> TestPacket {
        let port = if is_udp(n) { OF_UDP } else { [80, SECOND.0][usize::from(asks_second(n))] };
        let packet = match self.setup.is_v6 {
            false => TestPacket::from(format!("{network}{host}:4000")).to(format!("192.0.2.1:{port}")),
            true => {
                TestPacket::from(format!("[{network}{host:x}]:4000")).to(format!("[2001:db8:2::1]:{port}"))
            }
        };
        if is_udp(n) { packet.udp() } else { packet }
    }

    /// Returns a packet of the server of this connection, to be completed. `None` in DSR, where
    /// replies do not pass the balancer.
    fn reply(&self, n: usize) -> Option<TestPacket> {
        let key = self.connections[n].delivered?.reversed();
        let packet = TestPacket::from(key.source()).to(key.destination());
        let packet = if is_udp(n) { packet.udp() } else { packet };
        self.shows_replies().then_some(packet)
    }

    fn shows_replies(&self) -> bool {
        self.setup.mode == Mode::Passthrough
    }

    /// Passes a packet of a client to the balancer. Returns the forwarded packet's key, if it was
    /// forwarded.
    fn arrive(&mut self, n: Option<usize>, packet: &TestPacket) -> Option<FlowKey> {
        let (sent, has_begun) = self.pass_on(packet)?;
        let now = self.balancer.now();
        if let Some(connection) = n.map(|n| &mut self.connections[n]) {
            connection.last = now;
            if has_begun {
                connection.is_adopted = !parse(&packet.bytes()).expect("a packet").flags.syn();
            }
        }
        Some(sent)
    }

    /// Passes a packet of the server of client `n` to the balancer. Returns whether that client
    /// gets it: a late packet may go to another client that has the port by then.
    fn arrive_from_server(&mut self, n: usize, packet: &TestPacket) -> bool {
        let Some((sent, _)) = self.pass_on(packet) else { return false };
        let is_of = |n: &usize| self.key(*n).source() == sent.destination();
        let who = (0..CLIENTS).find(is_of);
        if let Some(who) = who {
            let now = self.balancer.now();
            (self.connections[who].last, self.connections[who].served) = (now, now);
        }
        who == Some(n)
    }

    /// Passes a packet that was damaged on its way to the balancer, which has to drop it.
    fn arrive_damaged(&mut self, packet: &TestPacket, at: u8) {
        let mut bytes = packet.bytes();
        let l4 = parse(&bytes).expect("a packet").l4;
        // Fields other than ports, which identify the connection, and the data offset, which
        // locates the payload.
        let fields = [4, 8, 14, 16, 18].map(|field| l4 + field);
        bytes[fields[usize::from(at) % fields.len()]] ^= 1 << (at % 8);
        let verdict = self.balancer.handle(&mut bytes);
        assert!(matches!(verdict, Some(Verdict::Drop(DropReason::BadChecksum))), "{packet:?}: {verdict:?}");
    }

    /// Returns the key of the forwarded packet, and whether a flow has begun with it.
    fn pass_on(&mut self, packet: &TestPacket) -> Option<(FlowKey, bool)> {
        let mut bytes = packet.bytes();
        let has_begun = match self.balancer.handle(&mut bytes) {
            None => false,
            Some(Verdict::Transmit(forwarded)) => forwarded.role == PacketRole::First,
            Some(_) => return None,
        };
        let sent = parse(&bytes).expect("what is sent is a packet").key;
        if has_begun {
            self.opened += 1;
            self.check_beginning(&parse(&packet.bytes()).expect("a packet").key, sent);
        }
        Some((sent, has_begun))
    }

    /// Key of a client's packets.
    fn key(&self, n: usize) -> FlowKey {
        parse(&self.packet(n).bytes()).expect("a packet").key
    }

    /// A SYN or a datagram from a forged address.
    fn flood(&mut self, who: u8) {
        self.forged = self.forged.wrapping_add(1);
        let forger = usize::from(who) % CLIENTS;
        let network = if self.setup.is_v6 { "2001:2::" } else { "198.18.0." };
        let packet = self.speaks_as(forger, network, usize::from(self.forged % 250) + 1);
        let packet = if is_udp(forger) { packet } else { packet.syn() };
        self.arrive(None, &packet);
    }

    /// Client and server exchange a datagram by UDP, where a datagram may also be forged in the
    /// client's name: the balancer cannot distinguish them.
    fn datagram(&mut self, n: usize, is_clients: bool, fate: Fate) {
        if fate == Fate::LostBefore {
            return;
        }
        if is_clients {
            let sent = self.arrive(Some(n), &self.packet(n).payload(b"?"));
            if fate == Fate::Delivered {
                self.connections[n].delivered = sent;
            }
        } else if let Some(reply) = self.reply(n) {
            self.arrive_from_server(n, &reply.payload(b"!"));
        }
    }

    fn state(&self, n: usize) -> Option<FlowState> {
        self.balancer.flow(&self.key(n)).map(Flow::state)
    }

    /// Checks that no flow begins at a removed or disabled frontend or server.
    fn check_beginning(&self, asked: &FlowKey, sent: FlowKey) {
        let first = self.balancer.first();
        let is_asked =
            |frontend: &Frontend| frontend.config.endpoints().any(|e| e.addr == asked.destination());
        let frontend = first.frontends.iter().zip(self.changes.frontends).find(|(f, _)| is_asked(f));
        assert_eq!(frontend.map(|(_, life)| life), Some(Life::Serving), "{asked:?}");
        let mut servers = first.pools[0].servers.iter().zip(self.changes.servers);
        let server = servers.find(|(server, _)| server.config.addr == sent.destination());
        assert_eq!(server.map(|(_, life)| life), Some(Life::Serving), "{asked:?} -> {sent:?}");
    }

    fn check(&mut self, has_begun: bool) {
        self.ended += self.balancer.release_slots();
        let is_dsr = self.setup.mode == Mode::Dsr;
        let is_over = |state: &FlowState| match state {
            FlowState::Closing | FlowState::TimeWait | FlowState::Closed => true,
            FlowState::HalfClosedByClient => is_dsr,
            _ => false,
        };
        let over = |flows: &FlowTable| {
            FlowState::ALL.iter().filter(|state| is_over(state)).map(|state| flows.count(*state)).sum::<u32>()
        };
        assert!(self.balancer.tables().all(|flows| flows.len() <= self.setup.capacity));
        let len: u32 = self.balancer.tables().map(FlowTable::len).sum();
        let alive = len - self.balancer.tables().map(over).sum::<u32>();
        assert_eq!((self.opened - self.ended) as u32, alive);
        assert_eq!(self.slots(), [alive; 2], "slots held are flows alive");
        if !is_dsr {
            assert_eq!(self.balancer.snat_ports_in_use(), len as usize, "and so are ports");
            // A worker may take one more while another is about to give one back.
            let owed = if self.balancer.tables().count() > 1 { 2 } else { 0 };
            assert!(self.balancer.first().frontends[1].live.slots.open() <= SECOND.1 + owed);
        }
        for n in 0..CLIENTS {
            let state = self.state(n);
            self.check_deadline(n, state);
            self.check_kept(n, state, has_begun);
            self.connections[n].before = state;
        }
    }

    /// Checks that open flows count for their clients, and ended ones do not; in DSR no flow
    /// counts.
    fn check_clients(&self) {
        let open = if self.shows_replies() { self.balancer.tables().map(FlowTable::open).sum() } else { 0 };
        assert_eq!(self.balancer.counted_for_clients(), u64::from(open));
    }

    /// Slots held at frontends, and at servers.
    fn slots(&self) -> [u32; 2] {
        let first = self.balancer.first();
        let of_frontends = first.frontends.iter().map(|frontend| frontend.live.slots.open()).sum();
        let of_servers = first.servers().map(|server| server.live.slots.open()).sum();
        [of_frontends, of_servers]
    }

    /// No flow outlives its deadline.
    fn check_deadline(&self, n: usize, state: Option<FlowState>) {
        let (connection, now) = (&self.connections[n], self.balancer.now());
        if let Some(state) = state {
            let is_handshake = matches!(state, FlowState::SynSent | FlowState::SynReceived);
            let since = if is_handshake { connection.begun } else { connection.last };
            let end = self.changes.end(state, since).after(TICKS);
            assert!(now <= end, "{state:?} outlives its deadline: {connection:?} at {now:?}");
        }
    }

    /// Checks that no open flow was evicted for a flow that is not open.
    fn check_kept(&self, n: usize, state: Option<FlowState>, has_begun: bool) {
        let (connection, now) = (&self.connections[n], self.balancer.now());
        let silence = now.since(connection.last);
        if is_udp(n) {
            let was_kept = connection.before != Some(FlowState::UdpStream)
                || state == Some(FlowState::UdpStream)
                || silence >= self.changes.least(FlowState::UdpStream, connection.last);
            assert!(was_kept || self.may_stream_give_way(n, has_begun), "{connection:?} at {now:?}");
            return;
        }
        if connection.is_open && silence < self.changes.least(FlowState::Established, connection.last) {
            let is_open = state == Some(FlowState::Established);
            let nobody_told = self.balancer.is_deaf || self.balancer.has_lost_some;
            let may_lag = matches!(state, Some(FlowState::SynSent | FlowState::SynReceived)) && nobody_told;
            // In DSR a handshake may be forged, and so may a flow that was adopted without a SYN.
            let is_proven = self.shows_replies()
                || (connection.before == Some(FlowState::Established) && !connection.is_adopted);
            assert!(is_open || may_lag || !is_proven, "{state:?}: {connection:?} at {now:?}");
        }
    }

    /// Whether the stream of this client may have been evicted. UDP streams may be forged, too:
    /// only a new flow evicts them. Where the balancer sees replies, it evicts no stream whose
    /// server has sent within the last second.
    fn may_stream_give_way(&self, n: usize, has_begun: bool) -> bool {
        let silence = self.balancer.now().since(self.connections[n].served);
        has_begun && (!self.shows_replies() || silence + TICKS / 2 >= USE)
    }
}

fn is_udp(n: usize) -> bool {
    n >= CLIENTS - 2
}

fn asks_second(n: usize) -> bool {
    (CLIENTS - 5..CLIENTS - 2).contains(&n)
}
