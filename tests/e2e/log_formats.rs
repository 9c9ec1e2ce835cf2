//! Formats of the access log that show headers, and the format `combined`.

use convey_testkit::{BalancerProcess, Loopback, Setup, TestHttpServer, tests, wait_for, whole_lines};

use crate::access_log::{log, path};
use crate::curl::curl;
use crate::http::HTTP;

tests!("log_formats":
    headers_show_what_the_client_sent_and_gets,
    combined_lines_have_the_length_of_the_body_alone,
);

/// Lines of the log, once there are so many.
fn lines(lab: &Loopback, count: usize) -> Vec<String> {
    let text = wait_for(&format!("{count} lines"), || {
        let text = whole_lines(&path(lab));
        (text.lines().count() >= count).then_some(text)
    });
    text.lines().map(str::to_owned).collect()
}

/// Sends a request over both versions of HTTP.
fn request(lab: &Loopback, target: &str, more: &[&str]) {
    let url = format!("http://{}{target}", lab.vip());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        curl(&[&[version, "-A", "test \"1\"", url.as_str()], more].concat());
    }
}

fn headers_show_what_the_client_sent_and_gets() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: secret\r\nX-Of: server\r\nVary: a\r\nVary: b\r\n\r\n";
        std::io::Write::write_all(stream, format!("{head}ok").as_bytes())
    });
    let format = "format = '{status} {request_header:user-agent} {request_header:X-Id} \
                  {response_header:Server} {response_header:x-of} {response_header:vary}'";
    let rules = format!(
        "{HTTP}\nheaders.response.set = {{ X-Of = \"convey\" }}\nheaders.response.remove = [\"Server\"]"
    );
    let setup = Setup::new(&lab).frontend(&rules).server("a", lab.server(1), "").and(&log(&lab, format));
    let balancer = BalancerProcess::start(&lab, &setup);
    request(&lab, "/", &["-H", "X-Id: 7"]);
    assert_eq!(lines(&lab, 2), [r#"200 "test \"1\"" 7 - convey "a, b""#; 2]);
    // A reload changes the headers that are kept.
    let fields = "format = ['request_header:Host', 'response_header:content-type', 'status']";
    let setup = Setup::http(&lab).and(&log(&lab, fields));
    balancer.save(&setup);
    balancer.wait_for_log("access_log.format ");
    request(&lab, "/", &["-H", "Host: a.example"]);
    let line = r#"{"request_header:Host":"a.example","response_header:content-type":null,"status":200}"#;
    assert_eq!(lines(&lab, 4)[2..], [line; 2]);
}

fn combined_lines_have_the_length_of_the_body_alone() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let setup = Setup::http(&lab);
    let _balancer = BalancerProcess::start(&lab, &setup.and(&log(&lab, "format = 'combined'")));
    request(&lab, "/x?y", &["-e", "http://a.example/"]);
    curl(&["--http1.1", "-H", "Host: a b", &format!("http://{}/", lab.vip())]);
    let body = "a GET /x?y 0".len();
    let mut lines: Vec<String> = lines(&lab, 3).iter().map(|line| behind_the_time(line).to_owned()).collect();
    // Two workers may write at once: their lines have no order.
    lines.sort();
    assert!(lines[0].starts_with("\"-\" 400 "), "{}", lines[0]);
    for (line, version) in lines[1..].iter().zip(["1.1", "2.0"]) {
        let request = format!("\"GET /x?y HTTP/{version}\" 200 {body}");
        assert_eq!(*line, format!("{request} \"http://a.example/\" \"test \\x221\\x22\""));
    }
}

/// Checks the client and the time of a line in the format `combined`. Returns the rest.
fn behind_the_time(line: &str) -> &str {
    let (client, rest) = line.split_once(" - - [").unwrap();
    client.parse::<std::net::IpAddr>().unwrap();
    let (time, rest) = rest.split_once("] ").unwrap();
    assert!(time.ends_with(" +0000") && time.len() == "01/Mar/2026:12:00:00 +0000".len(), "{line}");
    rest
}
