use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::Bytes;
use futures_util::FutureExt;
use h2::client::Builder;
use tokio::sync::oneshot;

use super::*;
use crate::http2::kept::{MAX_REQUESTS, UNTOLD};
use crate::http2::receive::ReceiveQueue;

fn server() -> ServerConnections {
    let addr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 80);
    let place = ServerPlace { id: 0, addr, source: None, tls: 0 };
    Arc::<Http2Servers>::default().of(place)
}

/// Returns `count` connections to a server that allows `streams` streams on each of them.
async fn connections(count: usize, streams: u32) -> Connections {
    let mut connections = Connections::default();
    for _ in 0..count {
        let (client, server) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let mut builder = h2::server::Builder::new();
            let builder = builder.max_concurrent_streams(streams);
            let mut connection = builder.handshake::<_, Bytes>(server).await.unwrap();
            while connection.accept().await.is_some() {}
        });
        let mut builder = Builder::new();
        let builder = builder.initial_max_send_streams(UNTOLD);
        let (send, connection) = builder.handshake(client).await.unwrap();
        tokio::spawn(connection);
        while send.current_max_send_streams() == UNTOLD {
            tokio::task::yield_now().await;
        }
        let (queue, changed) = (ReceiveQueue::new(1), Arc::default());
        connections.kept.push(KeptConnection::new(send, Arc::default(), queue, changed));
    }
    connections
}

fn upload(n: u8) -> StreamClient {
    let client = Prefix::of([192, 0, 2, n].into(), 32);
    StreamClient { upload: Some(Upload { client, length: None }), sharing: None }
}

/// Finds a place, and the index of its connection; `None`: another connection has to be opened.
fn place(connections: &mut Connections, client: StreamClient) -> Option<(usize, StreamPlace)> {
    let Found::Place(place) = connections.find(&server(), client) else { return None };
    let at = connections.kept.iter().position(|kept| Arc::ptr_eq(kept.state(), place.state()));
    Some((at.unwrap(), place))
}

#[tokio::test]
async fn connection_takes_so_many_requests() {
    let mut connections = connections(1, 100).await;
    let client = StreamClient::default();
    let long = place(&mut connections, client).unwrap();
    assert!((1..MAX_REQUESTS).all(|_| place(&mut connections, client).is_some()));
    assert!(place(&mut connections, client).is_none());
    drop(long);
    assert!(place(&mut connections, client).is_none());
}

#[tokio::test]
async fn upload_takes_no_connection_of_an_upload_of_another_client() {
    let mut connections = connections(2, 100).await;
    let first = place(&mut connections, upload(1)).unwrap();
    assert_eq!(first.0, 0);
    let second = place(&mut connections, upload(2)).unwrap();
    assert_eq!((second.0, place(&mut connections, StreamClient::default()).unwrap().0), (1, 0));
    drop(first);
    let next = [upload(2), upload(3)].map(|client| place(&mut connections, client).unwrap());
    assert_eq!(next.map(|(at, _)| at), [1, 0]);
}

#[tokio::test]
async fn upload_has_a_connection_opened_while_others_use_all() {
    let mut connections = connections(1, 100).await;
    let _first = place(&mut connections, upload(1)).unwrap();
    assert!(place(&mut connections, upload(2)).is_none());
    assert_eq!(place(&mut connections, StreamClient::default()).unwrap().0, 0);
    connections.opening = MAX_CONNECTIONS;
    connections.waiting = usize::MAX / 2;
    assert_eq!(place(&mut connections, upload(2)).unwrap().0, 0, "no other may be opened");
}

#[tokio::test]
async fn upload_waits_for_an_opening_connection_that_it_may_fit_on() {
    for (length, waits) in [(Some(300), true), (Some(30_000), true), (None, true), (Some(1 << 20), false)] {
        let mut connections = connections(0, 100).await;
        connections.opening = 1;
        let client = Prefix::of([192, 0, 2, 1].into(), 32);
        let upload = StreamClient { upload: Some(Upload { client, length }), sharing: None };
        assert_eq!(matches!(connections.find(&server(), upload), Found::Wait(_)), waits, "{length:?}");
    }
}

#[tokio::test]
async fn client_that_leaves_no_longer_waits_for_an_opening_connection() {
    let (server, client, hour) = (server(), StreamClient::default(), Duration::from_secs(3_600));
    let first = take(&server, client, hour, pending()).await;
    let Ok(FoundStream::Nothing(opening)) = first else { panic!("it opens a connection") };
    assert!(opening.unawaited().now_or_never().is_some());
    let (leave, left) = oneshot::channel::<()>();
    let mut second = pin!(take(&server, client, hour, async { _ = left.await }));
    assert!(second.as_mut().now_or_never().is_none());
    let mut unawaited = pin!(opening.unawaited());
    assert!(unawaited.as_mut().now_or_never().is_none());
    leave.send(()).unwrap();
    assert!(matches!(second.await, Ok(FoundStream::ClientLeft)));
    unawaited.await;
}

/// Resets streams of this connection until it has to retire.
fn reset_streams(kept: &KeptConnection) {
    (0..10).for_each(|_| kept.state().resets().count(false));
}

#[tokio::test]
async fn connection_with_reset_streams_keeps_its_open_ones_and_takes_no_other() {
    let mut connections = connections(1, 100).await;
    let client = StreamClient::default();
    let long = place(&mut connections, client).unwrap();
    reset_streams(&connections.kept[0]);
    assert!(place(&mut connections, client).is_none(), "another one has to be opened");
    assert!(connections.kept[0].stays(Instant::now()));
    drop(long);
    assert!(!connections.kept[0].stays(Instant::now()));
}

#[tokio::test]
async fn resets_retire_few_connections_that_have_open_streams() {
    let mut connections = connections(33, 1).await;
    let client = StreamClient::default();
    let open: Vec<_> = (0..33).map(|_| place(&mut connections, client).unwrap()).collect();
    connections.kept.iter().for_each(reset_streams);
    assert!(place(&mut connections, client).is_none());
    let retired = |connections: &Connections| connections.kept.iter().filter(|one| one.is_retired()).count();
    assert_eq!(retired(&connections), 32);
    drop(open);
    assert!(place(&mut connections, client).is_none());
    assert_eq!(retired(&connections), 33);
}

#[tokio::test]
async fn connection_that_gets_no_window_back_takes_no_further_stream() {
    let mut connections = connections(1, 100).await;
    let (_, place) = place(&mut connections, upload(1)).unwrap();
    connections.kept[0].state().send_window().has_sent(60_000);
    let now = Instant::now();
    assert!((0..3).all(|_| connections.kept[0].stays(now)), "an upload is open");
    drop(place);
    assert_eq!([(); 2].map(|()| connections.kept[0].stays(now)), [true, false]);
}
