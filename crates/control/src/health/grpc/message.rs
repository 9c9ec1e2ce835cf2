//! Messages of the gRPC health service, `grpc.health.v1`, in the wire format of Protocol Buffers.
//! Pure.
//!
//! ```proto
//! message HealthCheckRequest { string service = 1; }
//! message HealthCheckResponse { ServingStatus status = 1; }
//! ```

use std::fmt;

/// Size of the prefix of each gRPC message, in bytes: the compression flag, and the length of the
/// message.
const PREFIX: usize = 5;

/// Field number of the only field in a `HealthCheckRequest` and in a `HealthCheckResponse`.
const FIELD: u64 = 1;

/// Status in a `HealthCheckResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServingStatus {
    Unknown,
    Serving,
    NotServing,
    ServiceUnknown,
    /// Status number to which the protocol gives no name.
    Other(i32),
}

impl fmt::Display for ServingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServingStatus::Unknown => "UNKNOWN",
            ServingStatus::Serving => "SERVING",
            ServingStatus::NotServing => "NOT_SERVING",
            ServingStatus::ServiceUnknown => "SERVICE_UNKNOWN",
            ServingStatus::Other(number) => return write!(f, "{number}"),
        })
    }
}

/// Reason why bytes are not a valid response of the gRPC health service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageFault {
    #[error("no message")]
    None,
    #[error("an incomplete message")]
    Incomplete,
    #[error("a compressed message, although convey accepts no compression")]
    Compressed,
    #[error("more than one message")]
    Several,
    #[error("a message that is no HealthCheckResponse")]
    Malformed,
}

/// Body of a call about this service: a `HealthCheckRequest` with the prefix of gRPC.
pub(super) fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(service.len() + 8);
    if !service.is_empty() {
        // A field whose value has a length.
        write_varint(FIELD << 3 | 2, &mut message);
        write_varint(service.len() as u64, &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    let mut body = vec![0];
    body.extend_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(&message);
    body
}

/// Status in the body of a response: one `HealthCheckResponse` with the prefix of gRPC.
pub(super) fn status(body: &[u8]) -> Result<ServingStatus, MessageFault> {
    if body.is_empty() {
        return Err(MessageFault::None);
    }
    let Some((&[is_compressed, a, b, c, d], message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(MessageFault::Incomplete);
    };
    let len = u64::from(u32::from_be_bytes([a, b, c, d]));
    if is_compressed != 0 {
        return Err(MessageFault::Compressed);
    }
    match (message.len() as u64).cmp(&len) {
        std::cmp::Ordering::Less => Err(MessageFault::Incomplete),
        std::cmp::Ordering::Greater => Err(MessageFault::Several),
        std::cmp::Ordering::Equal => field(message).ok_or(MessageFault::Malformed),
    }
}

/// Status in a `HealthCheckResponse`. Other fields are skipped. If the message has several
/// statuses, the last one is returned. `None`: the message is malformed.
fn field(mut message: &[u8]) -> Option<ServingStatus> {
    let mut number = 0;
    while !message.is_empty() {
        let key = read_varint(&mut message)?;
        match (key >> 3, key & 7) {
            (0, _) => return None,
            // An enum has the type int32: later bits of the number do not count.
            (FIELD, 0) => number = read_varint(&mut message)? as i32,
            (FIELD, _) => return None,
            (_, kind) => skip(kind, &mut message)?,
        }
    }
    Some(match number {
        0 => ServingStatus::Unknown,
        1 => ServingStatus::Serving,
        2 => ServingStatus::NotServing,
        3 => ServingStatus::ServiceUnknown,
        number => ServingStatus::Other(number),
    })
}

/// Skips the value of a field with this wire type. `None`: the value is malformed, or has the type
/// of a group, which the protocol no longer has.
fn skip(kind: u64, message: &mut &[u8]) -> Option<()> {
    let len = match kind {
        0 => return read_varint(message).map(drop),
        1 => 8,
        2 => usize::try_from(read_varint(message)?).ok()?,
        5 => 4,
        _ => return None,
    };
    *message = message.get(len..)?;
    Some(())
}

fn read_varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        // Only one bit of the tenth byte fits.
        if shift == 63 && *byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn write_varint(mut number: u64, message: &mut Vec<u8>) {
    while number > 0x7f {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
    }

    #[test]
    fn request_has_the_bytes_of_protocol_buffers() {
        assert_eq!(request(""), b"\0\0\0\0\0");
        assert_eq!(request("a.B"), b"\0\0\0\0\x05\x0a\x03a.B");
        let long = request(&"s".repeat(200));
        assert_eq!(&long[..8], b"\0\0\0\0\xcb\x0a\xc8\x01");
        assert_eq!(long.len(), 5 + 3 + 200);
    }

    #[test]
    fn status_is_the_last_field_1_and_other_fields_are_skipped() {
        for (message, expected) in [
            (&b""[..], ServingStatus::Unknown),
            (b"\x08\x01", ServingStatus::Serving),
            (b"\x08\x02", ServingStatus::NotServing),
            (b"\x08\x03", ServingStatus::ServiceUnknown),
            (b"\x08\x2a", ServingStatus::Other(42)),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", ServingStatus::Other(-1)),
            (b"\x08\x01\x08\x02", ServingStatus::NotServing),
            (b"\x10\xff\x01\x08\x01", ServingStatus::Serving),
            (b"\x11\x08\x02\x08\x02\x08\x02\x08\x02\x08\x01", ServingStatus::Serving),
            (b"\x12\x02\x08\x02\x08\x01\x15\x08\x02\x08\x02", ServingStatus::Serving),
        ] {
            assert_eq!(status(&framed(message)), Ok(expected), "{message:?}");
        }
    }

    #[test]
    fn other_bytes_than_one_message_are_refused() {
        for (body, expected) in [
            (&b""[..], MessageFault::None),
            (b"\0\0\0\0", MessageFault::Incomplete),
            (b"\0\0\0\0\x02\x08", MessageFault::Incomplete),
            (b"\0\xff\xff\xff\xff\x08\x01", MessageFault::Incomplete),
            (b"\x01\0\0\0\x02\x08\x01", MessageFault::Compressed),
            (b"\0\0\0\0\x02\x08\x01\0\0\0\0\0", MessageFault::Several),
        ] {
            assert_eq!(status(body), Err(expected), "{body:?}");
        }
        for message in [
            &b"\x08"[..],
            b"\x08\x80",
            b"\x00\x01",
            b"\x0a\x01\x01",
            b"\x0d\0\0\0\0",
            b"\x13\x14",
            b"\x12\x05\x08",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x08",
            b"\x11\0\0\0",
            b"\x16",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"<html>",
        ] {
            assert_eq!(status(&framed(message)), Err(MessageFault::Malformed), "{message:?}");
        }
    }

    /// A field other than the status, as encoded bytes.
    fn other_field() -> impl Strategy<Value = Vec<u8>> {
        let field = |kind: u64, number: u64, value: Vec<u8>| {
            let mut bytes = Vec::new();
            write_varint(number << 3 | kind, &mut bytes);
            bytes.extend(value);
            bytes
        };
        let varint = any::<u64>().prop_map(|value| {
            let mut bytes = Vec::new();
            write_varint(value, &mut bytes);
            (0, bytes)
        });
        let fixed = any::<u64>().prop_map(|value| (1, value.to_le_bytes().to_vec()));
        let short = any::<u32>().prop_map(|value| (5, value.to_le_bytes().to_vec()));
        let bytes = prop::collection::vec(any::<u8>(), 0..200).prop_map(|value| {
            let mut bytes = Vec::new();
            write_varint(value.len() as u64, &mut bytes);
            bytes.extend(value);
            (2, bytes)
        });
        let value = prop_oneof![varint, fixed, short, bytes];
        (2_u64..1 << 29, value).prop_map(move |(number, (kind, value))| field(kind, number, value))
    }

    proptest! {
        #[test]
        fn status_is_found_between_any_other_fields(
            number in any::<i32>(),
            before in prop::collection::vec(other_field(), 0..5),
            after in prop::collection::vec(other_field(), 0..5),
        ) {
            let mut set = Vec::new();
            write_varint(FIELD << 3, &mut set);
            // Protocol Buffers extend the sign to 64 bits.
            write_varint(i64::from(number) as u64, &mut set);
            let message = [before.concat(), set.clone(), after.concat()].concat();
            prop_assert_eq!(status(&framed(&message)), status(&framed(&set)));
            prop_assert_eq!(status(&framed(&set)) == Ok(ServingStatus::Serving), number == 1);
        }

        #[test]
        fn any_bytes_have_a_status_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = status(&bytes);
            let _ = status(&framed(&bytes));
        }
    }
}
