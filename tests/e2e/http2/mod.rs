//! Mode http over HTTP/2, on both sides.

mod checked;
pub(crate) mod client;
mod empty_frames;
mod few_streams;
pub(crate) mod frames;
mod from_proxies;
mod goaway;
mod held;
mod malformed;
mod resets;
pub(crate) mod server;
mod short_frames;
mod unread;
mod uploads;
mod versions;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback, Need, Nginx, Setup, TcpServer, TestHttpServer, tests};
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Request};
use rustix::process::Signal;

use checked::http_check_speaks_http2_where_requests_do;
use client::{Client, read};
use empty_frames::{
    empty_data_frames_end_no_connection, empty_data_frames_of_a_server_end_no_connection,
    flood_of_empty_data_frames_ends_the_connection, padded_empty_data_frames_end_no_connection,
    padded_empty_data_frames_of_a_server_end_no_connection,
};
use few_streams::{
    http2_connections_of_a_worker_are_limited_and_streams_wait,
    request_that_waits_in_vain_for_a_stream_reaches_no_server,
};
use from_proxies::{
    malformed_requests_count_as_requests_of_their_connection,
    many_malformed_requests_leave_others_of_a_proxy, many_requests_cancelled_at_once_leave_others_of_a_proxy,
    requests_cancelled_at_once_leave_others_of_their_connection,
    thousands_of_clients_of_a_proxy_are_served_at_once, trusted_proxy_has_a_window_for_all_its_streams,
};
use goaway::client_that_answers_no_ping_gets_the_second_goaway;
use held::{
    client_that_a_trusted_proxy_names_has_a_share, client_that_reads_byte_by_byte_holds_no_server,
    client_that_sends_its_upload_byte_by_byte_holds_no_server,
    closed_windows_hold_no_server_of_longer_responses, closed_windows_hold_no_slot_of_a_server,
    slow_body_of_unknown_length_leaves_its_slot_to_a_waiting_request,
    slow_streams_of_a_connection_leave_slots_to_waiting_requests,
    stream_that_takes_nothing_of_a_busy_connection_holds_no_server,
    streams_of_http2_servers_count_in_the_share_of_their_client,
    streams_of_one_client_leave_an_http2_server_room_for_others,
    streams_of_one_client_leave_connections_to_servers_for_others,
    unread_response_counts_for_the_client_that_a_trusted_proxy_names,
    unread_response_of_an_http2_server_takes_one_window_of_memory,
    unread_responses_of_an_http2_server_stall_no_other_client,
    unread_whole_response_ends_as_that_of_a_slow_client,
    upload_does_not_hold_the_server_of_an_unread_response,
};
use malformed::{
    body_of_another_length_than_announced_ends_its_stream, each_refused_request_has_a_line_and_a_count,
    malformed_request_ends_its_stream_alone, malformed_response_leaves_the_connection_to_its_server,
    refused_requests_count_towards_max_requests, response_of_another_length_than_announced_is_not_whole,
};
use resets::{
    cut_requests_fail_no_other_request_of_their_server,
    early_responses_to_uploads_fail_no_other_request_of_their_server,
    overloaded_server_that_refuses_streams_keeps_its_connection,
    server_that_resets_all_streams_of_a_connection_gets_another,
    unprocessed_request_is_retried_after_goaway_with_an_error,
};
use server::EchoServer;
use short_frames::{
    short_frames_of_an_unread_response_end_no_connection_of_a_server,
    short_frames_of_an_unread_upload_leave_other_streams,
};
use unread::{
    a_client_that_reads_nothing_of_a_hundred_streams_holds_little_memory,
    client_that_reads_no_answers_to_its_pings_holds_little_memory,
};
use uploads::{
    small_uploads_of_many_clients_share_connections_to_an_http2_server,
    unread_uploads_to_an_http2_server_stall_no_open_upload_of_others,
    unread_uploads_to_an_http2_server_stall_no_other_client,
};
use versions::{
    clients_and_servers_of_both_versions_meet_in_all_ways, local_replies_work_in_both_http_versions,
};

const H2SPEC: Need = Need::Tool("h2spec", "none: go install github.com/summerwind/h2spec/cmd/h2spec@latest");

tests!("http2":
    each_stream_of_a_connection_is_a_request_of_its_own,
    a_call_of_grpc_streams_both_ways_and_ends_with_its_status,
    trailers_behind_a_body_of_known_length_arrive,
    clients_and_servers_of_both_versions_meet_in_all_ways [Need::CURL],
    local_replies_work_in_both_http_versions,
    http2_connections_of_a_worker_are_limited_and_streams_wait,
    request_that_waits_in_vain_for_a_stream_reaches_no_server,
    a_server_that_says_nothing_on_a_connection_is_asked_on_another,
    a_server_that_ends_its_connections_in_order_fails_no_request [Need::NGINX],
    slow_reader_of_a_stream_slows_only_its_server,
    a_client_that_reads_nothing_of_a_hundred_streams_holds_little_memory,
    closed_windows_hold_no_slot_of_a_server,
    closed_windows_hold_no_server_of_longer_responses,
    client_that_reads_byte_by_byte_holds_no_server,
    client_that_sends_its_upload_byte_by_byte_holds_no_server,
    slow_streams_of_a_connection_leave_slots_to_waiting_requests,
    stream_that_takes_nothing_of_a_busy_connection_holds_no_server,
    unread_whole_response_ends_as_that_of_a_slow_client,
    upload_does_not_hold_the_server_of_an_unread_response,
    slow_body_of_unknown_length_leaves_its_slot_to_a_waiting_request,
    streams_of_http2_servers_count_in_the_share_of_their_client [Need::PRLIMIT],
    streams_of_one_client_leave_connections_to_servers_for_others [Need::PRLIMIT],
    client_that_a_trusted_proxy_names_has_a_share [Need::PRLIMIT],
    unread_response_counts_for_the_client_that_a_trusted_proxy_names [Need::PRLIMIT],
    streams_of_one_client_leave_an_http2_server_room_for_others,
    unread_responses_of_an_http2_server_stall_no_other_client,
    unread_response_of_an_http2_server_takes_one_window_of_memory,
    unread_uploads_to_an_http2_server_stall_no_other_client,
    unread_uploads_to_an_http2_server_stall_no_open_upload_of_others,
    small_uploads_of_many_clients_share_connections_to_an_http2_server,
    short_frames_of_an_unread_response_end_no_connection_of_a_server,
    short_frames_of_an_unread_upload_leave_other_streams,
    http_check_speaks_http2_where_requests_do,
    early_resets_end_the_connection,
    client_that_answers_no_ping_gets_the_second_goaway,
    cut_requests_fail_no_other_request_of_their_server,
    early_responses_to_uploads_fail_no_other_request_of_their_server,
    overloaded_server_that_refuses_streams_keeps_its_connection,
    server_that_resets_all_streams_of_a_connection_gets_another,
    unprocessed_request_is_retried_after_goaway_with_an_error,
    requests_cancelled_at_once_leave_others_of_their_connection,
    thousands_of_clients_of_a_proxy_are_served_at_once,
    many_requests_cancelled_at_once_leave_others_of_a_proxy,
    many_malformed_requests_leave_others_of_a_proxy,
    malformed_requests_count_as_requests_of_their_connection,
    empty_data_frames_end_no_connection,
    empty_data_frames_of_a_server_end_no_connection,
    flood_of_empty_data_frames_ends_the_connection,
    padded_empty_data_frames_end_no_connection,
    padded_empty_data_frames_of_a_server_end_no_connection,
    client_that_reads_no_answers_to_its_pings_holds_little_memory,
    trusted_proxy_has_a_window_for_all_its_streams,
    cancelled_responses_end_no_connection,
    malformed_request_ends_its_stream_alone,
    each_refused_request_has_a_line_and_a_count,
    refused_requests_count_towards_max_requests,
    malformed_response_leaves_the_connection_to_its_server,
    body_of_another_length_than_announced_ends_its_stream,
    response_of_another_length_than_announced_is_not_whole,
    a_convey_that_stops_lets_streams_end,
    a_connection_ends_after_so_many_streams,
    the_suite_of_conformance_finds_nothing_but_our_answer_to_http1 [H2SPEC],
);

/// Runs an asynchronous part of a test.
pub(crate) fn block_on<T>(part: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), part).await.unwrap() })
}

/// A frontend in mode http whose servers get requests in this version.
fn setup(lab: &Loopback, protocol: &str) -> Setup {
    Setup::new(lab).frontend("mode = \"http\"").backend(&format!("protocol = \"{protocol}\""))
}

fn each_stream_of_a_connection_is_a_request_of_its_own() {
    let lab = Loopback::new();
    let names = [("a", 1), ("b", 2), ("c", 3)];
    let servers = names.map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let setup =
        names.iter().fold(setup(&lab, "h1"), |setup, (name, n)| setup.server(name, lab.server(*n), ""));
    let balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let asked =
            (0..60).map(|n| client.get(Box::leak(format!("http://site.example/{n}?q").into_boxed_str())));
        let mut reached = BTreeMap::<String, usize>::new();
        for (n, answer) in join_all(asked).await.into_iter().enumerate() {
            let (server, rest) = answer.body.split_once(' ').unwrap();
            assert_eq!((answer.status, rest), (200, &*format!("GET /{n}?q 0")));
            *reached.entry(server.to_owned()).or_default() += 1;
        }
        assert_eq!(reached.into_values().collect::<Vec<_>>(), [20; 3]);
        let request = Request::post("http://site.example/p").header("cookie", "a=1").header("cookie", "b=2");
        let answer = client.post(request.body(()).unwrap(), "twelve bytes", None).await;
        assert!(answer.body.ends_with("POST /p 12"), "{answer:?}");
    });
    let seen = servers.iter().flat_map(TestHttpServer::seen).find(|seen| seen.line.starts_with("POST"));
    let seen = seen.unwrap();
    assert_eq!((seen.field("host"), seen.field("cookie")), (Some("site.example"), Some("a=1; b=2")));
    assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1"));
    balancer.wait_for_stat("/frontends/web/requests/total", 61);
    balancer.wait_for_stat("/frontends/web/total_connections", 1);
}

fn a_call_of_grpc_streams_both_ways_and_ends_with_its_status() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let request = Request::post("http://svc.example/pkg.Echo/Talk").header("te", "trailers");
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let (response, mut stream) = client.begin(request, false).await;
        let mut response = response.await.unwrap();
        for word in ["one", "two", "three"] {
            // Each message is answered before the next one is sent.
            stream.send_data(Bytes::from_static(word.as_bytes()), false).unwrap();
            let heard = response.body_mut().data().await.unwrap().unwrap();
            assert_eq!(heard, word);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-last", HeaderValue::from_static("words"));
        stream.send_trailers(trailers).unwrap();
        let answer = read(response).await;
        let trailers = answer.trailers.unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(trailers["x-last"], "words");
        join_all((0..50).map(|_| client.get("http://svc.example/"))).await;
    });
    assert_eq!(server.connections(), usize::from(server.connections() > 0), "streams share a connection");
    let head = &server.seen()[0];
    assert_eq!(head.headers()["te"], "trailers");
    assert_eq!(head.uri(), "http://svc.example/pkg.Echo/Talk");
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", 51);
}

fn trailers_behind_a_body_of_known_length_arrive() {
    let lab = Loopback::new();
    let _server = EchoServer::start(lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let request = Request::post("http://svc.example/").header("x-length", "5").body(()).unwrap();
        let answer = client.post(request, "hello", None).await;
        assert_eq!((answer.status, &*answer.body), (200, "hello"));
        assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
        // A body that is shorter than its length still ends with a reset.
        let request = Request::post("http://svc.example/").header("x-length", "6").body(()).unwrap();
        let (response, mut stream) = client.begin(request, false).await;
        stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
        let body = async {
            let mut body = response.await?.into_body();
            while let Some(data) = body.data().await {
                data?;
            }
            Ok::<_, h2::Error>(())
        };
        assert!(body.await.is_err_and(|error| error.is_reset()));
    });
}

/// The server accepts half as many requests on a connection as convey has at once, and refuses the
/// rest, including requests whose bodies have begun.
fn a_server_that_ends_its_connections_in_order_fails_no_request() {
    let lab = Loopback::new();
    let _server = Nginx::start_http2(&lab, "a", lab.server(1), 50);
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    let body = "x".repeat(2_000);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        for _ in 0..10 {
            let posts = (0..100)
                .map(|_| client.post(Request::post("http://site.example/").body(()).unwrap(), &body, None));
            assert!(join_all(posts).await.iter().all(|answer| answer.status == 200));
        }
        // By now, convey knows the server's limit of requests on a connection. Requests with long
        // bodies, which convey does not buffer, go to a connection with room.
        let long = "x".repeat(50_000);
        let posts = (0..100)
            .map(|_| client.post(Request::post("http://site.example/").body(()).unwrap(), &long, None));
        assert!(join_all(posts).await.iter().all(|answer| answer.status == 200));
    });
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", 1_100);
    assert_eq!(balancer.stat("/backends/pool/servers/a/up"), true);
}

fn a_server_that_says_nothing_on_a_connection_is_asked_on_another() {
    let lab = Loopback::new();
    let server = EchoServer::start(lab.server(1));
    server.be_silent(true);
    let setup = setup(&lab, "h2").timeouts("connect = 1\nidle = 1").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        assert_eq!(client.get("http://site.example/").await.status, 504);
        server.be_silent(false);
        assert_eq!(client.get("http://site.example/").await.status, 200);
    });
}

fn slow_reader_of_a_stream_slows_only_its_server() {
    let lab = Loopback::new();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = sent.clone();
    let _large = TcpServer::start(lab.server(1), move |mut stream| {
        use std::io::{Read, Write};
        let mut head = [0; 4096];
        let n = stream.read(&mut head)?;
        if head[..n].starts_with(b"GET /small") {
            return stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsmall");
        }
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 256 << 20)?;
        let part = vec![b'x'; 1 << 20];
        for _ in 0..256 {
            stream.write_all(&part)?;
            count.fetch_add(part.len(), std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let before = balancer.memory();
    let so_far = || sent.load(std::sync::atomic::Ordering::Relaxed);
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let request = Request::get("http://a.example/large").body(()).unwrap();
        let (response, _stream) = client.begin(request, true).await;
        let mut response = response.await.unwrap();
        // Sends until the window and all buffers are full.
        let mut last = usize::MAX;
        while last != so_far() {
            last = so_far();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(last < 32 << 20, "{last} bytes have left the server");
        assert_eq!(client.get("http://a.example/small").await.body, "small");
        let mut got = 0;
        while let Some(data) = response.body_mut().data().await {
            let len = data.unwrap().len();
            response.body_mut().flow_control().release_capacity(len).unwrap();
            got += len;
        }
        assert_eq!(got, 256 << 20);
    });
    let grown = balancer.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
}

/// A client that cancels long responses does no harm.
fn cancelled_responses_end_no_connection() {
    let lab = Loopback::new();
    // The server begins a response at once, and never ends it.
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        use std::io::{Read, Write};
        let _ = stream.read(&mut [0; 4096])?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")?;
        std::io::copy(&mut stream, &mut std::io::sink()).map(|_| ())
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        for _ in 0..3 {
            let calls = join_all((0..90).map(async |_| {
                let request = Request::get("http://a.example/").body(()).unwrap();
                let (response, stream) = client.begin(request, true).await;
                (response.await.unwrap(), stream)
            }))
            .await;
            // Streams that are cancelled within a second could be a flood.
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            for (_, mut stream) in calls {
                stream.send_reset(h2::Reason::CANCEL);
            }
        }
        let request = Request::get("http://a.example/").body(()).unwrap();
        let (response, _stream) = client.begin(request, true).await;
        assert_eq!(response.await.unwrap().status(), 200);
    });
    drop(balancer);
}

fn early_resets_end_the_connection() {
    let lab = Loopback::new();
    // The server never answers.
    let _server = TcpServer::start(lab.server(1), |mut stream| {
        std::io::copy(&mut stream, &mut std::io::sink()).map(|_| ())
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let reason = block_on(async {
        let client = Client::connect(lab.vip()).await;
        for _ in 0..1_000 {
            let request = Request::get("http://a.example/").body(()).unwrap();
            let mut send = match client.try_begin(request).await {
                Ok(stream) => stream,
                Err(error) => return error.reason(),
            };
            // Meanwhile, convey has sent the request to a server.
            tokio::task::yield_now().await;
            send.send_reset(h2::Reason::CANCEL);
        }
        client.ended().await.map_or_else(|error| error.reason(), |()| Some(h2::Reason::NO_ERROR))
    });
    // A client that continues before it has read GOAWAY is disconnected.
    assert!(matches!(reason, Some(h2::Reason::NO_ERROR | h2::Reason::ENHANCE_YOUR_CALM)), "{reason:?}");
    balancer.wait_for_stat("/backends/pool/servers/a/current_connections", 0);
}

fn a_convey_that_stops_lets_streams_end() {
    let lab = Loopback::new();
    let _server = EchoServer::start(lab.server(1));
    let mut balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        let request = Request::post("http://a.example/").body(()).unwrap();
        let (response, mut stream) = client.begin(request, false).await;
        let response = response.await.unwrap();
        balancer.signal(Signal::TERM);
        balancer.wait_for_log("stopping: 1 open connection");
        stream.send_data(Bytes::from_static(b"the last words"), true).unwrap();
        let answer = read(response).await;
        assert_eq!((answer.status, &*answer.body), (200, "the last words"));
        assert_eq!(answer.trailers.unwrap()["grpc-status"], "0");
        client.ended().await.unwrap();
    });
    assert_eq!(balancer.wait(), 0);
}

fn the_suite_of_conformance_finds_nothing_but_our_answer_to_http1() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h1").server("a", lab.server(1), ""));
    let vip = lab.vip();
    let mut h2spec = Command::new("h2spec");
    h2spec.args(["-h", &vip.ip().to_string(), "-p", &vip.port().to_string(), "--timeout", "5"]);
    let report = String::from_utf8(h2spec.output().unwrap().stdout).unwrap();
    let (_, failures) = report.split_once("Failures:").unwrap_or(("", ""));
    let failed: Vec<&str> = failures.lines().map(str::trim).filter(|line| line.starts_with('×')).collect();
    // convey treats any other beginning as HTTP/1.1, which the same port serves, and replies
    // accordingly.
    assert_eq!(failed, ["× 2: Sends invalid connection preface"], "{report}");
    assert!(report.contains("144 passed, 0 skipped, 1 failed"), "{report}");
}

fn a_connection_ends_after_so_many_streams() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = setup(&lab, "h1").frontend("mode = \"http\"\nhttp.max_requests = 3");
    let _balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    block_on(async {
        let client = Client::connect(lab.vip()).await;
        for _ in 0..3 {
            assert_eq!(client.get("http://site.example/").await.status, 200);
        }
        let request = || Request::get("http://site.example/").body(()).unwrap();
        while client.try_begin(request()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}
