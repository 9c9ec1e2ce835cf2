//! Files within TLS, where convey copies bytes that the kernel sends by itself over plain
//! connections.

use std::fs::{self, File};
use std::io::{Read, Write};

use convey_testkit::{BalancerProcess, TestAuthority, TlsClient, TlsSettings};
use rustix::fs::{Advice, fadvise};

use super::{Site, field, pattern};
use crate::curl::curl;
use crate::http::client::{Client, read_head};

/// A site at a frontend with a certificate for `site.example`.
fn start(site: &Site) -> (BalancerProcess, TestAuthority) {
    let authority = TestAuthority::new("The authority");
    authority.issue(&["site.example"]).save(site.lab.directory(), "site");
    authority.save(site.lab.directory());
    let at = site.lab.directory().display();
    let tls = format!("[frontends.web.tls]\ncertificate = \"{at}/site.pem\"\nkey = \"{at}/site.key\"\n");
    let setup = site.setup("").replacen("[backends.pool]", &format!("{tls}[backends.pool]"), 1);
    (BalancerProcess::start(&site.lab, &setup), authority)
}

/// Evicts a file from the page cache, so that it has to be read from its disk.
fn forget(site: &Site, name: &str) {
    let file = File::open(site.at(name)).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

pub(super) fn files_are_whole_within_tls_over_both_versions() {
    let site = Site::new();
    let large = pattern(9 << 20);
    site.write("www/large", &large);
    let text: String = (b'a'..=b'w').cycle().take(200_000).map(char::from).collect();
    site.write("www/text", &text);
    let (_balancer, authority) = start(&site);
    let (saved, ca) = (site.at("saved"), site.at("authority.pem"));
    let (saved, ca) = (saved.to_str().unwrap(), ca.to_str().unwrap());
    let vip = site.lab.vip();
    let to = format!("site.example:{}:{}", vip.port(), vip.ip());
    let url = |path: &str| format!("https://site.example:{}{path}", vip.port());
    for version in ["--http1.1", "--http2"] {
        let get = |args: &[&str], path: &str| {
            curl(&[&[version, "--cacert", ca, "--resolve", &to][..], args, &[&url(path)]].concat())
        };
        assert_eq!(get(&[], "/digits"), "0123456789");
        assert_eq!(get(&["-r", "2-4"], "/digits"), "234");
        let head = get(&["-I"], "/large").to_ascii_lowercase();
        assert!(head.contains(&format!("content-length: {}\r\n", large.len())), "{head}");
        for _ in 0..2 {
            // Read from its disk.
            forget(&site, "www/large");
            get(&["-o", saved], "/large");
            assert!(fs::read(saved).unwrap() == large, "{version}");
        }
        get(&["-r", "1000000-8999999", "-o", saved], "/large");
        assert!(fs::read(saved).unwrap() == large[1_000_000..9_000_000], "{version}");
        get(&["-r", "0-1,100000-200000", "-o", saved], "/large");
        let several = fs::read(saved).unwrap();
        let part = format!("Content-Range: bytes 100000-200000/{}\r\n\r\n", large.len());
        let at = several.windows(part.len()).position(|bytes| bytes == part.as_bytes()).unwrap() + part.len();
        assert!(several[at..].starts_with(&large[100_000..=200_000]), "{version}");
    }
    // On a connection that stays open, each response has its length, and the next one follows.
    let config = TlsSettings::trusting(&authority).client();
    let mut client = Client(TlsClient::connect(vip, "site.example", &config).unwrap());
    for _ in 0..3 {
        assert_eq!(client.get("site.example", "/digits").body, "0123456789");
        let part = client.send("GET /text HTTP/1.1\r\nHost: a\r\nRange: bytes=0-99999\r\n\r\n");
        assert_eq!((part.status, field(&part, "Content-Length")), (206, Some("100000")));
        assert!(part.body == text[..100_000]);
    }
}

pub(super) fn paused_tls_download_is_whole_and_does_not_delay_small_files() {
    let site = Site::new();
    let large = pattern(20 << 20);
    site.write("www/large", &large);
    let (balancer, authority) = start(&site);
    let config = TlsSettings::trusting(&authority).client();
    let connect = || TlsClient::connect(site.lab.vip(), "site.example", &config).unwrap();
    let mut slow = [(); 4].map(|()| {
        let mut client = connect();
        client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        read_head(&mut client).unwrap();
        client
    });
    let mut small = Client(connect());
    for _ in 0..100 {
        assert_eq!(small.get("site.example", "/digits").body, "0123456789");
    }
    for client in &mut slow {
        let mut body = Vec::new();
        client.read_to_end(&mut body).unwrap();
        assert!(body == large, "{} bytes came", body.len());
    }
    balancer.wait_for_stat("/backends/pool/requests/total", 104);
}
