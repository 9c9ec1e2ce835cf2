//! Internet checksum (RFC 1071): the complement of the ones' complement sum of all 16-bit words.
//!
//! Ones' complement has two representations of zero, 0x0000 and 0xffff. The sum is 0x0000 only if
//! all words are zero, so a computed checksum is never 0xffff. Updates by equation 3 of RFC 1624
//! preserve this property.

use super::fields::{icmp, put_u16, u16_at, udp};
use super::headers::{Headers, Kind};
use super::parse::{IpAddresses, addresses};
use convey_model::{Addr, FlowKey, Rewrite, UDP};

/// State of the TCP or UDP checksum field in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// The field holds the checksum.
    Complete,
    /// The field holds the sum of the pseudo-header, not complemented. The sender that puts the
    /// frame on a wire must add the segment (Linux: `CHECKSUM_PARTIAL`; virtio:
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    Partial,
}

/// Change of a checksum when words are replaced.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Delta(u64);

impl Delta {
    /// Adds the replacement of the word `old` by `new`.
    #[inline]
    pub(super) fn replace_u16(self, old: u16, new: u16) -> Delta {
        Delta(self.0 + u64::from(!old) + u64::from(new))
    }

    /// Adds the replacement of two adjacent words. The carry out of the lower word is folded in
    /// later.
    #[inline]
    pub(super) fn replace_u32(self, old: u32, new: u32) -> Delta {
        Delta(self.0 + u64::from(!old) + u64::from(new))
    }

    /// Adds the replacement of an address. For IPv4, only the last four bytes of each address are
    /// included, because the packet contains only these.
    #[inline]
    pub(super) fn replace_addr(self, old: &Addr, new: &Addr, is_v4: bool) -> Delta {
        if is_v4 {
            let word = |addr: &Addr| u32::from_be_bytes(addr.v4_bytes());
            return self.replace_u32(word(old), word(new));
        }
        let words = |addr: &Addr| {
            let [a, b] = addr.words().map(u64::to_be);
            [(a >> 32) as u32, a as u32, (b >> 32) as u32, b as u32]
        };
        words(old).into_iter().zip(words(new)).fold(self, |delta, (old, new)| delta.replace_u32(old, new))
    }

    /// Adds two changes.
    #[inline]
    pub(super) fn and(self, other: Delta) -> Delta {
        Delta(self.0 + other.0)
    }

    /// Returns the checksum after the change (RFC 1624, equation 3).
    #[inline]
    pub(super) fn apply(self, checksum: u16) -> u16 {
        !self.apply_partial(!checksum)
    }

    /// Returns the sum in a [`Checksum::Partial`] field after the change. The change may include
    /// only parts of the pseudo-header: addresses, but not ports.
    #[inline]
    pub(super) fn apply_partial(self, sum: u16) -> u16 {
        fold(self.0 + u64::from(sum))
    }
}

/// Changes of a packet's checksum by a rewrite, as folded sums of the complemented old words and
/// the new words (RFC 1624, equation 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumChanges {
    /// Change that the new addresses cause.
    pub addresses: u16,
    /// Change that the new ports cause.
    pub ports: u16,
}

/// Checksum changes when a packet with this key gets the addresses and ports of `to`.
pub fn checksum_changes(key: &FlowKey, to: &Rewrite) -> ChecksumChanges {
    let is_v4 = key.dst.is_v4();
    let addresses =
        Delta::default().replace_addr(&key.src, &to.src, is_v4).replace_addr(&key.dst, &to.dst, is_v4);
    let ports =
        Delta::default().replace_u16(key.src_port, to.src_port).replace_u16(key.dst_port, to.dst_port);
    ChecksumChanges { addresses: fold(addresses.0), ports: fold(ports.0) }
}

/// Whether the checksum of an IPv4 header is valid: the sum of all its words, including the
/// checksum, is 0xffff (RFC 1071).
#[inline]
pub(super) fn is_header_intact(header: &[u8]) -> bool {
    // The sum has the byte order of its words (RFC 1071, section 2), so native order is enough.
    // Each 32-bit word is two 16-bit words.
    let words = header.chunks_exact(4);
    let sum = words.map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])));
    fold(sum.sum()) == 0xffff
}

/// Computes the checksum of a header whose checksum field is zero.
pub(super) fn header_checksum(header: &[u8]) -> u16 {
    !fold(sum(header))
}

/// Computes the checksum of an IP packet's payload whose checksum field is zero. If the result is
/// zero, the caller must write 0xffff for UDP.
pub(super) fn payload_checksum(src: &Addr, dst: &Addr, protocol: u8, payload: &[u8]) -> u16 {
    !fold(u64::from(pseudo_header_sum(src, dst, protocol, payload.len())) + sum(payload))
}

/// Whether the checksum of the TCP segment, UDP datagram or ICMP error in `frame` is valid. Frames
/// without a checkable checksum count as intact: a fragment, an IPv4 UDP datagram without a
/// checksum, and a packet with a [`Checksum::Partial`] field.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn is_intact(frame: &[u8], headers: &Headers, checksum: Checksum) -> bool {
    let content = &frame[headers.l4..headers.end];
    let IpAddresses { src, dst } = addresses(frame, headers);
    let sum_of = |protocol, content: &[u8]| {
        u64::from(pseudo_header_sum(&src, &dst, protocol, content.len())) + sum(content)
    };
    let total = match headers.kind {
        _ if checksum == Checksum::Partial => return true,
        Kind::FirstFragment { .. } | Kind::LaterFragment { .. } => return true,
        Kind::Error { .. } if headers.is_v4() => sum(content),
        Kind::Error { .. } => sum_of(icmp::V6, content),
        Kind::Whole if headers.key.protocol == UDP => {
            let len = usize::from(u16_at(content, udp::LEN));
            match u16_at(content, udp::CHECKSUM) {
                0 => return headers.is_v4(),
                _ => sum_of(UDP, &content[..len]),
            }
        }
        Kind::Whole => sum_of(headers.key.protocol, content),
    };
    fold(total) == 0xffff
}

/// Sum of the pseudo-header (RFC 9293, section 3.1; RFC 8200, section 8.1), as in a
/// [`Checksum::Partial`] field. For IPv4, only the four bytes of each IPv4 address are included.
pub(super) fn pseudo_header_sum(src: &Addr, dst: &Addr, protocol: u8, payload_len: usize) -> u16 {
    let addresses = match dst.is_v4() {
        true => sum(&src.v4_bytes()) + sum(&dst.v4_bytes()),
        false => sum(src.bytes()) + sum(dst.bytes()),
    };
    fold(addresses + u64::from(protocol) + payload_len as u64)
}

/// Adds the words of `parts` to a sum. All parts except the last must have an even length.
pub(super) fn sum_onto(before: u16, parts: &[&[u8]]) -> u16 {
    fold(parts.iter().map(|part| sum(part)).sum::<u64>() + u64::from(before))
}

/// Completes a [`Checksum::Partial`] field, as the sender that puts the packet on a wire does.
/// `payload` is the payload of the IP packet; `at` is the offset of the field in `payload`.
pub(super) fn complete(payload: &mut [u8], at: usize) {
    let checksum = match !fold(sum(payload)) {
        0 => 0xffff, // UDP takes 0 for none; to TCP both are the same
        checksum => checksum,
    };
    put_u16(payload, at, checksum);
}

/// Sum of the bytes as big-endian words. An odd last byte is the upper half of a word.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    words.map(|word| u64::from(u16_at(word, 0))).sum::<u64>() + last
}

/// Folds a sum to 16 bits: adds the carries until none is left.
#[inline]
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use etherparse::checksum::Sum16BitWords;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksum_update_matches_the_example_of_rfc_1624() {
        // Section 4: HC = 0xdd2f, m = 0x5555, m' = 0x3285. RFC 1141 would give 0xffff.
        assert_eq!(Delta::default().replace_u16(0x5555, 0x3285).apply(0xdd2f), 0x0000);
    }

    #[test]
    fn the_example_of_rfc_1071_adds_up() {
        // Section 3: 0001 f203 f4f5 f6f7 sum up to ddf2.
        assert_eq!(header_checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn checksum_update_handles_both_representations_of_zero() {
        for (old, new) in [(0x0000, 0xffff), (0xffff, 0x0000), (0x0000, 0x0000), (0xffff, 0xffff)] {
            for rest in [0x0001, 0x1234, 0xfffe, 0xffff] {
                let before = header_checksum(&words([rest, old]));
                let after = header_checksum(&words([rest, new]));
                assert_eq!(Delta::default().replace_u16(old, new).apply(before), after);
            }
        }
    }

    #[test]
    fn a_sender_that_writes_the_other_zero_is_still_understood() {
        // 0xffff is never computed, but receivers accept it as they accept 0x0000.
        let updated = Delta::default().replace_u16(0x1111, 0x2222).apply(0xffff);
        assert_eq!(updated, Delta::default().replace_u16(0x1111, 0x2222).apply(0x0000));
    }

    #[test]
    fn empty_delta_leaves_checksums_unchanged() {
        for checksum in [0x0000, 0x0001, 0x8000, 0xfffe, 0xffff] {
            assert_eq!(Delta::default().apply(checksum), checksum);
            assert_eq!(Delta::default().apply_partial(checksum), checksum);
        }
    }

    /// Words that often are one of the two zeros or close to a carry.
    fn word() -> impl Strategy<Value = u16> {
        prop_oneof![Just(0x0000), Just(0x0001), Just(0xfffe), Just(0xffff), any::<u16>()]
    }

    proptest! {
        #[test]
        fn updating_a_checksum_is_the_same_as_computing_it_anew(
            rest in 1..=u16::MAX,
            old in prop::array::uniform3(word()),
            new in prop::array::uniform3(word()),
        ) {
            let delta = Delta::default()
                .replace_u16(old[0], new[0])
                .replace_u32(double(old[1], old[2]), double(new[1], new[2]));
            let before = header_checksum(&words([rest, old[0], old[1], old[2]]));
            let after = header_checksum(&words([rest, new[0], new[1], new[2]]));
            prop_assert_eq!(delta.apply(before), after);
            prop_assert_eq!(delta.apply_partial(!before), !after);
        }

        #[test]
        fn a_computed_checksum_is_what_etherparse_computes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let judge = Sum16BitWords::new().add_slice(&bytes).ones_complement().to_be();
            prop_assert_eq!(header_checksum(&bytes), judge);
        }
    }

    fn words<const N: usize>(words: [u16; N]) -> Vec<u8> {
        words.into_iter().flat_map(u16::to_be_bytes).collect()
    }

    fn double(upper: u16, lower: u16) -> u32 {
        u32::from(upper) << 16 | u32::from(lower)
    }
}
