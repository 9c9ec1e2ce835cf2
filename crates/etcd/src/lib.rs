//! Configuration of many nodes in etcd.
//!
//! The keys below a prefix are the files of a directory: `PREFIX/config.toml` is the configuration,
//! next to the files that it includes or names.
//!
//! - [`EtcdAddress`] is the address of a configuration: pure.
//! - [`Revision`] contains all files at one revision of the store; [`Revision::of`] builds it from
//!   keys: pure.
//! - [`EtcdClient`] reads and watches a configuration, and reports its status.
//! - [`FollowPace`] decides when to try again to reach etcd, and which failures are logged: pure.
//! - [`RevisionFolder`] keeps revisions on disk: the revision in use, and the last accepted
//!   revision for a start without etcd.
//!
//! The client uses etcd's JSON gateway (`/v3/kv/range`, `/v3/watch`, `/v3/auth/authenticate`),
//! which is enabled by default since etcd 3.4.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod address;
mod answer;
mod client;
mod connection;
mod folder;
mod pace;
mod revision;
mod tls;

pub use address::{AddressFault, EtcdAddress, EtcdCertificate, EtcdEndpoint, EtcdTls, MAIN_FILE};
#[cfg(feature = "test-util")]
pub use client::read_answer;
pub use client::{EtcdClient, EtcdFault, EtcdWatch, PrefixMark};
pub use folder::RevisionFolder;
pub use pace::{FollowPace, NextAttempt};
pub use revision::{Revision, RevisionFault};
