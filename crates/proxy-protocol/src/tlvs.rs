//! Additional fields (TLVs) of a version 2 header: type, length, value (section 2.2).

use crc::{CRC_32_ISCSI, Crc, Table};

use crate::HeaderFault;

/// Type of the field with the checksum (`PP2_TYPE_CRC32C`).
const CHECKSUM: u8 = 0x03;

/// CRC32C, the algorithm of the checksum (section 2.2.3; RFC 4960, appendix B).
const CRC32C: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);

/// Checks the fields of a header; the first field begins at offset `begin`. Each field must end
/// within the header, and the checksum must be correct if there is one.
pub(super) fn check(header: &[u8], begin: usize) -> Result<(), HeaderFault> {
    match checksum_at(header, begin)? {
        Some(at) if header[at..at + 4] != sum(header, at) => Err(HeaderFault::Checksum),
        _ => Ok(()),
    }
}

/// Computes the checksum of a header again, if the header has one.
pub(super) fn renew_checksum(header: &mut [u8], begin: usize) {
    if let Ok(Some(at)) = checksum_at(header, begin) {
        let sum = sum(header, at);
        header[at..at + 4].copy_from_slice(&sum);
    }
}

/// Returns the offset of the checksum's value; `None` if the header has no checksum.
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

/// Computes the checksum over the whole header. The four bytes of the checksum itself, at offset
/// `at`, count as zeros.
fn sum(header: &[u8], at: usize) -> [u8; 4] {
    let mut digest = CRC32C.digest();
    [&header[..at], &[0; 4], &header[at + 4..]].into_iter().for_each(|part| digest.update(part));
    digest.finalize().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the test vectors of RFC 3720, appendix B.4. Other tests would not notice a
    /// wrong algorithm, because they use it for both sides.
    #[test]
    fn the_checksum_is_crc32c() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(CRC32C.checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(CRC32C.checksum(&ascending), 0x46dd_794e);
        assert_eq!(sum(&[0; 32], 28), 0x8a91_36aa_u32.to_be_bytes());
    }
}
