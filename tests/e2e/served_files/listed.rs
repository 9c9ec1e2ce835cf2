//! Directories with many names.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use convey_testkit::{BalancerProcess, connect};

use super::Site;
use crate::curl::curl;
use crate::http2::frames::frame;

const NAMES: usize = 10_000;
const CONNECTIONS: usize = 4;

/// Maximum number of streams that convey accepts on a connection.
const STREAMS: u32 = 100;

/// Maximum memory of all of them, in bytes.
const MOST: u64 = 60 << 20;

fn start(site: &Site) -> BalancerProcess {
    fs::create_dir(site.at("www/n")).unwrap();
    for n in 0..NAMES {
        fs::write(site.at(&format!("www/n/a-file-with-some-name-{n:05}")), "").unwrap();
    }
    let setup =
        site.setup("listing = true").replace("mode = \"http\"", "mode = \"http\"\ncompression = true");
    BalancerProcess::start(&site.lab, &setup)
}

pub(super) fn a_listing_of_many_names_is_whole_in_every_version() {
    let site = Site::new();
    let _balancer = start(&site);
    let expected: Vec<String> = (0..NAMES).map(|n| format!("./a-file-with-some-name-{n:05}")).collect();
    let saved = site.at("saved");
    let saved = saved.to_str().unwrap();
    for options in
        [&["--http1.1"][..], &["--http1.0"], &["--http2-prior-knowledge"], &["--http1.1", "--compressed"]]
    {
        curl(&[options, &["-o", saved, &site.url("/n/")]].concat());
        let page = fs::read_to_string(saved).unwrap();
        let links = page.split("href=\"./").skip(1).filter_map(|rest| rest.split('"').next());
        let links: Vec<String> = links.map(|link| format!("./{link}")).collect();
        assert!(links == expected && page.ends_with("</html>\n"), "{options:?}: {} links", links.len());
    }
}

pub(super) fn listings_that_nobody_takes_hold_little_memory() {
    let site = Site::new();
    let balancer = start(&site);
    curl(&["--http2-prior-knowledge", "-o", site.at("saved").to_str().unwrap(), &site.url("/n/")]);
    let before = balancer.memory();
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let head = [&[0x82, 0x86, 0x04, 3][..], b"/n/", &[0x41, 1], b"a"].concat();
    let requests: Vec<u8> = (0..STREAMS).flat_map(|n| frame(1, 5, 2 * n + 1, &head)).collect();
    let all = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &requests].concat();
    let clients: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = connect(site.lab.vip());
            client.write_all(&all).unwrap();
            client
        })
        .collect();
    // Each response has begun.
    balancer.wait_for_stat("/frontends/web/requests/responses/2xx", CONNECTIONS * STREAMS as usize + 1);
    let held = balancer.memory().saturating_sub(before);
    assert!(held < MOST, "{held} bytes");
    drop(clients);
}
