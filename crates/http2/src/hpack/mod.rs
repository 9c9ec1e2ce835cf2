//! Field sections (RFC 7541).

mod decoder;
mod encoder;
pub(crate) mod static_table;
mod table;

pub(crate) use decoder::Decoder;
pub use decoder::Scratch;
pub(crate) use encoder::Encoder;
pub(crate) use table::Line;
