//! Programs that tests need are in the list that `tests/run` and CI install.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::{read, rust_files};

/// Packages that every Debian has.
const ESSENTIAL: [&str; 2] = ["bash", "dpkg"];

#[test]
fn packages_that_tests_need_are_listed_for_installation() {
    let packages = packages_of_tests();
    for package in ["openssl", "haproxy", "iproute2", "iputils-ping", "busybox-static"] {
        assert!(packages.contains(package), "{package} is a need of a test: {packages:?}");
    }
    let list = read("tests/programs");
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeSet<_> = lines.filter_map(|line| line.split(' ').nth(1)).collect();
    for package in &packages {
        assert!(listed.contains(package.as_str()), "tests/programs does not list {package}");
    }
    for page in ["README.md", "CONTRIBUTING.md"] {
        assert!(read(page).contains("    tests/run\n") || read(page).contains("    tests/run "), "{page}");
    }
    let ci = read(".ci/run");
    let runs_all = ci.lines().any(|line| line.trim_start().starts_with("tests/run 2>&1"));
    assert!(runs_all && ci.contains(".ci/run-bare"), "CI runs the newcomer's command");
}

#[test]
fn tests_run_counts_skipped_tests_and_prints_the_install_command() {
    let folder = tempfile::tempdir().unwrap();
    let output = "test a ... ok\n\
        test b::c   ... ignored (wrk is not installed (Debian package wrk), nginx is not installed (Debian package nginx-light))\n\
        test d      ... ignored (nginx is not installed (Debian package nginx-light))\n\
        test e      ... ignored (takes long; CONVEY_LONG=1 runs it)\n\
        test f      ... ignored (h2spec is not installed (Debian package none: go install h2spec))\n\
        test g - compile ... ignored\n";
    let programs = [
        ("id", "echo 1000".to_owned()),
        ("cargo", format!("[ $1 = test ] || exec echo cargo 1.99.0\ncat <<'END'\n{output}END\nexit 7")),
    ];
    for (name, script) in programs {
        let place = folder.path().join(name);
        fs::write(&place, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run");
    let ran = Command::new(run).env("PATH", path).output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(7), "{text}");
    assert!(text.starts_with("tests/run: only root can install programs"), "{text}");
    let last = text.lines().last().unwrap();
    let (counts, command) = last.split_once("sudo apt-get install").unwrap();
    assert_eq!(counts, "tests/run: left out 4 tests, 2 of them for want of programs: ");
    let (packages, rest) = command.split_once(';').unwrap();
    assert_eq!(packages.split_whitespace().collect::<BTreeSet<_>>(), ["nginx-light", "wrk"].into());
    assert_eq!(rest, " 1 more run with CONVEY_LONG=1 or all");
}

/// Packages of all `Need::Tool`s, and of all reasons "(Debian package …)", in the tests and their
/// libraries.
fn packages_of_tests() -> BTreeSet<String> {
    let texts = ["tests", "crates/testkit/src", "crates/lab/src"].map(|place| rust_files(place).concat());
    let code = texts.concat();
    let tools = code.split("Need::Tool(\"").skip(1).filter_map(|rest| rest.split('"').nth(2));
    let reasons = code.split("(Debian package ").skip(1).map(|rest| rest.split([' ', ')']).next().unwrap());
    let is_package = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-+.".contains(c));
    let packages = tools.chain(reasons).filter(is_package).filter(|name| !ESSENTIAL.contains(name));
    packages.map(str::to_owned).collect()
}
