//! One encoder for all codings.

use convey_http_core::ContentCoding;

use crate::brotli::BrotliEncoder;
use crate::gzip::GzipEncoder;
use crate::zstd::ZstdEncoder;

/// Compresses one body.
pub struct Encoder {
    by: ByCoding,
    /// Whether bytes went in that may still be in here.
    has_unflushed: bool,
}

/// The library behind it. In boxes: what waits for a body is small.
enum ByCoding {
    Zstd(ZstdEncoder),
    Brotli(Box<BrotliEncoder>),
    Gzip(GzipEncoder),
}

/// The library refused. The body cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderFault;

/// What an encoder does with what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Takes more, and gives what is ready.
    Write,
    /// Gives all that a decoder needs for the bytes so far.
    Flush,
    /// Ends the body.
    Finish,
}

impl Encoder {
    /// Of a body that has so many bytes, if that is known: a short one needs less memory.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(coding: ContentCoding, len: Option<u64>) -> Result<Encoder, EncoderFault> {
        let by = match coding {
            ContentCoding::Zstd => ByCoding::Zstd(ZstdEncoder::new(len)?),
            ContentCoding::Brotli => ByCoding::Brotli(Box::new(BrotliEncoder::new(len))),
            ContentCoding::Gzip => ByCoding::Gzip(GzipEncoder::new()),
        };
        Ok(Encoder { by, has_unflushed: false })
    }

    /// Most bytes that an encoder of this coding holds, its buffers included.
    pub fn memory(coding: ContentCoding) -> usize {
        match coding {
            ContentCoding::Zstd => ZstdEncoder::MEMORY,
            ContentCoding::Brotli => BrotliEncoder::MEMORY,
            ContentCoding::Gzip => GzipEncoder::MEMORY,
        }
    }

    /// What it holds now that Rust's allocator does not see, in bytes.
    pub fn foreign_memory(&self) -> usize {
        match &self.by {
            ByCoding::Zstd(zstd) => zstd.memory(),
            ByCoding::Brotli(_) | ByCoding::Gzip(_) => 0,
        }
    }

    /// Takes some bytes of the body, and appends what is ready to `out`.
    ///
    /// # Errors
    /// The library refused them: the body is longer than was said.
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

    /// Appends all that a decoder needs for the bytes so far. Costs some bytes each time.
    ///
    /// # Errors
    /// The library refused.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), EncoderFault> {
        self.has_unflushed = false;
        self.run(&[], Operation::Flush, out)
    }

    /// Appends the end. Nothing can be written after it.
    ///
    /// # Errors
    /// The library refused: the body is shorter than was said.
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
