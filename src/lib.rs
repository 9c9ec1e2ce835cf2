//! convey, a layer-4 load balancer. ARCHITECTURE.md is the map; `tests/layering.rs` keeps its import rule.

pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod control;
pub mod dataplane;
pub mod demo;
pub mod files;
pub mod forward;
pub mod health;
pub mod logging;
pub mod net;
pub mod programs;
pub mod proxy;
pub mod snapshot;
pub mod stats;

pub use {convey_balance as balance, convey_model as model, convey_wire as wire};
