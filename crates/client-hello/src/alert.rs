//! What a client is told whose hello leads nowhere (RFC 8446 6.2). Pure.

use super::HelloFault;

/// A fatal alert, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HelloAlert {
    /// Another message than a ClientHello.
    UnexpectedMessage = 10,
    /// A record that is too long.
    RecordOverflow = 22,
    /// A field that fits, with a value that does not.
    IllegalParameter = 47,
    /// A message that cannot be read.
    DecodeError = 50,
    /// A version that nobody speaks.
    ProtocolVersion = 70,
    /// A server name that nobody has (RFC 6066 3).
    UnrecognizedName = 112,
    /// No protocol that the server speaks, too (RFC 7301 3.2).
    NoApplicationProtocol = 120,
}

impl HelloAlert {
    /// The record that says so, before keys and a version are agreed on.
    pub fn record(self) -> [u8; 7] {
        const ALERT: u8 = 21;
        const FATAL: u8 = 2;
        [ALERT, 3, 3, 0, 2, FATAL, self as u8]
    }
}

impl HelloFault {
    /// What a client is told of it.
    pub fn alert(self) -> HelloAlert {
        match self {
            HelloFault::Interleaved | HelloFault::EmptyRecord | HelloFault::OtherMessage => {
                HelloAlert::UnexpectedMessage
            }
            HelloFault::RecordTooLong => HelloAlert::RecordOverflow,
            HelloFault::Version => HelloAlert::ProtocolVersion,
            HelloFault::DoubleExtension | HelloFault::ServerName => HelloAlert::IllegalParameter,
            HelloFault::TooManyRecords | HelloFault::TooLong | HelloFault::Trailing | HelloFault::Length => {
                HelloAlert::DecodeError
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_is_a_record_of_two_bytes() {
        assert_eq!(HelloAlert::UnrecognizedName.record(), *b"\x15\x03\x03\x00\x02\x02\x70");
        assert_eq!(HelloAlert::NoApplicationProtocol.record()[6], 120);
        assert_eq!(HelloFault::Length.alert().record()[6], 50);
    }
}
