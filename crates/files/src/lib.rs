//! Static files for HTTP.
//!
//! The pure parts decide: [`FileName`] maps a path to a file, [`Validators`] evaluate the
//! conditions of a request, [`RangeSelection`] selects the ranges to send, and [`content_type`]
//! returns the media type. [`listing`] writes the page of a directory. [`BoundedCache`] keeps the
//! most recently used entries.
//!
//! [`beneath`] opens files. It never opens a file outside of the root, whatever the path and the
//! symbolic links are. Its calls may block, so the caller chooses the thread for them.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod beneath;
mod bounded_cache;
mod conditions;
mod content_type;
mod file_name;
pub mod listing;
mod ranges;

pub use bounded_cache::{BoundedCache, CacheBounds};
pub use conditions::{Condition, Validators};
pub use content_type::{content_type, is_compressible};
pub use file_name::{FileName, NameFault};
pub use ranges::{MAX_RANGES, MultipartBody, PartOfFile, RangeSelection};
