//! Encoder of field sections (RFC 7541, section 6).

use std::collections::VecDeque;

use super::table::{ENTRY, MAX_SIZE};
use crate::field_coding::{put_integer, put_string};

/// First index of the dynamic table.
const FIRST_DYNAMIC: u64 = super::static_table::LEN as u64 + 1;

/// Index of `:status: 200` in the static table, the first of the entries for the status.
const STATUS: u8 = 8;

/// Statuses in the static table, from [`STATUS`] on.
const STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

/// Longest name in the static table, in bytes.
const LONGEST_NAME: usize = 27;

/// Fields whose values responses of one site repeat: their indexes in the static table. The encoder
/// keeps the last value of each in the dynamic table of the client. Other values would only push
/// these out of it.
const REPEATED: [u8; 13] = [STATUS, 18, 20, 24, 26, 27, 31, 33, 54, 56, 59, 60, 22];

/// Encoder of the sections of a connection. It uses no Huffman code: the code would take longer
/// than the transport of the bytes that it saves.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// The last value of each field in [`REPEATED`]; the value is empty before the first.
    last: [LastValue; REPEATED.len()],
    /// Sizes of the entries in the client's dynamic table, the oldest first.
    sizes: VecDeque<u16>,
    /// Sum of the sizes.
    size: usize,
    max_size: usize,
    /// Number of entries that were inserted so far.
    inserted: u64,
    /// Sizes of the table that the client has to learn of: the smallest since the last section, and
    /// the present one.
    resized: Option<(usize, usize)>,
}

/// Last value of a field.
#[derive(Debug, Default)]
struct LastValue {
    value: Box<[u8]>,
    /// Number of the entry, from 0.
    entry: u64,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder {
            last: Default::default(),
            sizes: VecDeque::new(),
            size: 0,
            max_size: MAX_SIZE,
            inserted: 0,
            resized: None,
        }
    }
}

/// For each index in the static table: the place of the field in [`REPEATED`] plus 1; 0: the encoder
/// keeps no value of it.
const PLACES: [u8; FIRST_DYNAMIC as usize] = places();

const fn places() -> [u8; FIRST_DYNAMIC as usize] {
    let (mut places, mut place) = ([0; FIRST_DYNAMIC as usize], 0);
    while place < REPEATED.len() {
        places[REPEATED[place] as usize] = place as u8 + 1;
        place += 1;
    }
    places
}

impl Encoder {
    /// Notes that the client allows a dynamic table of this size.
    pub(crate) fn resize(&mut self, allowed: u32) {
        let size = usize::try_from(allowed).unwrap_or(usize::MAX).min(MAX_SIZE);
        if size == self.max_size && self.resized.is_none() {
            return;
        }
        let smallest = self.resized.map_or(size, |(smallest, _)| smallest.min(size));
        (self.resized, self.max_size) = (Some((smallest, size)), size);
        self.evict(smallest);
    }

    /// Begins a section.
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        let Some((smallest, size)) = self.resized.take() else { return };
        if smallest < size {
            put_integer(smallest, 5, 0x20, out);
        }
        put_integer(size, 5, 0x20, out);
    }

    /// Appends the status of a response.
    pub(crate) fn put_status(&mut self, status: u16, out: &mut Vec<u8>) {
        match STATUSES.iter().position(|one| *one == status) {
            Some(at) => out.push(0x80 | (STATUS + at as u8)),
            None => self.put_known(STATUS, b":status", itoa::Buffer::new().format(status).as_bytes(), out),
        }
    }

    /// Appends a field. The name may have upper-case letters, which become lower case.
    pub(crate) fn put_field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let mut lower = [0; LONGEST_NAME];
        if let Some(lower) = lower.get_mut(..name.len()) {
            for (to, from) in lower.iter_mut().zip(name) {
                *to = from.to_ascii_lowercase();
            }
            match static_index(lower) {
                Some(index) => return self.put_known(index, lower, value, out),
                None => {
                    out.push(0);
                    put_string(lower, out);
                }
            }
        } else {
            out.push(0);
            put_string(&name.to_ascii_lowercase(), out);
        }
        put_string(value, out);
    }

    /// Appends a field whose name has this index in the static table.
    fn put_known(&mut self, index: u8, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let place = usize::from(PLACES[usize::from(index)]).checked_sub(1);
        let size = ENTRY + name.len() + value.len();
        let Some(place) = place.filter(|_| size <= self.max_size / 4) else {
            put_integer(usize::from(index), 4, 0, out);
            return put_string(value, out);
        };
        let last = &mut self.last[place];
        let oldest = self.inserted - self.sizes.len() as u64;
        if last.entry >= oldest && *last.value == *value && !value.is_empty() {
            let index = FIRST_DYNAMIC + (self.inserted - 1 - last.entry);
            return put_integer(index as usize, 7, 0x80, out);
        }
        put_integer(usize::from(index), 6, 0x40, out);
        put_string(value, out);
        (last.entry, last.value) = (self.inserted, value.into());
        self.inserted += 1;
        self.evict(self.max_size - size);
        self.size += size;
        self.sizes.push_back(size as u16);
    }

    /// Removes the oldest entries until the others have at most this size.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(size) = self.sizes.pop_front()
        {
            self.size -= usize::from(size);
        }
    }
}

/// Index of a field's name in the static table.
#[rustfmt::skip]
fn static_index(name: &[u8]) -> Option<u8> {
    Some(match name {
        b"accept-ranges" => 18, b"accept" => 19, b"access-control-allow-origin" => 20, b"age" => 21,
        b"allow" => 22, b"cache-control" => 24, b"content-disposition" => 25, b"content-encoding" => 26,
        b"content-language" => 27, b"content-length" => 28, b"content-location" => 29,
        b"content-range" => 30, b"content-type" => 31, b"date" => 33, b"etag" => 34, b"expires" => 36,
        b"last-modified" => 44, b"link" => 45, b"location" => 46, b"proxy-authenticate" => 48,
        b"refresh" => 52, b"retry-after" => 53, b"server" => 54, b"set-cookie" => 55,
        b"strict-transport-security" => 56, b"vary" => 59, b"via" => 60, b"www-authenticate" => 61,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Decoder, Scratch, static_table};
    use super::*;

    type TextField = (String, String);

    fn encode(encoder: &mut Encoder, status: u16, fields: &[TextField]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        encoder.put_status(status, &mut out);
        fields
            .iter()
            .for_each(|(name, value)| encoder.put_field(name.as_bytes(), value.as_bytes(), &mut out));
        out
    }

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Vec<TextField> {
        let mut scratch = Scratch::default();
        decoder.decode(block, usize::MAX, &mut scratch).unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        scratch.lines.all().map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn known_names_are_those_of_the_static_table() {
        for (index, (name, _)) in (1..).zip(static_table::ENTRIES) {
            assert!(static_index(name.as_bytes()).is_none_or(|found| found == index), "{name}");
            assert!(name.len() <= LONGEST_NAME);
        }
    }

    #[test]
    fn repeated_values_take_one_byte() {
        let mut encoder = Encoder::default();
        let fields = [("Server", "nginx"), ("Date", "today"), ("ETag", "\"1\"")];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert!(encode(&mut encoder, 200, &fields).len() > 20);
        assert_eq!(encode(&mut encoder, 200, &fields), b"\x88\xbf\xbe\x0f\x13\x03\"1\"");
        assert_eq!(encode(&mut encoder, 431, &[]), b"\x48\x03431");
        assert_eq!(encode(&mut encoder, 431, &[]), b"\xbe");
        encoder.resize(0);
        encoder.resize(100);
        assert_eq!(encode(&mut encoder, 200, &fields[..1]), b"\x20\x3f\x45\x88\x0f\x27\x05nginx");
    }

    proptest! {
        #[test]
        fn sections_are_decoded_as_they_were_encoded(
            sections in prop::collection::vec(
                (
                    100u16..1000,
                    prop::collection::vec(
                        (
                            prop_oneof!["server|Date|content-type|vary|Content-Length|x-[a-z]{1,30}"],
                            prop_oneof!["[ab]{0,2}|[ -~]{0,20}", "[a-z]{600,1100}"],
                        ),
                        0..6,
                    ),
                    prop::option::of(0u32..5_000),
                ),
                1..20,
            ),
        ) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            for (status, fields, size) in sections {
                if let Some(size) = size {
                    encoder.resize(size);
                }
                let decoded = decode(&mut decoder, &encode(&mut encoder, status, &fields));
                let mut expected = vec![(":status".to_owned(), status.to_string())];
                expected.extend(fields.iter().map(|(name, value)| (name.to_lowercase(), value.clone())));
                prop_assert_eq!(decoded, expected);
            }
        }
    }
}
