//! Text of a request's step in a trace.

use convey_api::{Label, RequestLine, TraceNames};

use super::{server, shown};

/// Text of a step of a request, without the time and the client.
pub(super) fn text(names: &TraceNames, line: &RequestLine) -> String {
    let phase = line.phase.as_ref().map_or_else(String::new, |phase| format!("[{phase}] "));
    let stream = line.stream.map_or_else(String::new, |stream| format!("stream {stream}: "));
    format!("{phase}{stream}{}", step(names, line))
}

fn step(names: &TraceNames, line: &RequestLine) -> String {
    let (server, status) = (server(names), shown(line.status.as_ref()));
    match &*line.step {
        "received" => received(line),
        "routed" => format!("route {}", line.route.as_deref().unwrap_or_default()),
        "admitted" => "access lists and limits allow it".to_owned(),
        "chosen" => chosen(names, line),
        "connect_failed" => {
            format!("cannot connect to {server}: {}", line.error.as_deref().unwrap_or_default())
        }
        "connected" if line.reused == Some(true) => format!("reuses a connection to {server}"),
        "connected" => format!("connected to {server} after {} ms", shown(line.after_ms.as_ref())),
        "retried" => format!("retry: {}", line.reason.as_deref().unwrap_or_default()),
        "responded" => format!("response {status} from {server}"),
        "file" => format!("response {status} with a file"),
        "local_reply" => format!("local reply {status}: {}", early(line)),
        "refused" => format!("refused without a reply: {}", early(line)),
        "ended" => ended(line),
        other => format!("step of a newer version of convey: {other}"),
    }
}

fn received(line: &RequestLine) -> String {
    let Some(head) = &line.head else { return "request".to_owned() };
    format!("{} {}{} HTTP/{}", head.method, head.host, head.target, head.version)
}

fn chosen(names: &TraceNames, line: &RequestLine) -> String {
    let by = |algorithm: &Label| format!(", chosen by {algorithm}");
    let by = line.algorithm.as_ref().map(by).unwrap_or_default();
    let attempt = line.attempt.filter(|attempt| *attempt > 1);
    let attempt = attempt.map_or_else(String::new, |attempt| format!(", attempt {attempt}"));
    format!("server {} ({}){by}{attempt}", server(names), shown(names.server_addr.as_ref()))
}

fn ended(line: &RequestLine) -> String {
    let status = line.status.map_or_else(|| "no response".to_owned(), |status| format!("status {status}"));
    let early = line.reason.as_ref().map_or_else(String::new, |_| format!(" early: {}", early(line)));
    format!(
        "request ended{early}, {status}, {} bytes from the client, {} to it, after {} ms",
        line.bytes_in.unwrap_or_default(),
        line.bytes_out.unwrap_or_default(),
        line.after_ms.unwrap_or_default()
    )
}

/// Reason of a local reply or an early end, and its phase.
fn early(line: &RequestLine) -> String {
    let reason = line.reason.as_deref().unwrap_or_default();
    let detail = line.detail.as_ref().map_or_else(String::new, |detail| format!(" ({detail})"));
    let phase = line.phase.as_ref().map_or_else(String::new, |phase| format!(" in phase {phase}"));
    format!("{reason}{detail}{phase}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ShownLine;

    fn text(step: &str, detail: serde_json::Value) -> String {
        let mut line = json!({ "at": "2026-01-01T12:00:01.234567Z", "event": "request", "frontend": "web",
            "client": "192.0.2.9:7", "backend": "app", "server": "a", "server_addr": "10.0.1.1:80", "step": step });
        let fields = detail.as_object().unwrap().clone();
        line.as_object_mut().unwrap().extend(fields);
        let text = ShownLine::read(&line.to_string()).unwrap().text();
        text.strip_prefix("12:00:01.234567 web 192.0.2.9:7 ").unwrap().trim_end().to_owned()
    }

    #[test]
    fn request_steps_have_a_line_of_text() {
        let head =
            json!({ "stream": 5, "method": "GET", "host": "a.example", "target": "/x", "version": "2" });
        assert_eq!(text("received", head), "stream 5: GET a.example/x HTTP/2");
        let chosen = json!({ "algorithm": "round_robin", "attempt": 2 });
        assert_eq!(text("chosen", chosen), "server app/a (10.0.1.1:80), chosen by round_robin, attempt 2");
        assert_eq!(
            text("connected", json!({ "reused": true, "after_ms": 1.5 })),
            "reuses a connection to app/a"
        );
        assert_eq!(text("retried", json!({ "reason": "server_reset" })), "retry: server_reset");
        assert_eq!(text("responded", json!({ "status": 200 })), "response 200 from app/a");
        let reply =
            json!({ "status": 400, "reason": "malformed", "detail": "host", "phase": "request_head" });
        let expected = "[request_head] local reply 400: malformed (host) in phase request_head";
        assert_eq!(text("local_reply", reply), expected);
        assert_eq!(
            text("admitted", json!({ "phase": "limits" })),
            "[limits] access lists and limits allow it"
        );
        let end = json!({ "status": 200, "bytes_in": 5, "bytes_out": 7, "after_ms": 1.5 });
        let expected = "request ended, status 200, 5 bytes from the client, 7 to it, after 1.5 ms";
        assert_eq!(text("ended", end), expected);
        let early = json!({ "reason": "client_reset", "phase": "response_head", "bytes_in": 5, "bytes_out": 0,
            "after_ms": 1.5 });
        let expected = "[response_head] request ended early: client_reset in phase response_head, no response, \
                        5 bytes from the client, 0 to it, after 1.5 ms";
        assert_eq!(text("ended", early), expected);
    }
}
