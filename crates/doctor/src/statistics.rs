//! Reads the statistics of the running convey over HTTP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// Timeout of each network operation.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum length of the statistics in bytes.
const MAX_STATISTICS: u64 = 16 << 20;

/// Reads the JSON document at `/stats`.
///
/// # Errors
/// There is no answer, or the answer is not the expected document.
pub fn read<T: DeserializeOwned>(statistics: SocketAddr) -> io::Result<T> {
    let mut stream = TcpStream::connect_timeout(&statistics, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /stats HTTP/1.0\r\nHost: {statistics}\r\n\r\n")?;
    let mut text = String::new();
    stream.take(MAX_STATISTICS).read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body)?)
}
