//! Encoder of `br` (RFC 7932).

use brotli::enc::StandardAlloc;
use brotli::enc::encode::{BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct};

use crate::EncoderFault;
use crate::encoder::Operation;

/// Compression level, from 0 to 11.
const QUALITY: u32 = 4;

/// Binary logarithm of the window size in bytes.
const WINDOW_BITS: u32 = 17;

/// Binary logarithm of the size of input blocks in bytes.
const BLOCK_BITS: u32 = 16;

/// Number of output bytes that each call makes room for.
const ROOM: usize = 4 * 1024;

pub(crate) struct BrotliEncoder(BrotliEncoderStateStruct<StandardAlloc>);

impl BrotliEncoder {
    /// Upper bound of the memory in bytes: window, hash tables, and commands of a block.
    pub(crate) const MEMORY: usize = 2_432 * 1024;

    pub(crate) fn new(len: Option<u64>) -> BrotliEncoder {
        let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, QUALITY);
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, WINDOW_BITS);
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGBLOCK, BLOCK_BITS);
        if let Some(len) = len {
            let hint = u32::try_from(len).unwrap_or(u32::MAX);
            state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_SIZE_HINT, hint);
        }
        BrotliEncoder(state)
    }

    pub(crate) fn run(
        &mut self,
        bytes: &[u8],
        operation: Operation,
        out: &mut Vec<u8>,
    ) -> Result<(), EncoderFault> {
        let operation = match operation {
            Operation::Write => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
            Operation::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
            Operation::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut taken, mut room) = (bytes.len(), 0, [0; ROOM]);
        loop {
            let (mut room_left, mut given) = (room.len(), 0);
            let is_right = self.0.compress_stream(
                operation,
                &mut left,
                bytes,
                &mut taken,
                &mut room_left,
                &mut room,
                &mut given,
                &mut None,
                &mut |_, _, _, _| (),
            );
            if !is_right {
                return Err(EncoderFault);
            }
            out.extend_from_slice(&room[..given]);
            if left == 0 && !self.0.has_more_output() {
                return Ok(());
            }
        }
    }
}
