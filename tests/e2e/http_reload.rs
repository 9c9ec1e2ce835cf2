//! Mode http, whose configuration changes all the time.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TestHttpServer, connect, tests, wait_for};
use http::Request;
use rustix::process::Signal;

use super::http::client::{Client, read_head};
use super::http2::block_on;
use super::http2::client::{Client as Http2Client, read};

tests!("http_reload":
    thousand_reloads_under_load_fail_no_request_and_no_stream [Need::Long],
);

/// Configuration number `n`. The first has a route and a server that the others lack. A field of
/// each response has the number.
fn setup(lab: &Loopback, n: usize) -> Setup {
    let mut frontend =
        format!("mode = \"http\"\nheaders = {{ response = {{ set = {{ X-Configuration = \"{n}.\" }} }} }}\n");
    let mut setup = Setup::new(lab).timeouts("drain = 600");
    if n == 0 {
        frontend += "[[frontends.web.routes]]\npath = \"/stream\"\nbackend = \"streams\"\n";
        let streams = "[backends.streams]\nhealth_check.kind = \"none\"\n[backends.streams.servers.s]\n";
        setup = setup.and(&format!("{streams}addr = \"{}\"\n", lab.server(3)));
    }
    // Each configuration adds or removes one of the two servers.
    let servers = [("a", 1), ("b", 2)].into_iter().filter(|(_, server)| n % 3 != *server);
    servers.fold(setup.frontend(&frontend), |setup, (name, server)| {
        setup.server(name, lab.server(server as u8), &format!("weight = {}", 1 + n % 7))
    })
}

fn thousand_reloads_under_load_fail_no_request_and_no_stream() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let streams = TestHttpServer::start(lab.server(3), move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhere")?;
        wait_for_long(&over);
        stream.write_all(b" and")
    });
    let balancer = BalancerProcess::start(&lab, &setup(&lab, 0));
    let mut old = connect(lab.vip());
    old.write_all(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(read_head(&mut old).unwrap().contains("\r\nX-Configuration: 0.\r\n"));
    let new = old_stream_of_http2(lab.vip());
    wait_for("both streams", || (streams.seen().len() == 2).then_some(()));
    let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let load = [false, false, true].map(|is_http2| send_requests_on(lab.vip(), is_http2, &stop, &asked));
    let mut client = Client::new(lab.vip());
    for n in 1..=1_000 {
        balancer.save(&setup(&lab, n));
        balancer.signal(Signal::HUP);
        let field = format!("\r\nX-Configuration: {n}.\r\n");
        wait_for("the reload", || client.get("a", "/").head.contains(&field).then_some(()));
    }
    // For a thousand reloads, no route has led to the server of the streams.
    assert!(client.get("a", "/stream").body.contains(" GET /stream 0"));
    is_over.store(true, Ordering::Relaxed);
    let mut rest = [0; 8];
    old.read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"here and");
    assert_eq!(new.join().unwrap(), "here and");
    stop.store(true, Ordering::Relaxed);
    load.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(asked.load(Ordering::Relaxed) > 1_000, "{asked:?}");
    assert_eq!(balancer.stat("/frontends/web/requests/responses/5xx"), 0);
    assert!(!balancer.log().contains("not reloaded"));
}

/// Waits longer than a test usually does.
fn wait_for_long(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A stream, which is read to its end.
fn old_stream_of_http2(to: SocketAddr) -> JoinHandle<String> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Http2Client::connect(to).await;
            let request = Request::get("http://a/stream").body(()).unwrap();
            let (response, _stream) = client.begin(request, true).await;
            let response = response.await.unwrap();
            assert_eq!(response.headers()["x-configuration"], "0.");
            read(response).await.body
        })
    })
}

/// Sends requests until it is stopped. Any unexpected response fails the test.
fn send_requests_on(
    to: SocketAddr,
    is_http2: bool,
    stop: &Arc<AtomicBool>,
    asked: &Arc<AtomicUsize>,
) -> JoinHandle<()> {
    let (stop, asked) = (stop.clone(), asked.clone());
    thread::spawn(move || {
        let mut n = 0;
        while !stop.load(Ordering::Relaxed) {
            // A connection has a hundred requests.
            let mut old = (!is_http2).then(|| Client::new(to));
            let paths = (n..n + 100).map(|n| format!("/{n}"));
            n += 100;
            match &mut old {
                Some(client) => paths.for_each(|path| is_right(&client.get("a", &path).body, &path)),
                None => block_on(async {
                    let client = Http2Client::connect(to).await;
                    for path in paths {
                        is_right(&client.get(&format!("http://a{path}")).await.body, &path);
                    }
                }),
            }
            asked.fetch_add(100, Ordering::Relaxed);
        }
    })
}

fn is_right(body: &str, path: &str) {
    assert!(["a", "b"].iter().any(|server| body == format!("{server} GET {path} 0")), "{path}: {body}");
}
