//! convey, a layer-4 load balancer. ARCHITECTURE.md is the map; the libraries are under `crates/`.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod admin;
pub mod app;
pub mod cli;
pub mod demo;
pub mod doctor;
pub mod explain;
mod heap;
pub mod logging;
pub mod operator;

pub use convey_config::files;
pub use convey_control::health;
pub use convey_dataplane::{net, programs};
pub use convey_snapshot::stats;
pub use {
    convey_balance as balance, convey_config as config, convey_control as control,
    convey_dataplane as dataplane, convey_forward as forward, convey_model as model, convey_proxy as proxy,
    convey_proxy_protocol as proxy_protocol, convey_snapshot as snapshot, convey_wire as wire,
};
