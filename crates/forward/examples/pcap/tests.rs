use std::time::Duration;

use convey_wire::TestPacket;
use pcap_file::pcap::{PcapPacket, PcapWriter};

use super::*;

#[test]
fn packets_of_a_connection_go_to_one_server() {
    let mut file = PcapWriter::new(Vec::new()).unwrap();
    let from = |client| TestPacket::from(client).to("192.0.2.1:80");
    let elsewhere = TestPacket::from("203.0.113.9:4242").to("192.0.2.2:80");
    let packets = [
        from("203.0.113.9:4242").syn(),
        from("203.0.113.9:4242").seq(1).ack(1),
        elsewhere.syn(),
        from("203.0.113.10:4242").syn(),
    ];
    for (second, packet) in (1..).zip(&packets) {
        let bytes = packet.bytes();
        let packet = PcapPacket::new(Duration::from_secs(second), bytes.len() as u32, &bytes);
        file.write_packet(&packet).unwrap();
    }
    let mut out = Vec::new();
    balance(&file.into_writer()[..], "192.0.2.1:80".parse().unwrap(), &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), packets.len(), "{out}");
    let server = |line: usize| lines[line].rsplit_once(" to ").unwrap().1;
    assert!(["10.0.0.1", "10.0.0.2", "10.0.0.3"].contains(&server(0)), "{out}");
    assert_eq!(server(0), server(1));
    assert!(lines[2].ends_with(": Pass"), "{out}");
    assert!(server(3).starts_with("10.0.0."), "{out}");
}
