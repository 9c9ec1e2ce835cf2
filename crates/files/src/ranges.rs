//! Byte ranges of a request (RFC 9110, section 14). Pure.

use std::ops::Range;

use smallvec::SmallVec;

/// Maximum number of ranges in a response. A request for more ranges gets the whole file, which is
/// cheaper.
pub const MAX_RANGES: usize = 16;

/// Ranges of the file that a response contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeSelection {
    /// The whole file: the request has no range, or its ranges are ignored.
    Whole,
    /// One range that is not empty.
    One(Range<u64>),
    /// Several ranges, in the order of the request. They do not overlap.
    Many(SmallVec<[Range<u64>; 4]>),
    /// No requested range lies within the file: status 416.
    Unsatisfiable,
}

impl RangeSelection {
    /// Parses the value of `Range` for a file of `len` bytes. Malformed values, and units other
    /// than bytes, are ignored (RFC 9110, section 14.2).
    pub fn of(value: &[u8], len: u64) -> RangeSelection {
        // An empty file has no valid range. Clients that resume a download request one anyway, so
        // they get the whole empty file, as from nginx.
        if len == 0 {
            return RangeSelection::Whole;
        }
        let Some(set) = value.split_at_checked(6).filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes="))
        else {
            return RangeSelection::Whole;
        };
        let mut found: SmallVec<[Range<u64>; 4]> = SmallVec::new();
        let mut named = 0;
        for spec in set.1.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if spec.is_empty() {
                continue;
            }
            named += 1;
            match range(spec, len) {
                // Requests with so many ranges are attempts at denial of service.
                _ if named > MAX_RANGES => return RangeSelection::Whole,
                Err(Malformed) => return RangeSelection::Whole,
                Ok(Some(range)) => found.push(range),
                Ok(None) => {}
            }
        }
        match found.len() {
            0 if named == 0 => RangeSelection::Whole,
            0 => RangeSelection::Unsatisfiable,
            1 => RangeSelection::One(found.remove(0)),
            // Together, overlapping ranges could be longer than the file.
            _ if overlaps(&found) => RangeSelection::Whole,
            _ => RangeSelection::Many(found),
        }
    }
}

/// Error: the value is not a valid range.
struct Malformed;

/// Parses one range for a file of `len` bytes; `None` if the range has no byte of the file.
fn range(spec: &[u8], len: u64) -> Result<Option<Range<u64>>, Malformed> {
    let dash = spec.iter().position(|byte| *byte == b'-').ok_or(Malformed)?;
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    Ok(match (first.is_empty(), last.is_empty()) {
        (true, true) => return Err(Malformed),
        (true, false) => {
            let suffix = number(last)?.min(len);
            (suffix > 0).then(|| len - suffix..len)
        }
        (false, is_open) => {
            let first = number(first)?;
            let last = if is_open { u64::MAX } else { number(last)? };
            if last < first {
                return Err(Malformed);
            }
            (first < len).then(|| first..last.saturating_add(1).min(len))
        }
    })
}

/// Parses digits as a number. A number that is too large for `u64` becomes the maximum, which is
/// beyond the end of every file.
fn number(digits: &[u8]) -> Result<u64, Malformed> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Malformed);
    }
    let value =
        digits.iter().try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    Ok(value.unwrap_or(u64::MAX))
}

fn overlaps(ranges: &[Range<u64>]) -> bool {
    let mut sorted: SmallVec<[&Range<u64>; 16]> = ranges.iter().collect();
    sorted.sort_unstable_by_key(|range| range.start);
    sorted.windows(2).any(|pair| pair[0].end > pair[1].start)
}

/// One part of a multipart response, and the bytes to send before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartOfFile {
    /// Boundary and headers to send before the part.
    pub before: Vec<u8>,
    /// Range of the file, in bytes.
    pub range: Range<u64>,
}

/// Body of a multipart response, `multipart/byteranges` (RFC 9110, section 14.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultipartBody {
    /// Parts of the body, in order.
    pub parts: Vec<PartOfFile>,
    /// Closing boundary, sent after the last part.
    pub end: Vec<u8>,
    /// Length of the whole body in bytes.
    pub len: u64,
}

impl MultipartBody {
    /// Creates the body for these ranges of a file with this type and length. The boundary must not
    /// occur in the file, so the caller chooses a random one.
    pub fn new(ranges: &[Range<u64>], content_type: &str, len: u64, boundary: &str) -> MultipartBody {
        let parts = ranges.iter().map(|range| PartOfFile {
            before: format!(
                "\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: bytes {}-{}/{len}\r\n\r\n",
                range.start,
                range.end - 1
            )
            .into_bytes(),
            range: range.clone(),
        });
        let parts: Vec<PartOfFile> = parts.collect();
        let end = format!("\r\n--{boundary}--\r\n").into_bytes();
        let of_parts = parts.iter().map(|part| part.before.len() as u64 + part.range.end - part.range.start);
        let len = of_parts.sum::<u64>() + end.len() as u64;
        MultipartBody { parts, end, len }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RangeSelection::{Many, One, Unsatisfiable, Whole};
    use super::*;

    fn of(value: &str, len: u64) -> RangeSelection {
        RangeSelection::of(value.as_bytes(), len)
    }

    #[test]
    fn single_range_selects_a_part_of_the_file() {
        for (value, expected) in [
            ("bytes=0-0", One(0..1)),
            ("bytes=0-99", One(0..100)),
            ("Bytes=10-19", One(10..20)),
            ("bytes=90-", One(90..100)),
            ("bytes=-10", One(90..100)),
            ("bytes=-1000", One(0..100)),
            ("bytes=50-1000", One(50..100)),
            ("bytes=0-18446744073709551615", One(0..100)),
            ("bytes=0-99999999999999999999999", One(0..100)),
            ("bytes= 5-9 ,", One(5..10)),
            ("bytes=200-,5-9", One(5..10)),
        ] {
            assert_eq!(of(value, 100), expected, "{value}");
        }
    }

    #[test]
    fn range_beyond_the_file_is_unsatisfiable() {
        for (value, len) in [
            ("bytes=100-", 100),
            ("bytes=100-200", 100),
            ("bytes=-0", 100),
            ("bytes=99999999999999999999999-", 100),
            ("bytes=200-300,400-", 100),
        ] {
            assert_eq!(of(value, len), Unsatisfiable, "{value}");
        }
    }

    #[test]
    fn malformed_range_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,,",
            "items=0-1",
            "bytes=-",
            "bytes=5",
            "bytes=9-5",
            "bytes=a-b",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=0x1-2",
            "bytes=0-1,a-",
            "bytes=--1",
            "bytes 0-1",
        ] {
            assert_eq!(of(value, 100), Whole, "{value}");
        }
    }

    #[test]
    fn empty_file_goes_whole_whatever_its_range() {
        for value in ["bytes=0-", "bytes=-5", "bytes=0-0", "bytes=7-9,11-"] {
            assert_eq!(of(value, 0), Whole, "{value}");
        }
    }

    #[test]
    fn multiple_ranges_keep_their_order_and_overlaps_get_the_whole_file() {
        let ranges = |ranges: &[Range<u64>]| Many(ranges.iter().cloned().collect());
        assert_eq!(of("bytes=0-9,20-29", 100), ranges(&[0..10, 20..30]));
        assert_eq!(of("bytes=90-,0-9", 100), ranges(&[90..100, 0..10]));
        assert_eq!(of("bytes=0-9,10-19", 100), ranges(&[0..10, 10..20]));
        assert_eq!(of("bytes=0-50,40-", 100), Whole, "they overlap");
        assert_eq!(of("bytes=0-,0-,0-", 100), Whole);
        let many = |count: usize| {
            let all: Vec<String> = (0..count).map(|n| format!("{}-{}", n * 2, n * 2)).collect();
            format!("bytes={}", all.join(","))
        };
        assert!(matches!(of(&many(MAX_RANGES), 100), Many(_)));
        assert_eq!(of(&many(MAX_RANGES + 1), 100), Whole);
        assert_eq!(of(&format!("bytes={}", "0-0,".repeat(4_000)), 100), Whole);
    }

    #[test]
    fn a_body_of_several_parts_is_as_long_as_it_says() {
        let body = MultipartBody::new(&[0..10, 20..25], "text/plain", 100, "xyz");
        let mut text = String::new();
        for part in &body.parts {
            text += std::str::from_utf8(&part.before).unwrap();
            text += &"x".repeat((part.range.end - part.range.start) as usize);
        }
        text += std::str::from_utf8(&body.end).unwrap();
        assert_eq!(text.len() as u64, body.len);
        assert_eq!(
            text,
            "\r\n--xyz\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-9/100\r\n\r\nxxxxxxxxxx\
             \r\n--xyz\r\nContent-Type: text/plain\r\nContent-Range: bytes 20-24/100\r\n\r\nxxxxx\r\n--xyz--\r\n"
        );
    }

    proptest! {
        #[test]
        fn ranges_lie_within_the_file_and_do_not_exceed_its_length(value in "bytes=[0-9,\\- ]{0,40}", len in 0..200_u64) {
            let parts = match of(&value, len) {
                Whole | Unsatisfiable => Vec::new(),
                One(range) => vec![range],
                Many(ranges) => ranges.into_vec(),
            };
            prop_assert!(parts.iter().all(|range| range.start < range.end && range.end <= len));
            prop_assert!(parts.iter().map(|range| range.end - range.start).sum::<u64>() <= len);
        }
    }
}
