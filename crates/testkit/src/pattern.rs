//! Byte pattern with which tests check that data arrived complete and in order.

use std::io::{self, Read, Write};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

/// Length of the repeated random pattern, in bytes. It is a prime, so that a lost, duplicated or
/// swapped block of any usual size changes the bytes after it.
const PERIOD: usize = 1_048_583;

/// Maximum number of bytes per read or write.
const BLOCK: usize = 256 * 1024;

/// Writes the first `bytes` bytes of the endless pattern.
pub fn send(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    let mut at = 0;
    while at < bytes {
        let piece = piece(at, (bytes - at).min(BLOCK as u64) as usize);
        to.write_all(piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Reads to the end of the stream, and returns the number of bytes. Panics if the data differs from
/// the pattern.
pub fn check_to_end(from: &mut impl Read) -> u64 {
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let n = from.read(&mut block).unwrap();
        if n == 0 {
            return at;
        }
        let mut read = &block[..n];
        while !read.is_empty() {
            let expected = piece(at, read.len());
            assert!(&read[..expected.len()] == expected, "wrong bytes after {at}");
            read = &read[expected.len()..];
            at += expected.len() as u64;
        }
    }
}

/// Slow reader. It takes at least ten seconds for one GiB.
#[derive(Debug)]
pub struct SlowReader<R> {
    from: R,
    read: u64,
}

impl<R: Read> SlowReader<R> {
    /// Wraps a reader.
    pub fn new(from: R) -> SlowReader<R> {
        SlowReader { from, read: 0 }
    }
}

impl<R: Read> Read for SlowReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buffer)?;
        let before = self.read >> 20;
        self.read += n as u64;
        thread::sleep(Duration::from_millis(10 * ((self.read >> 20) - before)));
        Ok(n)
    }
}

/// Bytes of the pattern from position `at` on: at least one byte, at most `len` bytes.
fn piece(at: u64, len: usize) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..PERIOD).map(|_| next()).collect()
    });
    let start = (at % PERIOD as u64) as usize;
    &pattern[start..PERIOD.min(start + len)]
}
