//! The kernel's neighbour entries while convey forwards, and after it.

use convey_lab::{INTERFACE, Role};
use convey_testkit::{TcpServer, binary, connect, ping, run, wait_for};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut all = tests![kernel_keeps_a_server_fresh_until_it_is_removed_or_convey_ends];
    all.extend(tests![when Case::is_passthrough =>
        stale_client_with_a_wrong_ethernet_address_is_found_again]);
    all
}

fn entry(network: &Network, role: Role) -> String {
    let address = network.case.family.address(role).to_string();
    network.lab.run(Role::Balancer, "ip", &["-d", "neigh", "show", &address]).unwrap()
}

fn wait_for_entry(network: &Network, role: Role, is_kept: bool) {
    wait_for("the kernel to keep an entry fresh, or no longer", || {
        (entry(network, role).contains("managed") == is_kept).then_some(())
    });
}

fn end(network: &Network, signal: Signal) {
    network.convey(|convey| convey.signal(signal));
    wait_for("the balancer to end", || network.convey(|convey| convey.ended()));
}

fn kernel_keeps_a_server_fresh_until_it_is_removed_or_convey_ends(case: Case) {
    let mut network = Network::new(case, 1, 2);
    network.balance(&Config::new(2));
    (1..=2).for_each(|number| wait_for_entry(&network, Role::Server(number), true));

    // The unused frontend has server 1, too.
    network.save(&Config::new(1));
    wait_for_entry(&network, Role::Server(2), false);
    wait_for_entry(&network, Role::Server(1), true);
    end(&network, Signal::TERM);
    assert!(!entry(&network, Role::Server(1)).contains("managed"), "after a stop");

    network.start_again();
    wait_for_entry(&network, Role::Server(1), true);
    let clear = || run(network.lab.command(Role::Balancer, binary().get_program()).arg("clear")).stdout;
    assert!(!clear().contains("neighbour"), "it is in use");
    end(&network, Signal::KILL);
    wait_for_entry(&network, Role::Server(1), true);
    let output = clear();
    assert!(output.contains("released 1 neighbour entry of a killed convey"), "{output}");
    assert!(!entry(&network, Role::Server(1)).contains("managed"), "after `convey clear`");
}

fn stale_client_with_a_wrong_ethernet_address_is_found_again(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config::new(1));
    let network = &network;
    let version = if case.family == Family::V4 { "ipv4" } else { "ipv6" };
    for setting in ["delay_first_probe_time=1", "retrans_time_ms=100"] {
        let setting = format!("net.{version}.neigh.{INTERFACE}.{setting}");
        network.lab.run(Role::Balancer, "sysctl", &["-qw", &setting]).unwrap();
    }
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut stream).unwrap();
    let client = case.family.address(Role::Client(1)).to_string();
    let forged =
        ["neigh", "replace", &client, "lladdr", "02:11:22:33:44:55", "dev", INTERFACE, "nud", "stale"];
    network.lab.run(Role::Balancer, "ip", &forged).unwrap();
    ping(&mut stream).unwrap();
}
