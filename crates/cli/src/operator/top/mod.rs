//! `convey top`: rates per second on a screen of any size. Pure: `app` owns the terminal and the
//! clock.
//!
//! [`TopSample`] is a response of convey with its time. [`TopState`] computes rows from two
//! samples, and handles keys. [`draw`] draws the state on a screen, [`top_text`] returns it as
//! text.

mod column;
mod fit;
mod rates;
mod sample;
mod screen;
mod state;
#[cfg(test)]
mod tests;

pub use column::TopColumn;
pub(super) use fit::{percent, short as short_rate, time as short_time};
pub use sample::{TopSample, is_restarted};
pub use screen::{draw, top_text};
pub use state::{TopKey, TopState};
