#![expect(clippy::disallowed_methods, reason = "tests of a shell: they go by tokio's clock")]

use std::net::{IpAddr, SocketAddr};

use convey_model::{
    self as model, Access, FlowFilter, FlowListing, FlowQuery, FlowSort, Limits, ListedFlow, ListedFlowId,
    Mode, Sources,
};
use convey_snapshot::{Pool, WorkerFrontend, fixture};
use futures_util::FutureExt;

use super::*;

/// Frontend with two servers.
fn frontend() -> Arc<Frontend> {
    frontend_of(|_| {})
}

/// Frontend with two servers and changed settings.
fn frontend_of(change: impl FnOnce(&mut model::FrontendConfig)) -> Arc<Frontend> {
    let servers = [("a", "10.1.0.1:80"), ("b", "10.1.0.2:80")];
    let servers = servers.map(|(name, addr)| (fixture::server(name, addr), fixture::up()));
    let pool = fixture::pool("web", servers.into());
    let mut config = model::fixture::frontend("www", &["192.0.2.1:80"], "web");
    change(&mut config);
    fixture::frontend_of(config, &pool)
}

fn of_worker(frontend: &Arc<Frontend>) -> Arc<WorkerFrontend> {
    WorkerFrontend::new(frontend.clone()).into()
}

/// Registers a connection of the client `10.0.0.last` to this frontend.
fn register(registry: &Arc<Registry>, frontend: &Arc<Frontend>, last: u8) -> RegisteredConnection {
    let client = ConnectionClient {
        frontend: of_worker(frontend),
        peer: SocketAddr::from(([10, 0, 0, last], 4242)),
        vip: "192.0.2.1:80".parse().unwrap(),
        began: Instant::now(),
    };
    RegisteredConnection::new(registry, client)
}

/// Server of the frontend with this index. `is_only`: the connection depends on this server.
fn server(frontend: &Frontend, index: usize, is_only: bool) -> ConnectionServer<'_> {
    ConnectionServer { frontend, pool: &frontend.pool, index, seen_from: SeenFrom::Addr(None), is_only }
}

fn id_of(frontend: &Frontend, index: usize) -> u32 {
    frontend.pool.servers[index].live.id
}

#[test]
fn connections_end_with_their_server_and_no_others() {
    let (registry, www) = (Arc::<Registry>::default(), frontend());
    let [first, second, other, waits, of_http] = [(); 5].map(|()| register(&registry, &www, 6));
    of_http.set_server(&server(&www, 0, false));
    [(&first, 0), (&second, 0), (&other, 1)]
        .into_iter()
        .for_each(|(watched, index)| watched.set_server(&server(&www, index, true)));
    assert!(first.over().now_or_never().is_none());
    registry.end_servers(&BTreeSet::from([id_of(&www, 0), u32::MAX]));
    assert!(first.over().now_or_never().is_some() && second.over().now_or_never().is_some());
    assert!([&other, &waits, &of_http].into_iter().all(|watched| watched.end().is_none()));
    drop((first, second, other, waits, of_http));
    assert!(registry.connections().entries.is_empty());
}

#[test]
fn connections_of_a_denied_client_end_and_no_others() {
    let (registry, www) = (Arc::<Registry>::default(), frontend());
    let named_later = frontend_of(|config| config.accept_proxy = true);
    let [denied, let_in] = [6, 7].map(|last| register(&registry, &www, last));
    let [elsewhere, unnamed] = [&frontend(), &named_later].map(|frontend| register(&registry, frontend, 6));
    let access = |frontend: &Frontend| {
        let access = Access::new([], ["10.0.0.6".parse().unwrap()]);
        HashMap::from([(frontend.live.id, access.into())])
    };
    registry.end_denied(&access(&www));
    assert_eq!(denied.over().now_or_never(), Some(RelayEnd::Denied));
    registry.end_denied(&access(&named_later));
    assert!(let_in.end().is_none() && elsewhere.end().is_none() && unnamed.end().is_none());
    unnamed.set_client(Some("10.0.0.6:1".parse().unwrap()));
    registry.end_denied(&access(&named_later));
    assert!(unnamed.end().is_some());
}

#[test]
fn request_on_a_kept_connection_takes_no_lock_of_the_registry() {
    let (registry, www) = (Arc::<Registry>::default(), frontend());
    let kept = register(&registry, &www, 6);
    let mut over = Box::pin(kept.over());
    let mut request = |index| {
        let before = LOCKS.get();
        assert!((&mut over).now_or_never().is_none());
        kept.count(100, 0);
        kept.set_server(&server(&www, index, false));
        assert!((&mut over).now_or_never().is_none());
        kept.count(0, 1_000);
        assert_eq!(kept.end(), None);
        LOCKS.get() - before
    };
    assert_eq!([request(0), request(1), request(0)], [1, 0, 0], "the first one registers its waker");
    registry.kill(names(&registry, &query())[0].id);
    assert_eq!(over.now_or_never(), Some(RelayEnd::Killed));
}

#[tokio::test]
async fn every_task_that_waits_for_the_end_is_woken() {
    let (registry, www) = (Arc::<Registry>::default(), frontend());
    let connection = register(&registry, &www, 6);
    // The task of the listener may have waited first.
    let waiting = [(); 2].map(|()| tokio::spawn(connection.over()));
    tokio::task::yield_now().await;
    registry.wake_all();
    tokio::task::yield_now().await;
    registry.kill(names(&registry, &query())[0].id);
    for waits in waiting {
        assert_eq!(waits.await.unwrap(), RelayEnd::Killed);
    }
}

#[test]
fn server_of_a_newer_backend_is_listed_and_kept_after_its_removal() {
    let (registry, www) = (Arc::<Registry>::default(), frontend());
    let connection = register(&registry, &www, 6);
    let listed = || names(&registry, &query()).remove(0).server.map(|(_, name, addr)| (name, addr.port()));
    let renewed =
        |servers: Vec<(model::ServerConfig, convey_snapshot::Health)>| fixture::pool("web", servers);
    let newer: Arc<Pool> = renewed(vec![(fixture::server("c", "10.1.0.3:81"), fixture::up())]);
    connection.set_server(&ConnectionServer { pool: &newer, ..server(&www, 0, false) });
    drop(newer);
    assert_eq!(listed(), Some(("c".into(), 81)));
    connection.set_server(&server(&www, 1, false));
    assert_eq!(listed(), Some(("b".into(), 80)));
}

#[test]
fn open_connections_are_counted_in_a_new_table_of_sources() {
    let registry = Arc::<Registry>::default();
    let limits = Limits { ipv4_prefix: 24, connections_per_source: Some(2), ..Limits::default() };
    let tables = [Limits::default(), limits].map(|limits| Arc::new(Sources::new(&limits)));
    let frontends = tables.clone().map(|sources| {
        let pool = fixture::pool("web", vec![]);
        let mut frontend = Arc::into_inner(fixture::frontend("www", &["192.0.2.1:80"], &pool)).unwrap();
        frontend.sources = Some(sources);
        frontend.config.accept_proxy = true;
        Arc::new(frontend)
    });
    let open = |last| tables.each_ref().map(|table| table.open(IpAddr::from([10, 0, 0, last])));
    let named = |frontend, last| {
        let connection = register(&registry, frontend, last);
        connection.set_client(Some(SocketAddr::from(([10, 0, 0, last], 4242))));
        connection
    };
    let first = [6, 7].map(|last| named(&frontends[0], last));
    registry.count_sources(&frontends[..1]);
    assert_eq!((open(6), open(7), open(8)), ([1, 0], [1, 0], [0, 0]));
    let (next, unnamed) = (named(&frontends[1], 9), register(&registry, &frontends[1], 9));
    first.iter().for_each(|watched| watched.set_frontend(&of_worker(&frontends[1])));
    registry.count_sources(&frontends[1..]);
    registry.count_sources(&frontends[1..]);
    assert_eq!((open(6), open(200)), ([0, 3], [0, 3]));
    drop((first, next, unnamed));
    assert_eq!(open(6), [0, 0]);
}

fn query() -> FlowQuery {
    FlowQuery { filter: FlowFilter::default(), sort: FlowSort::Bytes, limit: 10, count_by: None }
}

fn names(registry: &Registry, query: &FlowQuery) -> Vec<ListedFlow> {
    let mut listing = FlowListing::new(query.clone());
    let mut from = Some(0);
    while let Some(place) = from {
        from = registry.list((place, 2), 3, Instant::now(), &mut listing);
    }
    listing.answer().flows
}

#[test]
fn connections_are_listed_with_the_mode_of_their_frontend() {
    let registry = Arc::<Registry>::default();
    let of_http = frontend_of(|config| (config.mode, config.http) = (Mode::Http, Some(Box::default())));
    let [_of_http, moved] = [6, 7].map(|last| register(&registry, &of_http, last));
    moved.set_frontend(&of_worker(&frontend()));
    let mut modes: Vec<&str> = names(&registry, &query()).iter().map(|flow| flow.mode.name()).collect();
    modes.sort_unstable();
    assert_eq!(modes, ["http", "proxy"]);
}

#[test]
fn listed_connection_has_its_server_and_bytes_and_can_be_killed() {
    let (registry, www) = (Arc::<Registry>::default(), frontend());
    let [one, other, waits] = [6, 7, 8].map(|last| register(&registry, &www, last));
    [(&one, 0), (&other, 1)]
        .into_iter()
        .for_each(|(watched, index)| watched.set_server(&server(&www, index, true)));
    one.count(3, 40);
    one.count(2, 0);
    other.count(7, 0);
    let ended = names(&registry, &query());
    let clients: Vec<u8> = ended.iter().map(|flow| flow.client.to_string().as_bytes()[7] - b'0').collect();
    assert_eq!(clients, [6, 7, 8], "most bytes first");
    assert_eq!([ended[0].activity.bytes_rx, ended[0].activity.bytes_tx], [Some(5), Some(40)]);
    assert_eq!([ended[0].state, ended[2].state], ["established", "connecting"]);
    assert_eq!((&*ended[0].server.as_ref().unwrap().1, ended[2].server.is_none()), ("a", true));
    let id = ended[1].id;
    assert_eq!(registry.kill(ListedFlowId { serial: id.serial.wrapping_add(9), ..id }), None, "another one");
    assert_eq!(registry.kill(id).unwrap().client, ended[1].client);
    assert_eq!([&one, &other, &waits].map(RegisteredConnection::end), [None, Some(RelayEnd::Killed), None]);
    drop(other);
    assert_eq!(registry.kill(id), None, "it has ended");
    let next = register(&registry, &www, 9);
    assert_eq!((registry.kill(id), next.end()), (None, None), "not the next one in its place");
}
