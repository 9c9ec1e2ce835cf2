//! A configuration that is in etcd, for many nodes.
//!
//! The keys below a prefix are the files of a folder: `PREFIX/config.toml` is the configuration, and what it includes or names
//! is beside it.
//!
//! - [`EtcdAddress`] says where it is: pure.
//! - [`Revision`] is all files at one revision of the store; [`Revision::of`] makes it of keys: pure.
//! - [`EtcdClient`] reads and watches it, and writes what has become of it.
//! - [`FollowPace`] decides when to try again, and which failures are logged: pure.
//! - [`RevisionFolder`] keeps it on disk: the one in use, and the last one that was good, for a start without etcd.
//!
//! etcd is asked by its JSON gateway (`/v3/kv/range`, `/v3/watch`, `/v3/auth/authenticate`), which is on by default from etcd 3.4 on.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod address;
mod answer;
mod client;
mod connection;
mod folder;
mod pace;
mod revision;
mod tls;

pub use address::{AddressFault, EtcdAddress, EtcdTls, MAIN_FILE};
#[cfg(feature = "test-util")]
pub use client::read_answer;
pub use client::{EtcdClient, EtcdFault, EtcdWatch};
pub use folder::RevisionFolder;
pub use pace::{FollowPace, NextAttempt};
pub use revision::{Revision, RevisionFault};
