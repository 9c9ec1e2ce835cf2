//! Values in the format of the log.

use std::time::Duration;

use crate::{LogFormat, LogOutput};
use convey_model::{
    Algorithm, DsrKind, HashKey, HttpVersion, LogLevel, Offload, OnDown, Prefix, ProbeVia, Protocol,
    ProxyVersion,
};

/// Value in the format of the log: the word or number from the file.
pub(crate) trait Shown {
    /// Returns the text.
    fn shown(&self) -> String;
}

impl Shown for Duration {
    /// Text such as `1.5s`.
    fn shown(&self) -> String {
        format!("{}s", self.as_secs_f64())
    }
}

/// Shows types by their `Display`.
macro_rules! displayed {
    ($($Type:ty),+ $(,)?) => {
        $(impl Shown for $Type {
            fn shown(&self) -> String {
                self.to_string()
            }
        })+
    };
}

/// Shows types by their name in the configuration.
macro_rules! named {
    ($($Type:ty),+ $(,)?) => {
        $(impl Shown for $Type {
            fn shown(&self) -> String {
                self.name().to_owned()
            }
        })+
    };
}

displayed!(bool, u8, u16, u32, u64, usize, String, LogOutput, Offload, Prefix);
named!(
    Algorithm,
    DsrKind,
    HashKey,
    HttpVersion,
    LogFormat,
    LogLevel,
    OnDown,
    ProbeVia,
    Protocol,
    ProxyVersion
);
