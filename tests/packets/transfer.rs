//! Transferred data: every byte arrives, in order, however the packets are cut and whether the
//! kernel or a worker finishes their checksums.
//!
//! Large amounts are a GiB or a quarter of one by IPv4, and an eighth of that by IPv6.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::Stdio;

use convey_lab::Role;
use convey_testkit::{TcpServer, check_to_end, connect, run, send};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        a_large_file_is_downloaded_byte_for_byte [CURL, NGINX],
        a_large_file_is_uploaded_byte_for_byte,
        bytes_arrive_without_offloads [CURL, ETHTOOL, NGINX],
        bytes_arrive_when_only_the_last_hop_finishes_checksums [CURL, ETHTOOL, NGINX],
        bytes_arrive_although_one_packet_in_a_hundred_is_lost [CURL, ETHTOOL, NFT, NGINX],
        many_streams_at_once_in_both_directions [IPERF3],
    ]
}

/// Transfers so many bytes, and checks each.
type Transfer = fn(&mut Network, u64);

pub(crate) const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

fn a_large_file_is_downloaded_byte_for_byte(case: Case) {
    let mut network = Network::new(case, 1, 1);
    download(&mut network, case.family.of(GIB));
}

fn a_large_file_is_uploaded_byte_for_byte(case: Case) {
    let mut network = Network::new(case, 1, 1);
    upload(&mut network, case.family.of(GIB));
}

fn bytes_arrive_without_offloads(case: Case) {
    for transfer in [download, upload] {
        let mut network = Network::new(case, 1, 1);
        network.lab.machines().iter().for_each(|role| network.lab.offloads(*role, false).unwrap());
        transfer(&mut network, case.family.of(256 * MIB));
    }
}

/// All hosts leave checksums unfinished, as on a machine with a good network card. The switch
/// finishes them, and the receiver detects a wrongly rewritten one.
fn bytes_arrive_when_only_the_last_hop_finishes_checksums(case: Case) {
    for transfer in [download, upload] {
        let mut network = Network::new(case, 1, 1);
        network.lab.offloads(Role::Switch, false).unwrap();
        transfer(&mut network, case.family.of(256 * MIB));
        for role in network.lab.machines() {
            assert_eq!(counter(&network, *role, "InCsumErrors"), 0, "{role}");
        }
    }
}

fn bytes_arrive_although_one_packet_in_a_hundred_is_lost(case: Case) {
    for (transfer, sender) in [(download as Transfer, Role::Server(1)), (upload, Role::Client(1))] {
        let mut network = Network::new(case, 1, 1);
        // Single packets, not super-frames, in which offloads combine dozens.
        network.lab.machines().iter().for_each(|role| network.lab.offloads(*role, false).unwrap());
        network.lab.lose(10).unwrap();
        transfer(&mut network, 32 * MIB);
        assert!(counter(&network, sender, "RetransSegs") > 0, "nothing was lost");
    }
}

fn many_streams_at_once_in_both_directions(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let mut server = network.lab.command(Role::Server(1), "iperf3");
    let _server = convey_testkit::Process::spawn(server.args(["-s", "-p", "80"]).stdout(Stdio::null()));
    network.inside(Role::Server(1), || {
        convey_testkit::wait_for("iperf3", || {
            let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp6").unwrap();
            sockets.contains(":0050 ").then_some(())
        })
    });
    for direction in [&[][..], &["-R"]] {
        let mut iperf = network.client(1, "iperf3");
        let ran = run(iperf
            .args(["-c", &network.vip().ip().to_string(), "-p", "80", "-P", "8", "-t", "2", "-f", "m"])
            .args(direction));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let sums = ran.stdout.lines().filter(|line| line.contains("SUM") && line.contains("receiver"));
        sums.for_each(|line| eprintln!("{}: {line}", network.case));
    }
}

/// Downloads so many bytes through a newly started balancer.
pub(crate) fn download(network: &mut Network, bytes: u64) {
    let nginx = network.nginx(1);
    send(&mut File::create(nginx.file("big")).unwrap(), bytes).unwrap();
    // A lost probe would not mean that the server is down.
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let mut curl = network.client(1, "curl");
    curl.args(["-sS", "--fail", &format!("http://{}/big", network.vip())]);
    let mut curl = curl.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(check_to_end(curl.stdout.as_mut().unwrap()), bytes);
    assert!(curl.wait().unwrap().success());
}

/// Uploads so many bytes. The server answers once the client has finished.
pub(crate) fn upload(network: &mut Network, bytes: u64) {
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = network.server(1, |addr| {
        TcpServer::start(addr, |mut stream| {
            let got = check_to_end(&mut stream);
            stream.write_all(&got.to_be_bytes())
        })
    });
    let got = network.inside(Role::Client(1), || {
        let mut stream = connect(network.vip());
        send(&mut stream, bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = [0; 8];
        stream.read_exact(&mut got).unwrap();
        u64::from_be_bytes(got)
    });
    assert_eq!(got, bytes);
}

/// A TCP counter of the kernel.
fn counter(network: &Network, role: Role, name: &str) -> u64 {
    network.inside(role, || {
        let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        names.zip(values).find(|(found, _)| *found == name).unwrap().1.parse().unwrap()
    })
}
