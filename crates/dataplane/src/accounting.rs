//! Flow counters of one worker, found by the owner numbers that flows carry.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use convey_access_log::{Ending, Record, ServedBy, Termination};
use convey_forward::{
    Direction, Ended, FlowEnd, FlowOwners, FlowRecord, Forwarded, HandshakeEvent, HandshakeStep,
    PathMtuSuspicion, UnansweredSegment, View,
};
use convey_model::{ConnectFailures, DropReason, Listen, Mode, Protocol, ServerKey, Timestamp};
use convey_snapshot::stats::{Counter, Traffic};
use convey_snapshot::{FrontendLive, Pool, PoolLive, ServerLive, Snapshot};

/// Counters of each server and frontend, for one worker. A server or frontend that a reload has
/// removed keeps its counters until its last flow ends.
pub(super) struct Accounting {
    core: usize,
    generation: Option<u64>,
    totals: Option<Arc<Traffic>>,
    servers: Vec<Option<(Arc<ServerLive>, Arc<PoolLive>)>>,
    frontends: Vec<Option<(Arc<FrontendLive>, Protocol)>>,
    /// Indexes of the interfaces on which packets of clients may arrive.
    clients_side: BTreeSet<u32>,
    /// Placeholder for names that are no longer known: `-`.
    unknown: Arc<str>,
}

/// Names of a flow's frontend, backend and server.
pub(super) struct OwnerNames<'a> {
    pub(super) frontend: &'a Arc<str>,
    pub(super) backend: &'a Arc<str>,
    pub(super) server: &'a Arc<str>,
}

impl Accounting {
    /// Creates empty accounting; `core` selects the set of counters to which this worker writes.
    pub(super) fn new(core: usize) -> Accounting {
        Accounting {
            core,
            generation: None,
            totals: None,
            servers: Vec::new(),
            frontends: Vec::new(),
            clients_side: BTreeSet::new(),
            unknown: "-".into(),
        }
    }

    /// Adds the servers and frontends of a snapshot. Removes the servers and frontends that are
    /// neither in the snapshot nor used by a flow.
    pub(super) fn use_snapshot(&mut self, snapshot: &Snapshot) {
        if self.generation == Some(snapshot.generation) {
            return;
        }
        self.generation = Some(snapshot.generation);
        self.totals = Some(snapshot.totals.clone());
        // Collect addresses once: a frontend may listen on thousands of ports of one address.
        let listen = snapshot.frontends.iter().flat_map(|frontend| &frontend.config.listen);
        let vips: HashSet<_> = listen.map(Listen::ip).collect();
        let vips: Vec<_> = vips.into_iter().collect();
        self.clients_side = snapshot.network.interfaces_of_clients(&vips);
        for pool in &snapshot.pools {
            for server in &pool.servers {
                put(&mut self.servers, server.live.id, (server.live.clone(), pool.live.clone()));
            }
        }
        for frontend in &snapshot.frontends {
            put(&mut self.frontends, frontend.live.id, (frontend.live.clone(), frontend.config.protocol));
        }
        let frontends: HashSet<u32> = snapshot.frontends.iter().map(|frontend| frontend.live.id).collect();
        remove_where(&mut self.frontends, |(frontend, _)| {
            !frontends.contains(&frontend.id) && frontend.slots.open() == 0
        });
        remove_where(&mut self.servers, |(server, _)| {
            snapshot.server(server.id).is_none() && server.slots.open() == 0
        });
    }

    /// Counts a client's packet that was refused and therefore opened no flow. `frontend` is the
    /// number of its frontend. Only refusals by access lists and by limits of sources are counted.
    pub(super) fn refused_client(&self, frontend: u32, reason: DropReason) {
        let counter = match reason {
            DropReason::AccessDenied => Counter::RefusedAccess,
            DropReason::SourceConnections => Counter::RefusedSourceConnections,
            DropReason::SourceRate => Counter::RefusedSourceRate,
            _ => return,
        };
        if let Some(Some((frontend, _))) = self.frontends.get(frontend as usize) {
            frontend.traffic.add(self.core, counter, 1);
        }
    }

    /// Creates the access log record of an ended flow; `None` if its frontend or server is unknown.
    pub(super) fn record(&self, flow: &FlowRecord) -> Option<Record<'_>> {
        let (frontend, protocol) = self.frontends.get(flow.owners.frontend as usize)?.as_ref()?;
        let (server, pool) = self.servers.get(flow.owners.server as usize)?.as_ref()?;
        let Ending { termination, reason } = ending(flow.how);
        Some(Record {
            ended: flow.ended,
            total: flow.ended.since(flow.began),
            queued: None,
            connect: None,
            mode: match flow.view {
                View::BothSides => Mode::Passthrough,
                View::ClientSide => Mode::Dsr,
            },
            protocol: *protocol,
            client: flow.client.source(),
            proxy: None,
            listen: flow.client.destination(),
            frontend: &frontend.name,
            backend: &pool.name,
            server: Some(ServedBy { name: &server.name, addr: flow.server.source() }),
            bytes_rx: flow.bytes_rx,
            bytes_tx: flow.bytes_tx,
            retries: 0,
            termination,
            reason,
            tls: None,
            hello: None,
            request: None,
        })
    }

    /// Names of a flow's frontend, backend and server; `-` for names that are no longer known.
    pub(super) fn names(&self, flow: FlowOwners) -> OwnerNames<'_> {
        let frontend = self.frontends.get(flow.frontend as usize).and_then(Option::as_ref);
        let server = self.servers.get(flow.server as usize).and_then(Option::as_ref);
        let unknown = &self.unknown;
        OwnerNames {
            frontend: frontend.map_or(unknown, |(frontend, _)| &frontend.name),
            backend: server.map_or(unknown, |(_, pool)| &pool.name),
            server: server.map_or(unknown, |(server, _)| &server.name),
        }
    }

    /// Adds `n` to a counter of the flow's frontend and server, and to the totals.
    pub(super) fn count(&self, flow: FlowOwners, counter: Counter, n: u64) {
        if let Some(totals) = &self.totals {
            totals.add(self.core, counter, n);
        }
        if let Some(Some((frontend, _))) = self.frontends.get(flow.frontend as usize) {
            frontend.traffic.add(self.core, counter, n);
        }
        if let Some(Some((server, pool))) = self.servers.get(flow.server as usize) {
            server.traffic.add(self.core, counter, n);
            pool.traffic.add(self.core, counter, n);
        }
    }

    /// Adds `n` packets or bytes that the flow cache has forwarded to a counter of the flow's
    /// frontend and server.
    pub(super) fn count_cached(&self, flow: FlowOwners, counter: Counter, n: u64) {
        self.count(flow, counter, n);
        let frontend = self.frontends.get(flow.frontend as usize);
        if let (Counter::PacketsTx, Some(Some((_, Protocol::Udp)))) = (counter, frontend) {
            self.answered(flow);
        }
    }

    /// Resets a server's count of consecutive refusals, because the server has sent a datagram or
    /// answered a SYN.
    pub(super) fn answered(&self, flow: FlowOwners) {
        if let Some(Some((server, _))) = self.servers.get(flow.server as usize) {
            server.connect_succeeded();
        }
    }

    /// Records a step of a handshake with a server: begun, retried or complete.
    pub(super) fn handshake(&self, HandshakeEvent { flow, client, step }: HandshakeEvent, now: Timestamp) {
        let counter = match step {
            HandshakeStep::Begun => Counter::HandshakesBegun,
            HandshakeStep::Repeated => Counter::SynsRepeated,
            HandshakeStep::Completed => Counter::HandshakesCompleted,
        };
        if let Some(Some((server, _))) = self.servers.get(flow.server as usize) {
            server.traffic.add(self.core, counter, 1);
            match step {
                HandshakeStep::Begun => {}
                HandshakeStep::Repeated => server.repeating.note(self.core, client.ip()),
                HandshakeStep::Completed => {
                    server.completing.note(self.core, client.ip());
                    server.note_answer(now);
                }
            }
        }
    }

    /// Time of the server's last answer to any client, if it is later than the first retransmission
    /// of this segment; otherwise `None`.
    pub(super) fn answered_since(&self, segment: &UnansweredSegment) -> Option<Timestamp> {
        let (server, _) = self.servers.get(segment.flow.server as usize)?.as_ref()?;
        server.answered_since(segment.since)
    }

    /// Records a suspected path MTU black hole: large packets of a flow do not arrive.
    pub(super) fn path_mtu(&self, PathMtuSuspicion { flow, direction, packet_len }: PathMtuSuspicion) {
        let counter = match direction {
            Direction::ToServer => Counter::PathMtuToServer,
            Direction::ToClient => Counter::PathMtuToClient,
        };
        if let Some(Some((server, _))) = self.servers.get(flow.server as usize) {
            server.note_lost_len(packet_len);
            server.traffic.add(self.core, counter, 1);
        }
    }

    /// Records that a server has refused a client's SYN or datagram. `interface` is the index of
    /// the interface on which the refusal arrived.
    ///
    /// Returns a report for the health checks once the backend's limit of consecutive failures is
    /// reached. In the report, `is_forgeable` is set if the refusal may come from a client instead
    /// of the server. The forwarder has checked that a reset has the sequence numbers of its SYN,
    /// but the sender of the SYN knows these numbers.
    pub(super) fn refused(
        &self,
        Forwarded { flow, interface: to_client, .. }: Forwarded,
        interface: u32,
        snapshot: &Snapshot,
    ) -> Option<ConnectFailures> {
        let Some(Some((server, pool))) = self.servers.get(flow.server as usize) else { return None };
        for traffic in [&server.traffic, &pool.traffic] {
            traffic.add(self.core, Counter::ConnectFailures, 1);
        }
        let in_a_row = server.connect_failed(server.row())?;
        let config = &snapshot.server(flow.server)?.config;
        let is_its = |pool: &&Arc<Pool>| pool.servers.iter().any(|server| server.live.id == flow.server);
        let backend = &snapshot.pools.iter().find(is_its)?.config;
        let frontend = self.frontends.get(flow.frontend as usize);
        let protocol = frontend.and_then(|entry| Some(entry.as_ref()?.1)).unwrap_or(Protocol::Tcp);
        if !backend.is_failing_after(in_a_row) {
            return None;
        }
        let (backend, name) = (backend.name.clone(), config.name.clone());
        let server = ServerKey { backend, server: name, addr: config.addr };
        let error = match protocol {
            Protocol::Tcp => "the server refused the connection".to_owned(),
            Protocol::Udp => "the server refused the datagram".to_owned(),
        };
        let is_forgeable = interface == to_client
            || self.clients_side.contains(&interface)
            || !snapshot.network.leads_to(config.addr.ip(), interface);
        Some(ConnectFailures { server, in_a_row, error, protocol, is_forgeable })
    }

    /// Counts the end of a flow, and releases its connection slots.
    pub(super) fn ended(&self, Ended { flow, how }: Ended) {
        self.count(flow, Counter::Closed, 1);
        match how {
            // These ends are not counted here: they need no counter, or were counted when they
            // occurred.
            FlowEnd::Unopened
            | FlowEnd::Finished
            | FlowEnd::Refused
            | FlowEnd::Expired
            | FlowEnd::Evicted
            | FlowEnd::Left => {}
            FlowEnd::ClientReset => self.count(flow, Counter::ClientReset, 1),
            FlowEnd::ServerReset => self.count(flow, Counter::ServerReset, 1),
            FlowEnd::Silent => self.count(flow, Counter::IdleTimeout, 1),
            FlowEnd::ClientLimit => self.count(flow, Counter::ClientLimit, 1),
            FlowEnd::SourceLimit => self.count(flow, Counter::SourceConnections, 1),
            FlowEnd::Denied => self.count(flow, Counter::AccessDenied, 1),
            FlowEnd::ServerGone => self.count(flow, Counter::ServerGone, 1),
            FlowEnd::Cut => self.count(flow, Counter::Cut, 1),
            FlowEnd::Killed => self.count(flow, Counter::Killed, 1),
        }
        if let Some(Some((frontend, _))) = self.frontends.get(flow.frontend as usize) {
            frontend.slots.release();
        }
        if let Some(Some((server, _))) = self.servers.get(flow.server as usize) {
            server.slots.release();
        }
    }
}

fn put<T>(list: &mut Vec<Option<T>>, id: u32, value: T) {
    let id = id as usize;
    if list.len() <= id {
        list.resize_with(id + 1, || None);
    }
    list[id] = Some(value);
}

fn remove_where<T>(list: &mut Vec<Option<T>>, is_over: impl Fn(&T) -> bool) {
    for entry in &mut *list {
        entry.take_if(|value| is_over(value));
    }
    let rest = list.iter().rev().take_while(|entry| entry.is_none()).count();
    list.truncate(list.len() - rest);
}

/// Reason of an early end, as in the labels of counters; `None` for an ordinary end.
pub(super) fn reason(how: FlowEnd) -> Option<&'static str> {
    ending(how).reason
}

/// Termination and reason of a flow's end, for the access log.
fn ending(how: FlowEnd) -> Ending {
    let (termination, reason) = match how {
        FlowEnd::Finished | FlowEnd::Unopened => return Ending::usual(Termination::Closed),
        FlowEnd::Expired => return Ending::usual(Termination::Expired),
        FlowEnd::Left => return Ending::usual(Termination::Left),
        FlowEnd::ClientReset => (Termination::Reset, Counter::ClientReset),
        FlowEnd::ServerReset => (Termination::Reset, Counter::ServerReset),
        FlowEnd::ServerGone => (Termination::Reset, Counter::ServerGone),
        FlowEnd::Refused => (Termination::Refused, Counter::ConnectFailed),
        FlowEnd::ClientLimit => (Termination::Refused, Counter::ClientLimit),
        FlowEnd::SourceLimit => (Termination::Refused, Counter::SourceConnections),
        FlowEnd::Denied => (Termination::Cut, Counter::AccessDenied),
        FlowEnd::Silent => (Termination::Timeout, Counter::IdleTimeout),
        FlowEnd::Evicted => (Termination::Evicted, Counter::Evicted),
        FlowEnd::Cut => (Termination::Cut, Counter::Cut),
        FlowEnd::Killed => (Termination::Cut, Counter::Killed),
    };
    Ending::early(termination, reason.label())
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_forward::PacketRole;
    use convey_model::fixture::{interface, route};
    use convey_model::{Interface, NextHops};
    use convey_snapshot::fixture;

    const WAN: u32 = 2;
    const LAN: u32 = 3;

    /// Next hops for these interfaces, with a direct route to each network.
    fn network(interfaces: &[Interface], routes: &[(&str, u32)]) -> Arc<NextHops> {
        let routes = routes.iter().map(|(network, interface)| route(network, *interface, None));
        Arc::new(NextHops::new(interfaces, routes.collect::<Vec<_>>(), &[]))
    }

    #[test]
    fn refusal_is_forgeable_unless_it_arrives_on_a_server_only_link() {
        let [wan, lan] = [interface(WAN, &["192.0.2.1"]), interface(LAN, &["10.0.0.1"])];
        let inside = interface(LAN, &["10.0.0.1", "10.0.0.100"]);
        let routes = [("10.0.0.0/24", LAN), ("192.0.2.0/24", WAN), ("0.0.0.0/0", WAN)];
        let two_arms = network(&[wan.clone(), lan.clone()], &routes);
        let vip_inside_too = network(&[wan.clone(), inside], &routes);
        let default_inside = network(&[wan, lan], &[routes[0], routes[1], ("0.0.0.0/0", LAN)]);
        let one_arm = network(&[interface(LAN, &["192.0.2.1", "10.0.0.1"])], &[("10.0.0.0/24", LAN)]);
        for (what, network, came_in, to_client, is_forgeable) in [
            ("the servers' own interface", &two_arms, LAN, WAN, false),
            ("its client is there, too", &two_arms, LAN, LAN, true),
            ("an interface that leads nowhere", &two_arms, 77, WAN, true),
            ("one arm", &one_arm, LAN, LAN, true),
            ("a frontend for the inside", &vip_inside_too, LAN, WAN, true),
            ("the default route is there", &default_inside, LAN, WAN, true),
        ] {
            let pool = fixture::pool("web", vec![(fixture::server("s", "10.0.0.11:80"), fixture::up())]);
            let listen = ["192.0.2.1:80", "10.0.0.100:80"];
            let frontend = fixture::frontend("www", &listen, &pool);
            let flow = FlowOwners { server: pool.servers[0].live.id, frontend: frontend.live.id };
            let snapshot = fixture::snapshot(vec![frontend], vec![pool]);
            let snapshot = Snapshot { generation: 1, network: network.clone(), ..snapshot };
            let mut accounting = Accounting::new(0);
            accounting.use_snapshot(&snapshot);
            let (direction, role) = (Direction::ToClient, PacketRole::Refusal);
            let forwarded =
                Forwarded { interface: to_client, direction, flow, role, cut: None, envelope: None };
            let told = accounting.refused(forwarded, came_in, &snapshot).unwrap();
            assert_eq!((told.is_forgeable, told.protocol), (is_forgeable, Protocol::Tcp), "{what}");
        }
    }

    #[test]
    fn removed_server_and_frontend_are_counted_until_their_last_flow_ends() {
        let pool = fixture::pool("web", vec![(fixture::server("s", "10.0.0.1:80"), fixture::up())]);
        let frontend = fixture::frontend("www", &["192.0.2.1:80"], &pool);
        let server = pool.servers[0].live.clone();
        let before =
            Snapshot { generation: 1, ..fixture::snapshot(vec![frontend.clone()], vec![pool.clone()]) };
        let without = |generation| Snapshot { generation, ..fixture::snapshot(vec![], vec![]) };
        let (flow, mut accounting) =
            (FlowOwners { server: server.id, frontend: frontend.live.id }, Accounting::new(0));
        accounting.use_snapshot(&before);
        assert!(frontend.live.slots.try_take(None) && server.slots.try_take(None));
        accounting.use_snapshot(&without(2));
        accounting.count(flow, Counter::PacketsRx, 1);
        accounting.ended(Ended { flow, how: FlowEnd::Finished });
        let counted = [Counter::PacketsRx, Counter::Closed]
            .map(|c| (frontend.live.traffic.sum(c), server.traffic.sum(c)));
        assert_eq!(counted, [(1, 1); 2]);
        assert_eq!((frontend.live.slots.open(), server.slots.open()), (0, 0));

        accounting.use_snapshot(&without(3));
        drop((before, pool));
        assert_eq!((Arc::strong_count(&frontend), Arc::strong_count(&frontend.live)), (1, 1));
        assert!(accounting.servers.is_empty() && accounting.frontends.is_empty());
        accounting.count(flow, Counter::PacketsRx, 1);
    }
    #[test]
    fn refusals_beyond_the_limit_are_each_reported_as_failures() {
        let pool = fixture::pool("web", vec![(fixture::server("s", "10.0.0.11:80"), fixture::up())]);
        let frontend = fixture::frontend("www", &["192.0.2.1:80"], &pool);
        let flow = FlowOwners { server: pool.servers[0].live.id, frontend: frontend.live.id };
        let snapshot = Snapshot { generation: 1, ..fixture::snapshot(vec![frontend], vec![pool]) };
        let mut accounting = Accounting::new(0);
        accounting.use_snapshot(&snapshot);
        let (direction, role) = (Direction::ToClient, PacketRole::Refusal);
        let forwarded = Forwarded { interface: WAN, direction, flow, role, cut: None, envelope: None };
        let told: Vec<u32> = (0..2_000)
            .filter_map(|_| accounting.refused(forwarded, LAN, &snapshot))
            .map(|failures| failures.in_a_row)
            .collect();
        assert!(told.len() > 1_990 && told.ends_with(&[1_999, 2_000]), "{:?}", told.first());
    }
}
