//! Input of fuzz targets as frames of HTTP/2.

/// Maximum number of input bytes for a frame.
const MAX_FRAME: usize = 255;

/// Returns the input as frames behind empty settings. Each frame of the input has its type, its
/// flags, its stream, of which `streams` are the bits in use, and its length. After a type above 15,
/// the rest is sent unmodified.
pub fn frames(mut bytes: &[u8], streams: u8) -> Vec<u8> {
    // Empty settings.
    let mut sent = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    while let [kind, flags, stream, len, rest @ ..] = bytes {
        if *kind > 15 {
            sent.extend_from_slice(bytes);
            break;
        }
        let (payload, others) = rest.split_at(usize::from(*len).min(MAX_FRAME).min(rest.len()));
        sent.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        sent.extend_from_slice(&[*kind, *flags, 0, 0, 0, stream & streams]);
        sent.extend_from_slice(payload);
        bytes = others;
    }
    sent
}
