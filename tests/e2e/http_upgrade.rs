//! Mode http: clients that never repeat a request, while processes replace each other.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use convey_testkit::{
    Loopback, Need, Setup, TestHttpServer, TlsClient, TlsSettings, connect, tests, wait_for,
};
use h3::error::StreamError;
use http::Request;

use super::http::client::{Client, read_head};
use super::http2::block_on;
use super::http3;
use super::http3::client::{Client as Http3Client, Clients, read, uri};
use super::tls::{authority, https};
use super::upgrade::Upgraded;

tests!("http_upgrade":
    idle_connection_gets_a_response_after_an_upgrade_and_ends_behind_it,
    keep_alive_posts_survive_two_upgrades,
    keep_alive_posts_survive_ten_upgrades [Need::Long],
    http3_posts_survive_two_upgrades,
    http3_posts_survive_ten_upgrades [Need::Long],
);

fn idle_connection_gets_a_response_after_an_upgrade_and_ends_behind_it() {
    let lab = Loopback::new();
    let settings = TlsSettings::trusting(&authority(&lab)).client();
    let _server = TestHttpServer::named("a", lab.server(1));
    let mut upgraded = Upgraded::start(&lab, &both(&lab));
    let mut plain = Client(connect(lab.second_vip()));
    let mut tls = Client(TlsClient::connect(lab.vip(), "site.example", &settings).unwrap());
    for head in [plain.get("a", "/").head, tls.get("site.example", "/").head] {
        assert!(!head.contains("Connection: close"), "{head}");
    }
    upgraded.upgrade();
    upgraded.first.wait_for_log("stopping: 2 open connections continue until they end");
    // The workers learn of the stop a moment after it is logged.
    let is_last = |head: String| head.contains("\r\nConnection: close\r\n").then_some(());
    wait_for("the last response", || is_last(plain.get("a", "/").head));
    wait_for("the last response within TLS", || is_last(tls.get("site.example", "/").head));
    assert!(plain.is_closed() && matches!(tls.0.read(&mut [0]), Ok(0)));
    drop((plain, tls));
    assert_eq!(upgraded.first.wait(), 0);
}

fn keep_alive_posts_survive_two_upgrades() {
    keep_alive_posts_survive_upgrades(2);
}

fn keep_alive_posts_survive_ten_upgrades() {
    keep_alive_posts_survive_upgrades(10);
}

fn keep_alive_posts_survive_upgrades(upgrades: usize) {
    let lab = Loopback::new();
    let settings = TlsSettings::trusting(&authority(&lab)).client();
    let _server = TestHttpServer::named("a", lab.server(1));
    let mut upgraded = Upgraded::start(&lab, &both(&lab));
    let (plain_at, tls_at) = (lab.second_vip(), lab.vip());
    let (stop, done) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let lost = thread::scope(|scope| {
        let settings = &settings;
        let mut clients = Vec::new();
        for pause in [0, 1, 5, 20].map(Duration::from_millis) {
            clients.push(scope.spawn(move || post_until(stop, done, pause, || connect(plain_at))));
            clients.push(scope.spawn(move || {
                let connect = || TlsClient::connect(tls_at, "site.example", settings).unwrap();
                post_until(stop, done, pause, connect)
            }));
        }
        upgrade_under_load(&mut upgraded, upgrades, done);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(lost.is_empty(), "{} of {done:?} requests were lost: {lost:?}", lost.len());
    assert_eq!(upgraded.first.wait(), 0);
    upgraded.wait_for_the_last();
}

fn upgrade_under_load(upgraded: &mut Upgraded, upgrades: usize, done: &AtomicU64) {
    for _ in 0..upgrades {
        let before = done.load(Ordering::Relaxed);
        upgraded.replace_program();
        upgraded.upgrade();
        wait_for("requests after the upgrade", || {
            (done.load(Ordering::Relaxed) > before + 200).then_some(())
        });
    }
}

fn http3_posts_survive_two_upgrades() {
    http3_posts_survive_upgrades(2);
}

fn http3_posts_survive_ten_upgrades() {
    http3_posts_survive_upgrades(10);
}

fn http3_posts_survive_upgrades(upgrades: usize) {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::named("a", lab.server(1));
    let mut upgraded = Upgraded::start(&lab, &http3::site(&lab, ""));
    let (stop, done) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let lost = thread::scope(|scope| {
        let (authority, at) = (&authority, lab.vip());
        let pauses = [0, 1, 5, 20].map(Duration::from_millis);
        let clients = pauses.map(|pause| {
            scope.spawn(move || {
                block_on(post_until_over_http3(stop, done, pause, || Clients::trusting(authority), at))
            })
        });
        upgrade_under_load(&mut upgraded, upgrades, done);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(lost.is_empty(), "{} of {done:?} requests were lost: {lost:?}", lost.len());
    assert_eq!(upgraded.first.wait(), 0);
    upgraded.wait_for_the_last();
}

/// Sends four requests at once on a connection, again and again, until its server announces the end
/// of the connection. Returns the errors of lost requests.
async fn post_until_over_http3(
    stop: &AtomicBool,
    done: &AtomicU64,
    pause: Duration,
    clients: impl Fn() -> Clients,
    to: SocketAddr,
) -> Vec<StreamError> {
    let (clients, mut lost) = (clients(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let client = clients.connect(to).await;
        let mut stays = true;
        while stays && !stop.load(Ordering::Relaxed) {
            let post = || post_over_http3(&client);
            let (a, b, c, d) = tokio::join!(post(), post(), post(), post());
            for result in [a, b, c, d] {
                done.fetch_add(u64::from(matches!(result, Ok(true))), Ordering::Relaxed);
                stays &= *result.as_ref().unwrap_or(&false);
                lost.extend(result.err());
            }
            tokio::time::sleep(pause).await;
        }
        client.connection.close(0x100_u32.into(), b"");
    }
    clients.wait_idle().await;
    lost
}

/// Sends a request, and reads its response. Returns false if the client sends nothing, because the
/// server has announced the end of the connection.
async fn post_over_http3(client: &Http3Client) -> Result<bool, StreamError> {
    let begun = client.begin(Request::post(uri("/")).body(()).unwrap()).await;
    let mut call = match begun {
        Err(StreamError::RemoteClosing { .. }) => return Ok(false),
        other => other?,
    };
    call.send_data(Bytes::from_static(b"body")).await?;
    call.finish().await?;
    let response = read(&mut call).await?;
    assert_eq!((response.status, response.text()), (200, "a POST / 4"));
    Ok(true)
}

/// Sends one request after the other on a connection until its server announces the end of the
/// connection. Returns the errors of lost requests.
fn post_until<S: Read + Write>(
    stop: &AtomicBool,
    done: &AtomicU64,
    pause: Duration,
    connect: impl Fn() -> S,
) -> Vec<io::Error> {
    let mut lost = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut stream = connect();
        while !stop.load(Ordering::Relaxed) {
            match post(&mut stream) {
                Ok(stays) => {
                    done.fetch_add(1, Ordering::Relaxed);
                    if !stays {
                        break;
                    }
                }
                Err(error) => {
                    lost.push(error);
                    break;
                }
            }
            thread::sleep(pause);
        }
    }
    lost
}

/// Sends a request, and reads its response. Returns whether the connection stays open.
fn post(stream: &mut (impl Read + Write)) -> io::Result<bool> {
    const BODY: &str = "a POST / 4";
    stream.write_all(b"POST / HTTP/1.1\r\nHost: site.example\r\nContent-Length: 4\r\n\r\nbody")?;
    let head = read_head(stream)?;
    let mut body = [0; BODY.len()];
    stream.read_exact(&mut body)?;
    assert!(head.starts_with("HTTP/1.1 200 ") && body == BODY.as_bytes(), "{head}");
    Ok(!head.contains("\r\nConnection: close\r\n"))
}

/// Configuration with the frontend `web` over TLS and the frontend `plain` without TLS.
fn both(lab: &Loopback) -> Setup {
    let plain = format!(
        "[frontends.plain]\nmode = \"http\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n",
        lab.second_vip()
    );
    https(lab, "").and(&plain)
}
