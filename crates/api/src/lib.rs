//! The types of the control API and of `/stats`. Pure.
//!
//! The server builds these values and serialises them; `convey status`, `convey top` and other
//! clients deserialise them. So a field has one name and one type on both sides, and
//! [`OPENAPI`] describes the same types for other programs.
//!
//! # Reading
//! Every field is required unless its server may leave it out. A client of another version ignores
//! fields that it does not know, and reports a required field that is missing by its name. A field
//! that only newer servers send has `#[serde(default)]`, with the reason in its documentation.
//!
//! ```
//! let change: convey_api::ChangeReport = serde_json::from_str(r#"{ "changed": true, "new": 1 }"#).unwrap();
//! assert!(change.changed && change.warnings.is_empty());
//! let error = serde_json::from_str::<convey_api::ChangeReport>("{}").unwrap_err();
//! assert!(error.to_string().starts_with("missing field `changed`"));
//! ```

#[cfg(test)]
mod allowed;
mod backend;
mod change;
mod config;
mod durations;
mod event;
mod explain;
mod flows;
mod frontend;
#[cfg(test)]
mod openapi;
mod overlay;
mod packets;
mod query;
#[cfg(any(test, feature = "test-util"))]
mod reader;
mod requests;
mod sources;
mod status;
mod time;
mod trace;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

pub use backend::{
    BackendReport, EjectedReport, FileCacheReport, HandshakeReport, HealthReport, PathMtuReport, ServerReport,
};
pub use change::{
    AccessReport, AdditionReport, ChangeReport, ErrorReport, LogLevelChange, LogLevelReport,
    MaintenanceChange, NewServer, ReloadReport, ResetReport, RouteChange, ServerChange,
};
pub use config::{ConfigReport, ListReport};
pub use durations::{Buckets, TimesReport};
pub use event::EventReport;
pub use explain::{
    ClientVerdict, Dependence, ExplainedFlow, ExplainedStep, Explanation, FlowsOfServer, OpenFlows,
    ServerNote,
};
pub use flows::{FlowGroupReport, FlowListReport, FlowReport, KilledFlow};
pub use frontend::{CertificateReport, FrontendReport, RouteReport, TlsReport};
pub use overlay::{AddedReport, MaintenanceReport, OverlayReport};
pub use packets::PacketReport;
pub use query::{
    EventParameters, ExplainParameters, FlowParameters, OverlayParameters, RemovalParameters, TraceParameters,
};
#[cfg(any(test, feature = "test-util"))]
pub use reader::unknown_fields;
pub use requests::{CompressionReport, RecentRequestReport, RequestReport};
pub use sources::{AcmeNameReport, AcmeReport, AnnouncedReport, DiscoveryReport, EtcdReport, NameReport};
pub use status::{StatsReport, TrafficReport};
pub use time::{PreciseTime, WallTime};
pub use trace::{
    ArrivedPacket, OuterPacket, PacketLine, ReceivedHead, RequestLine, SentPacket, TraceLine, TraceNames,
    TraceRemark, TracedAction,
};

/// Description of the API for programs: OpenAPI 3.1, generated from the types of this crate.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Word of the API: a constant of the server, or text that a client has read.
pub type Label = Cow<'static, str>;

/// Counts by label, such as the reason.
pub type Counts = BTreeMap<Label, u64>;

/// Reads a value that may be null. Unlike a plain `Option` field, the field must be there.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}
