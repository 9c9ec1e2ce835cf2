//! Any bytes as a client's stream of HTTP/3. The library gets the same bytes however they are cut:
//! all frames that arrived, and no others. Buffered bytes stay within the limit of a frame.

#![no_main]

use convey_http::{FilteredStream, filter_http3};
use convey_http_core::Malformed;
use libfuzzer_sys::fuzz_target;

/// Maximum number of bytes in a frame other than DATA.
const MAX_FRAME: u64 = 64;

/// Maximum number of bytes in a frame's type and length.
const MAX_START: usize = 16;

const DATA: u64 = 0;
const HEADERS: u64 = 1;

// The first byte: bit 0 selects a request, or a stream in one direction; the other bits set the
// length of the pieces.
fuzz_target!(|bytes: &[u8]| {
    let Some((how, stream)) = bytes.split_first() else { return };
    let is_request = how & 1 == 1;
    let whole = filter_http3(is_request, MAX_FRAME, std::iter::once(stream));
    let cut = filter_http3(is_request, MAX_FRAME, stream.chunks(usize::from(how >> 1) + 1));
    assert_eq!((whole.fault, whole.is_too_long), (cut.fault, cut.is_too_long));
    for seen in [&whole, &cut] {
        assert!(seen.most_held < MAX_FRAME as usize + MAX_START, "{} bytes wait", seen.most_held);
    }
    if !whole.is_too_long {
        assert_eq!((&whole.passed, whole.data), (&cut.passed, cut.data));
    }
    if let Some(expected) = expected(is_request, stream) {
        assert_eq!((&whole.passed, whole.data, whole.is_too_long), (&expected.passed, expected.data, expected.is_too_long));
        assert!(expected.fault.is_some() || whole.fault != Some(Malformed::PseudoField), "without fields");
    }
});

/// Reference result, computed frame by frame. The fault stands for any fault of a frame of fields.
/// `None`: the stream's type has no frames.
fn expected(is_request: bool, stream: &[u8]) -> Option<FilteredStream> {
    let mut seen = FilteredStream::default();
    let mut left = stream;
    if !is_request {
        let (0, len) = number(left)? else { return None };
        seen.passed.extend_from_slice(&left[..len]);
        left = &left[len..];
    }
    while let Some((kind, of_kind)) = number(left) {
        let Some((payload, of_length)) = number(&left[of_kind..]) else { break };
        let start = of_kind + of_length;
        if kind != DATA && payload > MAX_FRAME {
            return Some(FilteredStream { passed: Vec::new(), data: 0, is_too_long: true, ..seen });
        }
        let has = (left.len() - start).min(usize::try_from(payload).unwrap_or(usize::MAX));
        if kind == DATA {
            seen.data += has;
        } else if (has as u64) < payload {
            break;
        }
        if kind == HEADERS {
            seen.fault = Some(Malformed::PseudoField);
        }
        if kind != DATA || payload > 0 {
            seen.passed.extend_from_slice(&left[..start + has]);
        }
        left = &left[start + has..];
    }
    // The stream ends within a frame.
    seen.passed.extend_from_slice(left);
    Some(seen)
}

/// A number, and how many bytes it has (RFC 9000, section 16).
fn number(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let rest = bytes.get(1..len)?;
    Some((rest.iter().fold(u64::from(first & 0x3f), |number, byte| number << 8 | u64::from(*byte)), len))
}
