//! Tests of traces, whose lines arrive while the client reads.

use convey_model::{Mode, Protocol};
use convey_trace::{
    ConnectionStep, EarlyEnd, PacketKind, PacketStep, ReplyReason, RequestStep, TraceEnd, TraceEvent,
    TraceStep, TracedAnswer, TracedFrames, TracedHead, TracedOutcome, TracedPacket, TracedRequest,
    TracedRole, TracedTunnel,
};
use serde_json::json;
use tokio::task::JoinHandle;

use super::described::{description, validator};
use super::*;

/// Starts a trace as a requester who may change things. The returned task collects the lines until
/// the trace ends.
fn watch(admin: &Admin, path: &'static str) -> JoinHandle<Vec<Value>> {
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let who = Requester { name: "root".to_owned(), address: None, may_change: true };
    let client = Client { routes: admin.routes.clone(), who, progress: AnswerProgress::default() };
    tokio::spawn(converse(theirs, client, LIMITS.lifetime));
    tokio::spawn(async move {
        let (mut client, connection) = handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().uri(path).body(Empty::<Bytes>::new()).unwrap();
        let (head, body) = client.send_request(request).await.unwrap().into_parts();
        assert_eq!(head.headers[CONTENT_TYPE], "application/x-ndjson");
        let text = body.collect().await.unwrap().to_bytes();
        let lines = std::str::from_utf8(&text).unwrap().lines();
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    })
}

/// Switches the frontend to a packet mode, because proxies have no frames to show.
fn forward_packets(admin: &Admin) {
    let pool = admin.snapshot.load().pools[0].clone();
    let mut config = admin.snapshot.load().frontends[0].config.clone();
    config.mode = Mode::Passthrough;
    let frontend = fixture::frontend_of(config, &pool);
    admin.snapshot.publish(Arc::new(fixture::snapshot(vec![frontend], vec![pool])));
}

async fn until_watched(admin: &Admin) {
    while !admin.trace.is_watched() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn event(admin: &Admin, step: TraceStep) -> TraceEvent {
    let snapshot = admin.snapshot.load();
    TraceEvent {
        at: Timestamp(7),
        protocol: Some(Protocol::Tcp),
        client: "192.0.2.9:4711".parse().ok(),
        proxy: "198.51.100.1:9".parse().ok(),
        vip: "127.0.0.1:8080".parse().ok(),
        frontend: Some(snapshot.frontends[0].live.id),
        server: Some(snapshot.pools[0].servers[0].live.id),
        step,
    }
}

fn packet(outcome: TracedOutcome) -> TraceStep {
    let [from, to] = ["192.0.2.9:4711", "127.0.0.1:8080"].map(|addr| addr.parse().unwrap());
    let received = TracedPacket { from, to, flags: 2, ttl: 64, len: 60, kind: PacketKind::Whole };
    let mut frames = TracedFrames::received(&[1; 60]);
    frames.set_sent(&[2; 60]);
    TraceStep::Packet(PacketStep {
        received: Some(received),
        interface: 1,
        frame_len: 74,
        outcome,
        state: Some("syn_sent"),
        frames: Some(Box::new(frames)),
    })
}

fn steps() -> Vec<TraceStep> {
    let [from, to] = ["10.0.9.1:30001", "127.0.0.1:8081"].map(|addr| addr.parse().unwrap());
    let after = Duration::from_micros(1_500);
    let connection = [
        ConnectionStep::Accepted,
        ConnectionStep::Header,
        ConnectionStep::Handshake { version: "TLSv1.3", is_resumed: true },
        ConnectionStep::HandshakeFailed { reason: "it has no certificate" },
        ConnectionStep::Waits,
        ConnectionStep::Routed { sni: Some("a.example".into()), route: Some("*.example".into()) },
        ConnectionStep::Chosen { attempt: 1 },
        ConnectionStep::ConnectFailed { errno: Some(111), fault: None },
        ConnectionStep::Connected { after },
        ConnectionStep::Begun,
        ConnectionStep::Moved,
        ConnectionStep::Dropped { reason: "no_server" },
        ConnectionStep::Refused { reason: "access_denied" },
        ConnectionStep::Ended { reason: None, bytes: Some((1, 2)), after },
    ];
    let packets = [
        TracedOutcome::Forwarded {
            from,
            to,
            interface: 2,
            next_hop: [2; 6],
            role: TracedRole::First,
            is_cut: false,
            tunnel: Some(TracedTunnel { kind: "ipip", from: from.ip(), to: to.ip() }),
        },
        TracedOutcome::Answered { reason: "no_flow", by: TracedAnswer::Reset },
        TracedOutcome::Dropped { reason: "martian" },
        TracedOutcome::WaitsForNextHop,
    ];
    let connection = connection.map(TraceStep::Connection).into_iter();
    connection.chain(requests().map(request)).chain(packets.map(packet)).collect()
}

fn request(step: RequestStep) -> TraceStep {
    let head =
        TracedHead { method: "GET".into(), host: "a.example".into(), target: "/x?y=z".into(), version: "2" };
    let (head, route) = (Some(Arc::new(head)), Some("a.example/x".into()));
    TraceStep::Request(TracedRequest { stream: Some(5), phase: "pick", head, route, step })
}

fn requests() -> [RequestStep; 12] {
    let after = Duration::from_micros(1_500);
    let reason = ReplyReason { label: "malformed", detail: "host" };
    [
        RequestStep::Arrived,
        RequestStep::Routed { route: "a.example/x".into() },
        RequestStep::Admitted,
        RequestStep::Chosen { attempt: 1 },
        RequestStep::ConnectFailed { errno: Some(111), fault: None },
        RequestStep::Connected { after, is_reused: true },
        RequestStep::Retried { reason: "server_reset" },
        RequestStep::Responded { status: 200 },
        RequestStep::File { status: 206 },
        RequestStep::Replied { status: 400, reason, phase: "request_head" },
        RequestStep::Refused { reason, phase: "request_head" },
        RequestStep::Ended {
            status: Some(200),
            early: Some(EarlyEnd { reason: "client_reset", phase: "bodies" }),
            bytes: (1, 2),
            after,
        },
    ]
}

#[tokio::test]
async fn each_line_of_a_trace_is_as_the_description_says() {
    let admin = admin();
    forward_packets(&admin);
    let steps = steps();
    let lines = watch(&admin, "/v1/trace?count=30&frames=true");
    until_watched(&admin).await;
    assert_eq!(steps.len(), 30);
    steps.into_iter().for_each(|step| admin.trace.publish(|| event(&admin, step)));
    let lines = lines.await.unwrap();
    let validator = validator(&json!({ "$ref": "#/components/schemas/TraceLine" }));
    for line in &lines {
        let wrong: Vec<String> = validator.iter_errors(line).map(|wrong| wrong.to_string()).collect();
        assert!(wrong.is_empty(), "{wrong:?}\n{line:#}");
    }
    assert_eq!(lines.len(), 32, "one more before them, and one after");
    assert_eq!(lines[1]["server_addr"], "127.0.0.1:8081");
    assert_eq!(lines[31], json!({ "event": "trace_ended", "why": "count" }));
    let kinds = description()["components"]["schemas"]["TraceLine"]["properties"]["event"]["enum"].clone();
    let seen: Vec<&Value> = lines.iter().map(|line| &line["event"]).collect();
    let unseen: Vec<&Value> = kinds.as_array().unwrap().iter().filter(|kind| !seen.contains(kind)).collect();
    assert_eq!(unseen, ["left_out"]);
}

#[tokio::test]
async fn trace_counts_events_beyond_its_rate_and_ends_with_a_reason() {
    let admin = admin();
    let lines = watch(&admin, "/v1/trace?rate=2");
    until_watched(&admin).await;
    for _ in 0..10 {
        admin.trace.publish(|| event(&admin, TraceStep::Connection(ConnectionStep::Accepted)));
    }
    admin.trace.end(TraceEnd::Upgrade).await;
    let lines = lines.await.unwrap();
    let shown = lines.iter().filter(|line| line["event"] == "accepted").count() as u64;
    let left_out = |line: &&Value| line["event"] == "left_out";
    let left_out: u64 = lines.iter().filter(left_out).map(|line| line["rate"].as_u64().unwrap()).sum();
    assert!(shown >= 2 && left_out > 0 && shown + left_out == 10, "{lines:#?}");
    assert_eq!(lines.last().unwrap(), &json!({ "event": "trace_ended", "why": "upgrade" }));
}

#[tokio::test]
async fn trace_does_not_occupy_a_connection_slot() {
    let admin = admin();
    let limits = ConnectionLimits { connections: 1, lifetime: Duration::from_secs(3600) };
    let addr = start(limits, &admin).await;
    let lines = watch(&admin, "/v1/trace?count=1");
    until_watched(&admin).await;
    for _ in 0..3 {
        assert_eq!(ask(addr, Method::GET, "/healthz").await.status(), StatusCode::OK);
    }
    admin.trace.publish(|| event(&admin, TraceStep::Connection(ConnectionStep::Accepted)));
    assert_eq!(lines.await.unwrap().len(), 3);
}

#[tokio::test]
async fn trace_with_a_timeout_beyond_the_clock_has_none() {
    let admin = admin();
    let lines = watch(&admin, "/v1/trace?count=1&timeout=18446744073709551615s");
    until_watched(&admin).await;
    admin.trace.publish(|| event(&admin, TraceStep::Connection(ConnectionStep::Accepted)));
    assert_eq!(lines.await.unwrap().len(), 3);
}
