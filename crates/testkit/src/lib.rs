//! Helpers for convey's tests and benchmarks: the real binary and its readiness, servers, clients,
//! namespaces, timeouts, and reasons to ignore a test. Helpers panic on failure. The program itself
//! does not use this crate.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod balancer;
mod browser;
mod client;
mod ftp;
mod http_server;
mod log_file;
mod loopback;
mod name_server;
mod namespace;
mod need;
mod nginx;
mod pace;
mod pattern;
mod process;
mod server;
mod setup;
mod tls;
mod udp;
mod wait;
mod wrk;

pub use convey_lab::join;

pub use balancer::{BalancerProcess, Fds, READY, binary, binary_of_upgrade, start, wait_until_ready};
pub use browser::{Browser, BrowserHttp3};
pub use client::{
    BoundClient, connect, connect_from, fetch, fetch_from, is_refused_with_reset, is_refused_with_reset_from,
    ping, reset, was_reset,
};
pub use ftp::ftp_server;
pub use http_server::{SeenRequest, TestHttpServer};
pub use log_file::whole_lines;
pub use loopback::Loopback;
pub use name_server::{NAME, SERVICE, TestNameServer};
pub use namespace::{TestNamespace, in_namespace};
pub use need::{
    Need, memory_groups, raise_file_limit, run_trials, run_trials_in_turns, tool, trial, trial_in_turn,
    trials,
};
pub use nginx::Nginx;
pub use pattern::{SlowReader, check_to_end, send};
pub use process::{Process, Ran, copy_program, run};
pub use server::TcpServer;
pub use setup::Setup;
pub use tls::{TestAuthority, TestCertificate, TlsClient, TlsSettings};
pub use udp::{Flood, UdpClient, UdpServer};
pub use wait::{PATIENCE, clock, wait_for, wait_up_to};
pub use wrk::Wrk;
