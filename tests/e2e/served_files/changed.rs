//! Files and their directory change while they are served.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;

use convey_testkit::{BalancerProcess, binary, connect, wait_for};

use super::Site;
use crate::http::client::read_head;

pub(super) fn a_changed_file_is_served_fresh_at_the_next_request() {
    let site = Site::new();
    fs::create_dir_all(site.at("releases/1")).unwrap();
    fs::create_dir_all(site.at("releases/2")).unwrap();
    site.write("releases/1/a", "one");
    site.write("releases/2/a", "two");
    symlink("releases/1", site.at("current")).unwrap();
    let _balancer = BalancerProcess::start(&site.lab, &site.setup_of("current", ""));
    let mut client = site.client();
    let mut body = || client.get("a", "/a").body;
    assert_eq!(body(), "one");
    // Written over, many times, with the same length: no change is missed, however close they are.
    for n in 100..300 {
        fs::write(site.at("releases/1/a"), n.to_string()).unwrap();
        assert_eq!(body(), n.to_string());
    }
    // Another file replaces it, with the same time.
    site.write("releases/1/b", "new");
    fs::rename(site.at("releases/1/b"), site.at("releases/1/a")).unwrap();
    assert_eq!(body(), "new");
    // A deployment sets the link anew.
    symlink("releases/2", site.at("next")).unwrap();
    fs::rename(site.at("next"), site.at("current")).unwrap();
    assert_eq!(body(), "two");
    fs::remove_file(site.at("releases/2/a")).unwrap();
    assert_eq!(client.get("a", "/a").status, 404);
}

pub(super) fn a_reload_serves_another_directory_while_a_download_goes_on() {
    let site = Site::new();
    let large = vec![b'x'; 20 << 20];
    site.write("www/large", &large);
    fs::create_dir(site.at("other")).unwrap();
    site.write("other/index.html", "other");
    let balancer = site.start("");
    let mut download = connect(site.lab.vip());
    download.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    read_head(&mut download).unwrap();
    balancer.save(&site.setup_of("other", ""));
    balancer.wait_for_log("backend pool: files");
    assert_eq!(site.get("/", "").body, "other");
    assert_eq!(site.get("/large", "").status, 404);
    fs::remove_file(site.at("www/large")).unwrap();
    let mut rest = Vec::new();
    download.read_to_end(&mut rest).unwrap();
    assert!(rest == large, "{} bytes came", rest.len());
}

pub(super) fn a_file_that_shrinks_while_it_is_sent_ends_its_connection() {
    let site = Site::new();
    site.write("www/large", vec![b'x'; 40 << 20]);
    let balancer = site.start("");
    let mut download = connect(site.lab.vip());
    download.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    read_head(&mut download).unwrap();
    File::options().write(true).open(site.at("www/large")).unwrap().set_len(1).unwrap();
    let mut rest = Vec::new();
    assert!(download.read_to_end(&mut rest).is_err(), "a reset, so that nobody takes it for the whole");
    assert!(rest.len() < 40 << 20);
    balancer.wait_for_stat("/frontends/web/ended/file_changed", 1);
}

pub(super) fn missing_root_is_reported_and_its_reload_changes_nothing() {
    let site = Site::new();
    fs::write(site.at("wrong.toml"), site.setup_of("none", "")).unwrap();
    let checked = |args: &[&str]| {
        let mut command = binary();
        let ran = command.current_dir(site.lab.directory()).args(args).output().unwrap();
        (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let (is_right, message) = checked(&["check", "--config", "wrong.toml"]);
    assert!(
        !is_right && message.contains("backends.pool.files: cannot serve none: No such file or directory"),
        "{message}"
    );
    let balancer = site.start("");
    balancer.save(&site.setup_of("none", ""));
    balancer.wait_for_log("cannot serve none: No such file or directory");
    assert_eq!(site.get("/digits", "").body, "0123456789");
    // The directory itself may go while it is served.
    fs::rename(site.at("www"), site.at("gone")).unwrap();
    assert_eq!(site.get("/digits", "").status, 404);
    fs::rename(site.at("gone"), site.at("www")).unwrap();
    wait_for("the file", || (site.get("/digits", "").status == 200).then_some(()));
}
