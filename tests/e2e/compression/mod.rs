//! Response compression on the way to the client.

mod bounds;
mod served;
mod streams;

use std::io::Write;
use std::net::TcpStream;

use convey_testkit::{BalancerProcess, Loopback, Need, SeenRequest, Setup, TestHttpServer, tests, wait_for};

use bounds::{
    a_client_that_reads_nothing_slows_its_server_and_holds_no_memory,
    beyond_the_memory_budget_answers_go_as_they_are,
};
use served::{
    a_changed_file_is_no_longer_the_one_that_a_client_has, files_are_compressed_unless_a_form_lies_ready,
};
use streams::{
    a_server_that_breaks_off_leaves_no_client_with_a_shorter_page, each_event_is_at_the_client_at_once,
    trailers_survive,
};

use crate::curl::curl;
use crate::http::client::{Client, read_head};
use crate::tls::{authority, https};

tests!("compression":
    curl_gets_a_page_as_it_was_in_every_encoding_and_version [Need::CURL],
    compressed_bytes_are_in_log_and_statistics [Need::CURL],
    response_with_credentials_is_compressed_only_if_configured,
    a_connection_goes_on_behind_whatever_was_compressed,
    cached_compressed_page_is_revalidated_with_304,
    compression_follows_reloads_and_routes,
    a_page_of_an_old_server_ends_with_its_connection [Need::CURL],
    responses_of_http2_servers_are_compressed [Need::CURL],
    each_event_is_at_the_client_at_once [Need::CURL],
    a_server_that_breaks_off_leaves_no_client_with_a_shorter_page [Need::CURL],
    trailers_survive,
    files_are_compressed_unless_a_form_lies_ready [Need::CURL],
    a_changed_file_is_no_longer_the_one_that_a_client_has,
    a_client_that_reads_nothing_slows_its_server_and_holds_no_memory,
    beyond_the_memory_budget_answers_go_as_they_are,
);

const ON: &str = "mode = \"http\"\ncompression = true";

/// A page of about so many bytes that compresses well.
fn page(len: usize) -> String {
    (0..len / 40).map(|n| format!("<li class=\"item\">This is line {n}.</li>\n")).collect()
}

/// A server whose answers have a page of 100 kB and these fields.
fn site(lab: &Loopback, fields: &'static str) -> TestHttpServer {
    TestHttpServer::start(lab.server(1), move |request, stream| answer(request, stream, fields))
}

fn answer(request: &SeenRequest, stream: &mut TcpStream, fields: &str) -> std::io::Result<()> {
    let page = page(100_000);
    let len = page.len();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len}\r\n{fields}\r\n")?;
    if request.line.starts_with("HEAD") { Ok(()) } else { stream.write_all(page.as_bytes()) }
}

fn setup(lab: &Loopback, lines: &str) -> Setup {
    Setup::new(lab).frontend(lines).server("a", lab.server(1), "")
}

/// Value of a field of a head.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The response's encoding with these arguments of curl, and the page after curl has decoded it.
fn decoded(args: &[&str]) -> (String, String) {
    let output = curl(&[&["--compressed", "-w", "\n%header{content-encoding}"], args].concat());
    let (page, encoding) = output.rsplit_once('\n').unwrap();
    (encoding.to_owned(), page.to_owned())
}

/// Head of the response to a request with these fields, on its own connection.
fn head_of(lab: &Loopback, fields: &str) -> String {
    let mut client = Client::new(lab.vip());
    write!(client.0, "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n{fields}\r\n").unwrap();
    read_head(&mut client.0).unwrap()
}

fn curl_gets_a_page_as_it_was_in_every_encoding_and_version() {
    let lab = Loopback::new();
    let _server = site(&lab, "");
    let ca = authority(&lab).save(lab.directory()).display().to_string();
    let vip = lab.vip();
    let resolve = format!("site.example:{}:{}", vip.port(), vip.ip());
    for (scheme, setup, versions) in [
        ("http", setup(&lab, ON).to_string(), ["--http1.1", "--http2-prior-knowledge"]),
        ("https", https(&lab, "").to_string().replace("mode = \"http\"", ON), ["--http1.1", "--http2"]),
    ] {
        let _balancer = BalancerProcess::start(&lab, &setup);
        let url = format!("{scheme}://site.example:{}/", vip.port());
        for version in versions {
            for (accepted, expected) in [
                ("gzip", "gzip"),
                ("br", "br"),
                ("zstd", "zstd"),
                ("gzip, br, zstd", "zstd"),
                ("identity", ""),
            ] {
                let accept = format!("Accept-Encoding: {accepted}");
                let args = [version, "--cacert", &ca, "--resolve", &resolve, "-H", &accept, &url];
                assert_eq!(
                    decoded(&args),
                    (expected.to_owned(), page(100_000)),
                    "{scheme} {version} {accepted}"
                );
            }
        }
    }
}

fn compressed_bytes_are_in_log_and_statistics() {
    let lab = Loopback::new();
    let _server = site(&lab, "");
    let file = lab.directory().join("access.log");
    let log = format!(
        "[access_log]\noutput = {:?}\nformat = \"{{compression}} {{bytes_tx}}\"\n",
        file.display().to_string()
    );
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ON).and(&log));
    let url = format!("http://{}/", lab.vip());
    for encoding in ["zstd", "br", "gzip", "identity"] {
        curl(&["-H", &format!("Accept-Encoding: {encoding}"), "-o", "/dev/null", &url]);
    }
    let lines = wait_for("four lines", || {
        let log = std::fs::read_to_string(&file).ok()?;
        (log.lines().count() == 4).then_some(log)
    });
    let lines: Vec<_> = lines.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let encodings: Vec<_> = lines.iter().map(|(encoding, _)| *encoding).collect();
    assert_eq!(encodings, ["zstd", "br", "gzip", "-"]);
    let len = page(100_000).len() as u64;
    let sent: Vec<u64> = lines.iter().map(|(_, bytes)| bytes.parse().unwrap()).collect();
    assert!(sent[..3].iter().all(|bytes| *bytes < len / 4) && sent[3] > len, "{sent:?}");
    let of =
        |what: &str| balancer.stat(&format!("/frontends/web/requests/compression/{what}")).as_u64().unwrap();
    assert_eq!(["responses/zstd", "responses/br", "responses/gzip", "no_memory"].map(of), [1, 1, 1, 0]);
    assert_eq!(of("bytes_in"), 3 * len);
    assert!(of("bytes_out") < sent[..3].iter().sum(), "the heads are not compressed");
    let metrics = balancer.page("/metrics").1;
    for line in [
        "convey_frontend_http_compressed_total{frontend=\"web\",encoding=\"br\"} 1".to_owned(),
        format!("convey_frontend_http_compression_bytes_total{{frontend=\"web\",side=\"in\"}} {}", 3 * len),
        "convey_frontend_http_compression_no_memory_total{frontend=\"web\"} 0".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

fn response_with_credentials_is_compressed_only_if_configured() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let fields = request.field("x-answer-with").map_or(String::new(), |field| format!("{field}\r\n"));
        answer(request, stream, &fields)
    });
    let secrets = [
        "Cookie: sid=1\r\n",
        "Authorization: Bearer abc\r\n",
        "X-Answer-With: Set-Cookie: sid=1\r\n",
        "X-Answer-With: Cache-Control: private\r\n",
    ];
    let balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    for secret in secrets {
        assert_eq!(field(&head_of(&lab, secret), "content-encoding"), None, "{secret}");
    }
    assert_eq!(field(&head_of(&lab, ""), "content-encoding"), Some("gzip"));
    let all = ON.replace("true", "{ with_credentials = true }");
    balancer.save(&setup(&lab, &all));
    let line = balancer.wait_for_log("reload: ");
    assert!(line.contains("from 1024 bytes -> zstd, br, gzip from 1024 bytes, with credentials"), "{line}");
    for secret in secrets {
        assert_eq!(field(&head_of(&lab, secret), "content-encoding"), Some("gzip"), "{secret}");
    }
}

fn a_connection_goes_on_behind_whatever_was_compressed() {
    let lab = Loopback::new();
    let server = TestHttpServer::start(lab.server(1), |request, stream| match request.field("range") {
        Some(_) => stream.write_all(
            b"HTTP/1.1 206 Partial Content\r\nContent-Type: text/html\r\nContent-Range: bytes 0-3/100000\r\n\
              Content-Length: 4\r\n\r\n<li ",
        ),
        None => answer(request, stream, "ETag: \"v1\"\r\nAccept-Ranges: bytes\r\n"),
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let mut client = Client::new(lab.vip());
    let request = |method: &str, fields: &str| {
        format!("{method} / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n{fields}\r\n")
    };
    for _ in 0..3 {
        // All at once: the client has to find the end of each response.
        let all = [request("HEAD", ""), request("GET", ""), request("GET", "Range: bytes=0-3\r\n")].concat();
        client.0.write_all(all.as_bytes()).unwrap();
        let head = read_head(&mut client.0).unwrap();
        let get = read_head(&mut client.0).unwrap();
        for head in [&head, &get] {
            assert_eq!(field(head, "content-encoding"), Some("gzip"), "{head}");
            assert_eq!(field(head, "etag"), Some("W/\"v1\""));
            assert_eq!(field(head, "vary"), Some("Accept-Encoding"));
            assert_eq!((field(head, "content-length"), field(head, "accept-ranges")), (None, None));
        }
        assert_eq!(get.replace("Transfer-Encoding: chunked\r\n", ""), head, "HEAD says what GET does");
        assert!(streams::read_chunks(&mut client.0).0.starts_with(&[0x1f, 0x8b]), "this is no gzip");
        let part = client.read();
        assert_eq!((part.status, part.body.as_str()), (206, "<li "));
        assert_eq!(field(&part.head, "content-encoding"), None);
    }
    assert_eq!((server.seen().len(), server.connections()), (9, 1));
}

fn cached_compressed_page_is_revalidated_with_304() {
    let lab = Loopback::new();
    // The server compares weakly, as RFC 9110, section 13.1.2 requires.
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        match request.field("if-none-match").is_some_and(|tag| tag.trim_start_matches("W/") == "\"v1\"") {
            true => stream.write_all(b"HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n\r\n"),
            false => answer(request, stream, "ETag: \"v1\"\r\n"),
        }
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let tag = field(&head_of(&lab, ""), "etag").unwrap().to_owned();
    let known = head_of(&lab, &format!("If-None-Match: {tag}\r\n"));
    assert!(known.starts_with("HTTP/1.1 304 "), "{known}");
    assert_eq!((field(&known, "etag"), field(&known, "vary")), (Some("W/\"v1\""), Some("Accept-Encoding")));
    // A client with the uncompressed page keeps its tag.
    let known = head_of(&lab, "If-None-Match: \"v1\"\r\n");
    assert_eq!((field(&known, "etag"), field(&known, "vary")), (Some("\"v1\""), None));
}

fn compression_follows_reloads_and_routes() {
    let lab = Loopback::new();
    let _server = site(&lab, "");
    let off = "mode = \"http\"";
    let balancer = BalancerProcess::start(&lab, &setup(&lab, off));
    let mut client = Client::new(lab.vip());
    let mut encoding_of = |path: &str| {
        let fields = "Host: a\r\nAccept-Encoding: gzip, zstd\r\n";
        write!(client.0, "GET {path} HTTP/1.1\r\n{fields}\r\n").unwrap();
        let head = read_head(&mut client.0).unwrap();
        match field(&head, "content-length") {
            Some(len) => _ = streams::read_exactly(&mut client.0, len.parse().unwrap()),
            None => _ = streams::read_chunks(&mut client.0),
        }
        field(&head, "content-encoding").unwrap_or("none").to_owned()
    };
    assert_eq!(["/", "/plain", "/own"].map(&mut encoding_of), ["none"; 3]);
    let routes = "[[frontends.web.routes]]\npath = '/plain'\nbackend = 'pool'\ncompression = false\n\
                  [[frontends.web.routes]]\npath = '/own'\nbackend = 'pool'\n\
                  compression = { encodings = 'gzip', types = ['text/html'], min_size = 0 }\n";
    balancer.save(&setup(&lab, &format!("{ON}\n{routes}")));
    let line = balancer.wait_for_log("compression off -> zstd, br, gzip from 1024 bytes");
    assert!(line.contains("frontend web: "), "{line}");
    assert_eq!(["/", "/plain", "/own"].map(&mut encoding_of), ["zstd", "none", "gzip"]);
    balancer.save(&setup(&lab, off));
    balancer.wait_for_log("compression zstd, br, gzip from 1024 bytes -> off");
    assert_eq!(["/", "/plain", "/own"].map(&mut encoding_of), ["none"; 3]);
}

fn a_page_of_an_old_server_ends_with_its_connection() {
    let lab = Loopback::new();
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{}", page(100_000))?;
        Err(std::io::ErrorKind::ConnectionAborted.into())
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, ON));
    let url = format!("http://{}/", lab.vip());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        assert_eq!(decoded(&[version, &url]), ("zstd".to_owned(), page(100_000)), "{version}");
    }
    // A client of HTTP/1.0 gets the page uncompressed.
    assert_eq!(decoded(&["--http1.0", &url]), (String::new(), page(100_000)));
}

fn responses_of_http2_servers_are_compressed() {
    let lab = Loopback::new();
    let _server = site(&lab, "");
    // Another frontend serves HTTP/2 as the server.
    let inner = format!(
        "[frontends.inner]\nmode = \"http\"\nlisten_addr = \"{}\"\nbackend = \"inner\"\n[backends.inner]\n\
         health_check.kind = \"none\"\n[backends.inner.servers.a]\naddr = \"{}\"\n",
        lab.second_vip(),
        lab.server(1)
    );
    let setup = Setup::new(&lab).frontend(ON).backend("protocol = \"h2\"").server("h2", lab.second_vip(), "");
    let balancer = BalancerProcess::start(&lab, &setup.and(&inner));
    let url = format!("http://{}/", lab.vip());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for encoding in ["gzip", "br", "zstd"] {
            let args = [version, "-H", &format!("Accept-Encoding: {encoding}"), &url];
            assert_eq!(decoded(&args), (encoding.to_owned(), page(100_000)), "{version}");
        }
    }
    balancer.wait_for_stat("/frontends/inner/requests/total", 6);
    assert_eq!(balancer.stat("/frontends/inner/requests/compression/bytes_in"), 0);
}
