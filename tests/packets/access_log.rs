//! Access log of packet modes: one line for each flow that has ended, whether the kernel or a
//! worker forwarded its packets.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;

use convey_lab::Role;
use convey_testkit::{TcpServer, connect, reset, wait_for, whole_lines};
use serde_json::Value;

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        connection_line_has_the_server_bytes_and_end,
        an_exchange_of_datagrams_has_a_line_once_it_is_forgotten,
    ]
}

/// Configures an access log in JSON. Returns its path.
fn balance(network: &mut Network, case: Case, config: &Config) -> std::path::PathBuf {
    let path = network.path("access.log");
    let log = format!("[access_log]\noutput = {path:?}\nformat = \"json\"\n");
    network.balance_with(&format!("{}\n{log}", config.text(case)));
    path
}

/// Bytes that a server has sent, which DSR does not see.
fn seen(case: Case, bytes: usize) -> Value {
    if case.is_dsr() { Value::Null } else { bytes.into() }
}

fn wait_for_line(path: &Path, n: usize) -> Value {
    let line = wait_for(&format!("line {n}"), || whole_lines(path).lines().nth(n).map(str::to_owned));
    serde_json::from_str(&line).unwrap()
}

fn connection_line_has_the_server_bytes_and_end(case: Case) {
    const BYTES: usize = 100_000;
    let mut network = Network::new(case, 1, 1);
    let path = balance(&mut network, case, &Config { health: UNCHECKED, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    let client = stream.local_addr().unwrap();
    stream.write_all(&[7; BYTES]).unwrap();
    stream.read_exact(&mut [0; BYTES]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let line = wait_for_line(&path, 0);
    let server = network.address(Role::Server(1)).to_string();
    for (field, value) in [
        ("mode", case.mode.name()),
        ("protocol", "tcp"),
        ("client_addr", &client.to_string()),
        ("frontend", "web"),
        ("listen_addr", &network.vip().to_string()),
        ("server", "pool/s1"),
        ("server_addr", &server),
        ("termination", "closed"),
    ] {
        assert_eq!(line[field], value, "{field}: {line}");
    }
    assert_eq!(line["bytes_rx"], BYTES, "{line}");
    assert_eq!(line["bytes_tx"], seen(case, BYTES), "{line}");

    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    reset(stream);
    let line = wait_for_line(&path, 1);
    assert_eq!((&line["termination"], &line["reason"]), (&"reset".into(), &"client_reset".into()), "{line}");
}

fn an_exchange_of_datagrams_has_a_line_once_it_is_forgotten(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let config = Config {
        health: UNCHECKED,
        passthrough: "timeouts.udp_single = 0.5\ntimeouts.udp_stream = 0.5",
        ..Config::udp(ECHO, 1)
    };
    let path = balance(&mut network, case, &config);
    let server = (case.family.address(Role::Server(1)), ECHO).into();
    let _server = network.inside(Role::Server(1), || UdpEcho::start(server));
    let client = network.inside(Role::Client(1), || socket_to(case.family.vip(ECHO)));
    assert_eq!(exchange(&client, b"hello").unwrap(), b"hello");
    let line = wait_for_line(&path, 0);
    assert_eq!((&line["termination"], &line["protocol"]), (&"expired".into(), &"udp".into()), "{line}");
    assert_eq!((&line["server"], &line["bytes_rx"]), (&"pool/s1".into(), &5.into()), "{line}");
    assert_eq!(line["bytes_tx"], seen(case, 5), "{line}");
}
