//! What an operator may ask over HTTP while the program runs: `/stats`, `/metrics`, `/healthz` and `/readyz`.
//!
//! [`StatsReport`] is everything there is to say, taken from one snapshot; `/stats` is its JSON and `/metrics`
//! its Prometheus text, so the two never disagree on what a number means.

mod config;
mod http;
mod names;
mod packets;
mod pages;
mod process;
mod prometheus;
mod ready;
mod report;

pub use config::ConfigReport;
pub use http::{StatsSource, serve, serve_until};
pub use names::NameReport;
pub use packets::PacketReport;
pub use process::ProcessMetrics;
pub use prometheus::render;
pub use report::{
    BackendReport, EjectedReport, FrontendReport, HealthReport, ServerReport, StatsReport, TimesReport,
    TrafficReport,
};
