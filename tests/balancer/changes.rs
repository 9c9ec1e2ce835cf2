//! Changes by an operator and by health checks: servers and frontends come and go, timeouts change,
//! the program stops.

use std::sync::Arc;
use std::time::Duration;

use convey_forward::FlowState;
use convey_model::DrainingEndpoints;
use convey_model::{Endpoint, FlowTimeouts, Protocol, Timestamp};
use convey_snapshot::{Frontend, Health, Server, Snapshot, fixture};

use super::EventSequence;

/// State of a server or a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Serving,
    /// Server only: its health check has failed.
    Down,
    /// Server only: `weight = 0`.
    OutOfRotation,
    /// Removed; open flows may finish.
    Draining,
    Gone,
}

impl Life {
    fn ends_flows(self) -> bool {
        matches!(self, Life::Down | Life::Gone)
    }
}

/// Configuration, and state of the servers.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) servers: [Life; 2],
    pub(super) frontends: [Life; 3],
    pub(super) is_stopping: bool,
    /// Timeouts, with the time since when each has been in force.
    timeouts: Vec<(Timestamp, FlowTimeouts)>,
}

impl Changes {
    pub(super) fn none() -> Changes {
        let timeouts = vec![(Timestamp(0), FlowTimeouts::default())];
        Changes { servers: [Life::Serving; 2], frontends: [Life::Serving; 3], is_stopping: false, timeouts }
    }

    /// Latest end of a flow in this state whose last packet came at `last`. Shorter timeouts apply
    /// as soon as they are published, longer ones from the next packet. The flow cache alone may
    /// have seen that packet: then the timeouts of the moment when the balancer reads the cache
    /// apply, until shorter ones are published.
    pub(super) fn end(&self, state: FlowState, last: Timestamp) -> Timestamp {
        let then = self.since(last).take_while(|(from, _)| *from <= last);
        let then = then.map(|(_, timeouts)| last.after(timeout(state, timeouts))).max().expect("one");
        let later = self.timeouts.iter().filter(|(from, _)| *from > last);
        later.fold(then, |end, (from, timeouts)| {
            let timeout = timeout(state, timeouts);
            end.min(from.after(timeout)).max(last.after(timeout))
        })
    }

    /// Minimum time for which a flow in this state is kept after its last packet at `last`.
    pub(super) fn least(&self, state: FlowState, last: Timestamp) -> Duration {
        self.since(last).map(|(_, timeouts)| timeout(state, timeouts)).min().expect("one")
    }

    /// Timeouts that were in force at this time or later. Several may have been in force at one
    /// time, one after the other.
    fn since(&self, then: Timestamp) -> impl Iterator<Item = &(Timestamp, FlowTimeouts)> {
        let from = self.timeouts.iter().rposition(|(from, _)| *from < then).unwrap_or(0);
        self.timeouts[from..].iter()
    }

    fn snapshot(&self, first: &Snapshot, generation: u64) -> Snapshot {
        let pool = &first.pools[0];
        let servers: Vec<Arc<Server>> = pool
            .servers
            .iter()
            .zip(self.servers)
            .filter_map(|(server, life)| changed(server, life))
            .collect();
        let pool = fixture::with_servers(pool, servers);
        let with = |life: Life| {
            let all = first.frontends.iter().zip(self.frontends);
            all.filter(move |(_, of)| *of == life).map(|(frontend, _)| frontend)
        };
        let serves = |frontend: &Arc<Frontend>| {
            let Frontend { config, live, .. } = &**frontend;
            Arc::new(Frontend {
                config: config.clone(),
                pool: pool.clone(),
                http: None,
                tls: None,
                sni: None,
                challenges: None,
                sources: None,
                live: live.clone(),
            })
        };
        let frontends: Vec<_> = with(Life::Serving).map(serves).collect();
        // Servers have the protocols of their frontends.
        let is_spoken = |protocol| frontends.iter().any(|frontend| frontend.config.protocol == protocol);
        let leaves = |life: Life, protocol| match life {
            Life::Gone => false,
            Life::Draining => true,
            _ => !is_spoken(protocol),
        };
        let all = first.pools[0].servers.iter().zip(self.servers);
        let leaving = |protocol| {
            let of_protocol = all.clone().filter(move |(_, life)| leaves(*life, protocol));
            of_protocol.map(move |(server, _)| Endpoint { protocol, addr: server.config.addr })
        };
        let draining = DrainingEndpoints {
            listen: with(Life::Draining).flat_map(|frontend| frontend.config.endpoints()).collect(),
            servers: [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(leaving).collect(),
        };
        Snapshot {
            generation,
            draining: draining.into(),
            stopping: self.is_stopping,
            network: first.network.clone(),
            flow_timeouts: self.timeouts.last().expect("one").1,
            ..fixture::snapshot(frontends, vec![pool])
        }
    }
}

/// Returns the server in its current state; `None` if it is no longer configured.
fn changed(server: &Arc<Server>, life: Life) -> Option<Arc<Server>> {
    let Server { config, admin, health, live } = &**server;
    let mut config = config.clone();
    match life {
        Life::Serving => return Some(server.clone()),
        Life::Draining | Life::Gone => return None,
        Life::OutOfRotation => config.settings.weight = 0,
        Life::Down => {}
    }
    let health = Health { up: life != Life::Down, ..health.clone() };
    Some(Arc::new(Server { config, admin: *admin, health, live: live.clone() }))
}

impl EventSequence {
    /// Changes a server or a frontend as these bytes select, or stops the program, or continues it.
    pub(super) fn change(&mut self, who: u8, which: u8, how: u8) {
        let life = match how % 16 {
            0 | 1 => Life::Down,
            2 | 3 => Life::OutOfRotation,
            4 | 5 => Life::Draining,
            6 | 7 => Life::Gone,
            _ => Life::Serving,
        };
        match who % 8 {
            0 => self.changes.is_stopping = how.is_multiple_of(4),
            1 | 2 if how % 16 > 3 => self.changes.frontends[usize::from(which % 3)] = life,
            1 | 2 => {}
            _ => self.changes.servers[usize::from(which % 2)] = life,
        }
        let lost: Vec<usize> = (0..self.connections.len()).filter(|n| self.loses_its_flow(*n)).collect();
        self.publish();
        for n in lost {
            // Both ends get a reset, or notice later.
            self.is_gone(n);
            self.connections[n].before = None;
        }
        self.check_that_what_is_gone_has_no_flows();
    }

    /// Whether this connection has a flow that the current state of servers and frontends ends.
    fn loses_its_flow(&self, n: usize) -> bool {
        let Some(flow) = self.balancer.flow(&self.key(n)) else { return false };
        let first = self.balancer.first();
        let mut servers = first.pools[0].servers.iter().zip(self.changes.servers);
        let mut frontends = first.frontends.iter().zip(self.changes.frontends);
        servers.any(|(server, life)| server.live.id == flow.server_id() && life.ends_flows())
            || frontends.any(|(frontend, life)| frontend.live.id == flow.frontend_id() && life.ends_flows())
    }

    /// Checks the flows of clients and of the forger alike.
    fn check_that_what_is_gone_has_no_flows(&mut self) {
        self.ended += self.balancer.release_slots();
        let first = self.balancer.first();
        let servers =
            first.pools[0].servers.iter().map(|server| &server.live.slots).zip(self.changes.servers);
        let frontends = first.frontends.iter().map(|frontend| &frontend.live.slots);
        for (slots, life) in servers.chain(frontends.zip(self.changes.frontends)) {
            assert!(!life.ends_flows() || slots.open() == 0, "{} flows of what is {life:?}", slots.open());
        }
    }

    /// Applies short timeouts, or the default ones, from now on.
    pub(super) fn change_timeouts(&mut self, are_short: bool) {
        let now = self.balancer.now();
        self.changes.timeouts.push((now, timeouts(are_short)));
        self.publish();
    }

    fn publish(&mut self) {
        let generation = self.balancer.snapshot().generation + 1;
        let snapshot = self.changes.snapshot(self.balancer.first(), generation);
        self.balancer.publish(snapshot);
        self.settle();
    }
}

/// Short timeouts, or the default ones.
fn timeouts(are_short: bool) -> FlowTimeouts {
    let long = FlowTimeouts::default();
    if !are_short {
        return long;
    }
    FlowTimeouts {
        half_open: Duration::from_secs(5),
        established: Duration::from_secs(600),
        half_closed: Duration::from_secs(20),
        udp_stream: Duration::from_secs(20),
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
