//! Server ids, which are part of QUIC connection ids.

use std::fmt;
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};

/// Maximum length of a server id in bytes (draft-ietf-quic-load-balancers-21, section 5.2).
pub const MAX_SERVER_ID: usize = 15;

/// Server id of 1 to 15 bytes, written as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId {
    /// Bytes of the id, padded with zeros.
    bytes: [u8; MAX_SERVER_ID],
    len: u8,
}

/// Parse error of a server id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidServerId;

impl ServerId {
    /// Creates a server id from 1 to 15 bytes. Returns `None` for another number of bytes.
    pub fn new(id: &[u8]) -> Option<ServerId> {
        let mut bytes = [0; MAX_SERVER_ID];
        bytes.get_mut(..id.len()).filter(|bytes| !bytes.is_empty())?.copy_from_slice(id);
        Some(ServerId { bytes, len: id.len() as u8 })
    }

    /// Bytes of the id.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len()]
    }

    /// Length in bytes: never 0.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }
}

impl FromStr for ServerId {
    type Err = InvalidServerId;

    fn from_str(text: &str) -> Result<ServerId, InvalidServerId> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok();
        bytes.and_then(|bytes| ServerId::new(&bytes)).ok_or(InvalidServerId)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(self.bytes()))
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InvalidServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a server id is 2 to 30 hexadecimal digits, two for each byte")
    }
}

impl std::error::Error for InvalidServerId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_in_pairs_of_hexadecimal_digits() {
        for text in ["01", "ed793a51d49b8f5f", "00112233445566778899aabbccddee"] {
            assert_eq!(text.parse::<ServerId>().map(|id| id.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("ED79".parse::<ServerId>(), "ed79".parse());
        assert_ne!("01".parse::<ServerId>(), "0100".parse());
        for text in ["", "1", "0x01", "+1", "zz", "é1", "00112233445566778899aabbccddeeff"] {
            assert_eq!(text.parse::<ServerId>(), Err(InvalidServerId), "{text}");
        }
    }
}
