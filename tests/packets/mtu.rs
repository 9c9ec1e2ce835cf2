//! Path MTU discovery: hops that take smaller packets than either end expects.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::process::Stdio;

use convey_lab::{INTERFACE, LabPlan, NARROW, Role};
use convey_testkit::{TcpServer, check_to_end, connect, ping, send, wait_for};
use convey_wire::{IcmpError, TestPacket};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, PORT};
use crate::raw::Wire;
use crate::udp::{ECHO, UdpEcho, datagram, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        answers_fit_through_a_narrow_hop_before_the_client [CURL, NGINX],
        large_datagrams_pass_a_narrow_hop_in_fragments,
        forged_mtu_errors_are_ignored_and_counted,
    ];
    tests.extend(tests![when Case::is_passthrough =>
        answers_are_as_long_as_the_balancers_route_to_the_client_takes [CURL, NGINX],
        false_mtu_error_of_one_client_does_not_affect_others,
    ]);
    // In DSR with NAT, the hop sends its error about a packet to the client, which did not send
    // that packet.
    tests.extend(tests![when Case::is_passthrough =>
        uploads_fit_through_a_narrow_hop_before_the_server,
    ]);
    tests
}

const BYTES: u64 = 1 << 20;

fn answers_fit_through_a_narrow_hop_before_the_client(case: Case) {
    let client = Role::Client(1);
    let mut network = Network::planned(case, &LabPlan::new(1, 1).narrow(client));
    let nginx = network.nginx(1);
    send(&mut File::create(nginx.file("big")).unwrap(), BYTES).unwrap();
    network.balance(&Config::new(1));
    let sees = if case.is_dsr() { client } else { Role::Balancer };
    let sees = case.family.address(sees);
    assert!(!knows(&network, Role::Server(1), sees));
    let mut curl = network.client(1, "curl");
    // If the hop's errors were lost, this would take forever.
    curl.args(["-sS", "--fail", "-m", "10", &format!("http://{}/big", network.vip())]);
    let mut curl = curl.stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(check_to_end(curl.stdout.as_mut().unwrap()), BYTES);
    assert!(curl.wait().unwrap().success());
    // In passthrough, that is the address of all clients.
    assert_eq!(knows(&network, Role::Server(1), sees), case.is_dsr());
}

fn answers_are_as_long_as_the_balancers_route_to_the_client_takes(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let nginx = network.nginx(1);
    send(&mut File::create(nginx.file("big")).unwrap(), BYTES).unwrap();
    let client = case.family.address(Role::Client(1)).to_string();
    let mtu = NARROW.to_string();
    let route = ["route", "add", &client, "dev", INTERFACE, "mtu", &mtu];
    network.lab.run(Role::Balancer, "ip", &route).unwrap();
    network.balance(&Config::new(1));
    let url = format!("http://{}/big", network.vip());
    let ran = network.run(1, "curl", &["-sS", "--fail", "-m", "10", "-o", "/dev/null", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(knows(&network, Role::Server(1), case.family.address(Role::Balancer)));
}

fn uploads_fit_through_a_narrow_hop_before_the_server(case: Case) {
    let mut network = Network::planned(case, &LabPlan::new(1, 1).narrow(Role::Server(1)));
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let network = &network;
    let _server = network.server(1, |addr| {
        TcpServer::start(addr, |mut stream| {
            let got = check_to_end(&mut stream);
            stream.write_all(&got.to_be_bytes())
        })
    });
    let vip = network.vip();
    assert!(!knows(network, Role::Client(1), vip.ip()));
    let got = network.inside(Role::Client(1), || {
        let mut stream = connect(vip);
        send(&mut stream, BYTES).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut got = [0; 8];
        stream.read_exact(&mut got).unwrap();
        u64::from_be_bytes(got)
    });
    assert_eq!(got, BYTES);
    assert!(knows(network, Role::Client(1), vip.ip()));
}

fn large_datagrams_pass_a_narrow_hop_in_fragments(case: Case) {
    // See above for DSR.
    let servers = case.is_passthrough().then_some(Role::Server(1));
    for narrow in [Role::Client(1)].into_iter().chain(servers) {
        let mut network = Network::planned(case, &LabPlan::new(1, 1).narrow(narrow));
        network.balance(&Config { health: UNCHECKED, ..Config::udp(ECHO, 1) });
        let server = (case.family.address(Role::Server(1)), ECHO).into();
        let _echo = network.inside(Role::Server(1), || UdpEcho::start(server));
        network.inside(Role::Client(1), || {
            let socket = socket_to(case.family.vip(ECHO));
            socket.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
            let sent = datagram(4096, 1);
            // IPv6 routers do not fragment packets: the first are lost, and their sender gets an
            // ICMP error.
            convey_testkit::wait_for("an answer", || {
                let got = exchange(&socket, &sent).ok()?;
                assert!(got == sent);
                Some(())
            });
        });
    }
}

/// Another client forges errors about packets that the server has never sent.
fn forged_mtu_errors_are_ignored_and_counted(case: Case) {
    const FORGED: u32 = 4;
    let (client, liar) = (Role::Client(1), Role::Client(2));
    let mut network = Network::new(case, 2, 1);
    network.balance(&Config::new(1));
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    let mut stream = network.inside(client, || connect(network.vip()));
    ping(&mut stream).unwrap();
    let (vip, addr) = (network.vip(), stream.local_addr().unwrap());
    network.inside(liar, || {
        let mut wire = Wire::open();
        for n in 0..FORGED {
            // Numbers that are a quarter of all apart: one of them may be a good guess.
            let made_up = TestPacket::from(vip).to(addr).seq(n * (u32::MAX / FORGED)).ack(1);
            let made_up = made_up.macs(Role::Balancer.mac(), liar.mac()).bytes();
            let (headers, error) =
                (convey_wire::parse(&made_up).unwrap(), IcmpError::TooBig { mtu: NARROW.into() });
            let mut forged = Vec::new();
            convey_wire::icmp_error(&made_up, &headers, error, case.family.address(liar).into(), &mut forged);
            wire.send(&forged);
        }
    });
    wait_for("them to be counted", || {
        let dropped = network.stat("/packets/drops/icmp_out_of_window").as_u64();
        (dropped >= Some(u64::from(FORGED) - 1)).then_some(())
    });
    ping(&mut stream).unwrap();
}

/// All clients have the same address for servers, so an accepted error of one of them would affect
/// all.
fn false_mtu_error_of_one_client_does_not_affect_others(case: Case) {
    const LIES: [u32; 8] = [68, 576, 1_279, 1_280, 1_281, 1_400, 1_492, 1_499];
    // Payload of an Ethernet packet after headers with timestamps.
    const LONG: u64 = 1_500 - 40 - 32;
    let mut network = Network::new(case, 2, 1);
    let [tcp, echo] = [PORT, ECHO].map(|port| SocketAddr::new(case.family.address(Role::Server(1)), port));
    let config = Config { health: UNCHECKED, ..Config::udp(ECHO, 1) }.text(case);
    network.balance_with(&format!(
        "{config}[frontends.files]\nlisten_addr = \"{}\"\nbackend = \"files\"\n\
         [backends.files.health_check]\n{UNCHECKED}\n[backends.files.servers]\ns1.addr = \"{tcp}\"\n",
        network.vip()
    ));
    let network = &network;
    let _files = network.server(1, |addr| TcpServer::start(addr, |mut stream| send(&mut stream, BYTES)));
    let _echo = network.inside(Role::Server(1), || UdpEcho::start(echo));
    let (vip, liar, balancer) = (case.family.vip(ECHO), Role::Client(2), case.family.address(Role::Balancer));
    let [others, own] = [Role::Client(1), liar].map(|role| {
        network.inside(role, || {
            let socket = socket_to(vip);
            // Repeated until it is a stream, which the kernel may forward.
            (0..3).for_each(|_| assert_eq!(exchange(&socket, b"hello").unwrap(), b"hello"));
            socket
        })
    });
    network.inside(liar, || {
        let mut wire = Wire::open();
        for mtu in LIES {
            let about = TestPacket::from(vip).to(own.local_addr().unwrap()).udp().payload(&[7; 500]);
            let about = about.macs(Role::Balancer.mac(), liar.mac()).bytes();
            let (headers, error) = (convey_wire::parse(&about).unwrap(), IcmpError::TooBig { mtu });
            let mut lie = Vec::new();
            convey_wire::icmp_error(&about, &headers, error, case.family.address(liar).into(), &mut lie);
            wire.send(&lie);
        }
    });
    wait_for("the lies to be counted", || {
        let told = || {
            let route = ["route", "get", &balancer.to_string()];
            network.lab.run(Role::Server(1), "ip", &route).unwrap()
        };
        assert!(!told().contains("mtu "), "{}", told());
        (network.stat("/packets/drops/path_mtu_too_small") == LIES.len()).then_some(())
    });
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    assert_eq!(check_to_end(&mut stream), BYTES);
    let longest = longest_received(network, Role::Client(1));
    assert!(longest >= LONG, "segments of {longest} bytes");
    for (client, socket) in [(Role::Client(1), &others), (liar, &own)] {
        network.inside(client, || {
            // The second is sent in one piece, which the liar gets in several.
            for length in [500, 1_472 - 20, 4_096] {
                let sent = datagram(length, 1);
                assert!(exchange(socket, &sent).unwrap() == sent, "{client}, {length} bytes");
            }
        });
    }
}

/// Longest segment that the only connection of a machine has received, according to its kernel.
fn longest_received(network: &Network, role: Role) -> u64 {
    let output = network.lab.run(role, "ss", &["-tinH"]).unwrap();
    let longest = output.split_whitespace().find_map(|word| word.strip_prefix("rcvmss:"));
    longest.unwrap_or_else(|| panic!("{output}")).parse().unwrap()
}

/// Whether a machine has learnt that packets to `to` have to be small.
fn knows(network: &Network, role: Role, to: IpAddr) -> bool {
    let route = network.lab.run(role, "ip", &["route", "get", &to.to_string()]).unwrap();
    route.contains(&format!("mtu {NARROW}"))
}
