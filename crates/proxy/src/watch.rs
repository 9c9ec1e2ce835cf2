//! Whose connections this thread has, and to which servers: to tell them to an operator, and to end those of a server that is
//! down, of clients that a reload denies, and the one that an operator names. A thread has its own list: it costs a connection
//! no lock.

mod look;

pub(super) use look::{kill, look};

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker};

use convey_model::Mode;
use slab::Slab;
use tokio::time::Instant;

use super::cut_offs::AdmittedPeers;
use super::relay::RelayEnd;
use super::source;
use convey_model::CountedSource;
use convey_snapshot::Frontend;

thread_local! {
    static OPEN: RefCell<Slab<OpenConnection>> = const { RefCell::new(Slab::new()) };
    /// The time, at most a second late: a read does not look at a clock.
    static COARSE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The serial number of the next connection. The first is any number: names of another process do not fit.
    static NEXT: Cell<u32> = Cell::new(fastrand::u32(..));
}

struct OpenConnection {
    serial: u32,
    frontend: (u32, Arc<str>),
    mode: Mode,
    client: SocketAddr,
    vip: SocketAddr,
    /// Whether it is the client, and not a proxy whose PROXY header is still to say who it is.
    is_client_known: bool,
    /// Among its source's connections, where these have a limit.
    source: Option<CountedSource>,
    /// `None` while it has none.
    server: Option<WatchedServer>,
    began: Instant,
    /// When bytes last moved, to a second.
    moved: Instant,
    /// From and to the client.
    bytes: [u64; 2],
    end: Option<RelayEnd>,
    waker: Option<Waker>,
}

/// The client of a connection.
pub(super) struct WatchedClient {
    /// The number of its frontend, and its name.
    pub(super) frontend: (u32, Arc<str>),
    /// The mode of its frontend.
    pub(super) mode: Mode,
    /// Where it comes from.
    pub(super) client: SocketAddr,
    /// Where it has connected to.
    pub(super) vip: SocketAddr,
    /// Whether that is the client, and not a proxy.
    pub(super) is_client_known: bool,
    /// When it came.
    pub(super) began: Instant,
}

/// The server of a connection.
pub(super) struct WatchedServer {
    /// Its number.
    pub(super) id: u32,
    /// Its backend, and its name there.
    pub(super) names: (Arc<str>, Arc<str>),
    /// Where it is.
    pub(super) addr: SocketAddr,
    /// Where it sees the connection come from.
    pub(super) seen_from: Option<SocketAddr>,
    /// Whether the client's connection ends with it. In mode http its request does.
    pub(super) is_only: bool,
}

/// A connection of this thread.
pub(super) struct Watched(usize);

impl Watched {
    /// One of this client.
    pub(super) fn new(of: WatchedClient) -> Watched {
        let WatchedClient { frontend, mode, client, vip, is_client_known, began } = of;
        pass_to(began);
        let serial = NEXT.replace(NEXT.get().wrapping_add(1));
        let (source, server, end, waker, bytes, moved) = (None, None, None, None, [0; 2], began);
        let entry = OpenConnection {
            serial,
            frontend,
            mode,
            client,
            vip,
            is_client_known,
            source,
            server,
            began,
            moved,
            bytes,
            end,
            waker,
        };
        Watched(OPEN.with_borrow_mut(|open| open.insert(entry)))
    }

    /// Moves the connection to the frontend with this number, name and mode.
    pub(super) fn set_frontend(&self, id: u32, name: &Arc<str>, mode: Mode) {
        OPEN.with_borrow_mut(|open| {
            let entry = &mut open[self.0];
            (entry.frontend, entry.mode) = ((id, name.clone()), mode);
        });
    }

    /// This is its client from now on.
    pub(super) fn set_client(&self, client: SocketAddr) {
        OPEN.with_borrow_mut(|open| {
            let entry = &mut open[self.0];
            (entry.client, entry.is_client_known) = (client, true);
        });
    }

    /// It is counted at its source.
    pub(super) fn set_source(&self, source: Option<CountedSource>) {
        OPEN.with_borrow_mut(|open| open[self.0].source = source);
    }

    /// It goes to this server from now on.
    pub(super) fn set_server(&self, server: WatchedServer) {
        OPEN.with_borrow_mut(|open| open[self.0].server = Some(server));
    }

    /// The number of the server that it goes to.
    pub(super) fn server(&self) -> Option<u32> {
        OPEN.try_with(|open| {
            open.borrow().get(self.0).and_then(|entry| entry.server.as_ref().map(|server| server.id))
        })
        .ok()
        .flatten()
    }

    /// So many bytes have come from the client, and gone to it.
    #[inline]
    pub(super) fn count(&self, rx: u64, tx: u64) {
        OPEN.with_borrow_mut(|open| {
            let entry = &mut open[self.0];
            entry.bytes[0] += rx;
            entry.bytes[1] += tx;
            entry.moved = COARSE.get().unwrap_or(entry.moved);
        });
    }

    /// How it is to end; `None`: it may go on.
    pub(super) fn end(&self) -> Option<RelayEnd> {
        OPEN.with_borrow(|open| open[self.0].end)
    }

    /// Waits until it is to end. For as long as it is watched.
    pub(super) fn over(&self) -> impl Future<Output = RelayEnd> + use<> {
        let number = self.0;
        poll_fn(move |cx| {
            OPEN.with_borrow_mut(|open| {
                let entry = &mut open[number];
                if let Some(end) = entry.end {
                    return Poll::Ready(end);
                }
                if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    entry.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            })
        })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let entry = OPEN.with_borrow_mut(|open| open.try_remove(self.0));
        drop(entry);
    }
}

/// Ends this thread's connections to these servers.
pub(super) fn end(servers: &BTreeSet<u32>) {
    end_where(RelayEnd::ServerGone, |entry| {
        entry.server.as_ref().is_some_and(|server| server.is_only && servers.contains(&server.id))
    });
}

/// Ends this thread's connections of clients that may not come in, by the numbers of the frontends.
pub(super) fn end_denied(access: &HashMap<u32, AdmittedPeers>) {
    let is_denied = |entry: &OpenConnection| {
        let access = access.get(&entry.frontend.0).filter(|_| entry.is_client_known);
        access.is_some_and(|access| !access.admit(entry.client.ip()))
    };
    end_where(RelayEnd::Denied, is_denied);
}

/// Counts this thread's connections to these frontends at their sources, in the tables of the frontends.
pub(super) fn count_sources(frontends: &[Arc<Frontend>]) {
    OPEN.with_borrow_mut(|open| {
        for (_, entry) in open.iter_mut().filter(|(_, entry)| entry.is_client_known) {
            let frontend = frontends.iter().find(|frontend| frontend.live.id == entry.frontend.0);
            let Some(frontend) = frontend else { continue };
            let is_counted = |source: &CountedSource| {
                frontend.sources.as_ref().is_some_and(|sources| source.is_in(sources))
            };
            if !entry.source.as_ref().is_some_and(is_counted) {
                entry.source = source::count_open(frontend, entry.client.ip());
            }
        }
    });
}

/// Has each of this thread's connections that waits for its end look about.
pub(super) fn wake_all() {
    let wakers: Vec<Waker> =
        OPEN.with_borrow_mut(|open| open.iter_mut().filter_map(|(_, entry)| entry.waker.take()).collect());
    wakers.into_iter().for_each(Waker::wake);
}

/// It is so late now. To be called once a second.
pub(super) fn pass_to(now: Instant) {
    COARSE.set(Some(COARSE.get().map_or(now, |before| before.max(now))));
}

fn end_where(end: RelayEnd, is_concerned: impl Fn(&OpenConnection) -> bool) {
    let wakers: Vec<Waker> = OPEN.with_borrow_mut(|open| {
        let concerned = open.iter_mut().filter(|(_, entry)| is_concerned(entry));
        concerned
            .filter_map(|(_, entry)| {
                entry.end = Some(end);
                entry.waker.take()
            })
            .collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests of a shell: they go by tokio's clock")]
mod tests {
    use std::net::IpAddr;

    use convey_model::{
        Access, FlowFilter, FlowListing, FlowQuery, FlowSort, Limits, ListedFlow, ListedFlowId, Sources,
    };
    use convey_snapshot::fixture;
    use futures_util::FutureExt;

    use super::*;

    /// A client of the frontend with this number, `10.0.0.last`.
    fn watched(frontend: u32, last: u8, is_client_known: bool) -> Watched {
        Watched::new(WatchedClient {
            frontend: (frontend, "www".into()),
            mode: Mode::Http,
            client: SocketAddr::from(([10, 0, 0, last], 4242)),
            vip: "192.0.2.1:80".parse().unwrap(),
            is_client_known,
            began: Instant::now(),
        })
    }

    fn server(id: u32) -> WatchedServer {
        let addr = SocketAddr::from(([10, 1, 0, 1], 80));
        WatchedServer { id, names: ("web".into(), "a".into()), addr, seen_from: None, is_only: true }
    }

    #[test]
    fn connections_of_a_server_that_is_given_up_end_and_no_others() {
        let [first, second, other, waits, of_http] = [(); 5].map(|()| watched(1, 6, false));
        of_http.set_server(WatchedServer { is_only: false, ..server(7) });
        [(&first, 7), (&second, 7), (&other, 8)]
            .into_iter()
            .for_each(|(watched, id)| watched.set_server(server(id)));
        assert!(first.over().now_or_never().is_none());
        end(&BTreeSet::from([7, 9]));
        assert!(first.over().now_or_never().is_some() && second.over().now_or_never().is_some());
        assert!([&other, &waits, &of_http].into_iter().all(|watched| watched.end().is_none()));
        drop((first, second, other, waits, of_http));
        assert!(OPEN.with_borrow(Slab::is_empty));
    }

    #[test]
    fn connections_of_a_client_that_is_denied_end_and_no_others() {
        let [denied, let_in, elsewhere] = [watched(1, 6, true), watched(1, 7, true), watched(2, 6, true)];
        let unnamed = watched(1, 6, false);
        let access = || Access::new([], ["10.0.0.6".parse().unwrap()]);
        end_denied(&HashMap::from([(1, access().into())]));
        assert_eq!(denied.over().now_or_never(), Some(RelayEnd::Denied));
        assert!(let_in.end().is_none() && elsewhere.end().is_none() && unnamed.end().is_none());
        unnamed.set_client("10.0.0.6:1".parse().unwrap());
        end_denied(&HashMap::from([(1, access().into())]));
        assert!(unnamed.end().is_some());
    }

    #[test]
    fn open_connections_are_counted_in_a_new_table_of_sources() {
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
        let first = [watched(id(&frontends[0]), 6, true), watched(id(&frontends[0]), 7, true)];
        count_sources(&frontends[..1]);
        assert_eq!((open(6), open(7), open(8)), ([1, 0], [1, 0], [0, 0]));
        let [next, unnamed] =
            [true, false].map(|is_client_known| watched(id(&frontends[1]), 9, is_client_known));
        first.iter().for_each(|watched| watched.set_frontend(id(&frontends[1]), &"www".into(), Mode::Http));
        count_sources(&frontends[1..]);
        count_sources(&frontends[1..]);
        assert_eq!((open(6), open(200)), ([0, 3], [0, 3]));
        drop((first, next, unnamed));
        assert_eq!(open(6), [0, 0]);
    }

    fn names(query: &FlowQuery) -> Vec<ListedFlow> {
        let mut listing = FlowListing::new(query.clone());
        let mut from = Some(0);
        while let Some(place) = from {
            from = look((place, 2), 3, Instant::now(), &mut listing);
        }
        listing.answer().flows
    }

    #[test]
    fn connections_are_listed_with_the_mode_of_their_frontend() {
        let query =
            FlowQuery { filter: FlowFilter::default(), sort: FlowSort::Bytes, limit: 10, count_by: None };
        let [_of_http, moved] = [watched(1, 6, true), watched(1, 7, true)];
        moved.set_frontend(2, &"other".into(), Mode::Proxy);
        let mut modes: Vec<&str> = names(&query).iter().map(|flow| flow.mode.name()).collect();
        modes.sort_unstable();
        assert_eq!(modes, ["http", "proxy"]);
    }

    #[test]
    fn connections_are_told_with_their_server_and_bytes_and_one_of_them_is_killed() {
        let query =
            FlowQuery { filter: FlowFilter::default(), sort: FlowSort::Bytes, limit: 10, count_by: None };
        let [one, other, waits] = [watched(1, 6, true), watched(1, 7, true), watched(1, 8, true)];
        [(&one, 5), (&other, 6)].into_iter().for_each(|(watched, id)| watched.set_server(server(id)));
        one.count(3, 40);
        one.count(2, 0);
        other.count(7, 0);
        let told = names(&query);
        let clients: Vec<u8> = told.iter().map(|flow| flow.client.to_string().as_bytes()[7] - b'0').collect();
        assert_eq!(clients, [6, 7, 8], "most bytes first");
        assert_eq!([told[0].activity.bytes_rx, told[0].activity.bytes_tx], [Some(5), Some(40)]);
        assert_eq!([told[0].state, told[2].state], ["established", "connecting"]);
        assert_eq!((&*told[0].server.as_ref().unwrap().1, told[2].server.is_none()), ("a", true));
        let id = told[1].id;
        assert_eq!(kill(ListedFlowId { serial: id.serial.wrapping_add(9), ..id }), None, "another one");
        assert_eq!(kill(id).unwrap().client, told[1].client);
        assert_eq!([&one, &other, &waits].map(Watched::end), [None, Some(RelayEnd::Killed), None]);
        drop(other);
        assert_eq!(kill(id), None, "it has ended");
        let next = watched(1, 9, true);
        assert_eq!((kill(id), next.end()), (None, None), "not the next one in its place");
    }
}
