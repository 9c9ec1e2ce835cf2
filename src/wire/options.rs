//! TCP options (RFC 9293, section 3.1).

use super::fields::{TCP_LEN, tcp};
use super::headers::Headers;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const WINDOW_SCALE: u8 = 3;

/// By how many bits the sender of this SYN will have its windows shifted (RFC 7323, section 2.2); at most 14.
/// `None` if it does not say so, which means that neither side does. For TCP segments.
///
/// # Panics
/// If `headers` are not those of `frame`.
pub fn window_scale(frame: &[u8], headers: &Headers) -> Option<u8> {
    let tcp = &frame[headers.l4..headers.end];
    let end = usize::from(tcp[tcp::DATA_OFFSET] >> 4) * 4;
    let mut options = tcp.get(TCP_LEN..end)?;
    loop {
        match options {
            [END, ..] | [] => return None,
            [NO_OPERATION, rest @ ..] => options = rest,
            [WINDOW_SCALE, 3, shift, ..] => return Some((*shift).min(14)),
            [_, len, ..] => options = options.get(usize::from(*len).max(2)..)?,
            [_] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{TcpPacket, parse};

    fn scale(options: &[u8]) -> Option<u8> {
        let frame = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().tcp_options(options).bytes();
        window_scale(&frame, &parse(&frame).unwrap())
    }

    #[test]
    fn a_syn_says_how_its_senders_windows_are_scaled() {
        assert_eq!(scale(&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]), Some(7));
        assert_eq!(scale(&[3, 3, 200]), Some(14), "RFC 7323 has no more");
        assert_eq!(scale(&[2, 4, 5, 180]), None);
    }

    #[test]
    fn broken_options_say_nothing() {
        for options in [&[][..], &[0, 3, 3, 7], &[3], &[3, 2, 7], &[9, 0, 9, 0], &[2, 200, 3, 3]] {
            assert_eq!(scale(options), None, "{options:?}");
        }
    }
}
