//! Recent events. Pure.

use serde::{Deserialize, Serialize};

use crate::{Label, WallTime};

/// Event that has happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Event")]
pub struct EventReport {
    /// Number of the event; counts from 0 when convey first starts.
    pub number: u64,
    /// Time of the event.
    pub at: WallTime,
    /// Subject of the event.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::EVENT_KINDS)))]
    pub kind: Label,
    /// Severity.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::EVENT_LEVELS)))]
    pub level: Label,
    /// Operator-facing description.
    pub text: String,
}
