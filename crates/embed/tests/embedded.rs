//! Tests of a program that embeds a balancer.
#![allow(clippy::disallowed_methods, reason = "tests happen in real time, and their threads can be made")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use convey_embed::{BalancerError, EmbeddedBalancer};
use convey_http::stack::{Check, Forwards, find_route};
use convey_http::{
    ExchangeHook, ExchangePhase, ExchangeSummary, HttpRequest, LocalReply, ResponseEdit, Trailers,
};
use convey_testkit::{Loopback, TestHttpServer, wait_for};

fn config(lab: &Loopback) -> String {
    let (vip, [a, b]) = (lab.vip(), [1, 2].map(|n| lab.server(n)));
    format!(
        "[frontends.web]\nlisten_addr = \"{vip}\"\nmode = \"http\"\nbackend = \"app\"\n\
         [backends.app]\nhealth_check.kind = \"none\"\n[backends.app.servers]\na.addr = \"{a}\"\nb.addr = \"{b}\"\n"
    )
}

/// Sends one request on a new connection. Returns the status and the body of the response.
fn fetch(at: SocketAddr, fields: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Layer that requires a key, and sends the requests of tenants to their servers.
fn check(request: &mut HttpRequest) -> Result<(), LocalReply> {
    if request.head().field("x-key") != Some(b"sesame") {
        return Err(LocalReply::new(401).with_body("a key is needed\n"));
    }
    request.set_field("X-User", "ali").unwrap();
    let tenant = request.head().field("x-tenant").unwrap_or_default();
    let server = request.servers().iter().find(|server| server.config.name.as_bytes() == tenant).cloned();
    server.iter().for_each(|server| request.choose(server));
    Ok(())
}

#[tokio::test]
async fn a_program_decides_on_requests_and_moves_its_servers() {
    let lab = Loopback::new();
    let servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let stack = find_route(Check::new(Forwards, check));
    let balancer = EmbeddedBalancer::builder(&config(&lab)).stack(stack).start().await.unwrap();

    assert_eq!(fetch(lab.vip(), ""), (401, "a key is needed\n".to_owned()));
    for _ in 0..4 {
        let (status, body) = fetch(lab.vip(), "X-Key: sesame\r\nX-Tenant: b\r\n");
        assert_eq!((status, &*body), (200, "b GET / 0"));
    }
    assert_eq!(servers[1].seen()[0].field("x-user"), Some("ali"));
    assert!(servers[0].seen().is_empty());

    // The next request uses the new server.
    assert!(balancer.add_server("app", "c", &lab.server(3).to_string()).await.unwrap());
    assert_eq!(fetch(lab.vip(), "X-Key: sesame\r\nX-Tenant: c\r\n").1, "c GET / 0");
    balancer.remove_server("app", "c").await.unwrap();
    assert_ne!(fetch(lab.vip(), "X-Key: sesame\r\nX-Tenant: c\r\n").1, "c GET / 0");
    let refused = balancer.add_server("none", "c", "127.0.0.1:1").await.unwrap_err();
    assert!(matches!(refused, BalancerError::Refused(_)), "{refused}");
    balancer.stop(Duration::from_secs(5)).await;
    assert!(TcpStream::connect(lab.vip()).is_err());
}

/// Hook that writes down what happens to its request, and names itself in the response.
struct Witness(Arc<Mutex<Vec<String>>>);

impl Witness {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }
}

impl ExchangeHook for Witness {
    fn on_response(&mut self, response: &mut ResponseEdit<'_>) {
        self.note(format!("response {} local={}", response.status(), response.is_local_reply()));
        response.set_field("X-Witness", "here").unwrap();
    }

    fn wants_bodies(&self) -> bool {
        true
    }

    fn on_request_data(&mut self, data: &[u8]) {
        self.note(format!("request data {}", String::from_utf8_lossy(data)));
    }

    fn on_response_data(&mut self, data: &[u8]) {
        self.note(format!("response data {}", String::from_utf8_lossy(data)));
    }

    fn on_response_end(&mut self, trailers: Option<&Trailers>) {
        self.note(format!("response end, trailers={}", trailers.is_some()));
    }

    fn on_end(&mut self, end: &ExchangeSummary) {
        let early = end.reason.zip(end.phase.map(ExchangePhase::label));
        self.note(format!("end {:?} {} {early:?}", end.status, end.bytes_rx));
    }
}

#[tokio::test]
async fn hook_follows_a_request_to_its_end_and_changes_the_response() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| TestHttpServer::named(name, lab.server(n)));
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let notes = seen.clone();
    let follow = move |request: &mut HttpRequest| {
        request.follow(Witness(notes.clone()));
        Ok(())
    };
    let refuse = |request: &mut HttpRequest| match request.head().field("x-key") {
        None => Ok(()),
        Some(_) => Err(LocalReply::new(403).with_body("no")),
    };
    let stack = find_route(Check::new(Check::new(Forwards, refuse), follow));
    let balancer = EmbeddedBalancer::builder(&config(&lab)).stack(stack).start().await.unwrap();
    let exchange = |text: &str| {
        let mut stream = TcpStream::connect(lab.vip()).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.contains("X-Witness: here\r\n"), "{response}");
        let is_over = || seen.lock().unwrap().last().is_some_and(|last| last.starts_with("end "));
        wait_for("the end of the exchange", || is_over().then_some(()));
        (response.split("\r\n\r\n").nth(1).unwrap().to_owned(), std::mem::take(&mut *seen.lock().unwrap()))
    };
    let (body, notes) =
        exchange("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
    let data = format!("response data {body}");
    let expected = [
        "request data hi",
        "response 200 local=false",
        &data,
        "response end, trailers=false",
        "end Some(200) 2 None",
    ];
    assert_eq!(notes, expected);
    let (_, notes) = exchange("GET / HTTP/1.1\r\nHost: a\r\nX-Key: x\r\nConnection: close\r\n\r\n");
    assert_eq!(notes, ["response 403 local=true", "end Some(403) 0 Some((\"layer\", \"layers\"))"]);
    balancer.stop(Duration::from_secs(5)).await;
}

/// Hook that writes down the end of its request.
struct EndWitness {
    ends: Arc<Mutex<Vec<ExchangeSummary>>>,
    wants_bodies: bool,
}

impl ExchangeHook for EndWitness {
    fn wants_bodies(&self) -> bool {
        self.wants_bodies
    }

    fn on_end(&mut self, end: &ExchangeSummary) {
        self.ends.lock().unwrap().push(*end);
    }
}

#[tokio::test]
async fn hook_sees_the_end_of_a_cut_download_once() {
    const PART: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart";
    for wants_bodies in [false, true] {
        let lab = Loopback::new();
        let _servers = [1, 2].map(|n| {
            TestHttpServer::start(lab.server(n), |_, stream| {
                stream.write_all(PART)?;
                // Waits until convey closes the connection.
                stream.read(&mut [0]).map(drop)
            })
        });
        let ends = Arc::<Mutex<Vec<ExchangeSummary>>>::default();
        let list = ends.clone();
        let follow = move |request: &mut HttpRequest| {
            request.follow(EndWitness { ends: list.clone(), wants_bodies });
            Ok(())
        };
        let stack = find_route(Check::new(Forwards, follow));
        let balancer = EmbeddedBalancer::builder(&config(&lab)).stack(stack).start().await.unwrap();
        let mut client = TcpStream::connect(lab.vip()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut received = [0; PART.len()];
        client.read_exact(&mut received).unwrap();
        assert!(received.ends_with(b"part"), "{}", String::from_utf8_lossy(&received));
        balancer.stop(Duration::ZERO).await;
        let ends = ends.lock().unwrap();
        let [end] = ends[..] else { panic!("{ends:?}") };
        assert_eq!((end.status, end.bytes_tx), (Some(200), PART.len() as u64));
        let early = end.reason.zip(end.phase.map(ExchangePhase::label));
        assert_eq!(early, Some(("cut", "bodies")));
    }
}

#[tokio::test]
async fn a_stop_lets_what_runs_end() {
    let lab = Loopback::new();
    let slow = TestHttpServer::start(lab.server(1), |_, stream| {
        thread::sleep(Duration::from_millis(300));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")
    });
    let config = config(&lab).lines().filter(|line| !line.starts_with("b.")).collect::<Vec<_>>().join("\n");
    let balancer = EmbeddedBalancer::builder(&config).start().await.unwrap();
    let at = lab.vip();
    let asks = thread::spawn(move || fetch(at, ""));
    wait_for("the server has the request", || (slow.seen().len() == 1).then_some(()));
    balancer.stop(Duration::from_secs(20)).await;
    assert_eq!(asks.join().unwrap(), (200, "late".to_owned()));
}

#[tokio::test]
async fn a_configuration_that_cannot_run_says_why() {
    let wrong = EmbeddedBalancer::builder("[frontends.web]\nlisten_addr = \"127.0.0.1:1\"\n")
        .start()
        .await
        .unwrap_err();
    assert!(wrong.to_string().contains("frontends.web.backend: required, but missing"), "{wrong}");
    let lab = Loopback::new();
    let packets = config(&lab).replace("mode = \"http\"", "mode = \"dsr\"");
    let refused = EmbeddedBalancer::builder(&packets).start().await.unwrap_err();
    assert_eq!(refused.to_string(), "frontend web: mode dsr is not available in an embedded balancer");
    let _taken = std::net::TcpListener::bind(lab.vip()).unwrap();
    let taken = EmbeddedBalancer::builder(&config(&lab)).start().await.unwrap_err();
    assert!(matches!(taken, BalancerError::Start(_)), "{taken}");
}
