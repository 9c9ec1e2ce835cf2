//! Kubernetes source of servers: the endpoints of a Service become servers of a backend.
//!
//! - `Endpoints` derives servers from the EndpointSlices of a Service: pure.
//! - [`Kubernetes`] lists and watches these slices and the annotations of the Service at an API
//!   server, and reports servers and settings after each change.
//!
//! Files are read in separate threads, because a network file system may never answer. Credential
//! plugins and API servers may be slow, so the source should run in its own thread.
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
mod proxies;
mod server;
mod source;
#[cfg(feature = "test-util")]
mod testing;
mod watch;
mod watcher;
mod yaml;

pub use annotations::AnnotationState;
pub use source::Kubernetes;
#[cfg(feature = "test-util")]
pub use testing::{ApiAnswer, annotations_from, slices_from};
