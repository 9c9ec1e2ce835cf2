//! Heads: the start line and the fields of a message, until the empty line.
//!
//! [`HeadReader`] finds the end of a head in the bytes received so far. `lines` parses its lines, and
//! `request` and `response` interpret them. `stream` builds heads of HTTP/2 and HTTP/3 messages with the builders in
//! `build`. `fields` stores the fields, and `target` parses a request's target.

mod build;
mod fields;
mod host;
mod lines;
mod reader;
mod reason;
mod request;
mod response;
mod start_line;
mod stream;
mod target;
#[cfg(test)]
mod tests;

pub use build::ResponseBuilder;
pub use fields::Field;
pub(crate) use fields::KnownField;
pub(crate) use host::split_port;
pub use reader::{HeadLimits, HeadReader};
pub use reason::reason_phrase;
pub use request::RequestHead;
pub use response::ResponseHead;
pub use stream::{StreamRequest, StreamResponse, StreamTunnel};
pub(crate) use target::{hex_pair, is_authority, is_plain};
