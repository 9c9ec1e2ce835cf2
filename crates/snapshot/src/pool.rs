//! Backend in a snapshot: servers with their health, and the table that chooses a server.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Health, PoolLive, ServerLive};
use crate::affinity::AffinityTable;
use convey_balance::{self as balance, Balancer, FlowHash, Foreseen, Identity, Loads, Member};
use convey_http_core::{FieldTrust, RequestHead};
use convey_model::{self as model, AdminState, HashKey, HashOn, UnixSocket};
use convey_quic_cid::ServerId;
use convey_tls::TlsConnector;

/// Backend with the lookup table for the current health of its servers.
pub struct Pool {
    /// Configuration of the backend.
    pub config: Arc<model::BackendConfig>,
    /// Connector of TLS handshakes with the servers; `None`: convey connects without TLS, or the
    /// settings are unusable.
    pub tls: Option<Arc<TlsConnector>>,
    /// Servers in the order of the configuration. The result of a pick is an index into this list.
    pub servers: Vec<Arc<Server>>,
    /// State of the backend that outlives this snapshot.
    pub live: Arc<PoolLive>,
    balancer: Arc<dyn Balancer>,
    members: Vec<Member>,
    /// Members of the table for clients whose connections to all other servers have failed: healthy
    /// backups are eligible, too.
    backups: Vec<Member>,
    /// For each server, the reason why the server cannot be chosen; `None` if the server can be
    /// chosen.
    passed_over: Vec<Option<PassedOver>>,
    /// Index of each server, by the server id in QUIC connection ids.
    quic_servers: HashMap<ServerId, usize>,
    pub(crate) affinity: Option<Arc<AffinityTable>>,
    eligible: usize,
    limited: bool,
}

/// State of a server at the time of a snapshot.
#[derive(Debug)]
pub struct Server {
    /// Configuration of the server, in which an operator's override replaces the weight.
    pub config: model::ServerConfig,
    /// Administrative state of the server.
    pub admin: AdminState,
    /// Health by the last decisive outcome.
    pub health: Health,
    /// State of the server that outlives this snapshot.
    pub live: Arc<ServerLive>,
}

/// Result of the choice of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The server with this index.
    Server(usize),
    /// Every server that could be chosen is at its limit, so the client has to wait for a slot.
    Busy,
    /// No server is up, or all servers that are up have been tried.
    Nobody,
}

/// Reason why a server gets no new connections. If several reasons apply, the first in this order
/// is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassedOver {
    /// Maintenance: an operator took the server out of service.
    Maint,
    /// Draining: an operator stopped new connections to the server.
    Drain,
    /// The server is down.
    Down,
    /// The server's weight is 0.
    NoWeight,
    /// The server is ejected, and the pool has other servers.
    Ejected,
    /// The server is a backup, and the pool has other servers.
    Backup,
}

/// Whether a pool may choose ejected servers or backups.
#[derive(Debug, Clone, Copy)]
struct Choice {
    /// Ejected servers may be chosen, because all servers that could serve are ejected.
    only_ejected: bool,
    /// Backups may be chosen, because only backups could serve.
    only_backups: bool,
}

impl Choice {
    fn new(servers: &[Arc<Server>]) -> Choice {
        // An ejected server fails only some of its clients, so it is better than no server.
        let could = Choice { only_ejected: false, only_backups: true };
        let only_ejected = !servers.iter().any(|server| could.passes_over(server).is_none());
        let all = Choice { only_ejected, only_backups: true };
        let serves_first =
            |server: &Arc<Server>| all.passes_over(server).is_none() && !server.config.settings.backup;
        Choice { only_ejected, only_backups: !servers.iter().any(serves_first) }
    }

    fn passes_over(self, server: &Server) -> Option<PassedOver> {
        let (settings, health) = (&server.config.settings, &server.health);
        match server.admin {
            AdminState::Maint => Some(PassedOver::Maint),
            AdminState::Drain => Some(PassedOver::Drain),
            AdminState::Ready if !health.up => Some(PassedOver::Down),
            AdminState::Ready if settings.weight == 0 => Some(PassedOver::NoWeight),
            AdminState::Ready if !self.only_ejected && !health.is_in_service() => Some(PassedOver::Ejected),
            AdminState::Ready if !self.only_backups && settings.backup => Some(PassedOver::Backup),
            AdminState::Ready => None,
        }
    }
}

impl Pool {
    /// Builds a pool whose table holds the servers that are up. The table holds backups only if no
    /// other server is left, and ejected servers only if no backup is left either. `before` is the
    /// previous pool of the backend. The table of the previous pool is reused if a new table would
    /// be equal.
    pub fn new(
        config: Arc<model::BackendConfig>,
        servers: Vec<Arc<Server>>,
        live: Arc<PoolLive>,
        before: Option<&Pool>,
    ) -> Self {
        let choice = Choice::new(&servers);
        let passed_over: Vec<_> = servers.iter().map(|server| choice.passes_over(server)).collect();
        let members: Vec<Member> = servers
            .iter()
            .zip(&passed_over)
            .map(|(server, passed_over)| Member {
                identity: identity_of(config.hash_key, &server.config),
                weight: server.config.settings.weight,
                percent: server.health.percent,
                eligible: passed_over.is_none(),
            })
            .collect();
        let as_backup = |(member, server): (&Member, &Arc<Server>)| Member {
            eligible: Choice { only_backups: true, ..choice }.passes_over(server).is_none()
                && server.config.settings.backup,
            ..*member
        };
        let backups = members.iter().zip(&servers).map(as_backup).collect();
        let eligible = members.iter().filter(|m| m.eligible).count();
        let balancer = match before {
            Some(b) if b.members == members && b.config.algorithm == config.algorithm => b.balancer.clone(),
            _ => balance::build(config.algorithm, &members, live.turn.clone()).into(),
        };
        let tls = config.tls.as_ref().and_then(|settings| match before {
            Some(before) if before.config.tls == config.tls => before.tls.clone(),
            // Cannot fail, because the settings were validated with the configuration.
            _ => TlsConnector::new(settings).ok().map(Arc::new),
        });
        let limited = servers.iter().any(|server| server.config.settings.max_connections.is_some());
        let quic_servers = quic_servers(&config, &servers);
        let table_before = before.and_then(|before| before.affinity.as_ref());
        let affinity = config.affinity.as_ref();
        let affinity =
            affinity.map(|of_pool| AffinityTable::new(of_pool, config.hash_key, &servers, table_before));
        Pool {
            config,
            tls,
            servers,
            live,
            balancer,
            members,
            backups,
            passed_over,
            quic_servers,
            affinity,
            eligible,
            limited,
        }
    }

    /// Chooses a server for a client of `vip`. Skips the servers in `tried`: the client's
    /// connections to these servers have just failed. If no other server is left then, a backup may
    /// serve the client.
    pub fn pick(&self, client: SocketAddr, vip: SocketAddr, tried: &[usize]) -> Pick {
        self.pick_for(None, client, vip, tried)
    }

    /// Like [`Pool::pick`], for a request that may have a hash of its own ([`Pool::hash_of`]).
    pub fn pick_for(
        &self,
        request: Option<FlowHash>,
        client: SocketAddr,
        vip: SocketAddr,
        tried: &[usize],
    ) -> Pick {
        let hash = |on| request.unwrap_or_else(|| balance::flow_hash(on, client, vip));
        let loads = PickLoads { pool: self, tried };
        let is_hashed = self.config.algorithm.hashes();
        let picked = if tried.is_empty() {
            self.balancer.pick(hash(self.config.hash), &loads)
        } else {
            let flow = hash(if is_hashed { self.config.hash } else { HashOn::Tuple });
            let usual = if is_hashed {
                // A client always gets the same substitute, on every node.
                self.balancer.pick(flow, &loads)
            } else {
                balance::substitute(&self.members, flow, &loads)
            };
            // If the other servers are at their limits but have not failed, the client waits for
            // one of them and does not get a backup.
            let backup = || balance::substitute(&self.backups, flow, &loads);
            usual.or_else(|| if self.is_usual_left(tried) { None } else { backup() })
        };
        self.answer(picked, tried)
    }

    /// Returns the server that [`Pool::pick_for`] would choose now for a client without failed
    /// attempts, and the reasons. The position of round robin does not advance.
    pub fn foresee(
        &self,
        request: Option<FlowHash>,
        client: SocketAddr,
        vip: SocketAddr,
    ) -> (Pick, Foreseen) {
        let loads = PickLoads { pool: self, tried: &[] };
        let hash = request.unwrap_or_else(|| balance::flow_hash(self.config.hash, client, vip));
        let foreseen = self.balancer.foresee(hash, &loads);
        (self.answer(foreseen.server, &[]), foreseen)
    }

    fn answer(&self, picked: Option<usize>, tried: &[usize]) -> Pick {
        match picked {
            Some(index) => Pick::Server(index),
            None if self.is_usual_left(tried) || self.is_backup_left(tried) => Pick::Busy,
            None => Pick::Nobody,
        }
    }

    fn is_usual_left(&self, tried: &[usize]) -> bool {
        self.eligible > tried.iter().filter(|index| self.is_eligible(**index)).count()
    }

    /// Whether an eligible backup is left that is not in `tried`. Always false if `tried` is empty,
    /// that is, before the client's first failure.
    fn is_backup_left(&self, tried: &[usize]) -> bool {
        let mut backups = self.backups.iter().enumerate();
        !tried.is_empty() && backups.any(|(index, backup)| backup.eligible && !tried.contains(&index))
    }

    /// Reason why the server with this index cannot be chosen, regardless of its limit; `None` if
    /// the server can be chosen.
    pub fn passed_over(&self, index: usize) -> Option<PassedOver> {
        self.passed_over[index]
    }

    /// Hash of the request field that the backend's configuration names; `None`: the client's
    /// addresses are hashed instead. A header that is not trusted counts as absent.
    pub fn hash_of(&self, request: &RequestHead, trust: FieldTrust<'_>) -> Option<FlowHash> {
        let field = self.config.hash_request.as_ref().filter(|_| self.config.algorithm.hashes())?;
        field.value(request, trust).map(balance::value_hash)
    }

    /// Index of the server that the connection id of a QUIC packet names; `None` if there is no
    /// such server, or if the server is down or in maintenance. A draining server is returned: it
    /// keeps its connections, even if a client continues from a new address.
    pub fn named_by(&self, datagram: &[u8]) -> Option<usize> {
        let server = self.config.quic.as_ref()?.schemes.server_of(datagram)?;
        let index = *self.quic_servers.get(&server)?;
        let is_out = matches!(self.passed_over[index], Some(PassedOver::Maint | PassedOver::Down));
        (!is_out).then_some(index)
    }

    /// Index of the first server that an affinity cookie of a request names, and that gets requests.
    /// `None` if there is no such server. A server that drains or has the weight 0 keeps the clients
    /// that it has.
    pub fn named_in(&self, request: &RequestHead) -> Option<usize> {
        let keeps_clients = |index: &usize| match self.passed_over[*index] {
            None => true,
            Some(PassedOver::Drain | PassedOver::NoWeight) => self.servers[*index].health.is_in_service(),
            Some(_) => false,
        };
        self.affinity.as_ref()?.servers_of(request).find(keeps_clients)
    }

    /// Value of `Set-Cookie` that names the server with this index; `None` without session affinity.
    /// A client whose cookie names a server that gets requests ([`Pool::named_in`]) needs no other
    /// cookie, even if another server served its request.
    pub fn affinity_cookie(&self, index: usize, is_https: bool) -> Option<String> {
        self.affinity.as_ref()?.cookie(index, is_https)
    }

    /// Hash of a client of `vip`, independent of requests.
    pub fn hash(&self, client: SocketAddr, vip: SocketAddr) -> u64 {
        balance::flow_hash(self.config.hash, client, vip).0
    }

    /// Whether the server with this index can be chosen, regardless of its limit.
    pub fn is_eligible(&self, index: usize) -> bool {
        self.members[index].eligible
    }

    /// Whether any server has a connection limit, so that connections may have to wait.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Number of servers that can be chosen, regardless of their limits.
    pub fn eligible(&self) -> usize {
        self.eligible
    }
}

fn quic_servers(config: &model::BackendConfig, servers: &[Arc<Server>]) -> HashMap<ServerId, usize> {
    let Some(quic) = &config.quic else { return HashMap::new() };
    let names = servers.iter().enumerate().map(|(index, server)| (&*server.config.name, index));
    let names: HashMap<&str, usize> = names.collect();
    quic.servers.iter().filter_map(|(id, name)| Some((*id, *names.get(&**name)?))).collect()
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.config.name).field("eligible", &self.eligible).finish()
    }
}

/// Loads of the servers during one pick.
struct PickLoads<'a> {
    pool: &'a Pool,
    tried: &'a [usize],
}

impl PickLoads<'_> {
    /// Time of the last answer of any server of the backend, the reference for comparing response
    /// times.
    fn answered_at(&self) -> Duration {
        Duration::from_nanos(self.pool.live.answered_at.load(Ordering::Relaxed))
    }
}

impl Loads for PickLoads<'_> {
    fn usable(&self, index: usize) -> bool {
        let server = &self.pool.servers[index];
        server.live.slots.has_room(server.config.settings.max_connections) && !self.tried.contains(&index)
    }

    fn active(&self, index: usize) -> u32 {
        self.pool.servers[index].live.slots.open()
    }

    fn cost(&self, index: usize) -> Option<f64> {
        self.pool.servers[index].live.answers.cost(self.answered_at())
    }

    fn is_silent(&self, index: usize) -> bool {
        self.pool.servers[index].live.answers.is_silent(self.answered_at())
    }

    fn is_failing(&self, index: usize) -> bool {
        self.pool.servers[index].live.failures() > 0
    }
}

/// Identity of a server in hash tables. A unix socket has no port, so the text of its path
/// determines its place, also with `hash_key = "addr"`.
fn identity_of(key: HashKey, server: &model::ServerConfig) -> Identity {
    match (UnixSocket::of(server.addr), key) {
        (Some(socket), HashKey::AddrPort | HashKey::Addr) => {
            Identity::new(HashKey::Name, socket.text(), server.addr)
        }
        (_, key) => Identity::new(key, &server.name, server.addr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use convey_model::QuicConfig;
    use convey_quic_cid::{Scheme, Schemes};

    #[test]
    fn unix_socket_has_its_place_by_its_text_or_its_name() {
        let addr = "unix:/run/app.sock".parse::<UnixSocket>().unwrap().addr();
        let server = model::ServerConfig { addr, ..fixture::server("a", "10.0.0.1:80") };
        for key in HashKey::ALL {
            let text = if key == HashKey::Name { "a" } else { "unix:/run/app.sock" };
            assert_eq!(identity_of(key, &server), Identity::new(HashKey::Name, text, addr), "{}", key.name());
        }
    }

    #[test]
    fn client_waits_for_a_full_server_after_others_have_failed() {
        let limited = |name, addr| {
            let mut server = fixture::server(name, addr);
            server.settings.max_connections = Some(1);
            server
        };
        let down = || fixture::down("refused", std::time::Duration::ZERO);
        let (client, vip) = (([192, 0, 2, 1], 4_000).into(), ([10, 0, 0, 1], 80).into());
        for failed in [fixture::up(), down()] {
            let pool = fixture::pool(
                "web",
                vec![
                    (fixture::server("a", "10.0.0.2:80"), failed),
                    (limited("b", "10.0.0.3:80"), fixture::up()),
                ],
            );
            assert!(pool.servers[1].live.slots.try_take(Some(1)));
            assert_eq!(pool.pick(client, vip, &[0]), Pick::Busy);
            assert_eq!(pool.pick(client, vip, &[0, 1]), Pick::Nobody);
        }
    }

    #[test]
    fn backup_at_its_limit_has_clients_of_a_failed_server_wait() {
        let mut backup = fixture::server("b", "10.0.0.3:80");
        backup.settings.max_connections = Some(1);
        backup.settings.backup = true;
        let servers = vec![(fixture::server("a", "10.0.0.2:80"), fixture::up()), (backup, fixture::up())];
        let pool = fixture::pool("web", servers);
        let (client, vip) = (([192, 0, 2, 1], 4_000).into(), ([10, 0, 0, 1], 80).into());
        assert_eq!(pool.pick(client, vip, &[0]), Pick::Server(1));
        assert!(pool.servers[1].live.slots.try_take(Some(1)));
        assert_eq!(pool.pick(client, vip, &[0]), Pick::Busy);
        assert_eq!(pool.pick(client, vip, &[]), Pick::Server(0));
        assert_eq!(pool.pick(client, vip, &[0, 1]), Pick::Nobody);
    }

    #[test]
    fn substitute_of_a_refusing_server_is_equal_on_every_node() {
        let servers = |order: &[u8]| -> Vec<_> {
            let server = |n: &u8| fixture::server(&format!("s{n}"), &format!("10.0.0.{n}:80"));
            order.iter().map(server).collect()
        };
        for algorithm in [model::Algorithm::Ring, model::Algorithm::Maglev] {
            let pool = |order: &[u8]| {
                let config = fixture::backend("web", servers(order));
                fixture::pool_of(model::BackendConfig { algorithm, hash: HashOn::Source, ..config })
            };
            let (one, other) = (pool(&[1, 2, 3, 4, 5]), pool(&[4, 1, 5, 3, 2]));
            let vip = ([10, 0, 0, 1], 80).into();
            for client in 1..=50 {
                let substitute = |pool: &Pool, port| {
                    let client = ([192, 0, 2, client], port).into();
                    let Pick::Server(first) = pool.pick(client, vip, &[]) else { panic!("nobody") };
                    let Pick::Server(second) = pool.pick(client, vip, &[first]) else { panic!("nobody") };
                    let Pick::Server(third) = pool.pick(client, vip, &[first, second]) else {
                        panic!("nobody")
                    };
                    [second, third].map(|index| pool.servers[index].config.name.clone())
                };
                let all = (0..8)
                    .flat_map(|port| [substitute(&one, 4_000 + port), substitute(&other, 5_000 + port)]);
                let all: std::collections::HashSet<_> = all.collect();
                assert_eq!(all.len(), 1, "{algorithm:?}: {all:?}");
            }
        }
    }

    #[test]
    fn clients_that_a_server_has_failed_meet_no_other_one_that_fails() {
        let servers: Vec<_> =
            (1..=24).map(|n| fixture::server(&format!("s{n:02}"), &format!("10.0.0.{n}:80"))).collect();
        let pool = fixture::pool_of(fixture::backend("web", servers));
        // Half of the servers, next to each other in a rack, have died, and each has failed a
        // client.
        for server in &pool.servers[..12] {
            let row = server.live.row();
            assert_eq!(server.live.connect_failed(row), Some(1));
        }
        let vip = ([10, 0, 0, 1], 80).into();
        for port in 1..2_000 {
            let picked = pool.pick(([192, 0, 2, 1], port).into(), vip, &[0]);
            assert!(matches!(picked, Pick::Server(12..)), "{picked:?}");
        }
        // If all servers have failed, each of them is still better than no server.
        for server in &pool.servers[12..] {
            server.live.connect_failed(server.live.row());
        }
        assert!(matches!(pool.pick(([192, 0, 2, 1], 1).into(), vip, &[0]), Pick::Server(1..)));
    }

    #[test]
    fn connection_id_finds_a_drained_server_but_not_a_dead_one() {
        let mut schemes = Schemes::default();
        schemes.add(Scheme::new(2, 1, 4, None).unwrap());
        let ids = ["aa", "bb", "cc"].map(|id| id.parse::<ServerId>().unwrap());
        let names = ids.into_iter().zip(["a", "b", "gone"].map(str::to_owned));
        let packet = |id: usize| [&[0x40, 0x45][..], ids[id].bytes(), &[1, 2, 3, 4]].concat();
        let config = fixture::backend(
            "web",
            vec![fixture::server("a", "10.0.0.2:443"), fixture::server("b", "10.0.0.3:443")],
        );
        let quic = Some(Arc::new(QuicConfig { schemes, servers: names.collect() }));
        let pool = fixture::pool_of(model::BackendConfig { quic, ..config });
        assert_eq!([0, 1, 2].map(|id| pool.named_by(&packet(id))), [Some(0), Some(1), None]);
        for (admin, health, expected) in [
            (AdminState::Drain, fixture::up(), Some(1)),
            (AdminState::Maint, fixture::up(), None),
            (AdminState::Ready, fixture::down("refused", Duration::ZERO), None),
        ] {
            let b = &pool.servers[1];
            let b = Server { config: b.config.clone(), admin, health, live: b.live.clone() };
            let pool = fixture::with_servers(&pool, vec![pool.servers[0].clone(), Arc::new(b)]);
            assert_eq!([0, 1].map(|id| pool.named_by(&packet(id))), [Some(0), expected], "{admin:?}");
        }
    }
}
