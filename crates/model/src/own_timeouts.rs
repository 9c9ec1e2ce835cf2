//! Timeouts of a single frontend or backend. Pure.

use std::time::Duration;

use crate::Timeouts;

/// [`Timeouts`] of one frontend or backend; `None`: the general timeout applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnTimeouts {
    /// Overrides [`Timeouts::connect`].
    pub connect: Option<Duration>,
    /// Overrides [`Timeouts::idle`].
    pub idle: Option<Duration>,
    /// Overrides [`Timeouts::response`].
    pub response: Option<Duration>,
    /// Overrides [`Timeouts::tcp_user_timeout`].
    pub tcp_user_timeout: Option<Duration>,
    /// Overrides [`Timeouts::udp_idle`].
    pub udp_idle: Option<Duration>,
}

impl OwnTimeouts {
    /// All timeouts with their names in the configuration.
    pub fn named(&self) -> [(&'static str, Option<Duration>); 5] {
        let OwnTimeouts { connect, idle, response, tcp_user_timeout, udp_idle } = *self;
        [
            ("connect", connect),
            ("idle", idle),
            ("response", response),
            ("tcp_user_timeout", tcp_user_timeout),
            ("udp_idle", udp_idle),
        ]
    }
}

impl Timeouts {
    /// Returns these timeouts, overridden by `own`.
    pub fn with(self, own: &OwnTimeouts) -> Timeouts {
        Timeouts {
            connect: own.connect.unwrap_or(self.connect),
            idle: own.idle.unwrap_or(self.idle),
            response: own.response.unwrap_or(self.response),
            tcp_user_timeout: own.tcp_user_timeout.unwrap_or(self.tcp_user_timeout),
            udp_idle: own.udp_idle.unwrap_or(self.udp_idle),
            drain: self.drain,
            drain_delay: self.drain_delay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_timeouts_override_the_general_ones() {
        let second = Some(Duration::from_secs(1));
        let own = OwnTimeouts { idle: second, udp_idle: second, ..OwnTimeouts::default() };
        let (all, with) = (Timeouts::default(), Timeouts::default().with(&own));
        assert_eq!((Some(with.idle), Some(with.udp_idle)), (second, second));
        assert_eq!(Timeouts { idle: all.idle, udp_idle: all.udp_idle, ..with }, all);
    }
}
