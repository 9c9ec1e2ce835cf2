//! Which responses are compressed, and what becomes of their heads.
//!
//! [`CompressionRules`] are what an operator says. [`CompressionOffer`] is what they mean for one request. It reads the head of the
//! response as the client would get it, after all other changes.

mod offer;
mod response;
mod rules;
#[cfg(test)]
mod tests;

pub use offer::{CompressionOffer, CompressionOutcome};
pub use rules::{CompressionRules, MediaPattern};
