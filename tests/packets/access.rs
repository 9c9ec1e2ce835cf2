//! Access lists, and limits on the rate of connections.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::{TcpServer, connect, ping, wait_for, was_reset};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![client_denied_by_a_reload_is_cut_off_and_others_stay, source_limit_applies_to_each_source_alone,]
}

fn client_denied_by_a_reload_is_cut_off_and_others_stay(case: Case) {
    let mut network = Network::new(case, 2, 1);
    network.balance(&Config::new(1));
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let [mut denied, mut other] = [1, 2].map(|client| {
        let mut stream = network.inside(Role::Client(client), || connect(network.vip()));
        (0..3).for_each(|_| ping(&mut stream).unwrap());
        stream
    });
    if case.is_cached() {
        wait_for("the kernel to forward both", || (network.stat("/packets/cached_flows") == 2).then_some(()));
    }
    let deny = format!("[frontends.web.access]\ndeny = \"{}\"\n", case.family.address(Role::Client(1)));
    let text = Config::new(1).text(case);
    network.save_with(&(text.clone() + &deny));
    assert!(was_reset(&mut denied));
    wait_for("it to be counted", || (network.stat("/frontends/web/ended/access_denied") == 1).then_some(()));
    if case.is_cached() {
        wait_for("its entries to be gone", || (network.stat("/packets/cached_flows") == 1).then_some(()));
    }
    let begin = || {
        network.inside(Role::Client(1), || {
            TcpStream::connect_timeout(&network.vip(), Duration::from_millis(300))
        })
    };
    assert!(begin().is_err_and(|error| error.kind() == ErrorKind::TimedOut));
    let refused = network.stat("/frontends/web/refused/access_denied").as_u64().unwrap();
    assert!(refused > 0 && network.stat("/packets/drops/access_denied") == refused);
    ping(&mut other).unwrap();
    network.save_with(&text);
    wait_for("it to be let in again", || begin().ok());
}

fn source_limit_applies_to_each_source_alone(case: Case) {
    let mut network = Network::new(case, 2, 1);
    let limits = |lines: &str| format!("{}[frontends.web.limits]\n{lines}\n", Config::new(1).text(case));
    network.balance_with(&limits("connections_per_source = 3\nipv6_prefix = 128"));
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let begin = |client| {
        let patience = Duration::from_millis(300);
        network.inside(Role::Client(client), || TcpStream::connect_timeout(&network.vip(), patience))
    };
    let open = |client| {
        let mut stream = begin(client).unwrap();
        (0..2).for_each(|_| ping(&mut stream).unwrap());
        stream
    };
    let mut held: Vec<TcpStream> = [1, 2, 1, 2, 1].map(open).into();
    let is_refused = || begin(1).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    // Workers learn of connections that the kernel has opened up to 10 ms later.
    wait_for("the last one to be counted", || is_refused().then_some(()));
    assert_eq!(network.stat("/frontends/web/refused/source_connections"), 1);
    assert_eq!(network.stat("/packets/drops/source_connections"), 1);
    // A connection that ends frees its place, also where the kernel forwards.
    drop(held.remove(0));
    let mut last = wait_for("a place", || begin(1).ok());
    ping(&mut last).unwrap();
    held.push(last);
    // Open connections count for limits that a reload changes, too.
    let prefixes = match case.family {
        Family::V4 => "ipv6_prefix = 64",
        Family::V6 => "ipv6_prefix = 128\nipv4_prefix = 24",
    };
    network.save_with(&limits(&format!("connections_per_source = 3\n{prefixes}")));
    network.wait_for_log("_prefix ");
    wait_for("the workers to count", || is_refused().then_some(()));
    // A reload with other limits, which do not count the open connections.
    network.save_with(&limits("rate_per_source = 1\nburst = 2\nipv6_prefix = 128\naction = \"drop\""));
    network.wait_for_log("limits.action reset -> drop");
    let begun = wait_for("the workers to limit", || {
        let tries = [(); 4].map(|()| begin(2));
        tries
            .iter()
            .any(|tried| tried.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut))
            .then_some(tries)
    });
    assert!(begun.iter().any(Result::is_ok));
    assert!(network.stat("/frontends/web/refused/source_rate").as_u64() > Some(0));
    held.iter_mut().for_each(|stream| ping(stream).unwrap());
}
