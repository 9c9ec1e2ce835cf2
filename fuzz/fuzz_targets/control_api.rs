//! Any requests to the control socket or the statistics address: every answer is JSON or text with
//! a status below 500 or 503, and nothing changes for a client without the right to change things.

#![no_main]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use convey_admin::{FlowSources, Requester, StatsSource, routes};
use convey_config::{AdminToken, fixture::config};
use convey_control::{Done, OperatorRequest, ReloadHistory, RemovedOverlays, RequestRefusal, Requested};
use convey_model::{LogLevel, Timestamp};
use convey_snapshot::{NewestSnapshot, fixture};
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tower_service::Service;

const TOKEN: &str = "correct-horse-battery";

/// The longest target: the server in front of the API refuses longer heads.
const MAX_TARGET: usize = 16 << 10;

struct Api {
    runtime: Runtime,
    routes: axum::Router,
    /// Requests that the control task was sent.
    sent: Arc<AtomicU64>,
}

thread_local! {
    static API: Api = api();
}

// The first byte selects the socket, and whether the token is sent. Lines follow: a method and a
// target, fields, an empty line; and then the body.
fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((bytes, &b""[..]), |end| (&bytes[..end], &bytes[end + 2..]));
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut start = lines.next().unwrap_or_default().splitn(2, |byte| *byte == b' ');
    let (method, target) = (start.next().unwrap_or_default(), start.next().unwrap_or_default());
    if target.len() > MAX_TARGET {
        return;
    }
    let mut request = Request::builder().method(method).uri(target);
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        request = request.header(parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    }
    let has_token = how & 4 != 0;
    if has_token {
        request = request.header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    }
    let address = [None, Some([127, 0, 0, 1]), Some([192, 0, 2, 1]), None][usize::from(how & 3)].map(IpAddr::from);
    let who = Requester { name: "somebody".to_owned(), address, may_change: address.is_none() };
    let Ok(mut request) = request.body(Full::new(Bytes::copy_from_slice(body))) else { return };
    request.extensions_mut().insert(who);
    // A token of the input may be the right one.
    let may_change = address.is_none() || has_token || head.windows(TOKEN.len()).any(|some| some == TOKEN.as_bytes());
    API.with(|api| ask(api, request, may_change));
});

fn ask(api: &Api, request: Request<Full<Bytes>>, may_change: bool) {
    let before = api.sent.load(Ordering::Relaxed);
    api.runtime.block_on(async {
        let Ok(response) = api.routes.clone().call(request).await;
        let status = response.status().as_u16();
        assert!(status < 500 || status == 503, "{status}");
        let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
        let mut body = response.into_body();
        match kind.as_deref() {
            // A trace has no end.
            Some(b"application/x-ndjson") => drop(body.frame().await),
            Some(b"application/json") => {
                let text = body.collect().await.expect("a whole body").to_bytes();
                serde_json::from_slice::<serde_json::Value>(&text).expect("JSON");
            }
            _ => drop(body.collect().await.expect("a whole body")),
        }
    });
    assert!(may_change || api.sent.load(Ordering::Relaxed) == before, "a request without the right changed something");
}

fn api() -> Api {
    let pool = fixture::pool("app", vec![(fixture::server("a", "127.0.0.1:8081"), fixture::up())]);
    let frontend = fixture::frontend("web", &["127.0.0.1:8080"], &pool);
    let loads = Arc::new(ReloadHistory::default());
    let mut running = config(vec![], vec![]);
    running.stats.token = Some(AdminToken::new("/etc/convey/token".into(), TOKEN).expect("a token"));
    loads.succeed(&running, Timestamp(1));
    let source = StatsSource {
        acme: Arc::default(),
        announce: Arc::default(),
        remote: Arc::default(),
        snapshot: Arc::new(NewestSnapshot::new(fixture::snapshot(vec![frontend], vec![pool]))),
        started: SystemTime::UNIX_EPOCH,
        now: Box::new(|| Timestamp(5_000_000_000)),
        draining: Arc::default(),
        packets: None,
        dropped_log_lines: || 0,
        log_level: LogLevel::default,
        loads,
        access_log: Arc::default(),
        events: Arc::default(),
        trace: Arc::default(),
        flows: FlowSources::default(),
        data_path: Default::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (request, requests) = mpsc::channel(1);
    let sent = Arc::new(AtomicU64::new(0));
    runtime.spawn(grant(requests, sent.clone()));
    Api { runtime, routes: routes(source, request).expect("a thread for pages"), sent }
}

/// Grants all requests, in place of the control task.
async fn grant(mut requests: mpsc::Receiver<OperatorRequest>, sent: Arc<AtomicU64>) {
    while let Some(OperatorRequest { what, answer, .. }) = requests.recv().await {
        sent.fetch_add(1, Ordering::Relaxed);
        let _ = answer.send(match what {
            Requested::Set(..)
            | Requested::SetWeights(..)
            | Requested::SetMaintenance(..)
            | Requested::EndMaintenance(_)
            | Requested::LogLevel(_) => Ok(Done::Set { has_changed: true }),
            Requested::Reset(_) => Ok(Done::Reset(RemovedOverlays::default())),
            Requested::Add(..) => Ok(Done::Added { is_new: true, warnings: vec![] }),
            Requested::Remove(target) => Err(RequestRefusal::Unknown(target.to_string())),
            Requested::Reload => Err(RequestRefusal::Invalid(vec!["the file is wrong".to_owned()])),
        });
    }
}
