//! Chunked framing (RFC 9112, section 7.1): `SIZE[;EXTENSION] CRLF DATA CRLF`, a last chunk of size
//! 0, trailers and an empty line.

use super::{BodyPiece, BodyProgress};
use crate::field_syntax::{is_of_value, is_token};
use crate::{HeadLimits, Malformed};

/// Byte limit for the extensions of all chunks of a body. No extension has a known use.
pub const MAX_CHUNK_EXTENSION: u32 = 4 * 1024;

/// Default byte limit for the trailers of a body: the default limit of a response's head.
pub const MAX_TRAILERS: usize = HeadLimits::OF_RESPONSES.bytes;

/// Maximum number of hexadecimal digits in a chunk size: 64 bits have 16 digits.
const MAX_DIGITS: u8 = 16;

/// Number of bytes of a trailer's name that are stored to detect a forbidden name. No forbidden
/// name is longer.
const MAX_NAME: usize = 24;

/// Fields that are forbidden in trailers: framing, routing and authentication (RFC 9110, section
/// 6.5.1), and fields that identify the client.
const FORBIDDEN: [&[u8]; 13] = [
    b"authorization",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"forwarded",
    b"host",
    b"transfer-encoding",
    b"te",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-ssl-client-dn",
];

/// Parser of chunked framing.
#[derive(Debug, Default)]
pub(super) struct ChunkReader {
    at: Place,
    /// Bytes of extensions so far.
    extensions: u32,
    /// Bytes of trailers so far.
    trailers: usize,
    /// Fields of trailers so far.
    trailer_fields: usize,
    trailer_limits: TrailerLimits,
    is_of_response: bool,
    name: TrailerName,
    /// Byte limit for the data; `None`: no limit.
    most: Option<u64>,
    /// Data bytes that the chunk sizes have announced so far.
    told: u64,
}

/// Limits for the bytes and fields of trailers.
#[derive(Debug, Clone, Copy)]
struct TrailerLimits(HeadLimits);

impl Default for TrailerLimits {
    fn default() -> TrailerLimits {
        TrailerLimits(HeadLimits { bytes: MAX_TRAILERS, fields: usize::MAX })
    }
}

/// Position of the next byte in the framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Size {
        size: u64,
        digits: u8,
    },
    /// After a blank that follows the size.
    Padding {
        size: u64,
    },
    Extension {
        size: u64,
    },
    /// After the CR of the size's line.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// At the beginning of a trailer's line.
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerLf,
    /// After the CR of the empty line.
    LastLf,
}

/// Beginning of a trailer's name, in lower case.
#[derive(Debug, Default)]
struct TrailerName {
    letters: [u8; MAX_NAME],
    len: usize,
    /// Whether the name has a `_`, which some servers treat like `-`.
    has_underscore: bool,
}

impl Place {
    /// Whether the next byte may belong to a trailer.
    fn is_trailer(self) -> bool {
        matches!(self, Place::Trailer | Place::TrailerName | Place::TrailerValue | Place::TrailerLf)
    }
}

impl Default for Place {
    fn default() -> Place {
        Place::Size { size: 0, digits: 0 }
    }
}

impl ChunkReader {
    pub(super) fn opaque(&self) -> u64 {
        match self.at {
            Place::Data { left } => left,
            _ => 0,
        }
    }

    /// Limits the data to `most` bytes.
    pub(super) fn limit(&mut self, most: u64) {
        self.most = Some(most);
    }

    /// Limits the bytes and fields of the trailers.
    pub(super) fn limit_trailers(&mut self, limits: HeadLimits) {
        self.trailer_limits = TrailerLimits(limits);
    }

    /// Sets the limits for the trailers of a request.
    pub(super) fn limit_request_trailers(&mut self) {
        self.limit_trailers(HeadLimits::OF_REQUEST_TRAILERS);
    }

    /// Accepts two deviations of servers from the RFC: blanks after a chunk size, and the field
    /// `Content-Length` in the trailers. Clients ignore this field there.
    pub(super) fn be_of_response(&mut self) {
        self.is_of_response = true;
    }

    /// Skips `len` bytes of the current chunk's data.
    pub(super) fn pass(&mut self, len: u64) {
        if let Place::Data { left } = &mut self.at {
            *left = left.saturating_sub(len);
            if *left == 0 {
                self.at = Place::DataCr;
            }
        }
    }

    /// Returns the kind and the length of the next piece of the body.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<BodyPiece, Malformed> {
        let opaque = self.opaque();
        if opaque > 0 {
            let len = opaque.min(bytes.len() as u64);
            self.pass(len);
            return Ok(BodyPiece::Data(len as usize));
        }
        let is_trailer = self.at.is_trailer();
        for (at, byte) in bytes.iter().enumerate() {
            match self.step(*byte)? {
                None => {
                    *self = ChunkReader::default();
                    return Ok(BodyPiece::End(at + 1));
                }
                Some(next) => self.at = next,
            }
            if matches!(self.at, Place::Data { .. }) || self.at.is_trailer() != is_trailer {
                return Ok(if is_trailer { BodyPiece::Trailers(at + 1) } else { BodyPiece::Framing(at + 1) });
            }
        }
        Ok(if is_trailer { BodyPiece::Trailers(bytes.len()) } else { BodyPiece::Framing(bytes.len()) })
    }

    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<BodyProgress, Malformed> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if let Place::Data { left } = self.at {
                let taken = left.min((bytes.len() - at) as u64);
                at += taken as usize;
                self.at = if taken == left { Place::DataCr } else { Place::Data { left: left - taken } };
                continue;
            }
            at += 1;
            match self.step(*byte)? {
                Some(next) => self.at = next,
                None => {
                    *self = ChunkReader::default();
                    return Ok(BodyProgress::Ends(at));
                }
            }
        }
        Ok(BodyProgress::All)
    }

    /// Returns the position after this byte; `None`: the body is complete.
    fn step(&mut self, byte: u8) -> Result<Option<Place>, Malformed> {
        Ok(Some(match (self.at, byte) {
            // Some servers put blanks after a chunk size. convey refuses them in requests, because
            // the next server might read another size.
            (Place::Size { size, digits }, b' ' | b'\t') if digits > 0 && self.is_of_response => {
                Place::Padding { size }
            }
            (Place::Size { size, digits }, _) => of_size(size, digits, byte)?,
            (Place::Padding { size }, b' ' | b'\t') => {
                self.count_extension()?;
                Place::Padding { size }
            }
            (Place::Padding { size }, b';') => Place::Extension { size },
            (Place::Padding { size } | Place::Extension { size }, b'\r') => Place::SizeEnd { size },
            (Place::Extension { size }, b' '..=b'~' | b'\t') => {
                self.count_extension()?;
                Place::Extension { size }
            }
            (Place::SizeEnd { size: 0 }, b'\n') => Place::Trailer,
            (Place::SizeEnd { size }, b'\n') => {
                self.told = self.told.saturating_add(size);
                if self.most.is_some_and(|most| self.told > most) {
                    return Err(Malformed::BodyTooLong);
                }
                Place::Data { left: size }
            }
            (Place::Padding { .. } | Place::Extension { .. } | Place::SizeEnd { .. }, _) => {
                return Err(Malformed::ChunkSize);
            }
            (Place::DataCr, b'\r') => Place::DataLf,
            (Place::DataLf, b'\n') => Place::default(),
            (Place::Data { .. } | Place::DataCr | Place::DataLf, _) => return Err(Malformed::ChunkEnd),
            (Place::LastLf, b'\n') => return Ok(None),
            (place, _) => self.step_in_trailers(place, byte)?,
        }))
    }

    fn count_extension(&mut self) -> Result<(), Malformed> {
        self.extensions += 1;
        if self.extensions > MAX_CHUNK_EXTENSION { Err(Malformed::ChunkSize) } else { Ok(()) }
    }

    fn step_in_trailers(&mut self, place: Place, byte: u8) -> Result<Place, Malformed> {
        self.trailers += 1;
        if self.trailers > self.trailer_limits.0.bytes {
            return Err(Malformed::Trailers);
        }
        match (place, byte) {
            (Place::Trailer, b'\r') => Ok(Place::LastLf),
            (Place::Trailer, _) if is_token(byte) => {
                self.trailer_fields += 1;
                if self.trailer_fields > self.trailer_limits.0.fields {
                    return Err(Malformed::Trailers);
                }
                self.name = TrailerName::default();
                self.name.push(byte);
                Ok(Place::TrailerName)
            }
            (Place::TrailerName, b':') if self.name.is_allowed(self.is_of_response) => {
                Ok(Place::TrailerValue)
            }
            (Place::TrailerName, _) if is_token(byte) => {
                self.name.push(byte);
                Ok(Place::TrailerName)
            }
            (Place::TrailerValue, b'\r') => Ok(Place::TrailerLf),
            (Place::TrailerValue, _) if is_of_value(byte) => Ok(Place::TrailerValue),
            (Place::TrailerLf, b'\n') => Ok(Place::Trailer),
            _ => Err(Malformed::Trailers),
        }
    }
}

/// Parses a byte of a line with a chunk size, and returns the position after the byte.
fn of_size(size: u64, digits: u8, byte: u8) -> Result<Place, Malformed> {
    match (byte, (byte as char).to_digit(16)) {
        (_, Some(_)) if digits == MAX_DIGITS => Err(Malformed::ChunkSize),
        // Some servers read sizes as signed 64-bit numbers, and a larger size as negative.
        (_, Some(_)) if size >> 59 != 0 => Err(Malformed::ChunkSize),
        (_, Some(digit)) => Ok(Place::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }),
        (b';', _) if digits > 0 => Ok(Place::Extension { size }),
        (b'\r', _) if digits > 0 => Ok(Place::SizeEnd { size }),
        _ => Err(Malformed::ChunkSize),
    }
}

/// Whether a field must not be in trailers.
pub(super) fn is_forbidden_in_trailers(name: &[u8]) -> bool {
    let mut read = TrailerName::default();
    name.iter().for_each(|byte| read.push(*byte));
    !read.is_allowed(false)
}

impl TrailerName {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.letters.get_mut(self.len) {
            self.has_underscore |= byte == b'_';
            *place = if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        }
        self.len += 1;
    }

    fn is_allowed(&self, is_of_response: bool) -> bool {
        let name = self.letters.get(..self.len);
        let is_length = |name: &[u8]| !self.has_underscore && name == b"content-length";
        let is_harmless = |name: &[u8]| is_of_response && is_length(name);
        name.is_none_or(|name| !FORBIDDEN.contains(&name) || is_harmless(name))
    }
}
