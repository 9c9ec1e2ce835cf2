//! Joins the records of the first handshake message (RFC 8446 5.1).

use std::borrow::Cow;

use super::{HelloFault, MAX_MESSAGE, MAX_RECORDS, RECORD_HEADER};

/// Content type of records with handshake messages.
const HANDSHAKE: u8 = 22;

/// First byte of the version in a record header, equal in all versions of TLS. The second byte is
/// ignored (RFC 8446 5.1).
const TLS: u8 = 3;

/// Message type of a ClientHello.
const CLIENT_HELLO: u8 = 1;

/// Length of a message header in bytes: one for the type, three for the length.
const MESSAGE_HEADER: usize = 4;

/// Upper bound of the content of a record, in bytes.
const MAX_RECORD: usize = 16_384;

/// Reason why the bytes contain no ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMessage {
    /// The first bytes are not TLS.
    NotTls,
    Fault(HelloFault),
}

impl From<HelloFault> for NoMessage {
    fn from(fault: HelloFault) -> NoMessage {
        NoMessage::Fault(fault)
    }
}

/// Returns the ClientHello without its message header; `None` if more bytes are needed. Reports a
/// fault as soon as the faulty byte has arrived.
pub(super) fn message(bytes: &[u8]) -> Result<Option<Cow<'_, [u8]>>, NoMessage> {
    let (mut rest, mut message) = (bytes, Message::default());
    loop {
        if message.fragments.len() == MAX_RECORDS {
            return Err(HelloFault::TooManyRecords.into());
        }
        let Some(len) = record_length(rest, message.fragments.is_empty())? else { return Ok(None) };
        let body = &rest[RECORD_HEADER..];
        let here = body.len().min(len);
        message.add(&body[..here], len)?;
        if here < len {
            return Ok(None);
        }
        if let Some(whole) = message.whole() {
            return Ok(Some(whole));
        }
        rest = &body[len..];
    }
}

/// Returns the length of the record that begins here; `None` if its header is incomplete.
fn record_length(bytes: &[u8], is_first: bool) -> Result<Option<usize>, NoMessage> {
    let other = if is_first { NoMessage::NotTls } else { HelloFault::Interleaved.into() };
    let is_it = [HANDSHAKE, TLS].iter().zip(bytes).all(|(expected, byte)| expected == byte);
    if !is_it {
        return Err(other);
    }
    let Some([_, _, _, high, low]) = bytes.first_chunk::<RECORD_HEADER>() else { return Ok(None) };
    match u16::from_be_bytes([*high, *low]).into() {
        0 => Err(HelloFault::EmptyRecord.into()),
        len if len > MAX_RECORD => Err(HelloFault::RecordTooLong.into()),
        len => Ok(Some(len)),
    }
}

/// Handshake message that may be incomplete.
#[derive(Default)]
struct Message<'a> {
    fragments: Vec<&'a [u8]>,
    /// Message header (type and length), which may be incomplete.
    header: Vec<u8>,
    /// Sum of the lengths in all record headers so far. The length of an incomplete last record is
    /// included.
    announced: usize,
}

impl<'a> Message<'a> {
    /// Adds the available bytes of a record; `len` is the full length of the record.
    fn add(&mut self, fragment: &'a [u8], len: usize) -> Result<(), HelloFault> {
        let missing = MESSAGE_HEADER - self.header.len();
        self.header.extend(fragment.iter().take(missing));
        self.fragments.push(fragment);
        self.announced += len;
        if self.header.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(HelloFault::OtherMessage);
        }
        match self.len() {
            Some(len) if len > MAX_MESSAGE => Err(HelloFault::TooLong),
            Some(len) if self.announced > len => Err(HelloFault::Trailing),
            _ => Ok(()),
        }
    }

    /// Length of the message with its header; `None` while the header is incomplete.
    fn len(&self) -> Option<usize> {
        let [_, length @ ..] = self.header.first_chunk::<MESSAGE_HEADER>()?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        Some(MESSAGE_HEADER + length)
    }

    /// Body of the message; `None` while records are missing.
    fn whole(&self) -> Option<Cow<'a, [u8]>> {
        let is_whole = self.len()? == self.announced;
        is_whole.then(|| match self.fragments[..] {
            [only] => Cow::Borrowed(&only[MESSAGE_HEADER..]),
            ref all => Cow::Owned(all.concat().split_off(MESSAGE_HEADER)),
        })
    }
}
