//! Log lines about refused and waiting connections, rate-limited for each frontend and event.

use std::fmt::Display;

use log::warn;

use super::lines::Event;
use super::session::TcpSession;
use convey_snapshot::stats::Counter;

impl TcpSession {
    /// Logs that the connection was refused for this reason; `None` means that it waits for its
    /// client's share.
    pub(super) fn log_refusal(&self, refused: Option<Counter>) {
        let event = match refused {
            Some(Counter::Loop) => Event::Loop,
            Some(Counter::ProxyUntrusted) => Event::Untrusted,
            Some(Counter::ClientLimit) => Event::Refused,
            // Refusals that the configuration demands are only counted.
            Some(_) => return,
            None => Event::Waits,
        };
        let Some(more) = self.context.shared.lines.take(self.frontend_id(), event) else { return };
        let (vip, client) = (self.vip(), self.client());
        let ip = client.ip();
        match event {
            Event::Loop => warn!(
                "{vip}: convey resets a connection that it opened itself ({client}): the address of a server leads back to this \
                 frontend{more}"
            ),
            Event::Untrusted => {
                warn!(
                    "{vip}: connections from {ip} are reset, because {ip} is not in trusted_proxies (accept_proxy){more}"
                );
            }
            _ => {
                let (of, fate) = match refused {
                    Some(_) => ("connections, descriptors or local ports", "are reset"),
                    None => ("connections", "wait"),
                };
                warn!(
                    "{vip}: client {ip} has used its share of {of}; its further connections {fate} \
                     (max_connections_per_client, trusted_clients){more}"
                );
            }
        }
    }

    /// Logs that the connection has no valid PROXY header.
    pub(super) fn log_header_error(&self, why: impl Display) {
        let Some(more) = self.context.shared.lines.take(self.frontend_id(), Event::Header) else { return };
        let (vip, ip) = (self.vip(), self.client_ip());
        warn!("{vip}: a connection from {ip} is reset (accept_proxy): {why}{more}");
    }
}
