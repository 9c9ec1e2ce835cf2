//! `convey top`: what happens a second, on a screen of any size. Pure: the terminal and the clock
//! are `app`'s.
//!
//! [`TopSample`] is what convey has answered at a moment. [`TopState`] makes rows of two of them,
//! and knows what the operator has typed. [`draw`] puts it on a screen, [`top_text`] makes text of
//! it.

mod column;
mod fit;
mod rates;
mod sample;
mod screen;
mod state;
#[cfg(test)]
mod tests;

pub use column::TopColumn;
pub(super) use fit::time as short_time;
pub use sample::{TopEvent, TopSample, TopStatus};
pub use screen::{draw, top_text};
pub use state::{TopKey, TopState};
