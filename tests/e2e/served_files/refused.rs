//! Files that are not served.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::{Site, field};

pub(super) fn dot_files_and_files_outside_of_the_root_are_not_served() {
    let site = Site::new();
    site.write("secret", "secret");
    site.write("www/.env", "secret");
    fs::create_dir(site.at("www/.git")).unwrap();
    site.write("www/.git/config", "secret");
    symlink("../secret", site.at("www/out")).unwrap();
    symlink("/etc", site.at("www/etc")).unwrap();
    symlink("digits", site.at("www/in")).unwrap();
    let _socket = UnixListener::bind(site.at("www/socket")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, site.at("www/fifo"), rustix::fs::Mode::RUSR).unwrap();
    let balancer = site.start("");
    let spellings = [
        "/out",
        "/etc/passwd",
        "/.env",
        "/.git/config",
        "/%2egit/config",
        "/%2Eenv",
        "/docs/../../secret",
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/%2e%2e%2fsecret",
        "/docs/..%2f..%2fsecret",
        "/..%5csecret",
        "/..\\secret",
        "/%252e%252e/secret",
        "/.%00/secret",
        "/digits%00.html",
        "/digits%2f",
        "/digits/",
        "/a%",
        "/socket",
        "/fifo",
        "//../secret",
        "/./digits",
        "/%c0%ae%c0%ae/secret",
    ];
    for path in spellings {
        let response = site.get(path, "");
        assert!([400, 404].contains(&response.status), "{path}: {}", response.head);
        assert!(!response.body.contains("secret"), "{path}: {}", response.body);
    }
    assert_eq!(site.get("/in", "").body, "0123456789", "a link within the root");
    balancer.save(&site.setup("dot_files = true"));
    balancer.wait_for_log("dot_files false -> true");
    assert_eq!(site.get("/.env", "").body, "secret");
    assert_eq!(site.get("/out", "").status, 404);
}

pub(super) fn route_applies_to_every_spelling_of_its_path() {
    let site = Site::new();
    site.write("www/private", "private");
    let lines = "[[frontends.web.routes]]\npath = \"/private\"\nredirect = \"https\"\n";
    let _balancer = site.start(lines);
    for path in ["/private", "/%70rivate", "//private", "/docs//..%2fprivate", "/.//private", "/private//"] {
        let response = site.get(path, "");
        assert!([308, 400, 404].contains(&response.status), "{path}: {}", response.head);
        assert!(!response.body.contains("private"), "{path}: {}", response.body);
    }
    let moved = site.get("//private?a=b", "");
    assert_eq!((moved.status, field(&moved, "Location")), (308, Some("https://a//private?a=b")));
}

pub(super) fn files_are_only_read() {
    let site = Site::new();
    let balancer = site.start("");
    for method in ["PUT", "DELETE", "OPTIONS", "PROPFIND"] {
        let refused = site.client().send(&format!("{method} /digits HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((refused.status, field(&refused, "Allow")), (405, Some("GET, HEAD")), "{method}");
    }
    let posted = site.client().send("POST /digits HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!((posted.status, field(&posted, "Connection")), (405, Some("close")));
    assert_eq!(balancer.stat("/frontends/web/requests/local_replies/file_method"), 5);
    // An unread body ends the connection, so that it is never mistaken for a request.
    let mut client = site.client();
    let got = client.send("GET /digits HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!((got.status, &*got.body, field(&got, "Connection")), (200, "0123456789", Some("close")));
    assert!(client.is_closed());
}

pub(super) fn a_response_has_few_parts_whatever_is_asked_for() {
    let site = Site::new();
    let _balancer = site.start("");
    for ranges in ["0-0,".repeat(17), "0-,".repeat(200), "0-5,3-7".to_owned()] {
        let response = site.get("/digits", &format!("Range: bytes={}\r\n", ranges.trim_end_matches(',')));
        assert_eq!((response.status, &*response.body), (200, "0123456789"), "{ranges}");
    }
}
