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
    /// Overrides [`Timeouts::request`].
    pub request: Option<Duration>,
    /// Overrides [`Timeouts::send`].
    pub send: Option<Duration>,
    /// Overrides [`Timeouts::tcp_user_timeout`].
    pub tcp_user_timeout: Option<Duration>,
    /// Overrides [`Timeouts::udp_idle`].
    pub udp_idle: Option<Duration>,
}

impl Timeouts {
    /// Returns these timeouts, overridden by `own`.
    pub fn with(self, own: &OwnTimeouts) -> Timeouts {
        let OwnTimeouts { connect, idle, response, request, send, tcp_user_timeout, udp_idle } = *own;
        Timeouts {
            connect: connect.unwrap_or(self.connect),
            idle: idle.unwrap_or(self.idle),
            response: response.unwrap_or(self.response),
            request: request.or(self.request),
            send: send.unwrap_or(self.send),
            tcp_user_timeout: tcp_user_timeout.unwrap_or(self.tcp_user_timeout),
            udp_idle: udp_idle.unwrap_or(self.udp_idle),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_timeouts_override_the_general_ones() {
        let second = Some(Duration::from_secs(1));
        let own = OwnTimeouts { idle: second, udp_idle: second, request: second, ..OwnTimeouts::default() };
        let (all, with) = (Timeouts::default(), Timeouts::default().with(&own));
        assert_eq!([Some(with.idle), Some(with.udp_idle), with.request], [second; 3]);
        assert_eq!(Timeouts { idle: all.idle, udp_idle: all.udp_idle, request: None, ..with }, all);
    }
}
