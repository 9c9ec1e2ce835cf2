//! Minimal HTTP for the clients of this bench: a request for the small file, and a check for its
//! end.

use std::io;

/// Small file of the servers, with its size in bytes.
pub(crate) const SMALL: (&str, usize) = ("1k", 1024);

/// Large file of the servers, with its size in bytes.
pub(crate) const LARGE: (&str, usize) = ("1m", 1024 * 1024);

/// Request for [`SMALL`] on a connection that stays open.
pub(crate) const REQUEST: &[u8] = b"GET /1k HTTP/1.1\r\nHost: peers\r\n\r\n";

/// Whether the bytes received so far are a whole answer.
///
/// # Errors
/// The answer is not the file.
pub(crate) fn is_whole(answer: &[u8]) -> io::Result<bool> {
    const STATUS: &[u8] = b"HTTP/1.1 200 ";
    if answer.len() >= STATUS.len() && !answer.starts_with(STATUS) {
        let line = String::from_utf8_lossy(answer).lines().next().unwrap_or_default().to_owned();
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("answered {line:?}")));
    }
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
    Ok(head.is_some_and(|head| answer.len() >= head + 4 + SMALL.1))
}
