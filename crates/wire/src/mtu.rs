//! Path MTU fields: the MTU in ICMP errors, and "don't fragment" and ID in IPv4 headers.

use super::answer::IcmpError;
use super::checksum::Delta;
use super::fields::{icmp, ipv4, put_u16, u16_at, u32_at};
use super::headers::Headers;

/// MTU in bytes that an ICMP error reports ("fragmentation needed", "packet too big"). `None` for
/// other errors. A router that does not know the MTU reports 0 (RFC 1191, section 4).
///
/// # Panics
/// If `headers` were not parsed from `frame`, or `frame` is no ICMP error.
pub fn reported_mtu(frame: &[u8], headers: &Headers) -> Option<u32> {
    let is_v4 = headers.is_v4();
    let message = &frame[headers.l4..headers.end];
    let too_big = IcmpError::TooBig { mtu: 0 };
    let mtu = || if is_v4 { u16_at(message, icmp::MTU).into() } else { u32_at(message, icmp::MTU_V6) };
    (message[..2] == too_big.numbers(is_v4)).then(mtu)
}

/// Clears "don't fragment" in an IPv4 packet, and updates the header checksum.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn allow_cutting(frame: &mut [u8], headers: &Headers) {
    let ip = &mut frame[headers.l3..headers.l4];
    let field = u16_at(ip, ipv4::FRAGMENT);
    let cleared = field & !ipv4::DONT_FRAGMENT;
    let checksum = Delta::default().replace_u16(field, cleared).apply(u16_at(ip, ipv4::CHECKSUM));
    put_u16(ip, ipv4::FRAGMENT, cleared);
    put_u16(ip, ipv4::CHECKSUM, checksum);
}

/// Sets the ID of an IPv4 packet, and updates the header checksum.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn set_number(frame: &mut [u8], headers: &Headers, number: u16) {
    let ip = &mut frame[headers.l3..headers.l4];
    let delta = Delta::default().replace_u16(u16_at(ip, ipv4::ID), number);
    let checksum = delta.apply(u16_at(ip, ipv4::CHECKSUM));
    put_u16(ip, ipv4::ID, number);
    put_u16(ip, ipv4::CHECKSUM, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestPacket, icmp_error, parse};

    #[test]
    fn mtu_is_read_from_too_big_errors_only() {
        for (from, to) in [("10.0.0.1:80", "198.51.100.1:5000"), ("[fd00::1]:80", "[2001:db8::1]:5000")] {
            for (error, told) in [
                (IcmpError::TooBig { mtu: 0 }, Some(0)),
                (IcmpError::TooBig { mtu: 68 }, Some(68)),
                (IcmpError::TooBig { mtu: 9_000 }, Some(9_000)),
                (IcmpError::PortUnreachable, None),
                (IcmpError::TimeExceeded, None),
            ] {
                let about = TestPacket::from(from).to(to).payload(&[7; 100]).bytes();
                let (headers, mut frame) = (parse(&about).unwrap(), Vec::new());
                icmp_error(&about, &headers, error, headers.key.dst, &mut frame);
                assert_eq!(reported_mtu(&frame, &parse(&frame).unwrap()), told);
            }
        }
    }

    #[test]
    fn a_packet_with_another_number_is_the_same_else() {
        let packet = TestPacket::from("10.0.0.1:80").to("198.51.100.1:5000").payload(b"abc");
        let numbered = |id| packet.clone().may_be_cut(id).bytes();
        let mut frame = numbered(65_535);
        let headers = parse(&frame).unwrap();
        set_number(&mut frame, &headers, 7);
        assert_eq!(frame, numbered(7));
    }

    #[test]
    fn a_packet_that_must_not_be_cut_may_be_afterwards() {
        let packet = || TestPacket::from("10.0.0.1:80").to("198.51.100.1:5000").payload(b"abc");
        let (mut frame, may) = (packet().bytes(), packet().may_be_cut(0).bytes());
        let headers = parse(&frame).unwrap();
        assert!(headers.dont_fragment);
        allow_cutting(&mut frame, &headers);
        assert_eq!(frame, may);
    }
}
