//! Decoding of bytes as UTF-8, with the place of the first error. Pure.

use super::problem::Problem;

/// Decodes bytes as UTF-8. `file` is the name of the file in the error.
///
/// # Errors
/// Returns a problem at the first byte that is not UTF-8.
pub(super) fn decode(file: &str, bytes: Vec<u8>) -> Result<String, Problem> {
    let error = match String::from_utf8(bytes) {
        Ok(text) => return Ok(text),
        Err(error) => error,
    };
    let at = error.utf8_error().valid_up_to();
    let bytes = error.as_bytes();
    let message = match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "this is UTF-16; save the file as UTF-8".to_owned(),
        _ => format!("byte 0x{:02x} is not UTF-8; save the file as UTF-8", bytes[at]),
    };
    let before = String::from_utf8_lossy(&bytes[..at]);
    Err(Problem::at(file, &before, at, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_no_utf_8_is_told_with_its_place() {
        for (bytes, told) in [
            (&b"a = 1\nb = \"caf\xe9\"\n"[..], "f:2:9: byte 0xe9 is not UTF-8; save the file as UTF-8"),
            (b"\xc3\xa4\xc3\xa4 = \"\xc3", "f:1:7: byte 0xc3 is not UTF-8; save the file as UTF-8"),
            (b"\xff\xfea\0", "f:1:1: this is UTF-16; save the file as UTF-8"),
        ] {
            assert_eq!(decode("f", bytes.to_vec()).unwrap_err().to_string(), told);
        }
        assert_eq!(decode("f", "ä = 1".as_bytes().to_vec()).unwrap(), "ä = 1");
    }
}
