//! convey, a layer-4 load balancer. ARCHITECTURE.md is the map; the import rule is in `tests/layering.rs`.

pub mod admin;
pub mod balance;
pub mod config;
pub mod demo;
pub mod health;
pub mod model;
pub mod snapshot;
pub mod stats;
