//! Frames of HTTP/2 (RFC 9113, section 4) on a plain connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// The first bytes of a client.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;

/// A GET and a POST for the path `/` of the host `a`.
pub(super) const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
pub(super) const POST: &[u8] = b"\x83\x86\x84\x41\x01a";

/// A frame: its type, flags, stream and payload.
pub(super) type Frame = (u8, u8, u32, Vec<u8>);

/// Bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub(super) fn send(stream: &mut TcpStream, (kind, flags, id, payload): (u8, u8, u32, &[u8])) {
    stream.write_all(&frame(kind, flags, id, payload)).unwrap();
}

pub(super) fn receive(stream: &mut TcpStream) -> io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [a, b, c, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload)?;
    Ok((kind, flags, u32::from_be_bytes(id), payload))
}
