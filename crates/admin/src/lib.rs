//! HTTP endpoints for operators: `/stats`, `/metrics`, `/healthz` and `/readyz`, the control API
//! below `/v1`, and the dashboard. The module `routes` defines the paths. The module `http` serves
//! clients of the statistics address and of the control socket.
//!
//! [`convey_api::StatsReport`] is the complete report of one snapshot. `/stats` returns it as JSON,
//! and `/metrics` as Prometheus text, so that each number has the same meaning in both.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod acme_state;
mod announce_state;
mod api;
mod certificates;
mod config;
mod dashboard;
mod discoveries;
mod events;
mod flows;
mod hosts;
mod http;
mod listener;
mod names;
mod network_search;
mod overlays;
mod packets;
mod pages;
mod process;
mod progress;
mod prometheus;
mod ready;
mod remote_state;
mod report;
mod routes;
mod source;
mod trace;
mod wrong_tokens;

pub use acme_state::{AcmeName, AcmeState};
pub use announce_state::{AnnounceState, AnnouncedAddress};
pub use certificates::CertificateView;
pub use flows::FlowSources;
pub use http::{serve, serve_until};
pub use listener::{AdminListener, Requester};
pub use network_search::search_network;
pub use packets::packet_report;
pub use process::ProcessMetrics;
pub use prometheus::render;
pub use ready::ReadinessInput;
pub use ready::{AnnouncedAddresses, announced_addresses};
pub use remote_state::{RefusedRevision, RemoteKnown, RemoteState};
pub use report::stats_report;
pub use routes::routes;
pub use source::{DataPathView, StatsSource};
