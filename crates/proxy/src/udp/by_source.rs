//! Counts of UDP sessions at their sources, for frontends with limits for sources.

use super::session::UdpSession;
use super::table::{SessionKey, SessionTable};
use crate::source;
use convey_model::{CountedSource, Timestamp};
use convey_snapshot::Frontend;
use convey_snapshot::stats::Counter;

/// Counts a new session of a client at its source. If the source has reached its limit of
/// connections, evicts one of its sessions that may be forged: a question, or a stream whose server
/// is silent.
pub(super) fn count(
    sessions: &mut SessionTable<UdpSession>,
    frontend: &Frontend,
    key: SessionKey,
    now: Timestamp,
) -> Result<Option<CountedSource>, Counter> {
    let ip = key.client.ip();
    let counted = source::count(frontend, ip, now);
    if !matches!(counted, Err(Counter::RefusedSourceConnections)) {
        return counted;
    }
    let Some(sources) = &frontend.sources else { return counted };
    let limits = frontend.config.limits;
    sources.begin(ip, &limits.without_connections(), now).map_err(source::reason)?;
    let Some(other) = sessions.evict_of_source(frontend.live.id, sources.source_of(ip), now) else {
        sources.refund_token(ip, &limits);
        return counted;
    };
    other.end(Some(Counter::Evicted));
    sources.begin_counted(ip, &limits.without_rate(), now).map_err(|excess| {
        sources.refund_token(ip, &limits);
        source::reason(excess)
    })
}

/// Adds a session to the table. If the session is counted at its source, also adds it to the list
/// of the source. Returns the number of the session.
pub(super) fn insert(
    sessions: &mut SessionTable<UdpSession>,
    address: usize,
    (key, session): (SessionKey, UdpSession),
    now: Timestamp,
) -> usize {
    let frontend = session.frontend();
    let sources = frontend.sources.as_ref().filter(|_| session.is_counted_at_source());
    let source = sources.map(|sources| sources.source_of(key.client.ip()));
    let frontend = frontend.live.id;
    let number = sessions.insert((address, frontend), key, session, now);
    if let Some(source) = source {
        sessions.set_source(number, source);
    }
    number
}

/// Counts the open sessions of an address in the frontend's current table of sources, after a
/// reload has replaced the table.
pub(super) fn count_open(sessions: &mut SessionTable<UdpSession>, address: usize, frontend: &Frontend) {
    sessions.recount(address, frontend.live.id, |key, session| {
        let is_counted = session.count_at_source(frontend);
        frontend.sources.as_ref().filter(|_| is_counted).map(|sources| sources.source_of(key.client.ip()))
    });
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::runtime::Handle;

    use super::super::relay::Relay;
    use super::super::sockets::UdpSockets;
    use super::*;
    use crate::Reserved;
    use crate::context::WorkerContext;
    use crate::context::tests::context;
    use crate::handover;
    use convey_model::{Excess, Limits, Protocol, Sources};
    use convey_snapshot::{Health, Snapshot, fixture};

    /// Frontend with one server. Each source may begin one session a second.
    struct Scenario {
        vip: SocketAddr,
        server: UdpSocket,
        sources: Arc<Sources>,
        context: Arc<WorkerContext>,
        relay: Relay,
    }

    const LIMITS: Limits = Limits {
        connections_per_source: None,
        rate_per_source: Some(std::num::NonZeroU32::MIN),
        burst: None,
        ipv4_prefix: 32,
        ipv6_prefix: 64,
        action: convey_model::OverLimit::Reset,
        first_byte_timeout: None,
    };

    impl Scenario {
        fn new(health: Health) -> Scenario {
            let [server, free] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
            let (at_server, vip) = (server.local_addr().unwrap(), free.local_addr().unwrap());
            drop(free);
            let pool = fixture::pool("dns", vec![(fixture::server("a", &at_server.to_string()), health)]);
            let mut frontend = Arc::into_inner(fixture::frontend("dns", &[&vip.to_string()], &pool)).unwrap();
            (frontend.config.protocol, frontend.config.limits) = (Protocol::Udp, LIMITS);
            let sources = Arc::new(Sources::new(&LIMITS));
            frontend.sources = Some(sources.clone());
            let snapshot = fixture::snapshot(vec![Arc::new(frontend)], vec![pool]);
            let snapshot = Snapshot { generation: 1, ..snapshot };
            let sockets =
                UdpSockets::bind(vip, [&Handle::current()], [], 65_536, Reserved::default()).unwrap();
            let context = context(snapshot);
            let relay = Relay::new(vip, sockets.split().next().unwrap(), context.clone());
            Scenario { vip, server, sources, context, relay }
        }

        /// Reloads the configuration: the frontend gets this table of sources.
        fn reload(&mut self, sources: &Arc<Sources>) {
            let before = self.context.snapshot();
            let frontend = &before.frontends[0];
            let mut reloaded =
                Arc::into_inner(fixture::frontend("dns", &[&self.vip.to_string()], &frontend.pool)).unwrap();
            (reloaded.config.protocol, reloaded.live) = (Protocol::Udp, frontend.live.clone());
            reloaded.sources = Some(sources.clone());
            let snapshot = fixture::snapshot(vec![Arc::new(reloaded)], vec![frontend.pool.clone()]);
            let snapshot = Snapshot { generation: before.generation + 1, ..snapshot };
            self.context.shared.snapshot.publish(Arc::new(snapshot));
            self.relay.expire(Duration::MAX);
        }

        /// Tries to begin another session 0.5 s after the start.
        fn begin_soon(&self) -> Result<(), Excess> {
            self.sources.begin([127, 0, 0, 1].into(), &LIMITS, Timestamp(500_000_000))
        }

        fn open(&self) -> u32 {
            self.sources.open([127, 0, 0, 1].into())
        }
    }

    #[tokio::test]
    async fn a_datagram_that_gets_no_server_takes_nothing_of_the_rate() {
        let mut scenario = Scenario::new(fixture::down("refused", Default::default()));
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"?", scenario.vip).unwrap();
        assert!(scenario.relay.forward());
        assert_eq!((scenario.open(), scenario.begin_soon()), (0, Ok(())));
    }

    #[tokio::test]
    async fn open_sessions_are_counted_in_the_table_of_a_reload() {
        let mut scenario = Scenario::new(fixture::up());
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"?", scenario.vip).unwrap();
        assert!(scenario.relay.forward());
        assert_eq!(scenario.open(), 1);
        let wider = Arc::new(Sources::new(&Limits { ipv4_prefix: 8, ..LIMITS }));
        scenario.reload(&wider);
        assert_eq!((scenario.open(), wider.open([127, 9, 9, 9].into())), (0, 1));
        drop(scenario);
        assert_eq!(wider.open([127, 9, 9, 9].into()), 0);
    }

    #[tokio::test]
    async fn sessions_of_another_process_go_on_whatever_their_source_may_begin() {
        let mut scenario = Scenario::new(fixture::up());
        let sockets = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        for socket in sockets {
            let server = scenario.server.local_addr().unwrap();
            socket.connect(server).unwrap();
            let (vip, client) = (scenario.vip, ([127, 0, 0, 1], socket.local_addr().unwrap().port()).into());
            scenario.relay.restore(handover::HandedSession {
                vip,
                worker: 0,
                client,
                via: None,
                asked: None,
                server,
                answered: true,
                is_stream: true,
                socket: socket.into(),
            });
        }
        assert_eq!((scenario.open(), scenario.begin_soon()), (3, Ok(())));
    }
}
