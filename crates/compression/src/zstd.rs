//! Encoder of `zstd` (RFC 8878).

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use crate::EncoderFault;
use crate::encoder::Operation;

/// Compression level, from 1 to 22.
const LEVEL: i32 = 3;

/// Binary logarithm of the window size in bytes. Browsers accept up to 8 MiB (RFC 9659).
const WINDOW_BITS: u32 = 18;

/// Number of output bytes that each call makes room for.
const ROOM: usize = 4 * 1024;

pub(crate) struct ZstdEncoder(CCtx<'static>);

impl ZstdEncoder {
    /// Upper bound of the memory in bytes: window, hash tables, and input and output blocks.
    pub(crate) const MEMORY: usize = 1_792 * 1024;

    pub(crate) fn new(len: Option<u64>) -> Result<ZstdEncoder, EncoderFault> {
        let mut context = CCtx::try_create().ok_or(EncoderFault)?;
        context.set_parameter(CParameter::CompressionLevel(LEVEL)).map_err(|_| EncoderFault)?;
        context.set_parameter(CParameter::WindowLog(WINDOW_BITS)).map_err(|_| EncoderFault)?;
        context.set_pledged_src_size(len).map_err(|_| EncoderFault)?;
        Ok(ZstdEncoder(context))
    }

    /// Current memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.0.sizeof()
    }

    pub(crate) fn run(
        &mut self,
        bytes: &[u8],
        operation: Operation,
        out: &mut Vec<u8>,
    ) -> Result<(), EncoderFault> {
        let directive = match operation {
            Operation::Write => ZSTD_EndDirective::ZSTD_e_continue,
            Operation::Flush => ZSTD_EndDirective::ZSTD_e_flush,
            Operation::Finish => ZSTD_EndDirective::ZSTD_e_end,
        };
        let mut input = InBuffer::around(bytes);
        loop {
            let at = out.len();
            out.reserve(ROOM);
            let mut output = OutBuffer::around_pos(out, at);
            let left = self.0.compress_stream2(&mut output, &mut input, directive);
            let left = left.map_err(|_| EncoderFault)?;
            let is_taken = input.pos() == bytes.len();
            // After a write, output may remain in the encoder.
            if is_taken && (left == 0 || operation == Operation::Write) {
                return Ok(());
            }
        }
    }
}
