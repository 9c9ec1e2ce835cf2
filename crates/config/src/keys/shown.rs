//! Text of values in the log.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::{LogFormat, LogOutput};
use convey_http_core::{ClientAddress, ContentCoding, MediaPattern};
use convey_model::{
    AcmeChallenge, Algorithm, BodyPattern, DsrKind, HashKey, HttpVersion, LogLevel, Offload, OnDown,
    OverLimit, Prefix, ProbeVia, Protocol, ProxyVersion, TlsVersion,
};

/// Text of a value in the log: the word or number from the file.
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

impl Shown for RangeInclusive<u16> {
    /// Text such as `200-399`.
    fn shown(&self) -> String {
        format!("{}-{}", self.start(), self.end())
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

displayed!(
    bool,
    ClientAddress,
    u8,
    u16,
    u32,
    u64,
    usize,
    BodyPattern,
    IpAddr,
    LogOutput,
    MediaPattern,
    NonZeroU32,
    Offload,
    Prefix,
    SocketAddr,
    String
);
named!(
    AcmeChallenge,
    Algorithm,
    ContentCoding,
    DsrKind,
    HashKey,
    HttpVersion,
    LogFormat,
    LogLevel,
    OnDown,
    OverLimit,
    ProbeVia,
    Protocol,
    ProxyVersion,
    TlsVersion,
);
