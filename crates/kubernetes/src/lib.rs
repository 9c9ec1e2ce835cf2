//! The endpoints of a Kubernetes Service as servers of a backend.
//!
//! - `Endpoints` derives servers from the EndpointSlices of a Service: pure.
//! - [`Kubernetes`] lists and watches these slices and the annotations of the Service at an API server, and tells what they stand for
//!   whenever that changes.
//!
//! Kubeconfigs are read, and API servers may be slow: give it a thread of its own.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod annotations;
mod bounds;
mod client;
mod cluster;
mod credentials;
mod endpoints;
mod exec;
mod kubeconfig;
mod objects;
mod server;
mod source;
#[cfg(feature = "test-util")]
mod testing;
mod watch;
mod watcher;
mod yaml;

pub use source::Kubernetes;
#[cfg(feature = "test-util")]
pub use testing::{ApiAnswer, annotations_from, slices_from};
