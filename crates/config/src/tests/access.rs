//! Access lists in the configuration and in separate files.

use std::fs;
use std::path::Path;

use super::super::files::ReadFiles;
use super::super::tables::frontend;
use super::super::{LoadError, Loaded, describe, load_with_lists, parse};
use super::GOOD;
use convey_model::Access;

/// Writes a configuration with these access lists, and returns its path.
fn write(directory: &Path, access: &str) -> std::path::PathBuf {
    let path = directory.join("config.toml");
    fs::write(&path, format!("{GOOD}\n[frontends.web.access]\n{access}\n")).unwrap();
    path
}

#[test]
fn networks_of_the_file_and_of_lists_beside_it_are_one_list() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("office.txt"), "# here\n\n10.1.0.0/16 ; main\n  2001:db8::/32\r\n")
        .unwrap();
    let path = write(directory.path(), "allow = [\"10.2.0.0/16\", \"@office.txt\"]\ndeny = \"10.1.2.3\"");
    let mut lists = ReadFiles::default();
    let loaded = load_with_lists(&path, &mut lists, None).unwrap();
    let read = |networks: &[&str]| networks.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>();
    let expected = Access::new(read(&["10.2.0.0/16", "10.1.0.0/16", "2001:db8::/32"]), read(&["10.1.2.3"]));
    assert_eq!(loaded.config.frontends[0].access, expected);
    let watched: Vec<_> = lists.named.iter().map(|list| list.path.file_name().unwrap()).collect();
    assert_eq!(watched, ["office.txt"]);
}

#[test]
fn a_list_that_many_frontends_name_is_read_and_kept_once() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("blocked.txt"), "10.1.0.0/16\n").unwrap();
    let more: String = (1..50)
        .map(|n| {
            format!(
                "[frontends.web{n}]\nlisten_addr = \"127.0.0.1:{}\"\nbackend = \"web\"\n[frontends.web{n}.access]\ndeny = \"@blocked.txt\"\n",
                20_000 + n
            )
        })
        .collect();
    let path = write(directory.path(), &format!("deny = \"@blocked.txt\"\n{more}"));
    let mut lists = ReadFiles::default();
    let config = load_with_lists(&path, &mut lists, None).unwrap().config;
    let first = &config.frontends[0].access;
    assert!(!first.is_open() && config.frontends.len() == 50);
    assert!(config.frontends.iter().all(|frontend| frontend.access.shares_lists_with(first)));
    assert_eq!(lists.named.len(), 1);
}

#[test]
fn invalid_access_list_is_reported_by_line_and_still_watched() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("bad.txt"), "10.0.0.0/8\nweb\n10.0.0.1/8\n").unwrap();
    fs::write(directory.path().join("empty.txt"), "# nobody yet\n").unwrap();
    let path = write(
        directory.path(),
        "allow = \"@empty.txt\"\ndeny = [\"@bad.txt\", \"@none.txt\", \"@\", \"::ffff:10.0.0.0/104\"]",
    );
    let mut lists = ReadFiles::default();
    let Err(LoadError::Invalid(problems)) = load_with_lists(&path, &mut lists, None) else {
        panic!("it is wrong")
    };
    let diagnostics: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
    for part in [
        "bad.txt:2:1: frontends.web.access.deny: the line is not a network; allowed: a network, such as 10.0.0.0/8 ",
        "bad.txt:3:1: frontends.web.access.deny: the line is not a network; allowed: a network, \
         such as 10.0.0.0/8 (all bits after the prefix are zero), or an address; did you mean \"10.0.0.0/8\"?",
        "none.txt: No such file",
        "frontends.web.access.deny: the path of the file is missing after @",
        "write an IPv4 network in IPv4 notation, found \"::ffff:10.0.0.0/104\"",
        "frontends.web.access: allow has no network, so convey would refuse every client",
    ] {
        assert!(diagnostics.contains(part), "no {part:?} in\n{diagnostics}");
    }
    let known: Vec<bool> = lists.named.iter().map(|list| list.content.is_some()).collect();
    assert_eq!(known, [true, true, false]);
}

#[test]
fn file_that_is_no_list_is_never_quoted_and_has_three_errors() {
    let directory = tempfile::tempdir().unwrap();
    let secrets: String = (0..9).map(|n| format!("user{n}:$6$salt$hash{n}:19000:0:99999:7:::\n")).collect();
    fs::write(directory.path().join("shadow"), secrets).unwrap();
    let path = write(directory.path(), "deny = \"@shadow\"");
    let Err(LoadError::Invalid(problems)) = load_with_lists(&path, &mut ReadFiles::default(), None) else {
        panic!("it is wrong")
    };
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown.iter().all(|line| !line.contains("user") && !line.contains("hash")), "{shown:?}");
    assert!(
        shown[2].contains("shadow:3:1: ") && shown[2].ends_with(" (6 more lines are wrong)"),
        "{shown:?}"
    );
}

#[test]
fn a_hundred_thousand_networks_are_read_in_a_moment() {
    let networks: Vec<String> =
        (0..100_000_u32).map(|n| format!("\"{}/31\"", std::net::Ipv4Addr::from(2 * n))).collect();
    let text = format!("{GOOD}\n[frontends.web.access]\ndeny = [{}]\n", networks.join(","));
    let access = &parse("config.toml", &text).unwrap().config.frontends[0].access;
    assert!(!access.admits([0, 1, 0, 0].into()) && access.admits([10, 0, 0, 1].into()));
}

#[test]
fn trusted_proxies_come_from_the_file_and_from_lists_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.toml");
    let text = GOOD.replace(
        "backend = \"web\"",
        "backend = \"web\"\nmode = \"http\"\ntrusted_proxies = [\"10.0.0.5\", \"@cdn.txt\"]\naccess.deny = \"192.0.2.0/24\"",
    );
    fs::write(&path, text).unwrap();
    let cdn: String = (1..=9).map(|n| format!("198.51.100.{n}/32 # one\n")).collect();
    let mut lists = ReadFiles::default();
    let mut load = |cdn: &str| {
        fs::write(directory.path().join("cdn.txt"), cdn).unwrap();
        load_with_lists(&path, &mut lists, None)
    };
    let config = |loaded: Result<Loaded, LoadError>| loaded.unwrap().config;
    let old = config(load(&cdn));
    let trusts = |ip: &str| old.frontends[0].trusts_proxy(ip.parse().unwrap());
    assert!(
        ["10.0.0.5", "198.51.100.1", "::ffff:198.51.100.9"].into_iter().all(trusts) && !trusts("192.0.2.1")
    );
    assert!(describe(&old).contains(", X-Forwarded-* trusted from 10 networks"), "{}", describe(&old));

    let new = config(load(&cdn.replace(".9/32", ".10/32\n2001:db8::/32")));
    assert_eq!(
        frontend::changes(&old.frontends[0], &new.frontends[0]),
        ["trusted_proxies: 2 added and 1 removed"]
    );
    let short = config(load("198.51.100.1\n"));
    let short_list = "trusted_proxies 10.0.0.5/32, 198.51.100.1/32 -> 10.0.0.5/32";
    let none = config(load(""));
    assert_eq!(frontend::changes(&short.frontends[0], &none.frontends[0]), [short_list]);

    let warnings = load("192.0.2.7\n").unwrap().warnings;
    assert!(warnings[0].to_string().contains("trusted_proxies: access denies 192.0.2.0/24"), "{warnings:?}");
    let error = load("10.0.0.0/8\nproxy.example\n").unwrap_err().to_string();
    assert!(
        error.contains("cdn.txt:2:1: frontends.web.trusted_proxies: the line is not a network"),
        "{error}"
    );
    assert!(lists.named.iter().all(|list| list.path.ends_with("cdn.txt") && list.is_access_list));
}

#[test]
fn list_of_proxies_without_a_network_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.toml");
    let lines = "backend = \"web\"\nmode = \"http\"\ntrusted_proxies = \"@cdn.txt\"";
    fs::write(&path, GOOD.replace("backend = \"web\"", lines)).unwrap();
    fs::write(directory.path().join("cdn.txt"), "# nobody yet\n").unwrap();
    let error = load_with_lists(&path, &mut ReadFiles::default(), None).unwrap_err().to_string();
    assert!(
        error.contains("trusted_proxies: has no network, so convey would take proxies for clients"),
        "{error}"
    );
}
