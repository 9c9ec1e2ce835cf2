//! Open flows forwarded in the driver: by native XDP of a virtual link, whose other end is prepared
//! for it.

use aya::programs::XdpMode;
use convey_dataplane::Sizes;
use convey_dataplane::testing::KernelCache;
use convey_lab::{INTERFACE, Role};
use convey_model::Offload;
use convey_testkit::{TcpServer, connect, ping, wait_for};

use crate::case::{Case, Family, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::interfaces::{LINK, ip, link, snat, theirs, through_link};
use crate::network::{Network, PORT};
use crate::priority_tags::exchange_tagged;
use crate::scarce::forged_syns_leave_ports;
use crate::silence::forged_syns_let_go_of_slots;
use crate::spoofed::{forged_datagrams_reach_no_client, forged_segments_reach_no_client};
use crate::transfer::{MIB, download, upload};
use crate::udp::{ECHO, UdpEcho, datagram, exchange, socket_to};
use crate::upgrade;
use crate::{trace, tunnel};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![
        files_arrive_byte_for_byte_in_both_directions [CURL, NGINX],
        a_stream_of_datagrams_is_answered,
        priority_tagged_datagrams_are_forwarded_by_the_driver,
        a_connection_ends_in_order_and_leaves_the_cache,
        an_interface_may_get_another_ethernet_address,
        traced_driver_flow_leaves_the_driver_and_returns_afterwards,
    ];
    // In DSR, replies do not pass the balancer. The family makes no difference.
    tests.extend(tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        clients_behind_an_interface_without_xdp_are_answered,
        a_reload_may_put_a_server_behind_an_interface_without_xdp [NGINX],
        slots_of_forged_syns_are_freed_although_the_driver_forwards_packets,
        datagrams_in_a_servers_name_from_the_clients_side_reach_no_client,
        segments_in_a_servers_name_from_the_clients_side_reach_no_client,
    ]);
    tests.extend(floods(tests![when |case| case.is_passthrough() && case.family == Family::V4 =>
        forged_syns_leave_clients_their_snat_ports,
    ]));
    tests.extend(tests![when Case::is_dsr =>
        packets_go_into_tunnels_of_every_kind_in_the_driver [NGINX],
    ]);
    tests.extend(tests![when |case| case.family == Family::V4 =>
        upgrades_under_load_cut_no_connection_and_refuse_no_client,
        refused_upgrade_leaves_all_flows_to_the_old_process,
        datagrams_keep_their_server_through_upgrades,
    ]);
    tests.extend(tests![long when |case| case.family == Family::V4 =>
        an_upgrade_takes_connections_from_one_offload_to_another,
        a_download_of_a_gibibyte_lives_through_ten_upgrades,
    ]);
    tests
}

const BYTES: u64 = 64 * MIB;

fn upgrades_under_load_cut_no_connection_and_refuse_no_client(case: Case) {
    let mut lab = Prepared::of(Network::new(case, 2, 2));
    upgrade::upgrade_under_load(&mut lab.network, 2);
    // Forwarded by the last process.
    lab.has_forwarded(50);
}

fn packets_go_into_tunnels_of_every_kind_in_the_driver(case: Case) {
    for (kind, backend) in [("ipip", tunnel::IPIP), ("gue", tunnel::GUE)] {
        for outer in [Family::V4, Family::V6] {
            let mut lab = Prepared::of(tunnel::prepared(case));
            tunnel::reached_in(&mut lab.network, outer, kind, backend);
            lab.has_forwarded(60);
        }
    }
}

fn traced_driver_flow_leaves_the_driver_and_returns_afterwards(case: Case) {
    let mut lab = Prepared::new(case);
    trace::balance(&mut lab.network, &Config { health: UNCHECKED, ..Config::new(1) });
    trace::leaves_the_kernel_and_goes_back(&lab.network);
    lab.has_forwarded(50);
}

fn refused_upgrade_leaves_all_flows_to_the_old_process(case: Case) {
    upgrade::refuse_upgrades(&mut Prepared::of(Network::new(case, 1, 2)).network);
}

fn datagrams_keep_their_server_through_upgrades(case: Case) {
    let mut lab = Prepared::of(Network::new(case, 1, 3));
    upgrade::upgrade_under_datagrams(&mut lab.network);
    lab.has_forwarded(50);
}

fn an_upgrade_takes_connections_from_one_offload_to_another(case: Case) {
    upgrade::upgrade_to(
        &mut Prepared::of(Network::new(case, 1, 1)).network,
        &[Offload::Tc, Offload::Xdp, Offload::Off, Offload::Xdp, Offload::Xdp, Offload::Off, Offload::Tc],
    );
}

fn a_download_of_a_gibibyte_lives_through_ten_upgrades(case: Case) {
    let mut lab = Prepared::of(Network::new(case, 1, 2));
    upgrade::upgrade_under_a_download(&mut lab.network);
    lab.has_forwarded(100);
}

/// Shorter than a datagram that is cut.
const DATAGRAM: usize = 1200;

fn files_arrive_byte_for_byte_in_both_directions(case: Case) {
    // For a download through DSR, the balancer sees only acknowledgements, each of which may be for
    // dozens of segments.
    for (transfer, packets) in [(download as fn(&mut Network, u64), 100), (upload, BYTES / 1500)] {
        let mut lab = Prepared::new(case);
        transfer(&mut lab.network, BYTES);
        lab.has_forwarded(packets);
    }
}

fn a_stream_of_datagrams_is_answered(case: Case) {
    let mut lab = Prepared::new(case);
    lab.network.balance(&Config { health: UNCHECKED, ..Config::udp(ECHO, 1) });
    let server = Role::Server(1);
    let _echo = lab.network.inside(server, || UdpEcho::start((case.family.address(server), ECHO).into()));
    lab.network.inside(Role::Client(1), || {
        let socket = socket_to(case.family.vip(ECHO));
        for n in 0..200 {
            let sent = datagram(DATAGRAM, n);
            assert!(exchange(&socket, &sent).unwrap() == sent, "datagram {n}");
        }
    });
    // The first few go through a worker: they are no stream yet.
    lab.has_forwarded(150);
}

fn priority_tagged_datagrams_are_forwarded_by_the_driver(case: Case) {
    let mut lab = Prepared::new(case);
    // The switch takes tags out of the bytes, and XDP sees none.
    exchange_tagged(&mut lab.network, &[]);
    lab.has_forwarded(20);
}

fn a_connection_ends_in_order_and_leaves_the_cache(case: Case) {
    let mut lab = Prepared::new(case);
    lab.network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = lab.network.server(1, TcpServer::echo);
    let mut stream = lab.network.inside(Role::Client(1), || connect(lab.network.vip()));
    for _ in 0..20 {
        ping(&mut stream).unwrap();
    }
    lab.has_forwarded(20);
    assert_eq!(lab.network.stat("/packets/cached_flows"), 1);
    drop(stream);
    wait_for("the flow to be over", || (lab.network.stat("/packets/cached_flows") == 0).then_some(()));
    assert_eq!(lab.network.stat("/frontends/web/current_connections"), 0);
    let ended = lab.network.stat("/frontends/web/ended");
    assert!(ended.as_object().unwrap().values().all(|n| n == 0), "in order: {ended:#}");
}

fn an_interface_may_get_another_ethernet_address(case: Case) {
    let mut lab = Prepared::new(case);
    let network = &mut lab.network;
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let server = network.server(1, TcpServer::echo);
    let mut stream = network.inside(Role::Client(1), || connect(network.vip()));
    for _ in 0..20 {
        ping(&mut stream).unwrap();
    }
    ip(network, Role::Balancer, &format!("link set {INTERFACE} address 02:00:00:00:77:77"));
    for role in [Role::Client(1), Role::Server(1)] {
        ip(network, role, "neigh flush all");
    }
    let forwarded = || network.stat("/packets/cache/forwarded").as_u64().unwrap();
    // Packets that were forwarded before may be counted a little later.
    let before = forwarded();
    wait_for("the driver to forward what is sent to the new address", || {
        ping(&mut stream).unwrap();
        (forwarded() >= before + 200).then_some(())
    });
    drop(server);
}

/// The link would drop packets that the driver sends there, for its other end is not prepared.
fn clients_behind_an_interface_without_xdp_are_answered(case: Case) {
    let mut lab = Prepared::new(case);
    let network = &mut lab.network;
    let client = Role::Client(1);
    let of_client = network.lab.namespace(client);
    ip(network, Role::Balancer, &format!("link add {LINK} type veth peer name {LINK} netns {of_client}"));
    ip(network, Role::Balancer, &format!("link set {LINK} up"));
    ip(network, client, &format!("link set {LINK} up"));
    // Replies arrive on an interface where the client does not send.
    let all_ways = ["-qw", "net.ipv4.conf.all.rp_filter=0", &format!("net.ipv4.conf.{LINK}.rp_filter=0")];
    network.lab.run(client, "sysctl", &all_ways).unwrap();
    ip(network, Role::Balancer, &format!("route add {} dev {LINK}", case.family.address(client)));
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let server = network.server(1, TcpServer::echo);
    let mut stream = network.inside(client, || connect(network.vip()));
    for _ in 0..20 {
        ping(&mut stream).unwrap();
    }
    drop(server);
    lab.has_forwarded(20);
    assert!(lab.network.stat("/packets/cache/no_next_hop").as_u64() >= Some(20), "left to a worker");
}

fn a_reload_may_put_a_server_behind_an_interface_without_xdp(case: Case) {
    let mut lab = Prepared::new(case);
    let network = &mut lab.network;
    let _server = network.nginx_on(1, (case.family.any(), PORT).into());
    network.balance(&Config { passthrough: snat(case.family), ..Config::new(1) });
    assert_eq!(network.fetch(1).unwrap(), "s1");
    link(network);
    use_link_without_xdp(network, &through_link(case));
    network.wait_for_health(1, true);
    for _ in 0..10 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
    }
    assert_eq!(network.stat(&format!("/packets/offload/{LINK}")), "worker");
    let log = network.log(Role::Balancer);
    assert!(log.contains("every packet received on back goes through a worker"), "{log}");
}

fn slots_of_forged_syns_are_freed_although_the_driver_forwards_packets(case: Case) {
    let mut lab = Prepared::with_clients(case, 2);
    forged_syns_let_go_of_slots(&mut lab.network);
    // The answer to each SYN, at least.
    lab.has_forwarded(50);
}

fn datagrams_in_a_servers_name_from_the_clients_side_reach_no_client(case: Case) {
    let mut lab = Prepared::with_clients(case, 2);
    forged_datagrams_reach_no_client(&mut lab.network, balance_through_link);
    lab.has_forwarded(0);
}

fn segments_in_a_servers_name_from_the_clients_side_reach_no_client(case: Case) {
    let mut lab = Prepared::with_clients(case, 2);
    forged_segments_reach_no_client(&mut lab.network, balance_through_link);
    lab.has_forwarded(0);
}

fn forged_syns_leave_clients_their_snat_ports(case: Case) {
    let mut lab = Prepared::with_clients(case, 2);
    forged_syns_leave_ports(&mut lab.network);
    lab.has_forwarded(100);
}

/// Moves servers behind the second link, which does not support XDP. A start would require it.
fn balance_through_link(network: &mut Network, text: &str) {
    let [usual, new] = [network.case.family.address(Role::Server(1)), theirs(network.case.family)];
    network.balance_with(&text.replace(&new.to_string(), &usual.to_string()));
    use_link_without_xdp(network, text);
}

fn use_link_without_xdp(network: &Network, text: &str) {
    // The driver has no room for a frame of that length.
    ip(network, Role::Server(1), &format!("link set {LINK} mtu 9000"));
    network.save_with(text);
    network.wait_for_log("now forwarding packets on back");
}

/// A network whose switch passes the balancer packets with finished checksums, and accepts packets
/// from its driver.
struct Prepared {
    network: Network,
    /// Program on the switch. It has no flows, so it passes everything.
    _passing: KernelCache,
}

impl Prepared {
    fn new(case: Case) -> Prepared {
        Prepared::with_clients(case, 1)
    }

    fn with_clients(case: Case, clients: u8) -> Prepared {
        Prepared::of(Network::new(case, clients, 1))
    }

    fn of(network: Network) -> Prepared {
        let port = Role::Balancer.to_string();
        network.lab.run(Role::Switch, "ethtool", &["-K", &port, "tx", "off"]).unwrap();
        let mut passing = KernelCache::load(&Sizes { entries: 1, next_hops: 1, counter_ids: 1 }).unwrap();
        let program = passing.xdp().unwrap();
        network
            .lab
            .enter(Role::Switch, || program.attach(&port, XdpMode::Driver).map(drop))
            .unwrap()
            .unwrap();
        Prepared { network, _passing: passing }
    }

    /// Waits until the driver has forwarded so many packets.
    fn has_forwarded(&self, packets: u64) {
        assert_eq!(self.network.stat(&format!("/packets/offload/{INTERFACE}")), "xdp");
        wait_for("packets forwarded by the driver", || {
            (self.network.stat("/packets/cache/forwarded").as_u64() >= Some(packets)).then_some(())
        });
    }
}
