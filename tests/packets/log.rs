//! A log without a reader, while packets are forwarded.

use std::fs;
use std::io::{PipeReader, pipe};

use convey_lab::Role;
use convey_testkit::{TcpServer, connect, ping, wait_for};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        unread_log_stalls_neither_clients_nor_the_stop]
}

fn unread_log_stalls_neither_clients_nor_the_stop(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let config = Config { health: UNCHECKED, timeouts: "drain = 1", ..Config::new(1) };
    let _log = unread(&mut network, &config);
    let _server = network.server(1, TcpServer::echo);
    let mut before = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut before).unwrap();
    fs::write(network.path("config.toml"), format!("{} = 1\n", "a".repeat(100_000))).unwrap();
    wait_for("lines to be dropped", || {
        network.convey(|convey| convey.signal(Signal::HUP));
        (network.stat("/log_lines_dropped").as_u64() > Some(0)).then_some(())
    });
    for _ in 0..20 {
        network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
        ping(&mut before).unwrap();
        assert_eq!(network.health(), 200);
    }
    network.convey(|convey| {
        convey.signal(Signal::TERM);
        assert_eq!(convey.wait().code(), Some(0));
    });
}

/// Starts a balancer whose log goes into a small pipe.
fn unread(network: &mut Network, config: &Config) -> PipeReader {
    let (reader, writer) = pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    network.balance_telling(writer, config);
    reader
}
