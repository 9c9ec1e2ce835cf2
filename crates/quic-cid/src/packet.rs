//! Parser for the parts of a packet that are equal in all versions of QUIC.

/// Maximum length of a connection id of QUIC version 1, in bytes (RFC 9000, section 17.2).
const MAX_CID: usize = 20;

/// Bit of the first byte that marks a long header (RFC 8999, section 5.1).
const IS_LONG: u8 = 0x80;

/// Offset of the length of the destination connection id in a long header, after the first byte and
/// the version.
const LONG_LEN_AT: usize = 5;

/// Returns the destination connection id of the first packet in a datagram (RFC 8999, section 5);
/// `None` if the datagram is too short for QUIC. A short header does not contain the length of the
/// connection id. For a short header, the result therefore has up to 20 bytes: the connection id,
/// and possibly bytes that follow it.
pub fn destination(datagram: &[u8]) -> Option<&[u8]> {
    let first = datagram.first()?;
    if first & IS_LONG == 0 {
        let rest = &datagram[1..];
        return Some(&rest[..rest.len().min(MAX_CID)]);
    }
    let len = usize::from(*datagram.get(LONG_LEN_AT)?);
    datagram.get(LONG_LEN_AT + 1..)?.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_is_found_in_long_and_short_headers() {
        let long = |rest: &[u8]| [&[0xc0, 0, 0, 0, 1][..], rest].concat();
        for (datagram, expected) in [
            (long(&[3, 7, 8, 9, 0, 1, 2]), Some(&[7, 8, 9][..])),
            (long(&[0, 5, 6]), Some(&[][..])),
            (long(&[4, 7, 8, 9]), None),
            (long(&[]), None),
            (vec![0xc0, 0, 0], None),
            (vec![0x40, 1, 2, 3], Some(&[1, 2, 3][..])),
            (vec![0x40], Some(&[][..])),
            ([&[0x40][..], &[5; 1_200]].concat(), Some(&[5; 20][..])),
            (vec![], None),
        ] {
            assert_eq!(destination(&datagram), expected, "{datagram:x?}");
        }
    }
}
