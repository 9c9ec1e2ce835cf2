//! Content codings that a client accepts: `Accept-Encoding` (RFC 9110, section 12.5.3).

use smallvec::SmallVec;

/// Compression format of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentCoding {
    /// Zstandard (RFC 8878).
    Zstd,
    /// Brotli (RFC 7932).
    Brotli,
    /// Gzip (RFC 1952).
    Gzip,
}

impl ContentCoding {
    /// All codings, the preferred one first. The order decides between codings to which a client
    /// gives the same weight.
    pub const ALL: [ContentCoding; 3] = [ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip];

    /// Name of the coding in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            ContentCoding::Zstd => "zstd",
            ContentCoding::Brotli => "br",
            ContentCoding::Gzip => "gzip",
        }
    }

    /// Suffix of a precompressed file's name, after the name of the plain file.
    pub fn file_suffix(self) -> &'static str {
        match self {
            ContentCoding::Zstd => ".zst",
            ContentCoding::Brotli => ".br",
            ContentCoding::Gzip => ".gz",
        }
    }
}

/// Content codings that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AcceptedEncodings {
    /// Weight of each coding in thousandths, in the order of [`ContentCoding::ALL`]. 0: the client
    /// does not accept the coding.
    weights: [u16; 3],
    /// Weight of the uncompressed body in thousandths.
    identity: u16,
}

impl AcceptedEncodings {
    /// Parses the values of `Accept-Encoding`. Without a value, the client accepts only the
    /// uncompressed body.
    pub fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> AcceptedEncodings {
        let (mut named, mut identity, mut any) = ([None; 3], None, None);
        for element in values.flat_map(|value| value.split(|byte| *byte == b',')) {
            let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let coding = parts.next().unwrap_or_default();
            let Some(weight) = weight(parts) else { continue };
            let is = |name: &str| coding.eq_ignore_ascii_case(name.as_bytes());
            if let Some(at) = ContentCoding::ALL.iter().position(|coding| is(coding.name())) {
                named[at] = Some(weight);
            } else if is("x-gzip") {
                named[2] = Some(weight);
            } else if is("identity") {
                identity = Some(weight);
            } else if is("*") {
                any = Some(weight);
            }
        }
        AcceptedEncodings {
            weights: named.map(|weight| weight.or(any).unwrap_or(0)),
            // A client that does not list `identity` accepts the uncompressed body, with the lowest
            // weight.
            identity: identity.unwrap_or(0),
        }
    }

    /// Codings of `ours` that have at least the weight of the uncompressed body, by descending
    /// weight. Codings with the same weight keep the order of `ours`.
    pub fn best_of(&self, ours: &[ContentCoding]) -> impl Iterator<Item = ContentCoding> + use<> {
        let weight = |coding: &ContentCoding| self.weights[*coding as usize];
        let is_taken = |coding: &&ContentCoding| weight(coding) > 0 && weight(coding) >= self.identity;
        let mut taken: SmallVec<[ContentCoding; 3]> = ours.iter().filter(is_taken).copied().collect();
        // A stable sort keeps the order of equal weights.
        taken.sort_by_key(|coding| std::cmp::Reverse(weight(coding)));
        taken.into_iter()
    }
}

/// Returns the weight of an element in thousandths (RFC 9110, section 12.4.2); `None` if the
/// element is malformed.
fn weight<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> Option<u16> {
    let mut weight = 1_000;
    for parameter in parameters {
        let (name, value) = parameter.split_at_checked(2)?;
        if !name.eq_ignore_ascii_case(b"q=") {
            return None;
        }
        weight = match value {
            b"0" | b"0." => 0,
            b"1" | b"1." => 1_000,
            [b'0', b'.', digits @ ..] if digits.len() <= 3 => digits
                .iter()
                .zip([100, 10, 1])
                .map(|(digit, unit)| digit.is_ascii_digit().then(|| u16::from(digit - b'0') * unit))
                .sum::<Option<u16>>()?,
            [b'1', b'.', zeros @ ..] if zeros.len() <= 3 && zeros.iter().all(|digit| *digit == b'0') => 1_000,
            _ => return None,
        };
    }
    Some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str], ours: &[ContentCoding]) -> Vec<&'static str> {
        let accepted = AcceptedEncodings::of(values.iter().map(|value| value.as_bytes()));
        accepted.best_of(ours).map(ContentCoding::name).collect()
    }

    fn codings(values: &[&str]) -> Vec<&'static str> {
        of(values, &ContentCoding::ALL)
    }

    #[test]
    fn coding_follows_client_preference_and_then_size() {
        for (value, expected) in [
            ("gzip, deflate, br, zstd", &["zstd", "br", "gzip"][..]),
            ("gzip, deflate", &["gzip"]),
            ("GZIP", &["gzip"]),
            ("x-gzip", &["gzip"]),
            ("br;q=0.5, gzip;q=0.9", &["gzip", "br"]),
            ("br ; q=1.000,gzip; q=0", &["br"]),
            ("*", &["zstd", "br", "gzip"]),
            ("*;q=0", &[]),
            ("gzip;q=0.2, *;q=0.1", &["gzip", "zstd", "br"]),
            ("identity, gzip;q=0.5", &[]),
            ("identity;q=0.5, gzip;q=0.5", &["gzip"]),
            ("identity;q=0", &[]),
            ("", &[]),
            ("deflate, compress", &[]),
        ] {
            assert_eq!(codings(&[value]), expected, "{value:?}");
        }
        assert_eq!(codings(&[]), [""; 0]);
        assert_eq!(codings(&["gzip", "br"]), ["br", "gzip"], "in two lines");
    }

    #[test]
    fn an_element_that_cannot_be_read_is_none() {
        for value in
            ["gzip;q=2", "gzip;q=0.1234", "gzip;q=", "gzip;q=-1", "gzip;x", "gzip;level=9", "gzip;q=0.a"]
        {
            assert_eq!(codings(&[value]), [""; 0], "{value:?}");
        }
    }

    #[test]
    fn an_operator_says_which_codings_there_are_and_in_which_order() {
        let ours = [ContentCoding::Gzip, ContentCoding::Zstd];
        for (value, expected) in [
            ("gzip, deflate, br, zstd", &["gzip", "zstd"][..]),
            ("gzip;q=0.5, zstd", &["zstd", "gzip"]),
            ("br", &[]),
        ] {
            assert_eq!(of(&[value], &ours), expected, "{value:?}");
        }
    }
}
