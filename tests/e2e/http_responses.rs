//! Mode http: changes of responses on their way to clients of each version.

use std::io::Write;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Setup, TestAuthority, TestHttpServer, tests, wait_for,
};

use crate::curl::curl;
use crate::http::client::Client;
use crate::http2::block_on;
use crate::http3::authority;
use crate::http3::client::Clients;

tests!("http_responses":
    url_and_cookies_of_a_rewritten_request_lead_back_in_each_version [Need::CURL],
    headers_depend_on_status_and_path_in_each_version [Need::CURL],
    local_reply_has_the_trace_that_convey_began,
);

/// Frontend over TLS with HTTP/3, with these lines, and its server.
pub(crate) fn secure(lab: &Loopback, lines: &str) -> Setup {
    let at = lab.directory().display();
    let tls = format!(
        "[frontends.web.tls]\nhttp3 = true\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"\n"
    );
    Setup::new(lab).frontend(&format!("mode = \"http\"\n{lines}\n{tls}")).server("site", lab.server(1), "")
}

/// Fields of the response to a request for this path in HTTP/1.1, HTTP/2 and HTTP/3, as lines with
/// names in lower case.
fn fields_in_each_version(lab: &Loopback, authority: &TestAuthority, path: &str) -> [Vec<String>; 3] {
    let ca = authority.save(lab.directory()).display().to_string();
    let port = lab.vip().port();
    let resolve = format!("site.example:{port}:{}", lab.vip().ip());
    let url = format!("https://site.example:{port}{path}");
    let over_tcp = |version: &str| {
        let args = [version, "--cacert", &ca, "--resolve", &resolve, "-D", "-", "-o", "/dev/null", &url];
        let head = curl(&args);
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.map(|(name, value)| format!("{}: {value}", name.to_ascii_lowercase())).collect()
    };
    let answer = block_on(async { Clients::trusting(authority).connect(lab.vip()).await.get(path).await });
    let over_quic = answer.fields.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    [over_tcp("--http1.1"), over_tcp("--http2"), over_quic.collect()]
}

fn url_and_cookies_of_a_rewritten_request_lead_back_in_each_version() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let _server = TestHttpServer::start(lab.server(1), |_, stream| {
        let fields = "Location: http://app.internal/in/items?a=/in#b\r\nContent-Location: /in/here\r\n\
                      Refresh: 5; url=/in\r\nSet-Cookie: a=1; Path=/in; Domain=app.internal; Secure\r\n\
                      Set-Cookie: b=2; Path=/in/x\r\nX-Location: /in/here\r\n";
        write!(stream, "HTTP/1.1 302 Found\r\n{fields}Content-Length: 0\r\n\r\n")
    });
    let routes = r#"
        [[frontends.web.routes]]
        path = "/v1"
        backend = "pool"
        rewrite_path = "/in"
        rewrite_host = "app.internal"
        rewrite_cookies = true
        [[frontends.web.routes]]
        path = "/usual"
        backend = "pool"
        rewrite_path = "/in"
        rewrite_host = "app.internal"
        [[frontends.web.routes]]
        path = "/off"
        backend = "pool"
        rewrite_path = "/in"
        rewrite_location = false
        "#;
    let _balancer = BalancerProcess::start(&lab, &secure(&lab, routes));
    let of_server = [
        "location: http://app.internal/in/items?a=/in#b",
        "content-location: /in/here",
        "refresh: 5; url=/in",
        "set-cookie: a=1; Path=/in; Domain=app.internal; Secure",
        "set-cookie: b=2; Path=/in/x",
        "x-location: /in/here",
    ];
    let locations = |prefix: &str| {
        [
            format!("location: {prefix}/items?a=/in#b"),
            format!("content-location: {prefix}/here"),
            format!("refresh: 5; url={prefix}"),
        ]
    };
    let cookies = ["set-cookie: a=1; Path=/v1; Domain=site.example; Secure", "set-cookie: b=2; Path=/v1/x"];
    let own = |range: std::ops::Range<usize>| of_server[range].iter().map(ToString::to_string);
    let both = locations("/v1").into_iter().chain(cookies.map(str::to_owned)).chain(own(5..6));
    let usual = locations("/usual").into_iter().chain(own(3..6));
    let cases: [(&str, Vec<String>); 4] = [
        ("/v1/a", both.collect()),
        ("/usual/a", usual.collect()),
        ("/off/a", own(0..6).collect()),
        ("/other", own(0..6).collect()),
    ];
    for (path, expected) in cases {
        let in_versions = fields_in_each_version(&lab, &authority, path);
        for (version, fields) in ["HTTP/1.1", "HTTP/2", "HTTP/3"].into_iter().zip(in_versions) {
            let mut found: Vec<String> = fields;
            found.retain(|line| !line.starts_with("content-length: ") && !line.starts_with("alt-svc: "));
            assert_eq!(found, expected, "{path} over {version}");
        }
    }
}

fn headers_depend_on_status_and_path_in_each_version() {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let root = lab.directory().join("files");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("a.css"), "a").unwrap();
    let _server = TestHttpServer::start(lab.server(1), |request, stream| {
        let status = if request.line.contains("missing") { "404 Not Found" } else { "200 OK" };
        write!(stream, "HTTP/1.1 {status}\r\nCache-Control: private\r\nContent-Length: 0\r\n\r\n")
    });
    let lines = r#"
        [[frontends.web.headers.response.when]]
        status = [404, "5xx"]
        set = { X-Failed = "{path}" }
        [[frontends.web.headers.response.when]]
        path_glob = ["*.css", "/static/**"]
        set = { Cache-Control = "max-age=60" }
        [[frontends.web.routes]]
        path = "/down"
        backend = "down"
        [[frontends.web.routes]]
        path = "/files"
        rewrite_path = "/"
        backend = "files"
        [[frontends.web.routes]]
        path = "/static/secret"
        backend = "pool"
        headers.response.set = { Cache-Control = "no-store" }
        "#;
    let backends = format!(
        "[backends.down]\nhealth_check.kind = \"none\"\nservers.a.addr = \"{}\"\n[backends.files]\nfiles = {:?}\n",
        lab.server(9),
        root.display().to_string()
    );
    let _balancer = BalancerProcess::start(&lab, &secure(&lab, lines).and(&backends));
    let cases = [
        ("/a", None, "private"),
        ("/a/b.css?c", None, "max-age=60"),
        ("/static/a/b", None, "max-age=60"),
        ("/static/secret", None, "no-store"),
        ("/missing.css", Some("/missing.css"), "private"),
        ("/down/a.css", Some("/down/a.css"), "no-store"),
        ("/files/a.css", None, "max-age=60"),
        ("/files/b.css", Some("/files/b.css"), "no-store"),
    ];
    for (path, failed, cached) in cases {
        let mut expected = vec![format!("cache-control: {cached}")];
        expected.extend(failed.map(|path| format!("x-failed: {path}")));
        for fields in fields_in_each_version(&lab, &authority, path) {
            let mut found = fields;
            found.retain(|line| line.starts_with("cache-control: ") || line.starts_with("x-failed: "));
            found.sort();
            assert_eq!(found, expected, "{path}");
        }
    }
}

fn local_reply_has_the_trace_that_convey_began() {
    let lab = Loopback::new();
    let log = lab.directory().join("access.log");
    let access =
        format!("[access_log]\noutput = {:?}\nformat = \"{{trace_id}}\"\n", log.display().to_string());
    let lines = r#"mode = "http"
        begin_traces = true
        headers.response.set = { X-Trace = "{trace_id}" }
        routes = [
            { path = "/old", redirect = { path = "/new/{trace_id}" } },
            { path = "/robots.txt", respond = { body = "User-agent: *" } },
        ]"#;
    let setup = Setup::new(&lab).frontend(lines).server("gone", lab.server(1), "").and(&access);
    let _balancer = BalancerProcess::start(&lab, &setup);
    let mut logged = String::new();
    for (path, status) in [("/", 503), ("/old", 302), ("/robots.txt", 200)] {
        let response = Client::new(lab.vip()).get("a", path);
        let field = |name: &str| response.head.lines().find_map(|line| line.strip_prefix(name));
        let trace = field("X-Trace: ").unwrap_or_default();
        assert_eq!((response.status, trace.len()), (status, 32), "{}", response.head);
        let location = (status == 302).then(|| format!("http://a/new/{trace}"));
        assert_eq!(field("Location: "), location.as_deref());
        logged += &format!("{trace}\n");
        wait_for("the line of the request", || {
            std::fs::read_to_string(&log).ok().filter(|lines| *lines == logged)
        });
    }
}
