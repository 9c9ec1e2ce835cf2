//! Checks that refusals are JSON on every path, as described in `openapi.json`.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST};

use super::described::{description, exchange_as, schema_of, validator};
use super::token::{SECRET, has_token};
use super::*;

/// A path and method of the API description, with its entry.
struct Described {
    path: String,
    method: String,
    what: Value,
}

impl Described {
    fn all() -> Vec<Described> {
        let description = description();
        let paths = description["paths"].as_object().unwrap();
        let of = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().unwrap().clone().into_iter();
            let methods = methods.filter(|(method, _)| method != "parameters");
            let path = path.clone();
            methods
                .map(move |(method, what)| Described { path: path.clone(), method, what })
                .collect::<Vec<_>>()
        };
        paths.iter().flat_map(of).collect()
    }

    fn says(&self, status: u16) -> bool {
        !self.what["responses"][status.to_string()].is_null()
    }

    /// Builds a request with these headers.
    fn request(&self, headers: &[(hyper::header::HeaderName, &str)]) -> Request<String> {
        let path = self.path.replace("{backend}", "app").replace("{server}", "a").replace("{id}", "p0.1.2");
        let path = match self.path.as_str() {
            "/v1/explain" => format!("{path}?client=127.0.0.9&frontend=web"),
            _ => path,
        };
        let mut request = Request::builder().method(self.method.to_uppercase().as_str()).uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        request.body(String::new()).unwrap()
    }

    /// Checks that the answer has this status and conforms to the description.
    fn is_refused(&self, (got, answer): &(u16, Value), status: u16) {
        let Described { path, method, .. } = self;
        assert_eq!(*got, status, "{method} {path}: {answer}");
        let description = description();
        let validator = validator(schema_of(&description, path, method, status));
        let wrong: Vec<String> = validator.iter_errors(answer).map(|wrong| wrong.to_string()).collect();
        assert!(wrong.is_empty(), "{method} {path}: {wrong:?}\n{answer:#}");
    }
}

/// Requester that connects to the statistics address from `ip`.
fn from(ip: &str) -> Requester {
    let ip: IpAddr = ip.parse().unwrap();
    Requester { name: ip.to_string(), address: Some(ip), may_change: false }
}

#[tokio::test]
async fn wrong_token_is_refused_on_each_path_and_gets_429_after_ten() {
    let admin = admin();
    has_token(&admin.loads, SECRET);
    for (index, described) in Described::all().iter().enumerate() {
        let who = || from(&format!("10.0.{index}.1"));
        for _ in 0..10 {
            let wrong = described.request(&[(AUTHORIZATION, "Bearer wrong")]);
            described.is_refused(&exchange_as(&admin, who(), wrong).await, 401);
        }
        let wrong = described.request(&[(AUTHORIZATION, "Bearer wrong")]);
        described.is_refused(&exchange_as(&admin, who(), wrong).await, 429);
    }
}

#[tokio::test]
async fn foreign_host_header_is_refused_on_each_path() {
    let admin = admin();
    for described in Described::all() {
        for headers in
            [vec![(HOST, "rebound.example:7000")], vec![(HOST, "rebound.example:7000"), (HOST, "127.0.0.1")]]
        {
            let answer = exchange_as(&admin, from("127.0.0.1"), described.request(&headers)).await;
            described.is_refused(&answer, 421);
        }
    }
}

#[tokio::test]
async fn names_of_this_machine_and_of_whoever_has_the_token_are_answered() {
    let admin = admin();
    has_token(&admin.loads, SECRET);
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let bearer = format!("Bearer {SECRET}");
    let status = async |host: &str, header: &[_]| {
        let request = Request::builder().uri("/v1/overlays").header(HOST, host);
        let request = header.iter().fold(request, |request, (name, value)| request.header(name, *value));
        exchange_as(&admin, from("10.0.0.9"), request.body(String::new()).unwrap()).await.0
    };
    for host in ["127.0.0.1:7000", "[::1]:7000", "localhost:7000", &machine] {
        assert_eq!(status(host, &[]).await, 200, "{host}");
    }
    assert_eq!(status("lb.example", &[]).await, 421);
    assert_eq!(status("lb.example", &[(AUTHORIZATION, bearer.as_str())]).await, 200);
    // Scrapers and health checks may read these paths with any host name.
    let addr = start(LIMITS, &admin).await;
    for path in ["/metrics", "/healthz", "/readyz", "/stats", "/"] {
        let stream = TcpStream::connect(addr).await.unwrap();
        let (mut client, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().uri(path).header(HOST, "lb.example").body(Empty::<Bytes>::new());
        assert_eq!(client.send_request(request.unwrap()).await.unwrap().status(), StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn client_addresses_need_the_token_or_without_one_a_local_client() {
    let admin = admin();
    let bearer = format!("Bearer {SECRET}");
    let (mut shown, mut changes) = (0, 0);
    for described in Described::all().iter().filter(|described| described.says(403)) {
        let ask =
            async |ip: &str, headers: &[_]| exchange_as(&admin, from(ip), described.request(headers)).await;
        described.is_refused(&ask("10.0.0.9", &[]).await, 403);
        if ["/v1/flows", "/v1/explain"].contains(&described.path.as_str()) {
            assert_eq!(ask("127.0.0.1", &[]).await.0, 200, "{}", described.path);
            assert_eq!(ask("::1", &[]).await.0, 200, "{}", described.path);
            shown += 1;
        } else {
            described.is_refused(&ask("127.0.0.1", &[]).await, 403);
            changes += 1;
        }
    }
    assert!(shown == 2 && changes > 7, "{shown} {changes}");

    has_token(&admin.loads, SECRET);
    for described in Described::all().iter().filter(|described| described.says(403)) {
        let ask =
            async |headers: &[_]| exchange_as(&admin, from("127.0.0.1"), described.request(headers)).await;
        described.is_refused(&ask(&[]).await, 401);
        if described.method == "get" && described.path != "/v1/trace" {
            assert_eq!(ask(&[(AUTHORIZATION, bearer.as_str())]).await.0, 200, "{}", described.path);
        }
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_in_json() {
    let admin = admin();
    let who = || Requester { name: "root".to_owned(), address: None, may_change: true };
    let with_body = |described: &Described| !described.what["requestBody"].is_null();
    let all = Described::all();
    assert_eq!(all.iter().filter(|described| with_body(described)).count(), 8);
    for described in all.iter().filter(|described| with_body(described)) {
        let request = described.request(&[]).map(|_| "a".repeat((512 << 10) + 1));
        described.is_refused(&exchange_as(&admin, who(), request).await, 413);
    }
}

#[tokio::test]
async fn a_wrong_path_or_method_is_refused_in_json() {
    let admin = admin();
    for (method, path, status) in [
        ("GET", "/v1/stat", 404),
        ("GET", "/nothing", 404),
        ("GET", "/dashboard/x.js", 404),
        ("POST", "/v1/status", 405),
        ("POST", "/stats", 405),
    ] {
        let request = Request::builder().method(method).uri(path).body(String::new()).unwrap();
        let (got, answer) = exchange_as(&admin, from("127.0.0.1"), request).await;
        assert_eq!(got, status, "{path}");
        assert!(answer["error"].is_string(), "{answer}");
    }
}
