//! Sequences of events, made of any bytes: clients, servers and a forger send, time passes, timeouts change, the table fills.
//! They are held against what must be true of every flow.

use std::time::Duration;

use convey::forward::{FlowState, Part, Verdict};
use convey::model::{FlowKey, FlowTimeouts, Mode, Timestamp};
use convey::wire::{TestPacket, parse};

use crate::balancer::{Balancer, Setup};

/// Clients that mean it; of those that are made up there are many more.
const CLIENTS: u8 = 6;

/// Fewer than all would take.
pub(crate) const CAPACITY: u32 = 10;

/// What deadlines are rounded up by.
const TICKS: Duration = Duration::from_millis(500);

/// A connection of a client as its ends see it.
#[derive(Debug, Clone, Default)]
struct Connection {
    /// The SYN as its server got it.
    delivered: Option<FlowKey>,
    is_answered: bool,
    is_open: bool,
    /// What each side sends next.
    client: u32,
    server: u32,
    /// When something of it last came by, true or forged.
    last: Timestamp,
    /// When its SYN last came by, or it got further.
    begun: Timestamp,
}

/// What has happened so far.
pub(crate) struct Events {
    setup: Setup,
    balancer: Balancer,
    connections: Vec<Connection>,
    opened: usize,
    ended: usize,
    forged: u16,
    /// Slots of the frontend and of servers that were held before: snapshots are shared with other balancers of the thread.
    held: [u32; 2],
}

impl Events {
    /// Tells what these bytes say, four an event.
    pub(crate) fn tell(bytes: &[u8]) {
        let Some((&setup, rest)) = bytes.split_first() else { return };
        let setup = Setup {
            mode: if setup & 1 == 0 { Mode::Passthrough } else { Mode::Dsr },
            is_v6: setup & 2 != 0,
            ..Setup::passthrough(2, CAPACITY)
        };
        let connections = vec![Connection::default(); CLIENTS.into()];
        let balancer = Balancer::new(setup);
        let mut events =
            Events { setup, balancer, connections, opened: 0, ended: 0, forged: 0, held: [0; 2] };
        events.held = events.slots();
        for event in rest.as_chunks::<4>().0 {
            events.happen(*event);
            events.check();
        }
    }

    fn happen(&mut self, [what, who, a, b]: [u8; 4]) {
        let n = usize::from(who % CLIENTS);
        let len = usize::from(b);
        match what % 12 {
            0 => self.syn(n),
            1 => self.answer(n),
            2 | 3 => self.client_sends(n, len),
            4 => self.server_sends(n, len),
            5 => self.finish(n, a),
            6 => self.reset(n, a),
            7 | 8 => self.forge(n, a, b),
            9 => (0..a % 32).for_each(|_| self.flood()),
            10 => self.pass(Duration::from_millis(u64::from(a) * u64::from(b) * u64::from(who))),
            _ => {
                self.balancer.change_timeouts(timeouts(a.is_multiple_of(2)));
                self.settle();
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.balancer.pass_time(time);
        self.settle();
    }

    /// Whatever may still be to be done is.
    fn settle(&mut self) {
        (0..4).for_each(|_| self.balancer.pass_time(Duration::ZERO));
    }

    fn packet(&self, n: usize) -> TestPacket {
        self.setup.packet(match self.setup.is_v6 {
            false => format!("198.51.100.{}:4000", n + 1),
            true => format!("[2001:db8:9::{:x}]:4000", n + 1),
        })
    }

    /// The beginning of a packet of the server of this connection; in DSR they do not come by.
    fn reply(&self, n: usize) -> Option<TestPacket> {
        let key = self.connections[n].delivered?.reversed();
        let passes = self.setup.mode == Mode::Passthrough;
        passes.then(|| TestPacket::from(key.source()).to(key.destination()))
    }

    /// Has a packet arrive. Returns it as it is sent on, if it is.
    fn arrive(&mut self, n: Option<usize>, packet: &TestPacket) -> Option<FlowKey> {
        let mut bytes = packet.bytes();
        let verdict = self.balancer.handle(&mut bytes);
        let Verdict::Transmit(forwarded) = verdict else { return None };
        if let Some(n) = n {
            self.connections[n].last = self.balancer.now;
        }
        self.opened += usize::from(forwarded.part == Part::First);
        Some(parse(&bytes).expect("what is sent is a packet").key)
    }

    fn syn(&mut self, n: usize) {
        let connection = &self.connections[n];
        if connection.is_open {
            return;
        }
        let seq = connection.client.wrapping_sub(u32::from(connection.delivered.is_some()));
        let delivered = self.arrive(Some(n), &self.packet(n).syn().seq(seq));
        let now = self.balancer.now;
        let connection = &mut self.connections[n];
        if delivered.is_some() {
            let client = seq.wrapping_add(1);
            *connection = Connection { delivered, client, begun: now, ..connection.clone() };
            connection.is_answered = false;
        }
    }

    fn answer(&mut self, n: usize) {
        let Connection { client, server, is_open, is_answered, .. } = self.connections[n];
        let Some(reply) = self.reply(n).filter(|_| !is_open) else { return };
        // Sent again, it has the same number.
        let seq = server.wrapping_sub(u32::from(is_answered));
        if self.arrive(Some(n), &reply.syn().seq(seq).ack(client)).is_some() {
            let now = self.balancer.now;
            let connection = &mut self.connections[n];
            if !is_answered {
                (connection.is_answered, connection.server, connection.begun) =
                    (true, seq.wrapping_add(1), now);
            }
        }
    }

    fn client_sends(&mut self, n: usize, len: usize) {
        let Connection { client, server, is_open, is_answered, .. } = self.connections[n];
        if !(is_open || is_answered) {
            return;
        }
        let packet = self.packet(n).seq(client).ack(server).payload(&vec![7; len]);
        match self.arrive(Some(n), &packet) {
            Some(_) => {
                self.connections[n].client = client.wrapping_add(len as u32);
                self.connections[n].is_open = true;
            }
            None => self.is_gone(n),
        }
    }

    fn server_sends(&mut self, n: usize, len: usize) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        let Some(reply) = self.reply(n).filter(|_| is_open) else { return };
        match self.arrive(Some(n), &reply.seq(server).ack(client).payload(&vec![7; len])) {
            Some(_) => self.connections[n].server = server.wrapping_add(len as u32),
            None => self.is_gone(n),
        }
    }

    /// Both sides finish, one after the other; or one alone, and nobody hears more of it.
    fn finish(&mut self, n: usize, who: u8) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        if !is_open {
            return;
        }
        if !who.is_multiple_of(3) {
            self.arrive(Some(n), &self.packet(n).seq(client).ack(server).fin());
        }
        if let Some(reply) = self.reply(n).filter(|_| who % 3 != 1) {
            let client = client.wrapping_add(u32::from(who % 3 == 2));
            self.arrive(Some(n), &reply.seq(server).ack(client).fin());
        }
        self.is_gone(n);
    }

    fn reset(&mut self, n: usize, who: u8) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        if !is_open {
            return;
        }
        match self.reply(n).filter(|_| who.is_multiple_of(2)) {
            Some(reply) => self.arrive(Some(n), &reply.rst().seq(server)),
            None => self.arrive(Some(n), &self.packet(n).rst().seq(client)),
        };
        self.is_gone(n);
    }

    /// Somebody who sees nothing sends in the name of a client, by luck with numbers that are near. It changes nothing of an
    /// open connection but how long it may be silent.
    fn forge(&mut self, n: usize, flags: u8, off: u8) {
        let Connection { client, server, is_open, .. } = self.connections[n];
        // In DSR nobody can tell who has moved on from who says so.
        if self.setup.mode == Mode::Dsr || !is_open {
            return;
        }
        let seq = client.wrapping_add((1 + u32::from(off)) * 60_000);
        let packet = self.packet(n).seq(seq).ack(server);
        let packet = if flags & 1 != 0 { packet.fin() } else { packet };
        let packet = if flags & 2 != 0 { packet.rst() } else { packet };
        let before = self.state(n);
        self.arrive(Some(n), &packet);
        assert_eq!(self.state(n), before, "{flags:#x}");
    }

    /// A SYN of an address that nobody has.
    fn flood(&mut self) {
        self.forged = self.forged.wrapping_add(1);
        let from = match self.setup.is_v6 {
            false => format!("198.18.0.1:{}", self.forged.max(1)),
            true => format!("[2001:2::1]:{}", self.forged.max(1)),
        };
        self.arrive(None, &self.setup.packet(from).syn());
    }

    /// Its ends know nothing of it any more; the next SYN begins another.
    fn is_gone(&mut self, n: usize) {
        let Connection { client, server, last, begun, .. } = self.connections[n];
        let client = client.wrapping_add(1 << 20);
        self.connections[n] = Connection { client, server, last, begun, ..Connection::default() };
    }

    fn state(&self, n: usize) -> Option<FlowState> {
        let flows = self.balancer.forwarder.flows();
        let key = parse(&self.packet(n).bytes()).expect("a packet").key;
        flows.lookup(&key).map(|(id, _)| flows.get(id).state())
    }

    fn check(&mut self) {
        for ended in self.balancer.forwarder.news().ended.drain(..) {
            self.ended += 1;
            self.balancer.snapshot.frontends[0].live.slots.release();
            self.balancer.snapshot.servers[&ended.flow.server].live.slots.release();
        }
        let is_dsr = self.setup.mode == Mode::Dsr;
        let flows = self.balancer.forwarder.flows();
        let is_over = |state: &FlowState| match state {
            FlowState::Closing | FlowState::TimeWait | FlowState::Closed => true,
            FlowState::HalfClosedByClient => is_dsr,
            _ => false,
        };
        let over: u32 = FlowState::ALL.iter().filter(|state| is_over(state)).map(|s| flows.count(*s)).sum();
        let alive = flows.len() - over;
        assert!(flows.len() <= CAPACITY);
        assert_eq!((self.opened - self.ended) as u32, alive);
        let held = [0, 1].map(|n| self.slots()[n] - self.held[n]);
        assert_eq!(held, [alive; 2], "slots held are flows alive");
        if !is_dsr {
            assert_eq!(self.balancer.forwarder.snat_ports_in_use(), flows.len() as usize, "and so are ports");
        }
        for n in 0..usize::from(CLIENTS) {
            self.check_connection(n);
        }
    }

    /// Slots held at the frontend, and at servers.
    fn slots(&self) -> [u32; 2] {
        let snapshot = &self.balancer.snapshot;
        let of_servers = snapshot.servers.values().map(|server| server.live.slots.open()).sum();
        [snapshot.frontends[0].live.slots.open(), of_servers]
    }

    fn check_connection(&self, n: usize) {
        let (connection, now) = (&self.connections[n], self.balancer.now);
        let state = self.state(n);
        if let Some(state) = state {
            let is_handshake = matches!(state, FlowState::SynSent | FlowState::SynReceived);
            let since = if is_handshake { connection.begun } else { connection.last };
            let most = timeout(state, &timeouts(false)) + TICKS;
            assert!(now.since(since) <= most, "{state:?} outlives its deadline: {connection:?} at {now:?}");
        }
        let is_kept = now.since(connection.last) < timeouts(true).established;
        if connection.is_open && self.setup.mode == Mode::Passthrough && is_kept {
            assert_eq!(state, Some(FlowState::Established), "{connection:?} at {now:?}");
        }
    }
}

/// Short ones, or those by default.
fn timeouts(are_short: bool) -> FlowTimeouts {
    let long = FlowTimeouts::default();
    if !are_short {
        return long;
    }
    FlowTimeouts {
        half_open: Duration::from_secs(5),
        established: Duration::from_secs(600),
        half_closed: Duration::from_secs(20),
        ..long
    }
}

fn timeout(state: FlowState, timeouts: &FlowTimeouts) -> Duration {
    match state {
        FlowState::SynSent | FlowState::SynReceived | FlowState::Adopted => timeouts.half_open,
        FlowState::HandshakeOnly => timeouts.handshake_only,
        FlowState::Established => timeouts.established,
        FlowState::HalfClosedByClient | FlowState::HalfClosedByServer => timeouts.half_closed,
        FlowState::Closing => timeouts.closing,
        FlowState::TimeWait => timeouts.time_wait,
        FlowState::Closed => timeouts.closed,
        FlowState::UdpNew | FlowState::UdpAnswered => timeouts.udp_single,
        FlowState::UdpStream => timeouts.udp_stream,
    }
}
