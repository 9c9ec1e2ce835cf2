//! convey, a layer-4 load balancer. ARCHITECTURE.md is the map; the libraries are under `crates/`.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod app;
