//! A second balancer that takes the VIP over.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};
use std::path::PathBuf;

use convey::demo::lab::{INTERFACE, Plan, Role};
use socket2::{Domain, Protocol, Socket, Type};

use crate::case::{Case, Story, stories};
use crate::config::Config;
use crate::network::Network;
use crate::support::{Process, Wrk, check_to_end, send, wait_for};

pub(crate) fn stories() -> Vec<Story> {
    stories![when Case::is_dsr => a_second_balancer_takes_the_vip_over_and_cuts_no_connection]
}

/// What a client downloads, and how much of it a second, so that it is under way while the VIP moves.
const BYTES: u64 = 16 << 20;
const RATE: &str = "1M";

fn a_second_balancer_takes_the_vip_over_and_cuts_no_connection(case: Case) {
    let mut network = Network::planned(case, &Plan::new(2, 3).standby());
    let servers = [1, 2, 3].map(|number| network.nginx(number));
    for server in &servers {
        send(&mut File::create(server.file("big")).unwrap(), BYTES).unwrap();
    }
    network.balance(&Config::new(3));
    let _standby = network.start_standby();
    (1..=3).for_each(|server| network.wait_for_health(server, true));
    let wrk = Wrk::spawn(network.client(2, "wrk"), network.path("").as_path(), network.vip(), 8);
    let mut downloads: Vec<(Process, PathBuf)> = (0..12).map(|n| download(&network, n)).collect();
    let begun = |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.len() > BYTES / 16);
    wait_for("downloads to be under way", || downloads.iter().all(|(_, path)| begun(path)).then_some(()));
    for (from, to) in [(Role::Balancer, Role::Standby), (Role::Standby, Role::Balancer)] {
        let before = connections(&network, to);
        move_vip(&network, from, to);
        wait_for("clients to come this way", || (connections(&network, to) > before + 200).then_some(()));
        let ended: Vec<_> = downloads.iter_mut().filter_map(|(curl, _)| curl.ended()).collect();
        assert!(ended.is_empty(), "downloads were to be under way: {ended:?}");
    }
    let more = download(&network, 12);
    for (curl, path) in downloads.iter_mut().chain([&mut { more }]) {
        assert!(curl.wait().success());
        assert_eq!(check_to_end(&mut File::open(path).unwrap()), BYTES);
    }
    let summary = wrk.stop();
    assert_eq!(summary.failed, 0, "{}", summary.text);
}

fn download(network: &Network, number: u32) -> (Process, PathBuf) {
    let path = network.path(&format!("got{number}"));
    let mut curl = network.client(1, "curl");
    curl.args(["-sS", "--fail", "-m", "60", "--limit-rate", RATE, "-o"]).arg(&path);
    curl.arg(format!("http://{}/big", network.vip()));
    (Process::spawn(&mut curl), path)
}

/// Connections that a balancer has forwarded so far.
fn connections(network: &Network, role: Role) -> u64 {
    network.stat_of(role, "/frontends/web/total_connections").as_u64().unwrap()
}

/// Does what keepalived does: the VIP goes, comes, and is announced.
fn move_vip(network: &Network, from: Role, to: Role) {
    let vip = network.vip().ip();
    let (vip_text, length) = (vip.to_string(), if vip.is_ipv4() { 32 } else { 128 });
    let address = format!("{vip}/{length}");
    network.lab.run(from, "ip", &["addr", "del", &address, "dev", INTERFACE]).unwrap();
    let mut add = vec!["addr", "add", &address, "dev", INTERFACE];
    if vip.is_ipv6() {
        add.extend(["nodad", "preferred_lft", "0"]);
    }
    network.lab.run(to, "ip", &add).unwrap();
    match vip {
        IpAddr::V4(_) => {
            let arguments = ["-U", "-c", "1", "-I", INTERFACE, &vip_text];
            network.lab.run(to, "arping", &arguments).unwrap();
        }
        IpAddr::V6(vip) => network.inside(to, || advertise(vip, to.mac())),
    }
}

/// Sends an unsolicited neighbour advertisement (RFC 4861, sections 4.4 and 7.2.6).
fn advertise(vip: Ipv6Addr, mac: [u8; 6]) {
    const ADVERTISEMENT: u8 = 136;
    const OVERRIDE: u8 = 0x20;
    const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend_from_slice(&vip.octets());
    message.extend_from_slice(&[TARGET_LINK_LAYER_ADDRESS, 1]);
    message.extend_from_slice(&mac);
    // The kernel writes the checksum.
    let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
    socket.set_multicast_hops_v6(255).unwrap();
    socket.bind_device(Some(INTERFACE.as_bytes())).unwrap();
    socket.bind(&SocketAddrV6::new(vip, 0, 0, 0).into()).unwrap();
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    socket.send_to(&message, &SocketAddrV6::new(all_nodes, 0, 0, 0).into()).unwrap();
}
