#![expect(clippy::disallowed_methods, reason = "tests of a shell: they go by tokio's clock")]

use std::net::{IpAddr, SocketAddr};

use convey_model::{
    Access, FlowFilter, FlowListing, FlowQuery, FlowSort, Limits, ListedFlow, ListedFlowId, Mode, Sources,
};
use convey_snapshot::fixture;
use futures_util::FutureExt;

use super::*;

/// Registers a connection of the client `10.0.0.last` to the frontend with this id.
fn register(
    registry: &Arc<Registry>,
    frontend: u32,
    last: u8,
    is_client_known: bool,
) -> RegisteredConnection {
    let client = ConnectionClient {
        frontend: (frontend, "www".into()),
        mode: Mode::Http,
        client: SocketAddr::from(([10, 0, 0, last], 4242)),
        vip: "192.0.2.1:80".parse().unwrap(),
        is_client_known,
        began: Instant::now(),
    };
    RegisteredConnection::new(registry, client)
}

fn server(id: u32) -> ConnectionServer {
    let addr = SocketAddr::from(([10, 1, 0, 1], 80));
    ConnectionServer { id, names: ("web".into(), "a".into()), addr, seen_from: None, is_only: true }
}

#[test]
fn connections_end_with_their_server_and_no_others() {
    let registry = Arc::<Registry>::default();
    let [first, second, other, waits, of_http] = [(); 5].map(|()| register(&registry, 1, 6, false));
    of_http.set_server(ConnectionServer { is_only: false, ..server(7) });
    [(&first, 7), (&second, 7), (&other, 8)]
        .into_iter()
        .for_each(|(watched, id)| watched.set_server(server(id)));
    assert!(first.over().now_or_never().is_none());
    registry.end_servers(&BTreeSet::from([7, 9]));
    assert!(first.over().now_or_never().is_some() && second.over().now_or_never().is_some());
    assert!([&other, &waits, &of_http].into_iter().all(|watched| watched.end().is_none()));
    drop((first, second, other, waits, of_http));
    assert!(registry.connections().entries.is_empty());
}

#[test]
fn connections_of_a_denied_client_end_and_no_others() {
    let registry = Arc::<Registry>::default();
    let [denied, let_in, elsewhere] =
        [register(&registry, 1, 6, true), register(&registry, 1, 7, true), register(&registry, 2, 6, true)];
    let unnamed = register(&registry, 1, 6, false);
    let access = || Access::new([], ["10.0.0.6".parse().unwrap()]);
    registry.end_denied(&HashMap::from([(1, access().into())]));
    assert_eq!(denied.over().now_or_never(), Some(RelayEnd::Denied));
    assert!(let_in.end().is_none() && elsewhere.end().is_none() && unnamed.end().is_none());
    unnamed.set_client("10.0.0.6:1".parse().unwrap());
    registry.end_denied(&HashMap::from([(1, access().into())]));
    assert!(unnamed.end().is_some());
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
        Arc::new(frontend)
    });
    let id = |frontend: &Arc<Frontend>| frontend.live.id;
    let open = |last| tables.each_ref().map(|table| table.open(IpAddr::from([10, 0, 0, last])));
    let first =
        [register(&registry, id(&frontends[0]), 6, true), register(&registry, id(&frontends[0]), 7, true)];
    registry.count_sources(&frontends[..1]);
    assert_eq!((open(6), open(7), open(8)), ([1, 0], [1, 0], [0, 0]));
    let [next, unnamed] =
        [true, false].map(|is_client_known| register(&registry, id(&frontends[1]), 9, is_client_known));
    first.iter().for_each(|watched| watched.set_frontend(id(&frontends[1]), &"www".into(), Mode::Http));
    registry.count_sources(&frontends[1..]);
    registry.count_sources(&frontends[1..]);
    assert_eq!((open(6), open(200)), ([0, 3], [0, 3]));
    drop((first, next, unnamed));
    assert_eq!(open(6), [0, 0]);
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
    let query = FlowQuery { filter: FlowFilter::default(), sort: FlowSort::Bytes, limit: 10, count_by: None };
    let [_of_http, moved] = [register(&registry, 1, 6, true), register(&registry, 1, 7, true)];
    moved.set_frontend(2, &"other".into(), Mode::Proxy);
    let mut modes: Vec<&str> = names(&registry, &query).iter().map(|flow| flow.mode.name()).collect();
    modes.sort_unstable();
    assert_eq!(modes, ["http", "proxy"]);
}

#[test]
fn listed_connection_has_its_server_and_bytes_and_can_be_killed() {
    let registry = Arc::<Registry>::default();
    let query = FlowQuery { filter: FlowFilter::default(), sort: FlowSort::Bytes, limit: 10, count_by: None };
    let [one, other, waits] =
        [register(&registry, 1, 6, true), register(&registry, 1, 7, true), register(&registry, 1, 8, true)];
    [(&one, 5), (&other, 6)].into_iter().for_each(|(watched, id)| watched.set_server(server(id)));
    one.count(3, 40);
    one.count(2, 0);
    other.count(7, 0);
    let ended = names(&registry, &query);
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
    let next = register(&registry, 1, 9, true);
    assert_eq!((registry.kill(id), next.end()), (None, None), "not the next one in its place");
}
