//! convey, a load balancer for TCP, UDP and HTTP. ARCHITECTURE.md is the map of the code; the
//! libraries are under `crates/`.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod app;
