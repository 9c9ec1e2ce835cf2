//! Choice of a connection to an HTTP/2 server for a request with a body (upload). Pure.
//!
//! All streams of a connection share its send window. If a server does not read one body, it
//! returns no window for it, and the bodies of other streams wait. Hence unfinished uploads of
//! several clients share a connection only if the rest of all these bodies fits into the window.
//! Then each upload ends, even if the server reads no body.

use std::cmp::Reverse;

use convey_model::{ClientNetwork, Prefix, networks_of};

use super::kept::MAX_STREAMS;
use super::send_window::INITIAL_WINDOW;
use super::uploads::{Upload, Uploads};

/// A quarter of the smallest window, in bytes. A connection with a smaller send window does not
/// suit a longer body.
pub(super) const MUCH: u64 = 16 * 1024;

/// Maximum number of connections to one server that the open uploads of a client may occupy. For a
/// network of several clients, the number is multiplied by the network's shares ([`networks_of`]).
const MAX_OCCUPIED_BY_CLIENT: usize = 2;

/// A connection that may take an upload.
#[derive(Clone, Copy)]
pub(super) struct ConnectionState<'a> {
    pub(super) has_room: bool,
    /// Number of bytes that the server accepts now, for all streams together.
    pub(super) window: u64,
    pub(super) uploads: &'a Uploads,
}

/// Connection for an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The connection of this index.
    On(usize),
    /// No connection suits: open another. If none may be opened, use one that has room.
    Another,
    /// The client occupies its maximum number of connections, and they have no room.
    Beyond,
}

/// Chooses a connection for an upload.
pub(super) fn place(upload: &Upload, connections: &[ConnectionState<'_>]) -> Placement {
    let bounds = bounds(upload, connections);
    let suits = |one: &ConnectionState<'_>| one.suits(upload) && one.is_within(&bounds, upload);
    let position = |of: &dyn Fn(&ConnectionState<'_>) -> bool| {
        connections.iter().position(|one| one.has_room && of(one) && suits(one))
    };
    let is_own = |one: &ConnectionState<'_>| one.uploads.of_network(&upload.client).open > 0;
    if let Some(at) = position(&is_own).or_else(|| position(&|_| true)) {
        return Placement::On(at);
    }
    let Some(bound) = bounds.last().filter(|_| upload.size() >= MUCH) else { return Placement::Another };
    let holds_up_none = |one: &ConnectionState<'_>| {
        one.uploads.outside(&bound.network).unfinished == 0 && one.is_within(&bounds, upload)
    };
    if let Some(at) = least_loaded(connections, holds_up_none) {
        return Placement::On(at);
    }
    // This limit counts streams, because a server that allows few streams on a connection needs
    // more connections.
    let open: usize = connections.iter().map(|one| one.uploads.of_network(&bound.network).open).sum();
    match open >= MAX_OCCUPIED_BY_CLIENT * bound.shares as usize * MAX_STREAMS {
        true => Placement::Beyond,
        false => Placement::Another,
    }
}

/// Number of uploads like this one, of different clients, that may share a connection. A body of
/// unknown length counts as `MUCH` bytes: most gRPC calls are short.
pub(super) fn together(upload: &Upload) -> usize {
    let most = INITIAL_WINDOW / upload.length.unwrap_or(MUCH).max(1);
    (most as usize).clamp(1, MAX_STREAMS)
}

/// Returns the index of the connection for an upload if no connection suits it and none may be
/// opened. `None`: no connection has room.
pub(super) fn place_anywhere(upload: &Upload, connections: &[ConnectionState<'_>]) -> Option<usize> {
    let bounds = bounds(upload, connections);
    least_loaded(connections, |one| one.is_within(&bounds, upload))
        .or_else(|| least_loaded(connections, |_| true))
}

/// Networks around the client that occupy their maximum number of connections. Their uploads may
/// occupy no further connection.
fn bounds(upload: &Upload, connections: &[ConnectionState<'_>]) -> Vec<ClientNetwork> {
    let is_bound = |at: &ClientNetwork| {
        let occupied = connections.iter().filter(|one| one.is_occupied_by(&at.network));
        occupied.count() >= MAX_OCCUPIED_BY_CLIENT * at.shares as usize
    };
    networks_of(upload.client).filter(is_bound).collect()
}

/// Returns the index of the connection with the most window, up to `MUCH`, and then the fewest
/// unfinished uploads. Considers only connections that have room and that `of` accepts.
fn least_loaded(
    connections: &[ConnectionState<'_>],
    of: impl Fn(&ConnectionState<'_>) -> bool,
) -> Option<usize> {
    let these = connections.iter().enumerate().filter(|(_, one)| one.has_room && of(one));
    let order = |one: &ConnectionState<'_>| {
        let uploads = one.uploads.all();
        (one.window.min(MUCH), Reverse((uploads.unfinished, uploads.open)))
    };
    these.max_by_key(|(at, one)| (order(one), Reverse(*at))).map(|(at, _)| at)
}

impl ConnectionState<'_> {
    /// Whether an upload and the uploads of other clients on this connection do not hold each other
    /// up. The other clients' uploads must also be smaller than the initial window in total, so
    /// that a client that uses up the window counts as the one that occupies the connection.
    fn suits(&self, upload: &Upload) -> bool {
        let others = self.uploads.outside(&upload.client);
        let fits = match others.unfinished {
            0 => self.window >= upload.size().min(MUCH),
            _ => self.window >= self.uploads.all().left + upload.size(),
        };
        fits && others.size < INITIAL_WINDOW
    }

    /// Whether a network occupies this connection: its uploads have at least `MUCH` bytes, and the
    /// uploads of no other client or network have more.
    fn is_occupied_by(&self, network: &Prefix) -> bool {
        let size = self.uploads.of_network(network).size;
        size >= MUCH && size >= self.uploads.largest_outside(network)
    }

    /// Whether this connection can take the upload although the networks in `bounds` may occupy no
    /// further connection. True if each of these networks already occupies this connection, or
    /// stays below `MUCH` bytes on it.
    fn is_within(&self, bounds: &[ClientNetwork], upload: &Upload) -> bool {
        bounds.iter().all(|at| {
            let size = self.uploads.of_network(&at.network).size;
            self.is_occupied_by(&at.network) || size + upload.size() < MUCH
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use convey_model::client_of;
    use proptest::prelude::*;

    use super::super::send_window::SendWindow;
    use super::super::uploads::UploadProgress;
    use super::*;

    /// Maximum number of connections that a worker may open.
    const MOST: usize = 32;

    struct Connection {
        uploads: Uploads,
        window: SendWindow,
        streams: usize,
    }

    /// Connections to a server that reads no body.
    struct Connections {
        all: Vec<Connection>,
        max_streams: usize,
    }

    /// An open upload on the connection of this index.
    struct Open {
        at: usize,
        upload: Upload,
        progress: UploadProgress,
    }

    impl Connections {
        fn new(count: usize, max_streams: usize) -> Connections {
            let mut connections = Connections { all: Vec::new(), max_streams };
            (0..count).for_each(|_| connections.open());
            connections
        }

        fn open(&mut self) {
            let (uploads, window) = Default::default();
            self.all.push(Connection { uploads, window, streams: 0 });
        }

        fn choose<T>(&self, choose: impl FnOnce(&[ConnectionState<'_>]) -> T) -> T {
            let states = self.all.iter().map(|one| ConnectionState {
                has_room: one.streams < self.max_streams,
                window: one.uploads.window(&one.window),
                uploads: &one.uploads,
            });
            choose(&states.collect::<Vec<_>>())
        }

        fn place(&self, upload: &Upload) -> Placement {
            self.choose(|states| place(upload, states))
        }

        fn begin(&mut self, at: usize, upload: Upload) -> Open {
            let progress = UploadProgress::new(&upload);
            self.all[at].uploads.begin(upload.client, progress);
            self.all[at].streams += 1;
            Open { at, upload, progress }
        }

        /// Begins an upload on the chosen connection, or on a new one if necessary.
        fn take(&mut self, upload: Upload) -> Option<Open> {
            let at = match self.place(&upload) {
                Placement::On(at) => at,
                Placement::Another if self.all.len() < MOST => {
                    self.open();
                    self.all.len() - 1
                }
                Placement::Another => self.choose(|states| place_anywhere(&upload, states))?,
                Placement::Beyond => return None,
            };
            Some(self.begin(at, upload))
        }

        /// Sends some of a body, as far as the window allows. Returns the bytes sent.
        fn send(&mut self, open: &mut Open, bytes: u64) -> u64 {
            let one = &mut self.all[open.at];
            let bytes = bytes.min(one.uploads.window(&one.window)).min(open.progress.left());
            one.uploads.advance(open.upload.client, &mut open.progress, bytes, false);
            one.window.has_sent(bytes);
            bytes
        }

        /// Resets a stream of whose body the server has read nothing.
        fn end_unread(&mut self, open: &Open) {
            self.end(open);
            self.all[open.at].window.grant(open.progress.sent());
        }

        fn end(&mut self, open: &Open) {
            let one = &mut self.all[open.at];
            one.uploads.end(open.upload.client, open.progress, &one.window);
            one.streams -= 1;
        }
    }

    fn client(n: u8) -> Prefix {
        client_of([192, 0, 2, n].into())
    }

    fn upload(n: u8, length: impl Into<Option<u64>>) -> Upload {
        Upload { client: client(n), length: length.into() }
    }

    #[test]
    fn upload_takes_no_connection_with_an_unfinished_upload_of_another_client() {
        for length in [None, Some(1 << 20)] {
            let mut connections = Connections::new(1, 100);
            let first = connections.take(upload(1, length)).unwrap();
            assert_eq!(connections.place(&upload(1, length)), Placement::On(0));
            for other in [None, Some(1), Some(1 << 20)] {
                assert_eq!(connections.place(&upload(2, other)), Placement::Another);
            }
            connections.end(&first);
            assert_eq!(connections.place(&upload(2, None)), Placement::On(0));
        }
    }

    #[test]
    fn unread_upload_of_a_whole_window_leaves_its_connection_to_no_upload() {
        let mut connections = Connections::new(1, 100);
        let mut first = connections.take(upload(1, INITIAL_WINDOW)).unwrap();
        assert_eq!(connections.send(&mut first, INITIAL_WINDOW), INITIAL_WINDOW);
        for n in [1, 2] {
            assert_eq!(connections.place(&upload(n, 1)), Placement::Another);
        }
    }

    #[test]
    fn small_uploads_share_a_connection_while_all_fit_into_its_window() {
        let mut connections = Connections::new(1, 100);
        assert!((1..=100).all(|n| connections.take(upload(n, 600)).unwrap().at == 0));
        let mut connections = Connections::new(1, 100);
        assert!((1..=6).all(|n| connections.take(upload(n, 10_000)).unwrap().at == 0));
        assert_eq!(connections.place(&upload(7, 10_000)), Placement::Another);
        assert_eq!(connections.place(&upload(7, 5_535)), Placement::On(0));
    }

    #[test]
    fn upload_of_unknown_length_joins_finished_ones_that_are_small() {
        let mut connections = Connections::new(1, 100);
        for n in 1..=50 {
            let mut open = connections.take(upload(n, None)).unwrap();
            assert_eq!(open.at, 0);
            connections.send(&mut open, 500);
            connections.all[0].uploads.advance(client(n), &mut open.progress, 0, true);
        }
    }

    #[test]
    fn client_is_not_bound_to_connections_that_another_client_has_used_up() {
        let mut connections = Connections::new(0, 100);
        for at in 0..2 {
            let mut open = connections.take(upload(1, 20_000)).unwrap();
            let sent = connections.send(&mut open, 20_000);
            connections.all[open.at].window.grant(sent);
            let mut other = connections.take(upload(2, None)).unwrap();
            assert_eq!((open.at, other.at), (at, at));
            connections.send(&mut other, INITIAL_WINDOW);
            connections.all[at].uploads.advance(client(2), &mut other.progress, 0, true);
        }
        assert_eq!(connections.place(&upload(1, 20_000)), Placement::Another);
        assert_eq!(connections.place(&upload(2, None)), Placement::On(0));
    }

    #[test]
    fn uploads_of_one_client_occupy_few_connections() {
        let mut connections = Connections::new(0, 100);
        let mut of_one = 0;
        while let Some(mut open) = connections.take(upload(1, None)) {
            connections.send(&mut open, INITIAL_WINDOW);
            assert!(open.at < MAX_OCCUPIED_BY_CLIENT);
            of_one += 1;
        }
        assert_eq!(of_one, 200);
        let small = connections.take(upload(1, 300)).unwrap();
        assert_eq!(small.at, 2, "a small upload needs no window of its own");
        assert_eq!(connections.place(&upload(2, 300)), Placement::On(2));
    }

    #[test]
    fn uploads_of_a_network_occupy_as_many_connections_as_it_has_shares() {
        for (len, shares) in [(56, 2), (48, 4)] {
            let mut connections = Connections::new(0, 100);
            for n in 1..=200 {
                let ip = Ipv6Addr::from((0x2001_0db8 << 96) | (n << (128 - len - 8)));
                let upload = Upload { client: client_of(ip.into()), length: None };
                let mut open = connections.take(upload).unwrap();
                connections.send(&mut open, INITIAL_WINDOW);
                assert!(open.at < MAX_OCCUPIED_BY_CLIENT * shares, "/{len}");
            }
            assert_eq!(connections.place(&upload(2, None)), Placement::Another);
        }
    }

    #[test]
    fn client_gets_more_connections_of_a_server_that_allows_few_streams() {
        let mut connections = Connections::new(0, 1);
        assert!((0..10).all(|at| connections.take(upload(1, None)).unwrap().at == at));
    }

    #[test]
    fn uploads_share_connections_with_a_window_where_no_other_may_be_opened() {
        let mut connections = Connections::new(MOST, 100);
        let mut open: Vec<_> = (0..32).map(|n| connections.take(upload(n, None)).unwrap()).collect();
        assert!(open.iter().map(|open| open.at).eq(0..MOST));
        open[..30].iter_mut().for_each(|open| _ = connections.send(open, INITIAL_WINDOW));
        let next = [100, 101, 102].map(|n| connections.take(upload(n, None)).unwrap().at);
        assert_eq!(next, [30, 31, 30]);
    }

    proptest! {
        /// The server immediately reads the bodies of all clients except the first.
        #[test]
        fn unread_uploads_of_one_client_hold_up_no_other(
            steps in proptest::collection::vec(
                (0u8..4, proptest::option::of(0u64..150_000), 0u64..150_000, any::<u8>()), 0..60,
            ),
        ) {
            let mut connections = Connections::new(0, 100);
            let mut opened: Vec<Open> = Vec::new();
            for (n, length, bytes, which) in steps {
                if n == 3 && !opened.is_empty() {
                    let ended = opened.swap_remove(usize::from(which) % opened.len());
                    match ended.upload.client == client(0) {
                        true => connections.end_unread(&ended),
                        false => connections.end(&ended),
                    }
                } else if let Some(open) = connections.take(upload(n, length)) {
                    opened.push(open);
                }
                if !opened.is_empty() {
                    let at = usize::from(which) % opened.len();
                    let sent = connections.send(&mut opened[at], bytes);
                    if opened[at].upload.client != client(0) {
                        connections.all[opened[at].at].window.grant(sent);
                    }
                }
                for open in opened.iter().filter(|open| open.upload.client != client(0)) {
                    let one = &connections.all[open.at];
                    prop_assert!(open.progress.left() == 0 || one.uploads.window(&one.window) > 0);
                }
            }
        }
    }
}
