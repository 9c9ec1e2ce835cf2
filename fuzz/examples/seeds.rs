//! Writes packets to begin from into the corpus of every target.

use std::{fs, io};

use convey::wire::TcpPacket;

fn main() -> io::Result<()> {
    let packet = || TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").seq(7);
    let mut padded = packet().syn().bytes();
    padded.resize(60, 0);
    let mut fragment = packet().ack(8).payload(b"hello").bytes();
    fragment[20] = 0x20;
    let mut udp = packet().bytes();
    udp[23] = 17;
    let seeds = [
        ("syn", packet().syn().tcp_options(&[2, 4, 5, 180, 4, 2, 8, 10]).bytes()),
        ("syn-ack", packet().syn().ack(8).bytes()),
        ("data", packet().ack(8).psh().payload(b"GET / HTTP/1.1\r\n\r\n").bytes()),
        ("fin", packet().ack(8).fin().bytes()),
        ("rst", packet().rst().bytes()),
        ("partial", packet().ack(8).payload(b"odd").partial().bytes()),
        ("ip-options", packet().ack(8).ip_options(&[7, 7, 4, 0, 0, 0, 0]).payload(b"hello").bytes()),
        ("last-hop", packet().ack(8).ttl(1).bytes()),
        ("padded", padded),
        ("fragment", fragment),
        ("udp", udp),
    ];
    for target in ["parse"] {
        let corpus = format!("{}/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        fs::create_dir_all(&corpus)?;
        for (name, frame) in &seeds {
            fs::write(format!("{corpus}/{name}"), frame)?;
        }
    }
    Ok(())
}
