//! Balances the frames of a pcap file over three servers, as direct server return does, and prints where each goes:
//! `cargo run -p convey-forward --example pcap -- FILE 192.0.2.1:80`.

use std::error::Error;
use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;

use convey_balance::flow_hash;
use convey_forward::plan::{Frontend, Pick, Picked, Plan, Pool, Server};
use convey_forward::{Forwarder, Frame, Settings, Verdict, View};
use convey_model::{HashOn, Interface, NextHops, Protocol, Timestamp};
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(vip)) = (arguments.next(), arguments.next()) else {
        return Err("usage: pcap FILE VIP:PORT".into());
    };
    // The balancer's only link, with the servers 10.0.0.1 to 10.0.0.3 on it.
    let eth0 = Interface::ethernet(1, "eth0", [2, 0, 0, 0, 0, 0xfe], vec![[10, 0, 0, 254].into()]);
    let network = NextHops::on_link(eth0, &[1, 2, 3].map(|n| ([10, 0, 0, n].into(), [2, 0, 0, 0, 0, n])));
    let servers = [1, 2, 3].map(|n| Arc::new(Server::new(n.into(), ([10, 0, 0, n], 80).into())));
    let pool = Arc::new(Pool::new(servers.into(), Arc::new(ByHash)));
    let frontend = Frontend::new(1, View::ClientSide, Protocol::Tcp, vip.parse()?, pool);
    let plan = Plan::new(1, vec![Arc::new(frontend)], Arc::new(network));
    let mut forwarder = Forwarder::new(Settings::alone(100_000, 1));
    let mut packets = PcapReader::new(File::open(file)?)?;
    while let Some(packet) = packets.next_packet() {
        let packet = packet?;
        let (mut bytes, now) = (packet.data.to_vec(), Timestamp(packet.timestamp.as_nanos() as u64));
        let headers = parse(&bytes);
        match forwarder.handle_frame(&mut Frame::new(&mut bytes, &headers), &plan, now) {
            Verdict::Transmit(_) => println!("{:?} to {}", headers?.key, parse(&bytes)?.key.dst.ip()),
            verdict => println!("{headers:?}: {verdict:?}"),
        }
    }
    Ok(())
}
