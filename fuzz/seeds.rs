//! Writes packets to begin from into the corpus of every target.

use std::fmt::Display;
use std::{fs, io};

use convey::wire::{TcpFlags, TcpPacket};

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
    write("parse", &seeds)?;

    // As `handle_frame` reads it: the mode; then what happens (0: a client's packet, 3: a server's, 6: time
    // passes, 7: any bytes), who, flags, a number.
    let handshake = [[0, 1, SYN, 0], [3, 0, SYN | ACK, 1], [0, 1, ACK, 1]];
    let close = [[0, 1, FIN | ACK, 1], [3, 0, FIN | ACK, 2], [0, 1, ACK, 2], [6, 255, 255, 2]];
    let connection = [&handshake[..], &close, &handshake].concat().concat();
    let reset = [&handshake[..], &[[3, 0, RST, 0], [0, 1, ACK, 9]]].concat().concat();
    let flood = (0..12).map(|n| [0, n, SYN, 0]).collect::<Vec<_>>().concat();
    let other = [&[7, 1, 0, seeds[5].1.len() as u8], &seeds[5].1[..]].concat();
    let stories = [("connection", connection), ("reset", reset), ("flood", flood), ("other", other)];
    for (mode, prefix) in [(0, "passthrough"), (1, "dsr")] {
        let seeds =
            stories.clone().map(|(name, steps)| (format!("{prefix}-{name}"), [&[mode], &steps[..]].concat()));
        write("handle_frame", &seeds)?;
    }
    Ok(())
}

const FIN: u8 = TcpFlags::FIN;
const SYN: u8 = TcpFlags::SYN;
const RST: u8 = TcpFlags::RST;
const ACK: u8 = TcpFlags::ACK;

fn write(target: &str, seeds: &[(impl Display, Vec<u8>)]) -> io::Result<()> {
    let corpus = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(&corpus)?;
    seeds.iter().try_for_each(|(name, bytes)| fs::write(format!("{corpus}/{name}"), bytes))
}
