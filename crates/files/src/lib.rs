//! Files as HTTP serves them.
//!
//! The pure parts decide: [`FileName`] which file a path names, [`Validators`] whether a request's conditions hold, [`RangeSelection`]
//! which parts of it are sent, [`content_type`] what it is taken for.
//! [`listing`] writes the page of a directory. [`BoundedCache`] keeps what was used last.
//!
//! [`beneath`] opens files: nothing outside of the root, whatever a path or a symbolic link says. Who calls it decides in which thread.
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
