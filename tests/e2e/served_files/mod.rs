//! Files of a site: a backend of mode http with a directory in place of servers.

mod changed;
mod held;
mod listed;
mod refused;
mod within_tls;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, connect, tests, wait_for};

use changed::{
    a_changed_file_is_served_fresh_at_the_next_request,
    a_file_that_shrinks_while_it_is_sent_ends_its_connection,
    a_reload_serves_another_directory_while_a_download_goes_on,
    missing_root_is_reported_and_its_reload_changes_nothing,
};
use held::files_of_one_client_leave_descriptors_for_others;
use listed::{
    a_listing_of_many_names_is_whole_in_every_version, listings_that_nobody_takes_hold_little_memory,
};
use refused::{
    a_response_has_few_parts_whatever_is_asked_for, dot_files_and_files_outside_of_the_root_are_not_served,
    files_are_only_read, route_applies_to_every_spelling_of_its_path,
};

use within_tls::{
    files_are_whole_within_tls_over_both_versions,
    paused_tls_download_is_whole_and_does_not_delay_small_files,
};

use crate::curl::curl;
use crate::http::client::{Client, Response};

tests!("served_files":
    route_applies_to_every_spelling_of_its_path,
    a_site_is_served_with_its_types_and_validators,
    cached_file_gets_304_and_ranges_get_206,
    precompressed_file_is_served_unless_it_is_stale,
    cache_control_rules_and_not_found_page_apply,
    fallback_page_has_status_200_for_missing_files,
    a_directory_is_listed_where_the_operator_says_so,
    a_listing_of_many_names_is_whole_in_every_version,
    listings_that_nobody_takes_hold_little_memory,
    large_file_arrives_whole_and_does_not_delay_small_ones,
    files_are_whole_within_tls_over_both_versions,
    paused_tls_download_is_whole_and_does_not_delay_small_files,
    files_of_one_client_leave_descriptors_for_others [Need::PRLIMIT],
    served_folder_is_shown_in_status_explanation_and_access_log,
    small_files_are_answered_while_large_ones_are_sent,
    operators_see_how_often_a_file_was_at_hand,
    a_changed_file_is_served_fresh_at_the_next_request,
    a_reload_serves_another_directory_while_a_download_goes_on,
    a_file_that_shrinks_while_it_is_sent_ends_its_connection,
    missing_root_is_reported_and_its_reload_changes_nothing,
    dot_files_and_files_outside_of_the_root_are_not_served,
    files_are_only_read,
    a_response_has_few_parts_whatever_is_asked_for,
);

/// A site on disk.
struct Site {
    lab: Loopback,
}

impl Site {
    fn new() -> Site {
        let site = Site { lab: Loopback::new() };
        fs::create_dir_all(site.at("www/docs")).unwrap();
        site.write("www/index.html", "<h1>home</h1>");
        site.write("www/docs/index.html", "<h1>docs</h1>");
        site.write("www/app.js", "let a = 1;\n");
        site.write("www/digits", "0123456789");
        site
    }

    fn at(&self, name: &str) -> PathBuf {
        self.lab.directory().join(name)
    }

    /// Writes a file with an old modification time.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.at(name), content).unwrap();
        self.set_age(name, 1_000);
    }

    fn set_age(&self, name: &str, seconds: u64) {
        // A newly written file has the present time.
        fs::write(self.at("now"), "").unwrap();
        let now = fs::metadata(self.at("now")).unwrap().modified().unwrap();
        let file = File::options().write(true).open(self.at(name)).unwrap();
        file.set_modified(now - Duration::from_secs(seconds)).unwrap();
    }

    fn setup(&self, options: &str) -> String {
        self.setup_of("www", options)
    }

    fn setup_of(&self, root: &str, options: &str) -> String {
        let setup = Setup::new(&self.lab).frontend("mode = \"http\"").to_string();
        // Replaces the servers and their health check.
        let (before, rest) = setup.split_once("[backends.pool]").unwrap();
        let (_, after) = rest.split_once("[timeouts]").unwrap();
        format!(
            "{before}[backends.pool]\nfiles = \"{root}\"\n[backends.pool.file_options]\n{options}\n[timeouts]{after}"
        )
    }

    fn start(&self, options: &str) -> BalancerProcess {
        BalancerProcess::start(&self.lab, &self.setup(options))
    }

    fn client(&self) -> Client {
        Client::new(self.lab.vip())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.lab.vip())
    }

    /// Response to a GET with these fields.
    fn get(&self, path: &str, fields: &str) -> Response {
        self.client().send(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    }
}

/// Sets the flag when it is dropped, also when a test fails.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns so many bytes, of which no part repeats.
fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Value of a field of a response.
fn field<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    let mut lines = response.head.lines();
    lines
        .find_map(|line| line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name)))
        .map(|(_, v)| v)
}

fn a_site_is_served_with_its_types_and_validators() {
    let site = Site::new();
    let balancer = site.start("");
    let mut client = site.client();
    for (path, content_type, body) in [
        ("/", "text/html; charset=utf-8", "<h1>home</h1>"),
        ("/docs/", "text/html; charset=utf-8", "<h1>docs</h1>"),
        ("/app.js", "text/javascript; charset=utf-8", "let a = 1;\n"),
        ("/app.js?v=7", "text/javascript; charset=utf-8", "let a = 1;\n"),
        ("/%61pp.js", "text/javascript; charset=utf-8", "let a = 1;\n"),
        ("/digits", "application/octet-stream", "0123456789"),
    ] {
        // All requests use one connection, twice: the second time, files come from memory.
        for _ in 0..2 {
            let response = client.get("site.example", path);
            assert_eq!((response.status, &*response.body), (200, body), "{path}");
            assert_eq!(field(&response, "Content-Type"), Some(content_type), "{path}");
            assert_eq!(field(&response, "Accept-Ranges"), Some("bytes"));
            assert!(field(&response, "ETag").is_some_and(|tag| tag.starts_with('"')), "{}", response.head);
            let times = ["Last-Modified", "Date"].map(|name| field(&response, name).unwrap());
            assert!(times.iter().all(|time| time.ends_with(" GMT")), "{times:?}");
        }
    }
    let moved = client.get("site.example", "/docs?a=b");
    assert_eq!((moved.status, field(&moved, "Location")), (308, Some("/docs/?a=b")));
    let moved = client.get("site.example", "//docs//index.html?a=//b");
    assert_eq!((moved.status, field(&moved, "Location")), (308, Some("/docs/index.html?a=//b")));
    let head = curl(&["-I", &site.url("/digits")]);
    assert!(head.contains("Content-Length: 10\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(curl(&["--http2-prior-knowledge", &site.url("/docs/")]), "<h1>docs</h1>");
    let head = curl(&["-I", "--http2-prior-knowledge", &site.url("/digits")]);
    assert!(head.starts_with("HTTP/2 200") && head.contains("content-length: 10\r\n"), "{head}");
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/file"), 12 + 3);
    assert_eq!(balancer.stat("/backends/pool/requests/total"), 12 + 5);
    assert_eq!(balancer.page("/readyz").0, 200);
}

fn cached_file_gets_304_and_ranges_get_206() {
    let site = Site::new();
    let _balancer = site.start("");
    let whole = site.get("/digits", "");
    let (tag, time) = (field(&whole, "ETag").unwrap(), field(&whole, "Last-Modified").unwrap());
    for (fields, status, body) in [
        (format!("If-None-Match: {tag}\r\n"), 304, ""),
        (format!("If-None-Match: W/\"x\", {tag}\r\n"), 304, ""),
        ("If-None-Match: \"x\"\r\n".to_owned(), 200, "0123456789"),
        (format!("If-Modified-Since: {time}\r\n"), 304, ""),
        ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned(), 200, "0123456789"),
        ("Range: bytes=2-4\r\n".to_owned(), 206, "234"),
        ("Range: bytes=-2\r\n".to_owned(), 206, "89"),
        ("Range: bytes=7-\r\n".to_owned(), 206, "789"),
        ("Range: lines=1-2\r\n".to_owned(), 200, "0123456789"),
        (format!("Range: bytes=2-4\r\nIf-Range: {tag}\r\n"), 206, "234"),
        (format!("Range: bytes=2-4\r\nIf-Range: {time}\r\n"), 206, "234"),
        ("Range: bytes=2-4\r\nIf-Range: \"x\"\r\n".to_owned(), 200, "0123456789"),
    ] {
        let response = site.get("/digits", &fields);
        assert_eq!((response.status, &*response.body), (status, body), "{fields}");
        assert_eq!(field(&response, "ETag"), Some(tag), "{fields}");
    }
    assert_eq!(field(&site.get("/digits", "Range: bytes=2-4\r\n"), "Content-Range"), Some("bytes 2-4/10"));
    let refused = site.get("/digits", "Range: bytes=10-\r\n");
    assert_eq!((refused.status, field(&refused, "Content-Range")), (416, Some("bytes */10")));
    assert_eq!(site.get("/digits", "If-Match: \"x\"\r\n").status, 412);
    let several = site.get("/digits", "Range: bytes=8-,0-1\r\n");
    let boundary =
        field(&several, "Content-Type").unwrap().strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, body: &str| {
        format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {range}/10\r\n\r\n{body}"
        )
    };
    let expected = format!("{}{}\r\n--{boundary}--\r\n", part("8-9", "89"), part("0-1", "01"));
    assert_eq!((several.status, several.body), (206, expected));
    assert_eq!(curl(&["--http2-prior-knowledge", "-r", "2-4", &site.url("/digits")]), "234");
}

fn precompressed_file_is_served_unless_it_is_stale() {
    let site = Site::new();
    let ran = Command::new("gzip").args(["-k", "-n"]).arg(site.at("www/app.js")).status().unwrap();
    assert!(ran.success());
    site.write("www/app.js.br", "brotli");
    site.write("www/app.js.zst", "zstandard");
    let _balancer = site.start("");
    assert_eq!(curl(&["-H", "Accept-Encoding: gzip", "--compressed", &site.url("/app.js")]), "let a = 1;\n");
    let coding = |accepted: &str| {
        let head = curl(&["-I", "-H", &format!("Accept-Encoding: {accepted}"), &site.url("/app.js")]);
        assert!(head.contains("\r\nVary: Accept-Encoding\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/javascript; charset=utf-8\r\n"), "{head}");
        let coding = head.lines().find_map(|line| line.strip_prefix("Content-Encoding: "));
        coding.unwrap_or("none").to_owned()
    };
    for (accepted, expected) in [
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, br", "br"),
        ("gzip;q=1, br;q=0.5", "gzip"),
        ("identity", "none"),
        ("gzip;q=0", "none"),
    ] {
        assert_eq!(coding(accepted), expected, "{accepted}");
    }
    // A deployment has not updated the precompressed forms.
    site.write("www/app.js", "let a = 2;\n");
    site.set_age("www/app.js", 10);
    assert_eq!(coding("gzip, deflate, br, zstd"), "none");
    assert_eq!(curl(&["--compressed", &site.url("/app.js")]), "let a = 2;\n");
}

fn cache_control_rules_and_not_found_page_apply() {
    let site = Site::new();
    site.write("www/404.html", "<h1>nothing here</h1>");
    let rules = r#"[{ match = "docs/**", value = "no-cache" }, { match = "*.js", value = "max-age=31536000, immutable" }]"#;
    let balancer = site.start(&format!("cache_control = {rules}\nnot_found = \"/404.html\""));
    let cached = |path: &str| field(&site.get(path, ""), "Cache-Control").map(str::to_owned);
    assert_eq!(cached("/app.js").as_deref(), Some("max-age=31536000, immutable"));
    assert_eq!(cached("/docs/").as_deref(), Some("no-cache"));
    assert_eq!(cached("/"), None);
    let missing = site.get("/none", "");
    assert_eq!((missing.status, &*missing.body), (404, "<h1>nothing here</h1>"));
    assert_eq!(field(&missing, "Cache-Control"), Some("no-store"));
    assert_eq!(
        (site.get("/none", "Range: bytes=0-1\r\n").status, site.get("/404.html", "").status),
        (404, 200)
    );
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/file_not_found"), 2);
}

fn fallback_page_has_status_200_for_missing_files() {
    let site = Site::new();
    site.write("www/app.html", "<h1>the application</h1>");
    let balancer = site.start("fallback = \"/app.html\"\nnot_found = \"/404.html\"");
    for path in ["/users/7", "/none.js", "/.git/config"] {
        let page = site.get(path, "");
        assert_eq!((page.status, &*page.body), (200, "<h1>the application</h1>"), "{path}");
    }
    assert_ne!(site.get("/app.js", "").body, "<h1>the application</h1>");
    let explained = balancer.command().args(["explain", "203.0.113.9", "web", "http://a/users/7"]).output();
    let explained = String::from_utf8(explained.unwrap().stdout).unwrap();
    assert!(explained.contains("or with www/app.html if it does not exist"), "{explained}");
}

fn a_directory_is_listed_where_the_operator_says_so() {
    let site = Site::new();
    fs::create_dir_all(site.at("www/files/sub")).unwrap();
    for name in ["b <x>.txt", "a.txt", ".hidden"] {
        site.write(&format!("www/files/{name}"), "text");
    }
    let balancer = site.start("");
    assert_eq!(site.get("/files/", "").status, 403);
    assert_eq!(site.get("/none/", "").status, 404);
    balancer.wait_for_stat("/frontends/web/requests/local_replies/file_forbidden", 1);
    balancer.save(&site.setup("listing = true"));
    balancer.wait_for_log("listing false -> true");
    let page = site.get("/files/", "");
    assert_eq!(field(&page, "Content-Type"), Some("text/html; charset=utf-8"));
    let links: Vec<&str> =
        page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(links, ["../", "./sub/", "./a.txt", "./b%20%3Cx%3E.txt"], "{}", page.body);
    assert_eq!(site.get("/files/b%20%3Cx%3E.txt", "").body, "text");
    assert_eq!(site.get("/docs/", "").body, "<h1>docs</h1>", "the index goes first");
}

fn large_file_arrives_whole_and_does_not_delay_small_ones() {
    let site = Site::new();
    let large = pattern(20 << 20);
    site.write("www/large", &large);
    let _balancer = site.start("");
    // Two downloads that are not read fill the buffers between them and convey.
    let mut slow = [(); 2].map(|()| {
        let mut stream = connect(site.lab.vip());
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream
    });
    let mut client = site.client();
    for _ in 0..200 {
        assert_eq!(client.get("a", "/digits").body, "0123456789");
    }
    for stream in &mut slow {
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        assert!(response.ends_with(&large), "{} bytes came", response.len());
    }
    let saved = site.at("saved");
    let saved = saved.to_str().unwrap();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        curl(&[version, "-o", saved, &site.url("/large")]);
        assert!(fs::read(saved).unwrap() == large, "{version}");
        curl(&[version, "-r", "1000000-9999999", "-o", saved, &site.url("/large")]);
        assert!(fs::read(saved).unwrap() == large[1_000_000..10_000_000], "{version}");
    }
}

fn small_files_are_answered_while_large_ones_are_sent() {
    let site = Site::new();
    // These downloads do not finish during the test.
    File::create(site.at("www/large")).unwrap().set_len(1 << 40).unwrap();
    site.write("www/middle", vec![b'x'; 80 << 10]);
    let balancer = site.start("");
    let is_over = AtomicBool::new(false);
    let received = AtomicUsize::new(0);
    let download = || {
        let mut stream = connect(site.lab.vip());
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut buffer = vec![0; 1 << 20];
        while !is_over.load(Ordering::Relaxed) {
            received.fetch_add(stream.read(&mut buffer).unwrap(), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let over = SetAtEnd(&is_over);
        (0..4).for_each(|_| drop(scope.spawn(download)));
        wait_for("all cores to send large files", || {
            (received.load(Ordering::Relaxed) > 64 << 20).then_some(())
        });
        let (mut client, before) = (site.client(), received.load(Ordering::Relaxed));
        for _ in 0..200 {
            assert_eq!(client.get("a", "/digits").body, "0123456789");
            assert_eq!(client.get("a", "/middle").body.len(), 80 << 10);
        }
        // Between two responses, a core has sent at most one turn of each download, and their
        // clients read on meanwhile.
        let meanwhile = received.load(Ordering::Relaxed) - before;
        drop(over);
        assert!(meanwhile > 0, "the downloads have waited for the small files");
    });
    balancer.wait_for_stat("/current_connections", 0);
}

fn operators_see_how_often_a_file_was_at_hand() {
    let site = Site::new();
    site.write("www/large", vec![b'x'; 100_000]);
    let balancer = site.start("");
    let mut client = site.client();
    let of_cache = |name: &str| balancer.stat(&format!("/backends/pool/file_cache/{name}")).as_u64().unwrap();
    // A newly written file is not kept.
    for path in ["/digits", "/large"] {
        wait_for("a kept file", || {
            let before = of_cache("hits");
            assert_eq!(client.get("a", path).status, 200);
            (of_cache("hits") > before).then_some(())
        });
    }
    let before = [of_cache("hits"), of_cache("misses")];
    for path in ["/digits", "/large"] {
        (0..50).for_each(|_| assert_eq!(client.get("a", path).status, 200));
    }
    // One worker serves the connection. It reopens a file after a second.
    let (hits, misses) = (of_cache("hits"), of_cache("misses"));
    assert_eq!(hits + misses, 100 + before[0] + before[1]);
    assert!(
        misses >= 2 && hits - before[0] > misses - before[1],
        "{hits} hits, {misses} misses, {before:?} before"
    );
    assert_eq!(of_cache("evictions"), 0);
    let metrics = balancer.page("/metrics").1;
    assert!(metrics.contains(&format!("convey_backend_file_cache_hits_total{{backend=\"pool\"}} {hits}\n")));
    // More files than a worker keeps in memory.
    for n in 0..700 {
        site.write(&format!("www/{n}"), vec![b'x'; 30_000]);
    }
    wait_for("a file to give way", || {
        (0..700).for_each(|n| assert_eq!(client.get("a", &format!("/{n}")).status, 200));
        (of_cache("evictions") > 0).then_some(())
    });
    assert!(of_cache("bytes") <= 17 << 20);
    balancer.wait_for_stat("/backends/pool/file_cache/bytes", 0);
}

fn served_folder_is_shown_in_status_explanation_and_access_log() {
    let site = Site::new();
    symlink("www", site.at("link")).unwrap();
    let log = site.at("access.log");
    let config = site.setup_of("link", "") + &format!("[access_log]\noutput = {log:?}\n");
    let balancer = BalancerProcess::start(&site.lab, &config);
    let said = |args: &[&str]| {
        let ran = balancer.command().args(args).output().unwrap();
        String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr)
    };
    let status = said(&["status"]);
    assert!(status.contains("ready: every frontend can serve"), "{status}");
    assert!(status.contains("\nbackend pool: files ") && status.contains("link\n"), "{status}");
    let explained = said(&["explain", "203.0.113.9", "web", "http://a/docs/"]);
    assert!(explained.contains("convey answers with a file in"), "{explained}");
    site.get("/digits", "");
    let line = convey_testkit::wait_for("a line of the access log", || {
        fs::read_to_string(&log).ok().filter(|log| log.ends_with('\n'))
    });
    assert!(line.contains("status=200 answered_by=convey") && line.contains("termination=closed"), "{line}");
}
