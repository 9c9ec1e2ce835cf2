//! End of a client's connection of HTTP/2, as the client sees it.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer, connect};
use rustix::process::Signal;

use super::frames::{GOAWAY, PREFACE, SETTINGS, receive, send};
use super::setup;

/// Patience of the client, which is longer than convey waits for the answer to a ping.
const PATIENCE: Duration = Duration::from_secs(25);

/// Last streams that the GOAWAY frames name, until the connection ends.
fn announced_until_the_end(client: &mut TcpStream) -> Vec<u32> {
    let mut announced = Vec::new();
    while let Ok((kind, _, _, payload)) = receive(client) {
        if let (GOAWAY, Some(last)) = (kind, payload.first_chunk()) {
            announced.push(u32::from_be_bytes(*last));
        }
    }
    announced
}

pub(super) fn client_that_answers_no_ping_gets_the_second_goaway() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let mut balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let mut client = connect(lab.vip());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(PREFACE).unwrap();
    send(&mut client, (SETTINGS, 0, 0, &[]));
    assert_eq!(receive(&mut client).unwrap().0, SETTINGS);
    balancer.signal(Signal::TERM);
    assert_eq!(announced_until_the_end(&mut client), [0x7fff_ffff, 0]);
    assert_eq!(balancer.wait(), 0);
}
