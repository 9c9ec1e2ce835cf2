//! Encoders of HTTP's content codings: `zstd` (RFC 8878), `br` (RFC 7932) and `gzip` (RFC 1952).
//! Pure: bytes in, bytes out.
//!
//! [`Encoder`] compresses one body, piece by piece, and holds at most [`Encoder::memory`] bytes.
//! `convey-http-core` decides what is compressed; `convey-http` frames the output.
//!
//! ```
//! use convey_compression::Encoder;
//! use convey_http_core::ContentCoding;
//!
//! let (page, mut out) = ("<li>one more line</li>\n".repeat(1_000), Vec::new());
//! let mut encoder = Encoder::new(ContentCoding::Gzip, None).unwrap();
//! for piece in page.as_bytes().chunks(4_096) {
//!     encoder.write(piece, &mut out).unwrap();
//! }
//! encoder.finish(&mut out).unwrap();
//! assert!(out.len() < page.len() / 50);
//! ```

mod brotli;
mod encoder;
mod gzip;
#[cfg(test)]
mod tests;
mod zstd;

pub use encoder::{Encoder, EncoderFault};
