//! CRC32C (RFC 4960, appendix B), which a header of version 2 may have (section 2.2.3).

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The checksum of these bytes in a row.
pub(super) fn crc32c(parts: [&[u8]; 3]) -> u32 {
    let bytes = parts.into_iter().flatten();
    !bytes.fold(!0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let (mut crc, mut bit) = (n as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { POLYNOMIAL ^ crc >> 1 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_of_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c([&[0; 32], &[], &[]]), 0x8a91_36aa);
        assert_eq!(crc32c([&ascending[..5], &ascending[5..9], &ascending[9..]]), 0x46dd_794e);
        assert_eq!(crc32c([b"123", b"456", b"789"]), 0xe306_9283);
    }
}
