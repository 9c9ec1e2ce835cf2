//! DSR through a tunnel to a server on another network. The server decapsulates packets itself,
//! with sockets: not every kernel has the devices.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use convey_lab::{LabPlan, Role};
use convey_testkit::{TcpServer, check_to_end, connect, run, send, wait_for};
use socket2::{Domain, Protocol, Socket, Type};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::explain::{explained, message};
use crate::network::{Network, PORT};
use crate::raw::Wire;
use crate::trace::{self, Watcher};
use crate::udp::{ECHO, UdpEcho, datagram, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when Case::is_dsr =>
        a_server_on_another_network_is_reached_by_ipip_of_either_family [ETHTOOL, NGINX],
        the_same_by_gue [ETHTOOL, NGINX],
        uploads_and_downloads_pass_although_outer_headers_take_room [ETHTOOL],
        an_upload_passes_a_router_that_takes_less_than_convey_knew [ETHTOOL, NFT],
        large_datagrams_come_out_as_they_were [ETHTOOL],
        a_check_goes_through_the_tunnel_as_clients_do [ETHTOOL, NGINX],
        a_reload_moves_an_open_connection_to_another_kind_of_tunnel [ETHTOOL],
    ]
}

/// The server's address on a network of its own.
fn far(outer: Family) -> IpAddr {
    match outer {
        Family::V4 => [10, 99, 0, 1].into(),
        Family::V6 => "fd99::1".parse().unwrap(),
    }
}

pub(crate) const IPIP: &str = "algorithm = \"maglev\"\nhash = \"tuple\"\ndsr = \"ipip\"";
pub(crate) const GUE: &str = "algorithm = \"maglev\"\nhash = \"tuple\"\ndsr = \"gue\"";

fn a_server_on_another_network_is_reached_by_ipip_of_either_family(case: Case) {
    reached_by(case, "ipip", IPIP);
}

fn the_same_by_gue(case: Case) {
    reached_by(case, "gue", GUE);
}

fn reached_by(case: Case, kind: &str, backend: &'static str) {
    for outer in [Family::V4, Family::V6] {
        reached_in(&mut prepared(case), outer, kind, backend);
    }
}

/// Checks that connections reach the server, and that with an offload, the kernel forwards all of
/// their packets except SYNs.
pub(crate) fn reached_in(network: &mut Network, outer: Family, kind: &str, backend: &'static str) {
    let case = network.case;
    let opened = network.inside(Role::Server(1), Opener::start);
    let _nginx = network.nginx_on(1, (case.family.any(), PORT).into());
    network.balance_with(&text(case, outer, backend, UNCHECKED));
    for _ in 0..20 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    assert!(opened.taken_out() >= 20 * 4, "{} packets came out", opened.taken_out());
    let client = SocketAddr::new(case.family.address(Role::Client(1)), 4_242);
    let output = explained(network, client);
    let (way, server) = (message(&output, "dsr"), far(outer).to_string());
    assert!(way.starts_with(kind) && way.contains(&server), "{output:#}");
    let by =
        if case.is_cached() { "a worker forwards the first packets, and the kernel" } else { "every packet" };
    assert!(message(&output, "offload").starts_with(by), "{output:#}");
    // The end of the handshake, a request, acknowledgements, a FIN.
    has_forwarded(network, 20 * 3);
}

/// Waits until the kernel has forwarded so many packets, if there is an offload.
fn has_forwarded(network: &Network, packets: u64) {
    let forwarded = || network.stat("/packets/cache/forwarded").as_u64().filter(|n| *n >= packets);
    if network.case.is_cached() {
        wait_for("packets forwarded by the kernel", forwarded);
    }
}

/// Echoes until the kernel has forwarded some packets, if there is an offload. A super-frame counts
/// as one packet, a worker cuts those that need a checksum over IPv6, and a busy client
/// acknowledges a download with few packets.
fn has_forwarded_echoes(network: &Network) {
    let forwarded = || network.stat("/packets/cache/forwarded").as_u64() >= Some(20);
    if network.case.is_cached() {
        wait_for("packets of echoes that the kernel forwards", || {
            assert_eq!(echoed(network), BYTES);
            forwarded().then_some(())
        });
    }
}

/// All kinds over both families.
const WAYS: [(Family, &str); 4] =
    [(Family::V4, IPIP), (Family::V6, GUE), (Family::V4, GUE), (Family::V6, IPIP)];

/// Clients send packets of 1,500 bytes until they get an ICMP error.
fn uploads_and_downloads_pass_although_outer_headers_take_room(case: Case) {
    for (outer, backend) in WAYS {
        let mut network = prepared(case);
        network.balance_with(&text(case, outer, backend, UNCHECKED));
        assert_eq!(echoed(&network), BYTES);
        has_told_client(&network, 1_500 - overhead(outer, backend));
        assert!(network.stat("/packets/drops/too_big").as_u64() > Some(0));
        has_forwarded_echoes(&network);
    }
}

/// The router's link to the server has a smaller MTU than convey's link to the router, which drops
/// outer packets of 1,500 bytes.
fn an_upload_passes_a_router_that_takes_less_than_convey_knew(case: Case) {
    // Room for the smallest packets that IPv6 allows (1,280 bytes), and the outer headers.
    const NARROW: u32 = 1_400;
    // A host firewall drops ICMP errors about packets that its connection tracking has not seen.
    const DEAF: &str = "nft add table inet deaf; \
        nft add chain inet deaf in '{ type filter hook input priority 0 ; }'; \
        nft add rule inet deaf in icmp type destination-unreachable drop; \
        nft add rule inet deaf in icmpv6 type packet-too-big drop";
    for (outer, backend) in WAYS {
        let mut network = prepared(case);
        let (server, far) = (outer.address(Role::Server(1)), far(outer));
        let narrow = format!("route change {far} via {server} mtu {NARROW}");
        network.lab.run(Role::Client(2), "ip", &narrow.split(' ').collect::<Vec<_>>()).unwrap();
        network.lab.run(Role::Balancer, "sh", &["-c", DEAF]).unwrap();
        network.balance_with(&text(case, outer, backend, UNCHECKED));
        assert_eq!(echoed(&network), BYTES);
        has_told_client(&network, NARROW - overhead(outer, backend));
        let output = format!("reports a path MTU of {NARROW} bytes to server {far}");
        let log = network.log(Role::Balancer);
        assert!(log.contains(&output), "{log}");
        has_forwarded_echoes(&network);
        let client = SocketAddr::new(case.family.address(Role::Client(1)), 4_242);
        let next_hop = explained(&network, client).to_string();
        assert!(next_hop.contains(&format!("MTU {NARROW}")), "{next_hop}");
    }
}

const BYTES: u64 = 4 << 20;

/// Number of bytes that the server echoes to a client through the tunnel.
fn echoed(network: &Network) -> u64 {
    let _opened = network.inside(Role::Server(1), Opener::start);
    let listen = SocketAddr::new(network.case.family.any(), PORT);
    let server = network.inside(Role::Server(1), || {
        TcpServer::start(listen, |mut stream| {
            let got = check_to_end(&mut stream);
            send(&mut stream, got)
        })
    });
    let got = network.inside(Role::Client(1), || {
        let mut stream = connect(network.vip());
        send(&mut stream, BYTES).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        check_to_end(&mut stream)
    });
    network.inside(Role::Server(1), || drop(server));
    got
}

/// Bytes that packets grow by.
fn overhead(outer: Family, backend: &str) -> u32 {
    let ip = if outer == Family::V4 { 20 } else { 40 };
    if backend == IPIP { ip } else { ip + 12 }
}

/// Checks that the client limits its packets to the VIP to this MTU.
fn has_told_client(network: &Network, mtu: u32) {
    let route = ["route", "get", &network.vip().ip().to_string()];
    let told = network.lab.run(Role::Client(1), "ip", &route).unwrap();
    assert!(told.contains(&format!("mtu {mtu}")), "{told}");
}

fn large_datagrams_come_out_as_they_were(case: Case) {
    let mut network = prepared(case);
    let opened = network.inside(Role::Server(1), Opener::start);
    let config = text(case, Family::V4, GUE, UNCHECKED).replace("\"web\"", "\"echo\"");
    let config = config.replace(&network.vip().to_string(), &case.family.vip(ECHO).to_string());
    let config = config.replace(&at(far(Family::V4), PORT), &at(far(Family::V4), ECHO));
    let frontend = "[frontends.web]\n";
    network.balance_with(&config.replace(frontend, &format!("{frontend}protocol = \"udp\"\n")));
    let vip = case.family.vip(ECHO);
    let _echo = network.inside(Role::Server(1), || UdpEcho::start(vip));
    for (seed, length) in [1, 1_000, 4_096, 9_000].into_iter().enumerate() {
        let sent = datagram(length, seed as u8);
        network.inside(Role::Client(1), || {
            let socket = socket_to(vip);
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            // Its IPv6 fragments are too long at first, until it gets an ICMP error.
            wait_for("an answer", || exchange(&socket, &sent).ok().filter(|answer| *answer == sent));
        });
    }
    assert!(opened.taken_out() >= 4);
}

fn a_check_goes_through_the_tunnel_as_clients_do(case: Case) {
    let mut network = prepared(case);
    let opened = network.inside(Role::Server(1), Opener::start);
    let _nginx = network.nginx_on(1, (case.family.any(), PORT).into());
    let health = "kind = \"tcp\"\ninterval = 0.2\ntimeout = 0.2\nfall = 1\nrise = 1\nvia = \"vip\"";
    network.balance_with(&text(case, case.family, IPIP, health));
    network.wait_for_health(1, true);
    assert_eq!(network.fetch(1).unwrap(), "s1");
    network.inside(Role::Server(1), || drop(opened));
    // The server still accepts connections to its own address.
    network.wait_for_health(1, false);
    let log = network.log(Role::Balancer);
    assert!(log.contains("the server has no such tunnel, or does not have the VIP"), "{log}");
    let _opened = network.inside(Role::Server(1), Opener::start);
    network.wait_for_health(1, true);
}

fn a_reload_moves_an_open_connection_to_another_kind_of_tunnel(case: Case) {
    let mut network = prepared(case);
    let _opened = network.inside(Role::Server(1), Opener::start);
    let config = Config { backend: IPIP, health: UNCHECKED, ..Config::new(1) };
    trace::balance(&mut network, &config);
    let client = case.family.address(Role::Client(1)).to_string();
    let watcher = Watcher::start(&network, "trace", &["--client", &client]);
    let network = &network;
    let listen = SocketAddr::new(case.family.any(), PORT);
    let server = network.inside(Role::Server(1), || {
        TcpServer::start(listen, |mut stream| {
            let mut byte = [0];
            while stream.read(&mut byte)? > 0 {
                stream.write_all(&byte)?;
            }
            Ok(())
        })
    });
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    let mut went_by = |kind: &str| {
        convey_testkit::ping(&mut stream).unwrap();
        watcher.events().iter().any(|event| event["out"]["tunnel"]["kind"] == kind)
    };
    wait_for("a packet by ipip", || went_by("ipip").then_some(()));
    assert!(!went_by("gue"));
    network.save(&Config { backend: GUE, ..config });
    wait_for("a packet by gue", || went_by("gue").then_some(()));
    drop(stream);
    network.inside(Role::Server(1), || drop(server));
}

/// A server with the VIP and an address on a network of its own, for which a client is the router.
pub(crate) fn prepared(case: Case) -> Network {
    let network = Network::bare(case, &LabPlan::new(2, 1));
    // Packets reach the server as on a wire: with checksums, and not as super-frames.
    let offloads = ["-K", &Role::Server(1).to_string(), "tx", "off", "tso", "off", "gso", "off"];
    network.lab.run(Role::Switch, "ethtool", &offloads).unwrap();
    let (server, router) = (Role::Server(1), Role::Client(2));
    let vips = format!("{} {}", Family::V4.vip(0).ip(), Family::V6.vip(0).ip());
    network.script(server, "tc/dsr-server-l2.sh", "up", &[("VIP", &vips)]);
    let forward = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
    let silent = ["net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.eth0.send_redirects=0"];
    network.lab.run(router, "sysctl", &[&["-qw"], &forward[..], &silent].concat()).unwrap();
    for family in [Family::V4, Family::V6] {
        let ip = |role, line: &str| {
            network.lab.run(role, "ip", &line.split(' ').collect::<Vec<_>>()).unwrap();
        };
        let (far, [server_at, router_at]) = (far(family), [server, router].map(|role| family.address(role)));
        ip(server, &format!("addr add {far} dev lo"));
        ip(router, &format!("route add {far} via {server_at}"));
        ip(Role::Balancer, &format!("route add {far} via {router_at}"));
    }
    network
}

fn at(ip: IpAddr, port: u16) -> String {
    SocketAddr::new(ip, port).to_string()
}

/// A frontend of the family of the case, whose server has an address of the outer one.
fn text(case: Case, outer: Family, backend: &'static str, health: &'static str) -> String {
    let config = Config { backend, health, ..Config::new(1) }.text(case);
    let server = at(case.family.address(Role::Server(1)), PORT);
    config.replace(&format!("addr = \"{server}\""), &format!("addr = \"{}\"", at(far(outer), PORT)))
}

/// Decapsulates packets of both kinds and families, and passes them to the machine. Dropping it
/// ends that.
struct Opener {
    stop: Arc<AtomicBool>,
    taken_out: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// The ends of a link of the machine to itself: packets sent at one come in at the other.
const LINK: [&str; 2] = ["tunnel-in", "tunnel-out"];
const LINK_MAC: [u8; 6] = [0x02, 0, 0, 0, 0x99, 0x01];

impl Opener {
    /// Starts in the namespace of the calling thread.
    fn start() -> Opener {
        let mac = LINK_MAC.map(|byte| format!("{byte:02x}")).join(":");
        let line = format!("link add name {} type veth peer name {} address {mac}", LINK[0], LINK[1]);
        let ip = |line: &str| run(std::process::Command::new("ip").args(line.split(' ')));
        // The device may be left from before.
        let _ = ip(&line);
        for name in LINK {
            let up = ip(&format!("link set {name} up"));
            assert_eq!(up.code, Some(0), "{up:?}");
            // Packets come from clients that are elsewhere.
            for filter in [name, "all"] {
                std::fs::write(format!("/proc/sys/net/ipv4/conf/{filter}/rp_filter"), "0").unwrap();
            }
        }
        let raw = |domain, protocol| Socket::new(domain, Type::RAW, Some(Protocol::from(protocol))).unwrap();
        let udp = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
        udp.bind(&SocketAddr::from(([0u16; 8], 6_080)).into()).unwrap();
        // A raw IPv4 socket also receives the outer header.
        let sockets = [
            (raw(Domain::IPV4, 4), 20),
            (raw(Domain::IPV4, 41), 20),
            (raw(Domain::IPV6, 4), 0),
            (raw(Domain::IPV6, 41), 0),
            (udp, 4),
        ];
        let (stop, taken_out) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = sockets.map(|(socket, outer)| {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            socket.set_recv_buffer_size(4 << 20).unwrap();
            let (stop, taken_out, mut wire) = (stop.clone(), taken_out.clone(), Wire::open_on(LINK[0]));
            thread::spawn(move || {
                let mut buffer = [0; 2_048];
                while !stop.load(Ordering::Relaxed) {
                    let Ok(n) = (&socket).read(&mut buffer) else { continue };
                    let packet = buffer[..n].get(outer..).unwrap_or_default();
                    let kind = if packet.first().is_some_and(|first| first >> 4 == 4) {
                        [8, 0]
                    } else {
                        [0x86, 0xdd]
                    };
                    wire.send(&[&LINK_MAC[..], &[0x02, 0, 0, 0, 0x99, 0x02], &kind, packet].concat());
                    taken_out.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Opener { stop, taken_out, threads: threads.into() }
    }

    /// Packets so far.
    fn taken_out(&self) -> u64 {
        self.taken_out.load(Ordering::Relaxed)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}
