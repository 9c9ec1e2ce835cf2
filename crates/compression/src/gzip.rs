//! Encoder of `gzip` (RFC 1952).

use flate2::{Compress, Compression, FlushCompress, Status};

use crate::EncoderFault;
use crate::encoder::Operation;

/// Compression level, from 1 to 9.
const LEVEL: u32 = 5;

/// Binary logarithm of the window size in bytes: 32 KiB, the maximum of the format.
const WINDOW_BITS: u8 = 15;

/// Number of output bytes that each call makes room for.
const ROOM: usize = 4 * 1024;

pub(crate) struct GzipEncoder(Compress);

impl GzipEncoder {
    /// Upper bound of the memory in bytes: window, hash tables, and output of a block.
    pub(crate) const MEMORY: usize = 384 * 1024;

    pub(crate) fn new() -> GzipEncoder {
        GzipEncoder(Compress::new_gzip(Compression::new(LEVEL), WINDOW_BITS))
    }

    pub(crate) fn run(
        &mut self,
        mut bytes: &[u8],
        operation: Operation,
        out: &mut Vec<u8>,
    ) -> Result<(), EncoderFault> {
        let flush = match operation {
            Operation::Write => FlushCompress::None,
            Operation::Flush => FlushCompress::Sync,
            Operation::Finish => FlushCompress::Finish,
        };
        loop {
            out.reserve(ROOM);
            let before = self.0.total_in();
            let status = self.0.compress_vec(bytes, out, flush).map_err(|_| EncoderFault)?;
            bytes = &bytes[(self.0.total_in() - before) as usize..];
            // If the library leaves capacity unused, it has no further output.
            let is_done = bytes.is_empty() && out.len() < out.capacity();
            if status == Status::StreamEnd || (is_done && operation != Operation::Finish) {
                return Ok(());
            }
        }
    }
}
