//! Huffman code of HPACK and QPACK (RFC 7541, appendix B). It is canonical, so the lengths of the
//! codes are enough to decode. Pure.

/// Length in bits of the code of each byte.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Length of the longest code.
const LONGEST: usize = 30;

/// Bits that one lookup in [`SHORT`] decodes.
const SHORT_BITS: u32 = 8;

/// Codes of each length, in order.
struct Codes {
    /// Bytes by the length of their codes, then by value.
    bytes: [u8; 256],
    /// For each length: the first code, the number of codes, and the index of the first code's
    /// byte.
    first: [u32; LONGEST + 1],
    count: [u32; LONGEST + 1],
    place: [u32; LONGEST + 1],
}

static CODES: Codes = codes();

/// For each index: the byte whose code the index begins with, and the length of the code; length 0:
/// the code is longer.
static SHORT: [(u8, u8); 1 << SHORT_BITS] = short();

const fn codes() -> Codes {
    let (bytes, counts) = ([0; 256], [0; LONGEST + 1]);
    let mut codes = Codes { bytes, first: counts, count: counts, place: counts };
    let (mut len, mut code, mut place) = (1, 0, 0);
    while len <= LONGEST {
        code <<= 1;
        (codes.first[len], codes.place[len]) = (code, place);
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == len {
                codes.bytes[place as usize] = byte as u8;
                (codes.count[len], code, place) = (codes.count[len] + 1, code + 1, place + 1);
            }
            byte += 1;
        }
        len += 1;
    }
    codes
}

const fn short() -> [(u8, u8); 1 << SHORT_BITS] {
    let (codes, mut short) = (codes(), [(0, 0); 1 << SHORT_BITS]);
    let mut index = 0;
    while index < short.len() {
        let mut len = 1;
        while len <= SHORT_BITS {
            let of_len = len as usize;
            let nth = ((index as u32) >> (SHORT_BITS - len)).wrapping_sub(codes.first[of_len]);
            if nth < codes.count[of_len] {
                short[index] = (codes.bytes[(codes.place[of_len] + nth) as usize], len as u8);
                break;
            }
            len += 1;
        }
        index += 1;
    }
    short
}

/// Appends a decoded string. Returns false if a code is invalid, or if the padding is not a prefix of
/// the end-of-string code.
pub(super) fn decode(code: &[u8], decoded: &mut Vec<u8>) -> bool {
    decoded.reserve(code.len() * 8 / 5);
    let (mut bits, mut len, mut rest) = (0_u64, 0_usize, code.iter());
    loop {
        while len <= 32
            && let Some(byte) = rest.next()
        {
            (bits, len) = (bits << 8 | u64::from(*byte), len + 8);
        }
        // The window continues with ones after the end of the input. They begin the end-of-string
        // code, not the code of a byte.
        let window = match len.checked_sub(LONGEST) {
            Some(behind) => bits >> behind,
            None => !(!bits << (LONGEST - len)),
        };
        match byte_at((window & ((1 << LONGEST) - 1)) as u32).filter(|(_, of_code)| *of_code <= len) {
            Some((byte, of_code)) => {
                decoded.push(byte);
                len -= of_code;
                bits &= (1 << len) - 1;
            }
            None => return len < 8 && bits == (1 << len) - 1,
        }
    }
}

/// Returns the byte whose code these bits begin with, and the length of the code. `None`: the bits
/// begin with no byte's code.
fn byte_at(window: u32) -> Option<(u8, usize)> {
    let (byte, len) = SHORT[(window >> (LONGEST as u32 - SHORT_BITS)) as usize];
    if len > 0 {
        return Some((byte, len.into()));
    }
    (SHORT_BITS as usize + 1..=LONGEST).find_map(|len| {
        let nth = (window >> (LONGEST - len)).wrapping_sub(CODES.first[len]);
        let is_code = nth < CODES.count[len];
        is_code.then(|| (CODES.bytes[(CODES.place[len] + nth) as usize], len))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(code: &[u8]) -> Option<Vec<u8>> {
        let mut decoded = Vec::new();
        super::decode(code, &mut decoded).then_some(decoded)
    }

    /// Encodes bytes, padded with ones.
    fn encode(bytes: &[u8]) -> Vec<u8> {
        let mut bits = Vec::new();
        for byte in bytes {
            let len = usize::from(LENGTHS[usize::from(*byte)]);
            let place = CODES.bytes.iter().position(|one| one == byte).unwrap() as u32;
            let code = CODES.first[len] + place - CODES.place[len];
            bits.extend((0..len).rev().map(|bit| code >> bit & 1 == 1));
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | u8::from(*bit))).collect()
    }

    #[test]
    fn code_is_that_of_the_rfc() {
        let line_end = [0xff, 0xff, 0xff, 0xf3];
        let cases: [(&[u8], &[u8]); 5] = [
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"#", &[0xff, 0xaf]),
            (b"\n", &line_end),
            (b":path", &[0xb9, 0x58, 0xd3, 0x3f]),
            (b"", &[]),
        ];
        for (text, code) in cases {
            assert_eq!((decode(code).as_deref(), encode(text)), (Some(text), code.to_vec()), "{text:?}");
        }
    }

    #[test]
    fn other_padding_than_the_beginning_of_the_end_is_refused() {
        // Padding of zeros, padding of eight bits, the end-of-string code itself, a truncated code.
        for code in [&[0x18][..], &[0x1f, 0xff], &[0xff; 4], &[0xff, 0xff, 0xff]] {
            assert_eq!(decode(code), None, "{code:x?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_decoded_as_they_were_encoded(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
