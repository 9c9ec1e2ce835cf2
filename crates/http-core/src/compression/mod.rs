//! Response compression: which responses are compressed, and how their heads change.
//!
//! [`CompressionRules`] are the operator's settings. [`CompressionOffer`] applies them to one
//! request. The offer reads the head of the response as the client would get it, after all other
//! changes.

mod change;
mod offer;
mod response;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use change::CompressionChange;
pub use offer::{CompressionOffer, CompressionOutcome};
pub use rules::{CompressionRules, MediaPattern};
