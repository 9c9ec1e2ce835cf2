//! Times in the notation of RFC 3339. Pure.

use std::fmt;
use std::time::SystemTime;

use humantime::{format_rfc3339_micros, format_rfc3339_millis, parse_rfc3339};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Time with milliseconds, such as `2026-01-01T12:00:01.234Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallTime(pub SystemTime);

impl Default for WallTime {
    fn default() -> Self {
        WallTime(SystemTime::UNIX_EPOCH)
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format_rfc3339_millis(self.0))
    }
}

impl From<SystemTime> for WallTime {
    fn from(time: SystemTime) -> Self {
        WallTime(time)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer).map(WallTime)
    }
}

/// Time with microseconds, such as `2026-01-01T12:00:01.234567Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PreciseTime(pub SystemTime);

impl fmt::Display for PreciseTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format_rfc3339_micros(self.0))
    }
}

impl Serialize for PreciseTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PreciseTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer).map(PreciseTime)
    }
}

fn parsed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_rfc3339(&text).map_err(|error| de::Error::custom(format!("{text:?} is not a time: {error}")))
}
