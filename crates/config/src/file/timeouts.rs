//! Timeouts in the file.

use std::time::Duration;

use super::value;
use crate::problem::Placed;
use crate::reader::TomlTable;
use crate::values::{MILLISECOND, seconds};
use convey_model::{OwnTimeouts, Timeouts};

/// `[timeouts]`
#[derive(Debug, Clone)]
pub(crate) struct TimeLimits {
    pub(crate) own: OwnLimits,
    drain: Duration,
    drain_delay: Duration,
}

/// `[frontends.NAME.timeouts]` and `[backends.NAME.timeouts]`
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnLimits {
    pub(crate) connect: Option<Placed<Duration>>,
    pub(crate) idle: Option<Placed<Duration>>,
    pub(crate) response: Option<Placed<Duration>>,
    pub(crate) tcp_user_timeout: Option<Placed<Duration>>,
    pub(crate) udp_idle: Option<Placed<Duration>>,
}

impl TimeLimits {
    /// Reads them.
    pub(super) fn read(mut table: TomlTable<'_>) -> TimeLimits {
        let own = OwnLimits::keys(&mut table);
        let drain = table.or("drain", Timeouts::default().drain, seconds(Duration::ZERO));
        let drain_delay = table.or("drain_delay", Timeouts::default().drain_delay, seconds(Duration::ZERO));
        table.finish();
        TimeLimits { own, drain, drain_delay }
    }

    pub(super) fn model(&self) -> Timeouts {
        let TimeLimits { own, drain, drain_delay } = self;
        Timeouts { drain: *drain, drain_delay: *drain_delay, ..Timeouts::default().with(&own.model()) }
    }
}

impl OwnLimits {
    /// Reads them.
    pub(crate) fn read(mut table: TomlTable<'_>) -> OwnLimits {
        let own = OwnLimits::keys(&mut table);
        table.finish();
        own
    }

    fn keys(table: &mut TomlTable<'_>) -> OwnLimits {
        OwnLimits {
            connect: table.optional("connect", seconds(MILLISECOND)),
            idle: table.optional("idle", seconds(MILLISECOND)),
            response: table.optional("response", seconds(MILLISECOND)),
            tcp_user_timeout: table.optional("tcp_user_timeout", seconds(MILLISECOND)),
            udp_idle: table.optional("udp_idle", seconds(MILLISECOND)),
        }
    }

    /// Model of the timeouts.
    pub(crate) fn model(&self) -> OwnTimeouts {
        OwnTimeouts {
            connect: value(&self.connect),
            idle: value(&self.idle),
            response: value(&self.response),
            tcp_user_timeout: value(&self.tcp_user_timeout),
            udp_idle: value(&self.udp_idle),
        }
    }

    /// Timeouts of proxied TCP.
    pub(crate) fn of_tcp(&self) -> impl Iterator<Item = &Placed<Duration>> {
        [&self.connect, &self.idle, &self.tcp_user_timeout].into_iter().flatten()
    }

    /// Timeout of mode http.
    pub(crate) fn of_http(&self) -> impl Iterator<Item = &Placed<Duration>> {
        self.response.iter()
    }

    /// Timeouts of proxied UDP.
    pub(crate) fn of_udp(&self) -> impl Iterator<Item = &Placed<Duration>> {
        self.udp_idle.iter()
    }
}
