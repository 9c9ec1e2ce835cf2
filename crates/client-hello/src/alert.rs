//! TLS alerts for clients whose ClientHello is refused (RFC 8446 6.2). Pure.

use super::HelloFault;

/// Fatal TLS alert, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HelloAlert {
    /// The first message is not a ClientHello.
    UnexpectedMessage = 10,
    /// A record is too long.
    RecordOverflow = 22,
    /// A field has a valid length, but an invalid value.
    IllegalParameter = 47,
    /// A message cannot be parsed.
    DecodeError = 50,
    /// The version is not supported.
    ProtocolVersion = 70,
    /// No server serves the requested server name (RFC 6066 3).
    UnrecognizedName = 112,
    /// The server supports none of the client's protocols (RFC 7301 3.2).
    NoApplicationProtocol = 120,
}

impl HelloAlert {
    /// Returns an unencrypted TLS record with this alert, to send before the peers have agreed on a
    /// version and keys.
    pub fn record(self) -> [u8; 7] {
        const ALERT: u8 = 21;
        const FATAL: u8 = 2;
        [ALERT, 3, 3, 0, 2, FATAL, self as u8]
    }
}

impl HelloFault {
    /// Returns the alert to send to the client after this fault.
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
