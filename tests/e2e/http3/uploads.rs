//! Uploads over HTTP/3 that wait for a server.

use std::io::{Error, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, TestHttpServer, tests};
use futures_util::future::join_all;
use h3::error::Code;
use http::Request;

use super::client::{Call, Client, Clients, read, uri};
use super::{authority, with};
use crate::http2::block_on;

tests!("http3_uploads":
    upload_that_waits_whole_for_a_server_leaves_its_connection_intact,
    reset_of_a_waiting_upload_alone_leaves_the_queue,
);

/// Lengths of uploads, below a stream's window: convey reads the first two ahead, and a part of the
/// last one.
const LENGTHS: [usize; 3] = [1, 10_000, 50_000];

/// A server for one request at a time. It answers `/slow` after a message on the channel, and other
/// requests with the length of their body.
fn server_for_one(lab: &Loopback) -> (TestHttpServer, BalancerProcess, Sender<()>) {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let server = TestHttpServer::start(lab.server(1), move |request, stream| {
        if request.line.starts_with("GET /slow ") {
            released.lock().unwrap().recv().map_err(Error::other)?;
        }
        let length = request.body.len().to_string();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{length}", length.len())
    });
    let setup = with(lab, "", "").health("kind = \"none\"").timeouts("connect = 60");
    let balancer = BalancerProcess::start(lab, &setup.server("a", lab.server(1), "max_connections = 1"));
    (server, balancer, release)
}

/// Sends a whole request without a body.
async fn get(client: &Client, path: &str) -> Call {
    let mut call = client.begin(Request::get(uri(path)).body(()).unwrap()).await.unwrap();
    call.finish().await.unwrap();
    call
}

/// Sends an upload that is not over.
async fn upload(client: &Client, length: usize) -> Call {
    let mut call = client.begin(Request::put(uri("/")).body(()).unwrap()).await.unwrap();
    call.send_data(Bytes::from(vec![b'x'; length])).await.unwrap();
    call
}

async fn wait_for_waiting(balancer: &BalancerProcess, number: usize) {
    while balancer.stat("/backends/pool/waiting_connections") != number {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn upload_that_waits_whole_for_a_server_leaves_its_connection_intact() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (_server, balancer, release) = server_for_one(&lab);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let mut slow = get(&client, "/slow").await;
        while balancer.stat("/backends/pool/current_connections") != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut uploads = join_all(LENGTHS.map(|length| upload(&client, length))).await;
        for call in &mut uploads {
            call.finish().await.unwrap();
        }
        wait_for_waiting(&balancer, LENGTHS.len()).await;
        release.send(()).unwrap();
        assert_eq!(read(&mut slow).await.unwrap().status, 200);
        for (call, length) in uploads.iter_mut().zip(LENGTHS) {
            assert_eq!(read(call).await.unwrap().text(), length.to_string());
        }
        assert_eq!(client.get("/").await.text(), "0");
        assert!(client.connection.close_reason().is_none());
    });
}

fn reset_of_a_waiting_upload_alone_leaves_the_queue() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let (_server, balancer, _release) = server_for_one(&lab);
    block_on(async {
        let clients = Clients::trusting(&authority);
        let client = clients.connect(lab.vip()).await;
        let _slow = get(&client, "/slow").await;
        while balancer.stat("/backends/pool/current_connections") != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for length in LENGTHS {
            let mut call = upload(&client, length).await;
            wait_for_waiting(&balancer, 1).await;
            // There is no STOP_SENDING with it: the client still waits for the response.
            call.stop_stream(Code::H3_REQUEST_CANCELLED);
            wait_for_waiting(&balancer, 0).await;
        }
        assert!(client.connection.close_reason().is_none());
    });
}
