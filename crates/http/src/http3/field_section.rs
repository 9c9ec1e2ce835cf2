//! Check of pseudo-header fields in encoded field sections (QPACK, RFC 9204, section 4.5), before
//! the HTTP/3 library reads them. The library accepts malformed sections: it keeps the last of
//! several fields with one name, ignores the order of fields, and cuts a path off at its fragment.
//! It also refuses an extended CONNECT with an unknown protocol. Pure.

use std::borrow::Cow;

use bytes::Bytes;
use convey_http_core::Malformed;

use convey_http2::field_coding::{integer, string};

/// Pseudo-header fields of requests, with their ranges in the static table (RFC 9204, appendix A).
const OF_REQUESTS: [PseudoField; 5] = [
    PseudoField { name: b":authority", entries: (0, 0) },
    PseudoField { name: PATH, entries: (1, 1) },
    PseudoField { name: b":method", entries: (15, 21) },
    PseudoField { name: b":scheme", entries: (22, 23) },
    // The static table has no entry for it.
    PseudoField { name: PROTOCOL, entries: (1, 0) },
];

/// Pseudo-header field of an extended CONNECT (RFC 9220).
const PROTOCOL: &[u8] = b":protocol";

/// Name under which the library gets `:protocol`, as a regular field.
pub(super) const HIDDEN_PROTOCOL: &str = "xprotocol";

const PATH: &[u8] = b":path";

/// Ranges of `:status` in the static table, the pseudo-header field of responses.
const OF_RESPONSES: [(u64, u64); 2] = [(24, 28), (63, 71)];

struct PseudoField {
    name: &'static [u8],
    entries: (u64, u64),
}

/// Kind of a field section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    Head,
    Trailers,
}

/// `:protocol` in a field section.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    value: Bytes,
    /// Position of the name in the section.
    name_at: usize,
    is_huffman: bool,
}

impl Protocol {
    /// Renames the field in its section to [`HIDDEN_PROTOCOL`], and returns its value. The new name
    /// is as long as the old one, as letters and as a Huffman code (RFC 7541, appendix B: both first
    /// letters have 7 bits).
    pub(super) fn hide(self, section: &mut [u8]) -> Bytes {
        if let Some(first) = section.get_mut(self.name_at) {
            *first = if self.is_huffman { *first & 1 | X_CODE << 1 } else { b'x' };
        }
        self.value
    }
}

/// Huffman code of `x`, 7 bits.
const X_CODE: u8 = 0b111_1001;

/// Checks a field section, and returns its `:protocol` if there is one. In a request, each
/// pseudo-header field may occur once at most, and before all other fields (RFC 9114, section 4.3).
/// Trailers must not have pseudo-header fields. The path must not have a fragment.
///
/// The check ends at a line that the library does not accept: the library refuses the section
/// itself.
///
/// # Errors
/// The section is malformed.
pub(super) fn check(section: &[u8], of: SectionKind) -> Result<Option<Protocol>, Malformed> {
    let mut left = section;
    // The prefix of the section refers to the dynamic table, which is not in use.
    if integer(&mut left, 8).and_then(|_| integer(&mut left, 7)).is_none() {
        return Ok(None);
    }
    let (mut seen, mut has_others) = ([false; OF_REQUESTS.len()], of == SectionKind::Trailers);
    let mut protocol = None;
    loop {
        let line_at = section.len() - left.len();
        let Some(line) = next_line(&mut left) else { return Ok(protocol) };
        match line {
            Line::Field => has_others = true,
            Line::UnknownPseudoField => return Err(Malformed::PseudoField),
            Line::PseudoField(field) if has_others || seen[field] => return Err(Malformed::PseudoField),
            Line::PseudoField(field) => {
                seen[field] = true;
                if OF_REQUESTS[field].name == PROTOCOL {
                    protocol = protocol_at(section, line_at);
                }
            }
            Line::PathWithFragment => return Err(Malformed::Target),
            Line::Unreadable => return Err(Malformed::Http3Message),
        }
    }
}

/// Reads `:protocol` in the line at this position, which is a literal with a literal name.
fn protocol_at(section: &[u8], line_at: usize) -> Option<Protocol> {
    let mut left = &section[line_at..];
    let is_huffman = left.first()? & 0x08 != 0;
    let mut name = left;
    integer(&mut name, 3)?;
    let name_at = section.len() - name.len();
    string(&mut left, 3)?;
    let value = Bytes::from(string(&mut left, 7)?.into_owned());
    Some(Protocol { value, name_at, is_huffman })
}

/// Kind of a field line.
enum Line {
    Field,
    /// The pseudo-header field with this index in [`OF_REQUESTS`].
    PseudoField(usize),
    /// Another pseudo-header field.
    UnknownPseudoField,
    PathWithFragment,
    /// A string is truncated, or is not valid Huffman code. Libraries differ in what they accept.
    Unreadable,
}

/// Reads a field line. `None`: there is no further line that the library accepts.
fn next_line(left: &mut &[u8]) -> Option<Line> {
    let first = *left.first()?;
    match first {
        // Indexed field line: an entry of the static table.
        0x80.. => Some(by_entry(integer(left, 6).filter(|_| first & 0x40 != 0)?)),
        // Literal field line, whose name is from the static table.
        0x40.. => {
            let line = by_entry(integer(left, 4).filter(|_| first & 0x10 != 0)?);
            Some(with_value(line, string(left, 7)))
        }
        0x20.. => Some(match string(left, 3) {
            Some(name) => with_value(by_name(&name), string(left, 7)),
            None => Line::Unreadable,
        }),
        // Line that refers to the dynamic table.
        _ => None,
    }
}

fn by_entry(entry: u64) -> Line {
    let is_in = |(first, last)| (first..=last).contains(&entry);
    match OF_REQUESTS.iter().position(|field| is_in(field.entries)) {
        Some(field) => Line::PseudoField(field),
        None if OF_RESPONSES.into_iter().any(is_in) => Line::UnknownPseudoField,
        None => Line::Field,
    }
}

fn by_name(name: &[u8]) -> Line {
    match OF_REQUESTS.iter().position(|field| name == field.name) {
        Some(field) => Line::PseudoField(field),
        None if name.first() == Some(&b':') => Line::UnknownPseudoField,
        None => Line::Field,
    }
}

fn with_value(line: Line, value: Option<Cow<'_, [u8]>>) -> Line {
    match (line, value) {
        (_, None) => Line::Unreadable,
        (Line::PseudoField(field), Some(value))
            if OF_REQUESTS[field].name == PATH && value.contains(&b'#') =>
        {
            Line::PathWithFragment
        }
        (line, Some(_)) => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a head is valid: GET, https and the path `/` from the static table, and then these
    /// lines.
    fn head(lines: &[&[u8]]) -> bool {
        let section = [&[0, 0, 0xc0 | 17, 0xc0 | 23, 0xc0 | 1][..], &lines.concat()].concat();
        check(&section, SectionKind::Head).is_ok()
    }

    const AUTHORITY: &[u8] = b"\x50\x01a";
    const FIELD: &[u8] = b"\x21x\x01y";

    #[test]
    fn each_stands_once_and_before_all_other_fields() {
        assert!(head(&[AUTHORITY, FIELD, FIELD, &[0xc0 | 46]]));
        for again in [
            &[0xc0 | 20][..],                    // :method, a line of the table
            b"\x5f\x00\x03GET",                  // :method, the name of the table
            b"\x25:path\x01/",                   // as letters
            b"\x2c\xb9\x58\xd3\x3f\x01/",        // as a Huffman code
            b"\x2d\xb8\x82\x4e\x5a\x4b\x04http", // :scheme
            b"\x27\x00:method\x03GET",           // a length in two bytes
            AUTHORITY,
        ] {
            assert!(!head(&[AUTHORITY, again]), "{again:x?}");
        }
        assert!(!head(&[FIELD, AUTHORITY]), "behind another field");
        assert!(!head(&[&[0xc0 | 46], AUTHORITY]));
    }

    /// `:protocol: websocket`, in letters.
    const LETTERS: &[u8] = b"\x27\x02:protocol\x09websocket";

    #[test]
    fn protocol_is_hidden_from_the_library_in_letters_and_as_a_huffman_code() {
        let mut letters = [&[0, 0], LETTERS].concat();
        let protocol = check(&letters, SectionKind::Head).unwrap().unwrap();
        assert_eq!(&protocol.hide(&mut letters)[..], b"websocket");
        assert_eq!(letters, b"\0\0\x27\x02xprotocol\x09websocket");
        let mut code = b"\0\0\x2f\0\xb9\x5d\x87\x49\xc8\x7a\x3f\x01y".to_vec();
        let protocol = check(&code, SectionKind::Head).unwrap().unwrap();
        assert_eq!(&protocol.hide(&mut code)[..], b"y");
        assert_eq!(string(&mut &code[2..], 3).as_deref(), Some(HIDDEN_PROTOCOL.as_bytes()));
    }

    #[test]
    fn protocol_occurs_once_and_before_all_other_fields() {
        assert!(head(&[LETTERS, FIELD]) && !head(&[LETTERS, LETTERS]) && !head(&[FIELD, LETTERS]));
    }

    #[test]
    fn pseudo_fields_of_responses_and_of_trailers_are_refused() {
        for line in [
            &[0xc0 | 25][..],
            b"\x5f\x09\x03200",
            b"\x27\x00:status\x03200",
            b"\x2d\xb8\x84\x8d\x36\xa3\x01x",
        ] {
            assert!(!head(&[line]), "{line:x?}");
        }
        assert_eq!(check(&[&[0, 0], FIELD].concat(), SectionKind::Trailers), Ok(None));
        for line in [AUTHORITY, LETTERS] {
            let pseudo = check(&[&[0, 0], line].concat(), SectionKind::Trailers);
            assert_eq!(pseudo, Err(Malformed::PseudoField));
        }
    }

    #[test]
    fn string_that_cannot_be_read_makes_a_section_malformed() {
        // A length beyond the end, and a Huffman name with more padding than a byte needs.
        for line in [&b"\x50\x7f\xff"[..], b"\x2d\xb9\x58\xd3\x3f\xff\x01/"] {
            let section = [&[0, 0], line].concat();
            assert_eq!(check(&section, SectionKind::Head), Err(Malformed::Http3Message), "{line:x?}");
        }
    }

    #[test]
    fn path_with_a_fragment_is_malformed() {
        for (path, is_malformed) in [
            (&b"\x51\x04/x#y"[..], true),
            (b"\x51\x04/x-y", false),
            (b"\x25:path\x02/#", true),
            // As a Huffman code: `#`, and `/#`.
            (b"\x51\x82\xff\xaf", true),
            (b"\x51\x83\x63\xfe\xbf", true),
            // A value of another field.
            (b"\x21x\x01#", false),
        ] {
            let section = [&[0, 0], path].concat();
            let expected = if is_malformed { Err(Malformed::Target) } else { Ok(None) };
            assert_eq!(check(&section, SectionKind::Head), expected, "{path:x?}");
        }
    }

    #[test]
    fn undecodable_field_sections_are_left_to_the_library() {
        for section in [&[][..], &[0], &[0, 0], &[0xff, 0xff], &[0, 0, 0x10], &[0, 0, 0x80]] {
            assert_eq!(check(section, SectionKind::Head), Ok(None), "{section:x?}");
        }
    }
}
