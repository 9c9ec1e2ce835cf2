//! Responses that pause, such as server-sent events, on a connection with the window that HTTP/2
//! begins with: 65,535 bytes for all of its streams.

use std::io::{Read, Write};

use convey_testkit::{BalancerProcess, Loopback, TcpServer};
use http::Request;

use super::streams::Reading;
use super::{Version, addresses, authority, setup};
use crate::http::client::read_head;
use crate::http2::block_on;

/// More than there are frames in the window.
const SILENT: usize = 8;

/// A server whose pages below `/silent` send a byte and then nothing.
fn pages(lab: &Loopback) -> TcpServer {
    TcpServer::start(lab.server(1), |mut stream| {
        loop {
            let head = read_head(&mut stream)?;
            if head.starts_with("GET /silent") {
                write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")?;
                // It ends with the connection.
                return stream.read_to_end(&mut Vec::new()).map(drop);
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}", "y".repeat(1_000))?;
        }
    })
}

pub(super) fn streams_that_pause_leave_the_window_of_their_connection_to_others() {
    let lab = Loopback::new();
    authority(&lab);
    let _server = pages(&lab);
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, Version::Http1).server("a", lab.server(1), ""));
    block_on(async {
        let stream = tokio::net::TcpStream::connect(addresses(&lab).plain).await.unwrap();
        let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut silent = Vec::new();
        for n in 0..SILENT {
            let request = Request::get(format!("http://site.example/silent/{n}")).body(()).unwrap();
            send = send.ready().await.unwrap();
            let (response, _) = send.send_request(request, true).unwrap();
            let mut reading = Reading::Http2(response, None);
            assert_eq!(reading.head().await.unwrap(), 200);
            assert_eq!(&reading.data().await.unwrap().unwrap()[..], b"x");
            silent.push(reading);
        }
        let request = Request::get("http://site.example/").body(()).unwrap();
        send = send.ready().await.unwrap();
        let (response, _) = send.send_request(request, true).unwrap();
        let mut reading = Reading::Http2(response, None);
        assert_eq!(reading.head().await.unwrap(), 200);
        assert_eq!(reading.rest().await.unwrap().len(), 1_000);
    });
}
