//! The additional fields of version 2: type, length, value (section 2.2).

use crate::Fault;
use crate::checksum::crc32c;

/// `PP2_TYPE_CRC32C`
const CHECKSUM: u8 = 0x03;

/// Checks the fields of a header, which begin at `begin`: each ends within it, and a checksum is right.
pub(super) fn check(header: &[u8], begin: usize) -> Result<(), Fault> {
    match checksum_at(header, begin)? {
        Some(at) if header[at..at + 4] != sum(header, at) => Err(Fault::Checksum),
        _ => Ok(()),
    }
}

/// Puts the checksum right, if the header has one.
pub(super) fn renew_checksum(header: &mut [u8], begin: usize) {
    if let Ok(Some(at)) = checksum_at(header, begin) {
        let sum = sum(header, at);
        header[at..at + 4].copy_from_slice(&sum);
    }
}

/// Where the value of the checksum begins.
fn checksum_at(header: &[u8], begin: usize) -> Result<Option<usize>, Fault> {
    let (mut at, mut found) = (begin, None);
    while at < header.len() {
        let Some([kind, high, low]) = header[at..].first_chunk() else { return Err(Fault::Tlv) };
        let value = at + 3;
        at = value + usize::from(u16::from_be_bytes([*high, *low]));
        let is_right = at <= header.len() && (*kind != CHECKSUM || found.is_none() && at == value + 4);
        if !is_right {
            return Err(Fault::Tlv);
        }
        found = if *kind == CHECKSUM { Some(value) } else { found };
    }
    Ok(found)
}

/// Over the whole header, its own place being zero.
fn sum(header: &[u8], at: usize) -> [u8; 4] {
    crc32c([&header[..at], &[0; 4], &header[at + 4..]]).to_be_bytes()
}
