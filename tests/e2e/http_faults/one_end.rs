//! One side closes while convey waits only for the other side.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, connect, reset};
use http::{Request, Response};
use tokio::time::timeout;

use super::super::http::HTTP;
use super::super::http::client::read_head;
use super::super::http2::block_on;
use super::super::http2::client::Client as Http2Client;

/// Time without progress after which all buffers on the way are full.
const STILL: Duration = Duration::from_millis(500);

/// Writes until all buffers are full.
fn fill(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_write_timeout(Some(STILL))?;
    while stream.write_all(&[b'x'; 65_536]).is_ok() {}
    Ok(())
}

/// A server that reads the head of a request and no byte of its body.
pub(crate) fn deaf_server(lab: &Loopback) -> TcpServer {
    TcpServer::start(lab.server(1), |mut stream| {
        let mut byte = [0];
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            io::Read::read_exact(&mut stream, &mut byte)?;
            head.push(byte[0]);
        }
        // Writes until the connection is over.
        stream.set_write_timeout(None)?;
        while stream.take_error()?.is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })
}

pub(super) fn upload_that_its_server_does_not_read_ends_with_its_client() {
    let lab = Loopback::new();
    let _server = deaf_server(&lab);
    let balancer = BalancerProcess::start(&lab, &Setup::http(&lab));
    let mut client = connect(lab.vip());
    client.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n").unwrap();
    fill(&mut client).unwrap();
    balancer.wait_for_stat("/backends/pool/current_connections", 1);
    reset(client);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    balancer.wait_for_stat("/frontends/web/ended/client_reset", 1);
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let (_response, mut stream) = client.begin(Request::put("http://a/").body(()).unwrap(), false).await;
        stream.reserve_capacity(65_536);
        while let Ok(Some(Ok(room))) =
            timeout(STILL, std::future::poll_fn(|cx| stream.poll_capacity(cx))).await
        {
            stream.send_data(vec![b'x'; room].into(), false).unwrap();
            stream.reserve_capacity(65_536);
        }
        assert_eq!(balancer.stat("/backends/pool/current_connections"), 1);
        stream.send_reset(h2::Reason::CANCEL);
        while balancer.stat("/backends/pool/current_connections") != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Lets clients of both versions request a page and read nothing of it, until its server has reset
/// it. The client of HTTP/2 gets the reset with the expected code.
fn request_and_read_nothing(lab: &Loopback, protocol: &str, expected: h2::Reason) {
    let setup = Setup::new(lab).frontend(HTTP).backend(&format!("protocol = \"{protocol}\""));
    let setup = setup.health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(lab, &setup);
    let mut client = connect(lab.vip());
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    balancer.wait_for_stat("/backends/pool/total_connections", 1);
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
    balancer.wait_for_stat("/frontends/web/ended/server_reset", 1);
    block_on(async {
        let client = Http2Client::connect(lab.vip()).await;
        let (_response, mut stream) = client.begin(Request::get("http://a/").body(()).unwrap(), true).await;
        while balancer.stat("/backends/pool/total_connections") != 2
            || balancer.stat("/backends/pool/current_connections") != 0
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let code = std::future::poll_fn(|cx| stream.poll_reset(cx)).await.unwrap();
        assert_eq!(code, expected);
    });
}

pub(super) fn reset_of_a_server_is_noticed_while_the_client_reads_nothing() {
    let lab = Loopback::new();
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        read_head(&mut stream)?;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40)?;
        fill(&mut stream)?;
        reset(stream);
        Ok(())
    });
    request_and_read_nothing(&lab, "h1", h2::Reason::INTERNAL_ERROR);
}

pub(super) fn reset_of_a_server_stream_is_noticed_while_the_client_reads_nothing() {
    let lab = Loopback::new();
    let listener = TcpListener::bind(lab.server(1)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || fill_and_reset(stream));
        }
    });
    request_and_read_nothing(&lab, "h2", h2::Reason::ENHANCE_YOUR_CALM);
}

/// Serves streams, each of which is reset once the other side takes no more.
fn fill_and_reset(stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let mut connection = h2::server::handshake(stream).await.map_err(io::Error::other)?;
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut stream = respond.send_response(Response::new(()), false).map_err(io::Error::other)?;
            tokio::spawn(async move {
                stream.reserve_capacity(65_536);
                let mut more = async || {
                    let room = timeout(STILL, std::future::poll_fn(|cx| stream.poll_capacity(cx))).await;
                    let Ok(Some(Ok(room))) = room else { return false };
                    let sent = stream.send_data(Bytes::from(vec![b'x'; room]), false);
                    stream.reserve_capacity(65_536);
                    sent.is_ok()
                };
                while more().await {}
                stream.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
            });
        }
        Ok(())
    })
}
