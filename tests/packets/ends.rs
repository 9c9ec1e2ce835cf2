//! Ends of connections: in order, one side after the other or both at once, or by a reset. Whether
//! the kernel or a worker forwards the packets, the other side gets the end, and table entry and
//! port are free at once.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use convey_lab::Role;
use convey_testkit::{TcpServer, check_to_end, connect, ping, reset, send, wait_for, was_reset};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Inside, Network, connect_from};
use crate::transfer::MIB;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        half_closed_client_receives_the_whole_response,
        simultaneous_close_ends_the_flow,
        a_reset_of_either_side_reaches_the_other,
        connections_one_after_another_fit_where_there_is_room_for_one,
        a_client_may_use_its_port_again_at_once,
    ]
}

fn half_closed_client_receives_the_whole_response(case: Case) {
    let network = balanced(case, "");
    let bytes = 64 * MIB;
    let _server = network.server(1, move |addr| {
        TcpServer::start(addr, move |mut stream| {
            assert_eq!(stream.read(&mut [0; 16])?, 0, "the client has finished");
            send(&mut stream, bytes)
        })
    });
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(check_to_end(&mut stream), bytes);
    is_over(&network);
}

fn simultaneous_close_ends_the_flow(case: Case) {
    let network = balanced(case, "");
    let (_server, held) = holding(&network);
    for _ in 0..20 {
        let mut client = network.inside(Role::Client(1), || connect(network.vip()));
        let mut server = wait_for("the server's end", || held.lock().unwrap().pop());
        client.shutdown(Shutdown::Write).unwrap();
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!((client.read(&mut [0]).unwrap(), server.read(&mut [0]).unwrap()), (0, 0));
    }
    is_over(&network);
}

fn a_reset_of_either_side_reaches_the_other(case: Case) {
    let network = balanced(case, "");
    let (_server, held) = holding(&network);
    for by_client in [true, false] {
        let client = network.inside(Role::Client(1), || connect(network.vip()));
        let server = wait_for("the server's end", || held.lock().unwrap().pop());
        let (gone, mut left) = if by_client { (client, server) } else { (server, client) };
        reset(gone);
        assert!(was_reset(&mut left), "by the client: {by_client}");
    }
    let counted =
        || ["client_reset", "server_reset"].map(|by| network.stat(&format!("/frontends/web/ended/{by}")));
    // Where servers answer directly, the balancer does not see their resets.
    let seen = if case.is_passthrough() { [1, 1] } else { [1, 0] };
    wait_for("resets to be counted", || (counted() == seen).then_some(()));
    if case.is_passthrough() {
        is_over(&network);
    }
}

fn connections_one_after_another_fit_where_there_is_room_for_one(case: Case) {
    let network = balanced(case, "max_connections = 1");
    let _server = network.server(1, TcpServer::echo);
    network.inside(Role::Client(1), || {
        for _ in 0..200 {
            let mut stream = connect(network.vip());
            ping(&mut stream).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    });
    assert_eq!(network.stat("/packets/drops/max_connections"), 0);
}

fn a_client_may_use_its_port_again_at_once(case: Case) {
    let network = balanced(case, "");
    let _server = network.server(1, |addr| TcpServer::start(addr, |_| Ok(())));
    let from = SocketAddr::new(case.family.address(Role::Client(1)), 4242);
    network.inside(Role::Client(1), || {
        for _ in 0..20 {
            // The server finishes first, so its side has to be in TIME_WAIT.
            let mut stream = wait_for("its own end to be over", || connect_from(from, network.vip()).ok());
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    });
    assert_eq!(network.stat("/frontends/web/total_connections"), 20);
    is_over(&network);
}

/// One server that counts as up, behind a frontend with this line.
fn balanced(case: Case, frontend: &'static str) -> Network {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { health: UNCHECKED, frontend, ..Config::new(1) });
    network
}

/// A server, and its ends of connections.
fn holding(network: &Network) -> (Inside<'_>, Arc<Mutex<Vec<TcpStream>>>) {
    let mut held = Arc::default();
    let server = network.server(1, |addr| {
        let server;
        (server, held) = TcpServer::holding(addr);
        server
    });
    (server, held)
}

fn is_over(network: &Network) {
    wait_for("it to be over", || (network.stat("/frontends/web/current_connections") == 0).then_some(()));
}
