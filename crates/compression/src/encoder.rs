//! Encoder for all content codings.

use convey_http_core::ContentCoding;

use crate::brotli::BrotliEncoder;
use crate::gzip::GzipEncoder;
use crate::zstd::ZstdEncoder;

/// Encoder of one body, for any content coding.
pub struct Encoder {
    by: ByCoding,
    /// Whether the encoder may hold bytes of the body that are not in the output yet.
    has_unflushed: bool,
}

/// Encoder of the compression library, by coding. A large encoder is boxed, so that the enum stays
/// small.
enum ByCoding {
    Zstd(ZstdEncoder),
    Brotli(Box<BrotliEncoder>),
    Gzip(GzipEncoder),
}

/// Error of a compression library. The body cannot be continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderFault;

/// Operation of an encoder on its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Takes input, and returns output if it is ready.
    Write,
    /// Returns all output that a decoder needs to decode the input so far.
    Flush,
    /// Ends the body.
    Finish,
}

impl Encoder {
    /// Creates an encoder for a body. `len` is the length of the body in bytes; `None`: unknown.
    /// The encoder of a short body needs less memory.
    ///
    /// # Errors
    /// Memory cannot be allocated.
    pub fn new(coding: ContentCoding, len: Option<u64>) -> Result<Encoder, EncoderFault> {
        let by = match coding {
            ContentCoding::Zstd => ByCoding::Zstd(ZstdEncoder::new(len)?),
            ContentCoding::Brotli => ByCoding::Brotli(Box::new(BrotliEncoder::new(len))),
            ContentCoding::Gzip => ByCoding::Gzip(GzipEncoder::new()),
        };
        Ok(Encoder { by, has_unflushed: false })
    }

    /// Upper bound in bytes of the memory that an encoder of this coding uses, including its
    /// buffers.
    pub fn memory(coding: ContentCoding) -> usize {
        match coding {
            ContentCoding::Zstd => ZstdEncoder::MEMORY,
            ContentCoding::Brotli => BrotliEncoder::MEMORY,
            ContentCoding::Gzip => GzipEncoder::MEMORY,
        }
    }

    /// Current memory of the encoder in bytes that a C library has allocated, so that Rust's
    /// allocator does not count it. Only zstd uses such memory.
    pub fn foreign_memory(&self) -> usize {
        match &self.by {
            ByCoding::Zstd(zstd) => zstd.memory(),
            ByCoding::Brotli(_) | ByCoding::Gzip(_) => 0,
        }
    }

    /// Compresses bytes of the body, and appends the output that is ready to `out`.
    ///
    /// # Errors
    /// The library rejected the bytes: the body is longer than its announced length.
    pub fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.has_unflushed = true;
        self.run(bytes, Operation::Write, out)
    }

    /// Whether some written bytes cannot be decoded yet from the output.
    pub fn has_unflushed(&self) -> bool {
        self.has_unflushed
    }

    /// Appends to `out` all output that a decoder needs to decode the bytes so far. Each flush
    /// makes the output some bytes longer.
    ///
    /// # Errors
    /// The library failed.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        self.has_unflushed = false;
        self.run(&[], Operation::Flush, out)
    }

    /// Appends the end of the body to `out`. Nothing can be written afterwards.
    ///
    /// # Errors
    /// The library failed, because the body is shorter than its announced length.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        self.has_unflushed = false;
        self.run(&[], Operation::Finish, out)
    }

    fn run(&mut self, bytes: &[u8], operation: Operation, out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        match &mut self.by {
            ByCoding::Zstd(zstd) => zstd.run(bytes, operation, out),
            ByCoding::Brotli(brotli) => brotli.run(bytes, operation, out),
            ByCoding::Gzip(gzip) => gzip.run(bytes, operation, out),
        }
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("has_unflushed", &self.has_unflushed).finish_non_exhaustive()
    }
}
