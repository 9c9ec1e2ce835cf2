//! Balances the frames of a pcap file over three servers by direct server return, and prints the
//! server of each: `cargo run -p convey-forward --example pcap -- FILE 192.0.2.1:80`.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write, stdout};
use std::net::SocketAddr;

use convey_forward::{Forwarder, Frame, Plan, Settings, Verdict, View};
use convey_model::{Interface, NextHops, Protocol, Timestamp};
use convey_wire::parse;
use pcap_file::pcap::PcapReader;

fn main() -> Result<(), Box<dyn Error>> {
    match &std::env::args().collect::<Vec<_>>()[..] {
        [_, file, vip] => balance(File::open(file)?, vip.parse()?, stdout()),
        _ => Err("usage: pcap FILE VIP:PORT".into()),
    }
}

fn balance(pcap: impl Read, vip: SocketAddr, mut out: impl Write) -> Result<(), Box<dyn Error>> {
    // The only link of the balancer, with the servers 10.0.0.1 to 10.0.0.3.
    let eth0 = Interface::ethernet(1, "eth0", [2, 0, 0, 0, 0, 0xfe], vec![[10, 0, 0, 254].into()]);
    let network = NextHops::on_link(eth0, &[1, 2, 3].map(|n| ([10, 0, 0, n].into(), [2, 0, 0, 0, 0, n])));
    let servers = [1, 2, 3].map(|n| ([10, 0, 0, n], 80).into());
    let plan = Plan::balancing(View::ClientSide, Protocol::Tcp, vip, &servers, network);
    let mut forwarder = Forwarder::new(Settings::alone(100_000, 1));
    let mut packets = PcapReader::new(pcap)?;
    while let Some(packet) = packets.next_packet() {
        let packet = packet?;
        let (mut bytes, now) = (packet.data.to_vec(), Timestamp(packet.timestamp.as_nanos() as u64));
        let headers = parse(&bytes);
        match forwarder.handle_frame(&mut Frame::new(&mut bytes, &headers), &plan, now) {
            Verdict::Transmit(_) => writeln!(out, "{:?} to {}", headers?.key, parse(&bytes)?.key.dst.ip())?,
            verdict => writeln!(out, "{headers:?}: {verdict:?}")?,
        }
    }
    Ok(())
}
