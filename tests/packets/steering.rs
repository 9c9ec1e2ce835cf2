//! An operator steers a convey that forwards packets.

use std::net::TcpStream;

use convey_lab::Role;
use convey_testkit::{TcpServer, binary, connect, ping, run, wait_for, was_reset};

use crate::case::{Case, PacketTest, tests};
use crate::config::Config;
use crate::network::{Network, PORT};
use crate::upgrade::Program;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        a_drained_server_keeps_its_flows_and_gets_no_new_ones,
        maintenance_resets_open_flows_and_refuses_clients_of_a_whole_backend,
        server_of_weight_0_keeps_its_flows_and_gets_no_new_ones,
        servers_come_and_go_and_an_upgrade_keeps_what_was_said,
        a_server_that_packet_modes_could_not_reach_is_refused,
    ]
}

/// Runs a command for the balancer.
fn run_command(network: &Network, line: &str) -> convey_testkit::Ran {
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    run(command.env("CONVEY_SOCKET", network.path("control.sock")).args(line.split(' ')))
}

fn command_output(network: &Network, line: &str) -> String {
    let ran = run_command(network, line);
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    ran.stdout
}

/// A balancer with a control socket, with these servers in its file.
fn balanced(case: Case, servers: u8) -> Network {
    let mut network = Network::new(case, 1, 2);
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    command.env("CONVEY_SOCKET", network.path("control.sock"));
    network.balance_by(command, &Config::new(servers));
    network
}

/// A connection that is open from end to end. Where the kernel forwards, its later packets bypass
/// the worker.
fn open_connection(network: &Network) -> TcpStream {
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    (0..3).for_each(|_| ping(&mut stream).unwrap());
    stream
}

/// Number of connections that each server has received so far.
fn connections_received(network: &Network, server: u8) -> u64 {
    network.stat(&format!("/backends/pool/servers/s{server}/total_connections")).as_u64().unwrap()
}

/// Opens connections until both servers have some, so that some are at server 1.
fn of_both(network: &Network) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    wait_for("both servers to have connections", || {
        streams.push(open_connection(network));
        (connections_received(network, 1) > 0 && connections_received(network, 2) > 0).then_some(())
    });
    streams
}

/// Checks that all new clients get server 2, and open connections go on.
fn only_the_second_gets_more(network: &Network, open: &mut [TcpStream]) {
    let before = (connections_received(network, 1), connections_received(network, 2));
    let _new: Vec<TcpStream> = (0..10).map(|_| open_connection(network)).collect();
    wait_for("ten more for server 2", || (connections_received(network, 2) == before.1 + 10).then_some(()));
    assert_eq!(connections_received(network, 1), before.0);
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
}

fn a_drained_server_keeps_its_flows_and_gets_no_new_ones(case: Case) {
    let network = balanced(case, 2);
    let _servers = [network.server(1, TcpServer::echo), network.server(2, TcpServer::echo)];
    [1, 2].iter().for_each(|server| network.wait_for_health(*server, true));
    let mut open = of_both(&network);
    command_output(&network, "server drain pool/s1");
    only_the_second_gets_more(&network, &mut open);
    command_output(&network, "server ready pool/s1");
    let before = connections_received(&network, 1);
    let mut new = Vec::new();
    wait_for("server 1 to get some again", || {
        new.push(open_connection(&network));
        (connections_received(&network, 1) > before).then_some(())
    });
}

fn server_of_weight_0_keeps_its_flows_and_gets_no_new_ones(case: Case) {
    let network = balanced(case, 2);
    let _servers = [network.server(1, TcpServer::echo), network.server(2, TcpServer::echo)];
    [1, 2].iter().for_each(|server| network.wait_for_health(*server, true));
    let mut open = of_both(&network);
    command_output(&network, "server weight pool/s1 0");
    only_the_second_gets_more(&network, &mut open);
    assert_eq!(command_output(&network, "reset"), "everything: 1 change undone, the file applies again\n");
    assert_eq!(network.stat("/backends/pool/servers/s1/weight"), 1);
}

fn maintenance_resets_open_flows_and_refuses_clients_of_a_whole_backend(case: Case) {
    let network = balanced(case, 1);
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let mut open = open_connection(&network);
    // `on_down` is `reset` in packet modes.
    command_output(&network, "server maint pool/s1");
    assert!(was_reset(&mut open));
    command_output(&network, "reset");
    let mut again = open_connection(&network);
    command_output(&network, "backend maint pool");
    assert!(was_reset(&mut again));
    wait_for("clients to be refused", || {
        network.inside(Role::Client(1), || TcpStream::connect(network.vip())).err()
    });
    command_output(&network, "backend ready pool");
    open_connection(&network);
}

fn servers_come_and_go_and_an_upgrade_keeps_what_was_said(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let program = Program::install(&network);
    let mut command = program.command(&network);
    command.env("CONVEY_SOCKET", network.path("control.sock"));
    network.balance_by(command, &Config::new(1));
    let network = &network;
    let _servers = [network.server(1, TcpServer::echo), network.server(2, TcpServer::echo)];
    network.wait_for_health(1, true);
    let mut first = open_connection(network);
    let second = network.address(Role::Server(2));
    assert_eq!(
        command_output(network, &format!("server add pool/s2 {second}")),
        format!("server pool/s2: added at {second}\n")
    );
    network.wait_for_health(2, true);
    command_output(network, "server remove pool/s1");
    let mut new: Vec<TcpStream> = (0..5).map(|_| open_connection(network)).collect();
    wait_for("server 2 to have them", || (connections_received(network, 2) == 5).then_some(()));
    // As after a reload without the server.
    ping(&mut first).unwrap();
    drop(first);

    program.replace();
    program.upgrade(network, 1);
    new.iter_mut().for_each(|stream| ping(stream).unwrap());
    let _more: Vec<TcpStream> = (0..5).map(|_| open_connection(network)).collect();
    let screen = run_command(network, "status").stdout;
    assert!(screen.contains("pool/s1: removed, for ") && screen.contains("pool/s2: added at "), "{screen}");

    command_output(network, "reset");
    network.wait_for_health(1, true);
    open_connection(network);
    assert_eq!(network.servers_of_pool(), ["s1"]);
    // Open connections to a removed server go on for a while, as at a reload.
    new.iter_mut().for_each(|stream| ping(stream).unwrap());
}

fn a_server_that_packet_modes_could_not_reach_is_refused(case: Case) {
    let network = balanced(case, 1);
    let other_family = if case.family.name() == "ipv4" { "[2001:db8::9]:80" } else { "192.0.2.9:80" };
    let other_port = std::net::SocketAddr::new(network.address(Role::Server(2)).ip(), PORT + 1).to_string();
    let dsr_only = if case.is_dsr() { other_port.as_str() } else { "127.0.0.1:80" };
    for addr in ["app.internal:80", other_family, &network.vip().to_string(), dsr_only] {
        let ran = run_command(&network, &format!("server add pool/s2 {addr}"));
        assert_eq!(ran.code, Some(1), "{addr}: {ran:?}");
        assert!(ran.stderr.contains("server pool/s2: "), "{addr}: {ran:?}");
    }
    assert_eq!(network.servers_of_pool(), ["s1"]);
}
