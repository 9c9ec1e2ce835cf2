//! The pseudo-header fields of a head, by their encoded lines (QPACK, RFC 9204, section 4.5): the library of HTTP/3 keeps the last of those that
//! stand there twice, and tells nothing of their order. Pure.

/// The pseudo-header fields of requests. Huffman codes say their names (RFC 7541, appendix B). Each has a range in the static table
/// (RFC 9204, appendix A).
const OF_REQUESTS: [PseudoField; 4] = [
    PseudoField {
        name: b":authority",
        huffman: &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f],
        entries: (0, 0),
    },
    PseudoField { name: b":path", huffman: &[0xb9, 0x58, 0xd3, 0x3f], entries: (1, 1) },
    PseudoField { name: b":method", huffman: &[0xb9, 0x49, 0x53, 0x39, 0xe4], entries: (15, 21) },
    PseudoField { name: b":scheme", huffman: &[0xb8, 0x82, 0x4e, 0x5a, 0x4b], entries: (22, 23) },
];

/// Of responses, in the static table: `:status`.
const OF_RESPONSES: [(u64, u64); 2] = [(24, 28), (63, 71)];

/// The first seven bits of a name that begins with a colon, as a Huffman code.
const COLON: u8 = 0b101_1100;

struct PseudoField {
    name: &'static [u8],
    huffman: &'static [u8],
    entries: (u64, u64),
}

/// Which section of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    Head,
    Trailers,
}

/// Whether pseudo-header fields stand as they must (RFC 9114, section 4.3): each of a request's once at most, before all other fields, and
/// none in trailers. What cannot be read of the section is left to the library.
pub(super) fn has_orderly_pseudo_fields(section: &[u8], of: SectionKind) -> bool {
    let mut left = section;
    // What the dynamic table would have to have. There is none, and the library says so.
    if integer(&mut left, 8).and_then(|_| integer(&mut left, 7)).is_none() {
        return true;
    }
    let (mut seen, mut has_others) = ([false; OF_REQUESTS.len()], of == SectionKind::Trailers);
    while let Some(line) = next_line(&mut left) {
        match line {
            Line::Field => has_others = true,
            Line::UnknownPseudoField => return false,
            Line::PseudoField(field) if has_others || seen[field] => return false,
            Line::PseudoField(field) => seen[field] = true,
        }
    }
    true
}

/// What a line is about.
enum Line {
    Field,
    /// One of [`OF_REQUESTS`].
    PseudoField(usize),
    /// Another one.
    UnknownPseudoField,
}

/// Reads a line. `None`: there is no other one that the library would take.
fn next_line(left: &mut &[u8]) -> Option<Line> {
    let first = *left.first()?;
    match first {
        // Indexed: a line of the static table.
        0x80.. => Some(by_entry(integer(left, 6).filter(|_| first & 0x40 != 0)?)),
        // The name alone is from the static table.
        0x40.. => {
            let entry = integer(left, 4).filter(|_| first & 0x10 != 0)?;
            string(left, 7)?;
            Some(by_entry(entry))
        }
        0x20.. => {
            let name = string(left, 3)?;
            string(left, 7)?;
            Some(by_name(name, first & 0x08 != 0))
        }
        // Of the dynamic table.
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

fn by_name(name: &[u8], is_huffman: bool) -> Line {
    let of = |field: &PseudoField| name == if is_huffman { field.huffman } else { field.name };
    let begins_with_colon = name.first().is_some_and(|first| match is_huffman {
        true => first >> 1 == COLON,
        false => *first == b':',
    });
    match OF_REQUESTS.iter().position(of) {
        Some(field) => Line::PseudoField(field),
        None if begins_with_colon => Line::UnknownPseudoField,
        None => Line::Field,
    }
}

/// Takes a string, whose length has so many bits in its first byte.
fn string<'a>(left: &mut &'a [u8], bits: u32) -> Option<&'a [u8]> {
    let len = usize::try_from(integer(left, bits)?).ok()?;
    let (string, rest) = left.split_at_checked(len)?;
    *left = rest;
    Some(string)
}

/// Takes a number that has so many bits in its first byte, and seven in each further one (RFC 7541, section 5.1).
fn integer(left: &mut &[u8], bits: u32) -> Option<u64> {
    let (first, mut rest) = left.split_first()?;
    let most = u64::from(u8::MAX >> (8 - bits));
    let mut number = u64::from(*first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (byte, more) = rest.split_first()?;
            rest = more;
            number = number.checked_add(u64::from(byte & 0x7f).checked_shl(shift)?)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *left = rest;
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GET, https, the path `/`, each by the static table; then these lines.
    fn head(lines: &[&[u8]]) -> bool {
        let section = [&[0, 0, 0xc0 | 17, 0xc0 | 23, 0xc0 | 1][..], &lines.concat()].concat();
        has_orderly_pseudo_fields(&section, SectionKind::Head)
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

    #[test]
    fn those_of_responses_and_unknown_ones_are_no_part_of_a_request_and_none_is_of_trailers() {
        for line in [
            &[0xc0 | 25][..],
            b"\x5f\x09\x03200",
            b"\x27\x00:status\x03200",
            b"\x27\x02:protocol\x01x",
            b"\x2d\xb8\x84\x8d\x36\xa3\x01x",
            // The name is followed by more than it takes to fill a byte.
            b"\x2d\xb9\x58\xd3\x3f\xff\x01/",
        ] {
            assert!(!head(&[line]), "{line:x?}");
        }
        assert!(has_orderly_pseudo_fields(&[&[0, 0], FIELD].concat(), SectionKind::Trailers));
        assert!(!has_orderly_pseudo_fields(&[&[0, 0], AUTHORITY].concat(), SectionKind::Trailers));
    }

    #[test]
    fn what_the_library_refuses_is_left_to_it() {
        for section in
            [&[][..], &[0], &[0, 0], &[0xff, 0xff], &[0, 0, 0x50, 0x7f, 0xff], &[0, 0, 0x10], &[0, 0, 0x80]]
        {
            assert!(has_orderly_pseudo_fields(section, SectionKind::Head), "{section:x?}");
        }
    }
}
