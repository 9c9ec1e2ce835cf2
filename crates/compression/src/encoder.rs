//! Encoder for all content codings.

use convey_http_core::ContentCoding;

use crate::brotli::BrotliEncoder;
use crate::gzip::GzipEncoder;
use crate::zstd::ZstdEncoder;

/// Encoder of one body.
pub struct Encoder {
    by: ByCoding,
    /// Whether the encoder may still hold bytes that were written.
    has_unflushed: bool,
}

/// Encoder of the coding's library. A large encoder is boxed, so that this enum stays small.
enum ByCoding {
    Zstd(ZstdEncoder),
    Brotli(Box<BrotliEncoder>),
    Gzip(GzipEncoder),
}

/// The library returned an error. The body cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderFault;

/// Operation of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Takes input, and returns the output that is ready.
    Write,
    /// Returns all output that a decoder needs for the input so far.
    Flush,
    /// Ends the body.
    Finish,
}

impl Encoder {
    /// Creates an encoder for a body with this length, if it is known: a short body needs less
    /// memory.
    ///
    /// # Errors
    /// Memory is short.
    pub fn new(coding: ContentCoding, len: Option<u64>) -> Result<Encoder, EncoderFault> {
        let by = match coding {
            ContentCoding::Zstd => ByCoding::Zstd(ZstdEncoder::new(len)?),
            ContentCoding::Brotli => ByCoding::Brotli(Box::new(BrotliEncoder::new(len))),
            ContentCoding::Gzip => ByCoding::Gzip(GzipEncoder::new()),
        };
        Ok(Encoder { by, has_unflushed: false })
    }

    /// Upper bound of the memory of an encoder of this coding, its buffers included, in bytes.
    pub fn memory(coding: ContentCoding) -> usize {
        match coding {
            ContentCoding::Zstd => ZstdEncoder::MEMORY,
            ContentCoding::Brotli => BrotliEncoder::MEMORY,
            ContentCoding::Gzip => GzipEncoder::MEMORY,
        }
    }

    /// Current memory, in bytes, that Rust's allocator does not track.
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

    /// Whether a decoder lacks bytes that were written.
    pub fn has_unflushed(&self) -> bool {
        self.has_unflushed
    }

    /// Appends all output that a decoder needs for the bytes so far. Each flush costs some bytes.
    ///
    /// # Errors
    /// The library failed.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        self.has_unflushed = false;
        self.run(&[], Operation::Flush, out)
    }

    /// Appends the end of the body. Nothing can be written after it.
    ///
    /// # Errors
    /// The library failed: the body is shorter than its announced length.
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
