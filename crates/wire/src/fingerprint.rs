//! Fingerprint of a packet that begins a flow; forwarding leaves the fingerprint unchanged.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::fields::{ETHERNET_LEN, TCP_LEN, UDP_LEN, ipv4, ipv6, u16_at, u32_at};
use super::headers::Headers;

/// Number of payload bytes of a datagram that the fingerprint covers.
const PAYLOAD: usize = 64;

/// TCP option with the sender's timestamp (RFC 7323, section 3.2), and the two options without a
/// length.
const TIMESTAMPS: u8 = 8;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;

/// Fingerprint by which convey recognises a packet that arrives again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// Hash of fields that forwarding does not change.
    pub hash: u64,
    /// Whether the fingerprint identifies the packet. Otherwise other packets with equal contents
    /// may have the same fingerprint.
    pub is_unique: bool,
}

/// Computes the fingerprint of a packet that begins a flow, from fields that forwarding does not
/// change. Returns `None` if the frame is too short.
///
/// - TCP: sequence numbers, flags, window and options. The fingerprint is unique if the options
///   contain a timestamp. Without one, many segments may share a fingerprint: small stacks (lwIP)
///   begin all connections after a power cut with the same sequence numbers.
/// - UDP: the source network, the beginning of the payload, and the IPv4 ID or IPv6 flow label. The
///   fingerprint is unique for IPv4 with a nonzero ID. In IPv6, all datagrams of a flow share a
///   flow label (RFC 6437).
pub fn fingerprint(frame: &[u8], headers: &Headers, seed: u64) -> Option<Fingerprint> {
    let l4 = frame.get(headers.l4..)?;
    if headers.is_tcp() {
        let len = usize::from(l4.get(12)? >> 4) * 4;
        let (numbers, options) = (l4.get(4..16)?, l4.get(TCP_LEN..len).unwrap_or_default());
        let of_numbers = xxh3_64_with_seed(numbers, seed);
        let is_unique = has_timestamps(options);
        return Some(Fingerprint { hash: xxh3_64_with_seed(options, of_numbers), is_unique });
    }
    let ip = frame.get(ETHERNET_LEN..)?;
    let number = match headers.is_v4() {
        true => u32::from(u16_at(ip, ipv4::ID)),
        false => u32_at(ip, ipv6::VERSION) & 0xf_ffff,
    };
    let payload = l4.get(UDP_LEN..).unwrap_or_default();
    let payload = &payload[..payload.len().min(PAYLOAD).min(headers.payload_len.into())];
    let of_payload = xxh3_64_with_seed(payload, seed ^ (u64::from(number) << 32) ^ payload.len() as u64);
    // The source network: a /24 of IPv4 (whose address is in the last four bytes), or a /64 of
    // IPv6.
    let network = &headers.key.src.bytes()[..if headers.is_v4() { 15 } else { 8 }];
    Some(Fingerprint {
        hash: xxh3_64_with_seed(network, of_payload),
        is_unique: headers.is_v4() && number != 0,
    })
}

fn has_timestamps(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        options = match *kind {
            TIMESTAMPS => return true,
            END_OF_OPTIONS => return false,
            NO_OPERATION => rest,
            _ => {
                let len = rest.first().map_or(2, |len| usize::from(*len).max(2));
                options.get(len..).unwrap_or_default()
            }
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestPacket, parse, update_header_checksum};

    #[test]
    fn segments_without_a_time_stamp_are_no_proof_of_a_loop() {
        let is_unique = |options: &[u8]| {
            let frame =
                TestPacket::from("192.0.2.1:4000").to("10.0.0.1:80").syn().tcp_options(options).bytes();
            fingerprint(&frame, &parse(&frame).unwrap(), 7).unwrap().is_unique
        };
        assert!(is_unique(&[2, 4, 5, 180, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0]));
        for options in [
            &[][..],
            &[2, 4, 5, 180],
            &[0, 8, 10, 0],
            &[1, 1, 1, 1],
            &[2, 8, 8, 8, 8, 8, 8, 8],
            &[3, 0, 3, 0],
        ] {
            assert!(!is_unique(options), "{options:?}");
        }
    }

    #[test]
    fn fingerprint_differs_between_clients_of_different_networks() {
        let of = |client: &str| {
            let mut frame = TestPacket::from(client).to("10.0.0.1:8125").udp().payload(b"up:1|c").bytes();
            frame[ETHERNET_LEN + ipv4::ID..][..2].copy_from_slice(&[0x12, 0x34]);
            update_header_checksum(&mut frame);
            fingerprint(&frame, &parse(&frame).unwrap(), 7).unwrap()
        };
        assert!(of("192.0.2.1:4000").is_unique);
        assert_eq!(of("192.0.2.1:4000"), of("192.0.2.9:5000"));
        assert_ne!(of("192.0.2.1:4000"), of("198.51.100.1:4000"));
    }
}
