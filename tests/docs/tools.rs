//! What a test needs from the machine is installed by CI, and newcomers are told of it.

use std::collections::BTreeSet;

use crate::{read, rust_files};

/// Packages that every Debian has.
const ESSENTIAL: [&str; 2] = ["bash", "dpkg"];

#[test]
fn every_package_that_a_test_needs_is_installed_by_ci_and_listed_for_newcomers() {
    let packages = packages_of_tests();
    for package in ["openssl", "haproxy", "iproute2", "iputils-ping", "busybox-static"] {
        assert!(packages.contains(package), "{package} is a need of a test: {packages:?}");
    }
    let installed = words_after(".ci/run", "for need in ");
    for package in &packages {
        let is_installed = installed.iter().any(|word| word.rsplit(':').next() == Some(package));
        assert!(is_installed, ".ci/run does not install {package}");
        for page in ["README.md", "CONTRIBUTING.md"] {
            assert!(
                words_after(page, "apt-get install ").contains(package),
                "{page} does not list {package}"
            );
        }
    }
}

/// Of each `Need::Tool` and of each reason "(Debian package …)" in the tests and their libraries.
fn packages_of_tests() -> BTreeSet<String> {
    let texts = ["tests", "crates/testkit/src", "crates/lab/src"].map(|place| rust_files(place).concat());
    let code = texts.concat();
    let tools = code.split("Need::Tool(\"").skip(1).filter_map(|rest| rest.split('"').nth(2));
    let reasons = code.split("(Debian package ").skip(1).map(|rest| rest.split([' ', ')']).next().unwrap());
    let is_package = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-+.".contains(c));
    let packages = tools.chain(reasons).filter(is_package).filter(|name| !ESSENTIAL.contains(name));
    packages.map(str::to_owned).collect()
}

/// The words of a file from the first such place on.
fn words_after(path: &str, place: &str) -> BTreeSet<String> {
    let text = read(path);
    let (_, list) = text.split_once(place).unwrap();
    let is_separator = |c: char| c.is_whitespace() || "`;()|,".contains(c);
    list.split(is_separator).map(str::to_owned).collect()
}
