//! Additional fields of version 2: type, length, value (section 2.2).

use crc::{CRC_32_ISCSI, Crc, Table};

use crate::HeaderFault;

/// `PP2_TYPE_CRC32C`
const CHECKSUM: u8 = 0x03;

/// CRC32C (RFC 4960, appendix B; section 2.2.3).
const CRC32C: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);

/// Checks the fields of a header, which begin at `begin`: each ends within the header, and the
/// checksum is right.
pub(super) fn check(header: &[u8], begin: usize) -> Result<(), HeaderFault> {
    match checksum_at(header, begin)? {
        Some(at) if header[at..at + 4] != sum(header, at) => Err(HeaderFault::Checksum),
        _ => Ok(()),
    }
}

/// Corrects the checksum, if the header has one.
pub(super) fn renew_checksum(header: &mut [u8], begin: usize) {
    if let Ok(Some(at)) = checksum_at(header, begin) {
        let sum = sum(header, at);
        header[at..at + 4].copy_from_slice(&sum);
    }
}

/// Offset of the checksum's value.
fn checksum_at(header: &[u8], begin: usize) -> Result<Option<usize>, HeaderFault> {
    let (mut at, mut found) = (begin, None);
    while at < header.len() {
        let Some([kind, high, low]) = header[at..].first_chunk() else { return Err(HeaderFault::Tlv) };
        let value = at + 3;
        at = value + usize::from(u16::from_be_bytes([*high, *low]));
        let is_right = at <= header.len() && (*kind != CHECKSUM || found.is_none() && at == value + 4);
        if !is_right {
            return Err(HeaderFault::Tlv);
        }
        found = if *kind == CHECKSUM { Some(value) } else { found };
    }
    Ok(found)
}

/// Checksum over the whole header, with the checksum's own bytes as zero.
fn sum(header: &[u8], at: usize) -> [u8; 4] {
    let mut digest = CRC32C.digest();
    [&header[..at], &[0; 4], &header[at + 4..]].into_iter().for_each(|part| digest.update(part));
    digest.finalize().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides compute it alike, so a wrong one would go unnoticed elsewhere: RFC 3720, appendix
    /// B.4.
    #[test]
    fn the_checksum_is_crc32c() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(CRC32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(&ascending), 0x46dd_794e);
        assert_eq!(sum(&[0; 32], 28), 0x8a91_36aa_u32.to_be_bytes());
    }
}
