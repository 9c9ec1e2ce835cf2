//! Any bytes as a frame: a frame that parses can be rewritten there and back, cut, renumbered, and
//! answered.

#![no_main]

use convey_model::{Addr, FlowKey, NextHop, Rewrite};
use convey_wire::{
    ANSWER_LEN, Checksum, Headers, IcmpError, Kind, ParseError, Split, icmp_error, is_intact, parse,
    renumber, reset_reply, rewrite, split, update_header_checksum,
};
use libfuzzer_sys::fuzz_target;

const HOP: NextHop =
    NextHop { interface: 1, src_mac: [2; 6], dst_mac: [4; 6], mtu: 1_500, redirect_peer: false };

fuzz_target!(|frame: &[u8]| {
    // Hardly any bytes have the right checksum of an IPv4 header.
    let mut valid = frame.to_vec();
    update_header_checksum(&mut valid);
    let as_it_came = parse(frame);
    let frame = &valid[..];
    let Ok(headers) = parse(frame) else { return assert!(as_it_came.is_err()) };
    assert!(as_it_came == Ok(headers) || as_it_came == Err(ParseError::BadHeaderChecksum));
    let is_intact = is_intact(frame, &headers, Checksum::Complete);
    assert!(is_intact || headers.fragment().is_none(), "nobody can tell of a fragment");
    let ip_len = if headers.is_v4() { 20 } else { 40 };
    assert!(headers.l4 >= headers.l3 + ip_len && headers.end >= headers.l4 && headers.end <= frame.len());
    there_and_back(frame, &headers, Checksum::Complete);
    if headers.kind == Kind::Whole {
        there_and_back(frame, &headers, Checksum::Partial);
    }
    number_anew(frame, &headers);
    cut(frame, &headers);
    answer(frame, &headers);
});

fn there_and_back(frame: &[u8], headers: &Headers, checksum: Checksum) {
    if headers.ttl <= 2 {
        return;
    }
    let mut rewritten = frame.to_vec();
    let forwarded = elsewhere(headers);
    rewrite(&mut rewritten, headers, &to(&forwarded), &HOP, checksum);
    let there = Headers { key: forwarded, ttl: headers.ttl - 1, ..*headers };
    assert_eq!(parse(&rewritten), Ok(there));

    rewrite(&mut rewritten, &there, &to(&headers.key), &HOP, checksum);
    assert_eq!(parse(&rewritten), Ok(Headers { ttl: headers.ttl - 2, ..*headers }));
    let new = changed(headers);
    for (at, (before, after)) in frame.iter().zip(&rewritten).enumerate() {
        assert!(at < 12 || new.contains(&at) || before == after, "byte {at}");
    }
}

/// Positions of bytes that differ after the way there and back: hops, checksums that may come back
/// as the other zero, and the source of an error, which becomes an address of the quoted
/// packet.
fn changed(headers: &Headers) -> Vec<usize> {
    let Headers { l3, l4, .. } = *headers;
    let ip = |l3: usize| if headers.is_v4() { vec![l3 + 10, l3 + 11] } else { vec![] };
    let checksum = |l4: usize| if headers.is_tcp() { [l4 + 16, l4 + 17] } else { [l4 + 6, l4 + 7] };
    let hop = if headers.is_v4() { l3 + 8 } else { l3 + 7 };
    let mut changed = [vec![hop], ip(l3)].concat();
    match headers.kind {
        Kind::Error { l3: quoted, l4: transport } => {
            let source = if headers.is_v4() { l3 + 12..l3 + 16 } else { l3 + 8..l3 + 24 };
            changed.extend(source);
            changed.extend([l4 + 2, l4 + 3]);
            changed.extend(ip(quoted.into()));
            changed.extend(checksum(transport.into()));
        }
        Kind::LaterFragment { .. } => {}
        _ => changed.extend(checksum(l4)),
    }
    changed
}

/// Other addresses of the family; ports if there are any.
fn elsewhere(headers: &Headers) -> FlowKey {
    let [src, dst] = match headers.is_v4() {
        true => [[192, 0, 2, 1], [192, 0, 2, 2]].map(Addr::v4),
        false => [[0xfd; 16], [0xfe; 16]].map(Addr::v6),
    };
    let (src_port, dst_port) =
        if let Kind::LaterFragment { .. } = headers.kind { (0, 0) } else { (40_000, 8_080) };
    FlowKey { src, dst, src_port, dst_port, ..headers.key }
}

fn number_anew(frame: &[u8], headers: &Headers) {
    let mut numbered = frame.to_vec();
    renumber(&mut numbered, headers, 0x1234);
    let Some(fragment) = headers.fragment() else { return assert_eq!(numbered, frame) };
    let id = if headers.is_v4() { 0x1234 } else { fragment.id & 0xffff_0000 | 0x1234 };
    let read = parse(&numbered).expect("still a fragment");
    assert_eq!(read.fragment().map(|fragment| fragment.id), Some(id));
    assert_eq!((read.key, read.l4, read.end), (headers.key, headers.l4, headers.end));
}

fn cut(frame: &[u8], headers: &Headers) {
    let mtu = 68 + 4 * usize::from(frame[0]);
    if !headers.is_v4() || headers.dont_fragment || headers.packet_len() <= mtu {
        return;
    }
    let offset = |frame: &[u8]| usize::from(u16::from_be_bytes([frame[20] & 0x1f, frame[21]])) * 8;
    let (begin, mut carried) = (offset(frame), Vec::new());
    let how = Split { checksum: Checksum::Complete, mtu, id: None };
    split(&mut frame.to_vec(), headers, how, |fragment| {
        assert!(fragment.len() <= 14 + mtu);
        assert_eq!(offset(fragment), begin + carried.len());
        carried.extend_from_slice(&fragment[headers.l4..]);
    });
    assert_eq!(carried, frame[headers.l4..headers.end]);
}

fn answer(frame: &[u8], headers: &Headers) {
    if headers.is_error() || matches!(headers.kind, Kind::LaterFragment { .. }) {
        return;
    }
    let mut answer = Vec::with_capacity(ANSWER_LEN);
    if headers.is_tcp() && !headers.flags.rst() {
        reset_reply(frame, headers, &mut answer);
        let read = parse(&answer).expect("a reset is a packet");
        assert!(read.flags.rst() && read.key == headers.key.reversed());
    }
    let from = elsewhere(headers).src;
    for error in [IcmpError::PortUnreachable, IcmpError::TimeExceeded, IcmpError::TooBig { mtu: 1_280 }] {
        icmp_error(frame, headers, error, from, &mut answer);
        assert!(answer.len() <= ANSWER_LEN);
        // Extension headers may be so long that the quote has nothing after them.
        if headers.l4 + 8 <= headers.l3 + 1_280 - 48 {
            let read = parse(&answer).expect("an error is a packet");
            assert!(read.is_error());
            assert_eq!((read.key, read.seq), (headers.key.reversed(), headers.seq));
        }
    }
}

fn to(key: &FlowKey) -> Rewrite {
    Rewrite { src: key.src, dst: key.dst, src_port: key.src_port, dst_port: key.dst_port, next_hop: 0 }
}
