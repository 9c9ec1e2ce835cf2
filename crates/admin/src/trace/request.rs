//! Request in a line of a trace. Pure.

use convey_api::{ReceivedHead, RequestLine};
use convey_trace::{ReplyReason, RequestStep, TracedHead, TracedRequest};

use super::{error_text, millis};

/// Converts a step of a request. `algorithm` is the name of the algorithm that chose the server.
pub(super) fn request_line(request: &TracedRequest, algorithm: Option<&'static str>) -> RequestLine {
    let (stream, phase) = (request.stream, Some(request.phase.into()));
    let line = RequestLine { stream, phase, ..RequestLine::default() };
    match &request.step {
        RequestStep::Arrived => {
            RequestLine { step: "received".into(), head: request.head.as_deref().map(received_head), ..line }
        }
        RequestStep::Admitted => RequestLine { step: "admitted".into(), ..line },
        RequestStep::Routed { route } => {
            RequestLine { step: "routed".into(), route: Some(route.to_string()), ..line }
        }
        RequestStep::Chosen { attempt } => RequestLine {
            step: "chosen".into(),
            algorithm: algorithm.map(Into::into),
            attempt: Some(*attempt),
            ..line
        },
        RequestStep::ConnectFailed { errno, fault } => RequestLine {
            step: "connect_failed".into(),
            error: Some(fault.map_or_else(|| error_text(*errno), |fault| format!("TLS: {fault}"))),
            ..line
        },
        RequestStep::Connected { after, is_reused } => RequestLine {
            step: "connected".into(),
            reused: Some(*is_reused),
            after_ms: Some(millis(*after)),
            ..line
        },
        RequestStep::Retried { reason } => {
            RequestLine { step: "retried".into(), reason: Some((*reason).into()), ..line }
        }
        RequestStep::Responded { status } => {
            RequestLine { step: "responded".into(), status: Some(*status), ..line }
        }
        RequestStep::File { status } => RequestLine { step: "file".into(), status: Some(*status), ..line },
        end => end_line(end, line),
    }
}

/// Converts the last steps of a request.
fn end_line(step: &RequestStep, line: RequestLine) -> RequestLine {
    match step {
        RequestStep::Replied { status, reason, phase } => {
            let line = with_reason(*reason, phase, line);
            RequestLine { step: "local_reply".into(), status: Some(*status), ..line }
        }
        RequestStep::Refused { reason, phase } => {
            RequestLine { step: "refused".into(), ..with_reason(*reason, phase, line) }
        }
        RequestStep::Ended { status, early, bytes, after } => RequestLine {
            step: "ended".into(),
            status: *status,
            reason: early.map(|early| early.reason.into()),
            phase: early.map(|early| early.phase.into()).or(line.phase),
            bytes_in: Some(bytes.0),
            bytes_out: Some(bytes.1),
            after_ms: Some(millis(*after)),
            ..line
        },
        _ => line,
    }
}

fn with_reason(reason: ReplyReason, phase: &'static str, line: RequestLine) -> RequestLine {
    let ReplyReason { label, detail } = reason;
    RequestLine {
        reason: Some(label.into()),
        detail: (detail != label).then(|| detail.into()),
        phase: Some(phase.into()),
        ..line
    }
}

fn received_head(head: &TracedHead) -> ReceivedHead {
    ReceivedHead {
        method: head.method.to_string(),
        host: head.host.to_string(),
        target: head.target.to_string(),
        version: head.version.into(),
    }
}
