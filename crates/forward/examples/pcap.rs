//! Balances the frames of a pcap file over three servers, as direct server return does, and prints where each goes:
//! `cargo run -p convey-forward --example pcap -- FILE 192.0.2.1:80`.

use std::error::Error;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use convey_balance::flow_hash;
use convey_forward::plan::{Frontend, Pick, Picked, Plan, Pool, Server};
use convey_forward::{Forwarder, Frame, Settings, Verdict, View};
use convey_model::{HashOn, Interface, Neighbour, NextHops, Protocol, Route, RouteHop, Timestamp};
use convey_wire::parse;
use pcap_file::pcap::PcapReader;

/// One of three servers, by a hash of the client's address and port.
struct ByHash;

impl Pick for ByHash {
    fn pick(&self, client: SocketAddr, vip: SocketAddr) -> Picked {
        Picked::Server((self.hash(client, vip) % 3) as usize)
    }

    fn hash(&self, client: SocketAddr, vip: SocketAddr) -> u64 {
        flow_hash(HashOn::Tuple, client, vip).0
    }
}

/// The balancer's only link, with the servers 10.0.0.1 to 10.0.0.3 on it.
fn network() -> NextHops {
    let eth0 = Interface::ethernet(1, "eth0", [2, 0, 0, 0, 0, 0xfe], vec![[10, 0, 0, 254].into()]);
    let hops = vec![RouteHop { interface: 1, gateway: None, mtu: None }];
    let all =
        Route { table: Route::MAIN, prefix: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0, metric: 0, hops };
    let server = |n| Neighbour { interface: 1, ip: [10, 0, 0, n].into(), mac: [2, 0, 0, 0, 0, n] };
    NextHops::new(&[eth0], [all], &[1, 2, 3].map(server))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(vip)) = (arguments.next(), arguments.next()) else {
        return Err("usage: pcap FILE VIP:PORT".into());
    };
    let servers = [1, 2, 3].map(|n| Arc::new(Server::new(n.into(), ([10, 0, 0, n], 80).into())));
    let pool = Arc::new(Pool::new(servers.into(), Arc::new(ByHash)));
    let frontend = Frontend::new(1, View::ClientSide, Protocol::Tcp, vip.parse()?, pool);
    let plan = Plan::new(1, vec![Arc::new(frontend)], Arc::new(network()));
    let mut forwarder = Forwarder::new(Settings::alone(100_000, 1));
    let mut packets = PcapReader::new(File::open(file)?)?;
    while let Some(packet) = packets.next_packet() {
        let packet = packet?;
        let (mut bytes, now) = (packet.data.to_vec(), Timestamp(packet.timestamp.as_nanos() as u64));
        let headers = parse(&bytes);
        let verdict = forwarder.handle_frame(&mut Frame::new(&mut bytes, &headers), &plan, now);
        match (headers, verdict, parse(&bytes)) {
            (Ok(came), Verdict::Transmit(_), Ok(sent)) => {
                println!("{:?}: to {}", came.key, sent.key.dst.ip())
            }
            (Ok(came), verdict, _) => println!("{:?}: {verdict:?}", came.key),
            (Err(why), verdict, _) => println!("{why:?}: {verdict:?}"),
        }
    }
    Ok(())
}
