//! Open flows forwarded in the driver: by native XDP of a virtual link, whose other end is prepared for it.

use aya::programs::XdpMode;
use convey::dataplane::{KernelCache, Sizes};
use convey::demo::lab::{INTERFACE, Role};

use crate::case::{Case, Story, stories};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::support::{Server, connect, ping, wait_for};
use crate::transfer::{MIB, download, upload};
use crate::udp::{ECHO, UdpEcho, datagram, exchange, socket_to};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        files_arrive_byte_for_byte_in_both_directions,
        a_stream_of_datagrams_is_answered,
        a_connection_ends_in_order_and_leaves_the_cache,
    ]
}

const BYTES: u64 = 64 * MIB;

/// Shorter than a datagram that is cut.
const DATAGRAM: usize = 1200;

fn files_arrive_byte_for_byte_in_both_directions(case: Case) {
    // Of a download through DSR it sees acknowledgements alone, of which one may be for dozens of segments.
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

fn a_connection_ends_in_order_and_leaves_the_cache(case: Case) {
    let mut lab = Prepared::new(case);
    lab.network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = lab.network.server(1, Server::echo);
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

/// A network whose switch hands the balancer packets with finished checksums, and takes what its driver sends back.
struct Prepared {
    network: Network,
    /// On the switch. Knowing no flow, it passes everything.
    _passing: KernelCache,
}

impl Prepared {
    fn new(case: Case) -> Prepared {
        let network = Network::new(case, 1, 1);
        let port = Role::Balancer.to_string();
        network.lab.run(Role::Switch, "ethtool", &["-K", &port, "tx", "off"]).unwrap();
        let mut passing = KernelCache::load(&Sizes { entries: 1, next_hops: 1, parties: 1 }).unwrap();
        let program = passing.xdp().unwrap();
        network
            .lab
            .enter(Role::Switch, || program.attach(&port, XdpMode::Driver).map(drop))
            .unwrap()
            .unwrap();
        Prepared { network, _passing: passing }
    }

    /// Waits until so many packets are counted that the driver has forwarded.
    fn has_forwarded(&self, packets: u64) {
        assert_eq!(self.network.stat(&format!("/packets/offload/{INTERFACE}")), "xdp");
        wait_for("packets forwarded by the driver", || {
            (self.network.stat("/packets/cache/forwarded").as_u64() >= Some(packets)).then_some(())
        });
    }
}
