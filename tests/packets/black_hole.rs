//! A hop that takes shorter packets than the ends expect, and sends no ICMP errors: clients'
//! stalled connections reveal it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use convey_lab::{LabPlan, Role};
use convey_testkit::{TcpServer, binary, connect, run, send, wait_for};

use crate::case::{Case, PacketTest, tests};
use crate::config::Config;
use crate::network::{Inside, Network};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        an_upload_that_a_silent_hop_swallows_names_its_server[IPTABLES],
        an_upload_that_loses_some_of_its_packets_names_nobody[NFT],
    ];
    tests.extend(tests![when Case::is_passthrough =>
        download_lost_at_a_silent_hop_is_logged_with_its_clients [IPTABLES],
    ]);
    tests
}

const BYTES: u64 = 1 << 20;

const UPLOADS: &str = "/backends/pool/servers/s1/path_mtu_suspicions/to_server";
const DOWNLOADS: &str = "/backends/pool/servers/s1/path_mtu_suspicions/to_client";

/// A balancer with statistics, and a router on the way to this machine that takes 1,400 bytes and
/// sends no ICMP errors.
fn behind_a_silent_hop(case: Case, far: Role) -> Network {
    let mut network = Network::planned(case, &LabPlan::new(1, 1).narrow(far));
    network.narrow_in_silence(far);
    balance(&mut network);
    network
}

fn balance(network: &mut Network) {
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    command.env("CONVEY_SOCKET", network.path("control.sock"));
    network.balance_by(command, &Config::new(1));
}

/// Server that reads everything, and returns the number of bytes.
fn receiver(network: &Network) -> Inside<'_> {
    network.server(1, |addr| {
        TcpServer::start(addr, |mut stream| {
            let got = io::copy(&mut stream, &mut io::sink())?;
            stream.write_all(&got.to_be_bytes())
        })
    })
}

fn command_output(network: &Network, line: &str) -> String {
    let mut command = network.lab.command(Role::Balancer, binary().get_program());
    let ran = run(command.env("CONVEY_SOCKET", network.path("control.sock")).args(line.split(' ')));
    // The unused frontend cannot serve, which leaves convey ready.
    assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    ran.stdout
}

fn an_upload_that_a_silent_hop_swallows_names_its_server(case: Case) {
    let network = behind_a_silent_hop(case, Role::Server(1));
    let _server = receiver(&network);
    network.wait_for_health(1, true);
    let stream = network.inside(Role::Client(1), || connect(network.vip()));
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(send(&mut writer, BYTES)));
        wait_for("the upload to be suspected", || (network.stat(UPLOADS) == 1).then_some(()));
        stream.shutdown(Shutdown::Both).unwrap();
    });
    let named =
        format!("packets of 1500 bytes do not reach server pool/s1 ({})", network.address(Role::Server(1)));
    network.wait_for_log(&named);
    let events = command_output(&network, "status --events");
    assert!(events.contains(&named) && events.contains("convey doctor"), "{events}");
    let status = command_output(&network, "status");
    assert!(status.contains("s1: large packets of 1 connection do not arrive at the server"), "{status}");
    assert_eq!((network.stat(UPLOADS), network.stat(DOWNLOADS)), (1.into(), 0.into()));
    assert_eq!(network.stat("/backends/pool/servers/s1/up"), true, "short packets arrive");
}

/// The client sends a byte while it waits.
fn download_lost_at_a_silent_hop_is_logged_with_its_clients(case: Case) {
    let network = behind_a_silent_hop(case, Role::Client(1));
    let _server = network.server(1, |addr| {
        TcpServer::start(addr, |mut stream| {
            stream.read_exact(&mut [0])?;
            send(&mut stream, BYTES)
        })
    });
    network.wait_for_health(1, true);
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    stream.set_nodelay(true).unwrap();
    stream.write_all(&[1]).unwrap();
    if case.is_cached() {
        wait_for("a segment to come again", || {
            (network.stat("/packets/cache/repeated").as_u64() > Some(0)).then_some(())
        });
        stream.write_all(&[1]).unwrap();
    }
    wait_for("the download to be suspected", || {
        if !case.is_cached() {
            stream.write_all(&[1]).unwrap();
        }
        (network.stat(DOWNLOADS) == 1).then_some(())
    });
    let named = format!("packets of 1500 bytes from server pool/s1 ({})", network.address(Role::Server(1)));
    network.wait_for_log(&named);
    assert_eq!(network.stat(UPLOADS), 0);
}

/// One packet in twenty is lost before the server.
fn an_upload_that_loses_some_of_its_packets_names_nobody(case: Case) {
    let mut network = Network::new(case, 1, 1);
    balance(&mut network);
    let _server = receiver(&network);
    network.wait_for_health(1, true);
    let upload = || {
        let mut stream: TcpStream = network.inside(Role::Client(1), || connect(network.vip()));
        send(&mut stream, BYTES).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = [0; 8];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(u64::from_be_bytes(got), BYTES);
    };
    upload();
    let lossy = "nft add table inet lossy; nft add chain inet lossy in '{ type filter hook input priority 0 ; }'; \
        nft add rule inet lossy in tcp dport 80 numgen random mod 20 == 0 counter drop";
    network.lab.run(Role::Server(1), "sh", &["-c", lossy]).unwrap();
    (0..4).for_each(|_| upload());
    let lost = network.lab.run(Role::Server(1), "nft", &["list", "table", "inet", "lossy"]).unwrap();
    assert!(!lost.contains("packets 0 "), "{lost}");
    assert_eq!((network.stat(UPLOADS), network.stat(DOWNLOADS)), (0.into(), 0.into()));
    assert!(!network.log(Role::Balancer).contains("do not reach"));
}
