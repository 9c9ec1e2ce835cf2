//! What operators have said while the program runs, as the API serves it. Pure.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::report::rfc3339;
use crate::model::{Overlay, OverlayValue};

/// A change that an operator has made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverlayReport {
    /// Of this backend.
    pub backend: String,
    /// Of this server; of all of them, without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Whether it may serve: `ready`, `drain` or `maint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// Its weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Since when.
    #[serde(serialize_with = "rfc3339")]
    pub since: SystemTime,
    /// Who has made it.
    pub by: String,
}

impl OverlayReport {
    /// `started` is the wall-clock time of `Timestamp(0)`.
    pub fn new(overlay: &Overlay, started: SystemTime) -> Self {
        let (state, weight) = match overlay.value {
            OverlayValue::State(state) => (Some(state.name()), None),
            OverlayValue::Weight(weight) => (None, Some(weight)),
        };
        OverlayReport {
            backend: overlay.target.backend.clone(),
            server: overlay.target.server.clone(),
            state,
            weight,
            since: started + Duration::from_nanos(overlay.since.0),
            by: overlay.by.clone(),
        }
    }
}
