//! Phases of a request. Pure.

/// Phase of a request, in the order in which requests pass through them. The picture
/// `docs/images/http-phases.svg` shows them. The access log, the metrics, `convey trace` and
/// `convey explain` use the labels.
///
/// A request need not pass through each phase. A retry goes back to [`ExchangePhase::Pick`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExchangePhase {
    /// convey reads the head of the request and checks its syntax and its limits.
    RequestHead,
    /// convey checks whether the client may send this request here: its share of the frontend, the
    /// access lists, and the certificate for the host. convey replies to ACME challenges here.
    Access,
    /// convey finds the route of the request, and replies to requests without a route or with a
    /// redirect.
    Route,
    /// convey applies the limits of the frontend and of the route: the length of the body and the
    /// rate of requests.
    Limits,
    /// Layers of an embedding application inspect the request, and may reply to it.
    Layers,
    /// convey picks a server of the route's backend, and waits while all servers are at their
    /// limit. A backend with files looks up the file.
    Pick,
    /// convey reuses an idle connection to the server, or opens a connection.
    Connect,
    /// convey sends the request to the server: the head, then the body as the client sends it.
    UpstreamRequest,
    /// The server has the whole request. convey waits for the head of its response, and passes
    /// interim responses on.
    ResponseHead,
    /// The head of the response has arrived. The bodies move in both directions.
    Bodies,
    /// Client and server have switched to another protocol, such as WebSocket. Bytes move in both
    /// directions until both sides close.
    Tunnel,
    /// The request is over. convey counts it and writes its line in the access log.
    End,
}

impl ExchangePhase {
    /// All phases, in their order.
    pub const ALL: [ExchangePhase; 12] = [
        ExchangePhase::RequestHead,
        ExchangePhase::Access,
        ExchangePhase::Route,
        ExchangePhase::Limits,
        ExchangePhase::Layers,
        ExchangePhase::Pick,
        ExchangePhase::Connect,
        ExchangePhase::UpstreamRequest,
        ExchangePhase::ResponseHead,
        ExchangePhase::Bodies,
        ExchangePhase::Tunnel,
        ExchangePhase::End,
    ];

    /// Label in logs, metrics and messages.
    pub const fn label(self) -> &'static str {
        match self {
            ExchangePhase::RequestHead => "request_head",
            ExchangePhase::Access => "access",
            ExchangePhase::Route => "route",
            ExchangePhase::Limits => "limits",
            ExchangePhase::Layers => "layers",
            ExchangePhase::Pick => "pick",
            ExchangePhase::Connect => "connect",
            ExchangePhase::UpstreamRequest => "upstream_request",
            ExchangePhase::ResponseHead => "response_head",
            ExchangePhase::Bodies => "bodies",
            ExchangePhase::Tunnel => "tunnel",
            ExchangePhase::End => "end",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_listed_once_and_in_order() {
        assert!(ExchangePhase::ALL.is_sorted_by(|a, b| a < b));
        assert_eq!(ExchangePhase::ALL.len(), ExchangePhase::End as usize + 1);
    }
}
