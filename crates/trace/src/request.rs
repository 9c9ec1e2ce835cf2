//! Steps of a request in mode http.

use std::sync::Arc;
use std::time::Duration;

/// Step of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRequest {
    /// Number of the request's stream (HTTP/2 and HTTP/3). `None`: the connection has one request
    /// at a time.
    pub stream: Option<u64>,
    /// Label of the phase that the step belongs to.
    pub phase: &'static str,
    /// Head of the request; `None`: it has not arrived, or arrived before the trace began.
    pub head: Option<Arc<TracedHead>>,
    /// Name of the route; `None`: it is not known yet, or no route matches.
    pub route: Option<Arc<str>>,
    /// Step of the request.
    pub step: RequestStep,
}

/// Step of a request, from the arrival of its head to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestStep {
    /// The head of the request has arrived.
    Arrived,
    /// convey found a route.
    Routed {
        /// Name of the route.
        route: Arc<str>,
    },
    /// Access lists, limits and layers allow the request.
    Admitted,
    /// convey chose a server.
    Chosen {
        /// Number of the attempt; the first is 1.
        attempt: u32,
    },
    /// The connection to the server failed.
    ConnectFailed {
        /// Error number; `None`: the error has none.
        errno: Option<i32>,
        /// Reason of a failed TLS handshake, as readable text; `None`: the failure has another
        /// cause.
        fault: Option<&'static str>,
    },
    /// The request has a connection to the server, or a stream on a shared connection.
    Connected {
        /// Time since the head of the request arrived.
        after: Duration,
        /// Whether the connection has served another request before.
        is_reused: bool,
    },
    /// An attempt failed, and convey tries again.
    Retried {
        /// Label of the reason for which the attempt failed.
        reason: &'static str,
    },
    /// The head of the server's response has arrived.
    Responded {
        /// Status of the response.
        status: u16,
    },
    /// convey sends a file.
    File {
        /// Status of the response.
        status: u16,
    },
    /// convey sends a local reply.
    Replied {
        /// Status of the reply.
        status: u16,
        /// Reason of the reply.
        reason: ReplyReason,
        /// Label of the phase that the request had reached.
        phase: &'static str,
    },
    /// convey refused the request without a reply.
    Refused {
        /// Reason of the refusal.
        reason: ReplyReason,
        /// Label of the phase that the request had reached.
        phase: &'static str,
    },
    /// The request ended.
    Ended {
        /// Status that the client received; `None`: the client received no response.
        status: Option<u16>,
        /// Early end of the request; `None`: the client received the whole response.
        early: Option<EarlyEnd>,
        /// Bytes of bodies and heads, from and to the client.
        bytes: (u64, u64),
        /// Time since the head of the request arrived.
        after: Duration,
    },
}

/// Reason for a local reply or a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyReason {
    /// Label of the counter.
    pub label: &'static str,
    /// More specific label, as in the access log, such as the kind of fault of a malformed request.
    /// Equal to `label` if there is no more specific label.
    pub detail: &'static str,
}

/// End of a request before the client has received the whole response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyEnd {
    /// Label of the reason.
    pub reason: &'static str,
    /// Label of the phase that the request had reached.
    pub phase: &'static str,
}

/// Head of a traced request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedHead {
    /// Method.
    pub method: Box<str>,
    /// Host of the request; empty if the request has no host.
    pub host: Box<str>,
    /// Path and query.
    pub target: Box<str>,
    /// HTTP version that the client used.
    pub version: &'static str,
}

impl RequestStep {
    /// Status of the response, once it is known.
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            RequestStep::Responded { status }
            | RequestStep::File { status }
            | RequestStep::Replied { status, .. } => Some(*status),
            RequestStep::Ended { status, .. } => *status,
            _ => None,
        }
    }

    /// Whether no other step of the request follows.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, RequestStep::Refused { .. } | RequestStep::Ended { .. })
    }

    /// Label of the reason, if the step is a local reply, a refusal or an early end; otherwise
    /// `None`.
    pub(crate) fn drop_reason(&self) -> Option<&'static str> {
        match self {
            RequestStep::Replied { reason, .. } | RequestStep::Refused { reason, .. } => Some(reason.label),
            RequestStep::Ended { early, .. } => early.map(|early| early.reason),
            _ => None,
        }
    }
}
