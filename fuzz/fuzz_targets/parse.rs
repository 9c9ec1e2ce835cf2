//! Any bytes as a frame: what parses can be rewritten there and back, and answered.

#![no_main]

use convey::model::{FlowKey, NextHop, Rewrite};
use convey::wire::{Checksum, Headers, RESET_LEN, parse, reset_reply, rewrite};
use libfuzzer_sys::fuzz_target;

const HOP: NextHop = NextHop { interface: 1, src_mac: [2; 6], dst_mac: [4; 6], mtu: 1_500 };

fuzz_target!(|frame: &[u8]| {
    let Ok(headers) = parse(frame) else { return };
    assert!(headers.l4 >= headers.l3 + 20 && headers.end >= headers.l4 + 20 && headers.end <= frame.len());
    there_and_back(frame, &headers, Checksum::Complete);
    there_and_back(frame, &headers, Checksum::Partial);
    answer(frame, &headers);
});

fn there_and_back(frame: &[u8], headers: &Headers, checksum: Checksum) {
    if headers.ttl <= 2 {
        return;
    }
    let mut rewritten = frame.to_vec();
    let forwarded = FlowKey::tcp(([192, 0, 2, 1], 40_000).into(), ([192, 0, 2, 2], 8_080).into());
    rewrite(&mut rewritten, headers, &to(&forwarded), &HOP, checksum);
    let there = Headers { key: forwarded, ttl: headers.ttl - 1, ..*headers };
    assert_eq!(parse(&rewritten), Ok(there));

    rewrite(&mut rewritten, &there, &to(&headers.key), &HOP, checksum);
    assert_eq!(parse(&rewritten), Ok(Headers { ttl: headers.ttl - 2, ..*headers }));
    for (at, (before, after)) in frame.iter().zip(&rewritten).enumerate() {
        // Link addresses and TTL are new; a checksum may come back as the other zero.
        let is_new = at < 12
            || [headers.l3 + 8, headers.l3 + 10, headers.l3 + 11].contains(&at)
            || [headers.l4 + 16, headers.l4 + 17].contains(&at);
        assert!(is_new || before == after, "byte {at}");
    }
}

fn answer(frame: &[u8], headers: &Headers) {
    if headers.flags.rst() {
        return;
    }
    let mut reply = frame.to_vec();
    assert_eq!(reset_reply(&mut reply, headers), RESET_LEN);
    let read = parse(&reply[..RESET_LEN]).expect("a reset is a packet");
    assert!(read.flags.rst() && read.key == headers.key.reversed());
    assert_eq!(reply[RESET_LEN..], frame[RESET_LEN..]);
}

fn to(key: &FlowKey) -> Rewrite {
    Rewrite { src: key.src, dst: key.dst, src_port: key.src_port, dst_port: key.dst_port, next_hop: 0 }
}
