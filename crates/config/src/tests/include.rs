//! Included files.

use std::fs;
use std::path::Path;

use super::super::document::TOP_LEVEL;
use super::super::{Loaded, load};

/// A directory with these files.
fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("writable");
        fs::write(path, text).expect("writable");
    }
    directory
}

fn loaded(directory: &Path) -> Result<Loaded, Vec<String>> {
    let prefix = format!("{}/", directory.display());
    let diagnostics = load(&directory.join("config.toml"));
    diagnostics.map_err(|error| error.to_string().replace(&prefix, "").lines().map(str::to_owned).collect())
}

const FRONTEND: &str = "include = ['conf.d/*.toml', 'more.toml']\n\
    [frontends.web]\nlisten_addr = '10.0.0.1:80'\nbackend = 'web'\n";

#[test]
fn tables_of_all_files_are_one_configuration() {
    let directory = directory(&[
        ("config.toml", FRONTEND),
        ("conf.d/a.toml", "[backends.web.servers.a]\naddr = '10.0.0.2:80'\n"),
        ("conf.d/b.toml", "\u{feff}[backends.web.servers.b]\naddr = '10.0.0.3:80'"),
        ("conf.d/not-this", "="),
        (
            "more.toml",
            "timeouts.connect = 7\nfrontends.more = { listen_addr = '10.0.0.1:81', backend = 'web' }",
        ),
    ]);
    let config = loaded(directory.path()).expect("right").config;
    assert_eq!(config.frontends.len(), 2);
    assert_eq!(config.backends[0].servers.len(), 2);
    assert_eq!(config.timeouts.connect.as_secs(), 7);
}

#[test]
fn errors_in_included_files_are_reported_with_their_file() {
    let directory = directory(&[
        ("config.toml", FRONTEND),
        ("conf.d/a.toml", "[backends.web.servers.a]\naddr = '10.0.0.1:80'\nwieght = 3\n"),
        (
            "conf.d/b.toml",
            "include = 'x'\n[frontends.web]\nbackend = 'b'\n[frontends.b]\nlisten_addr = '10.0.0.1:80'\nbackend = 'web'",
        ),
        ("more.toml", "[stats\nport = 0\n"),
    ]);
    assert_eq!(
        loaded(directory.path()).expect_err("wrong"),
        [
            "conf.d/a.toml:2:8: backends.web.servers.a.addr: 10.0.0.1:80 would send connections back to frontend \"web\", which listens on 10.0.0.1:80",
            "conf.d/a.toml:3:1: backends.web.servers.a.wieght: unknown key; did you mean `weight`? (allowed here: addr, backup, max_connections, quic_server_id, weight)",
            "conf.d/b.toml:1:1: include: only the main file can include other files; move this key to the main file",
            "conf.d/b.toml:3:1: frontends.web.backend: is already set in config.toml, line 4; keep one of them",
            "conf.d/b.toml:5:15: frontends.b.listen_addr: 10.0.0.1:80 is taken by frontends.web.listen_addr (config.toml, line 3)",
            "more.toml:1:7: unclosed table, expected `]`",
        ]
    );
}

#[test]
fn a_file_that_is_named_and_not_there_is_told() {
    let directory = directory(&[("config.toml", FRONTEND)]);
    assert_eq!(
        loaded(directory.path()).expect_err("wrong"),
        ["cannot read more.toml: No such file or directory (os error 2)"]
    );
}

#[test]
fn a_pattern_that_is_wrong_is_told() {
    let directory = directory(&[("config.toml", &FRONTEND.replace("more.toml", "**/x', 'a[', '"))]);
    let diagnostics = loaded(directory.path()).expect_err("wrong");
    assert!(
        diagnostics[0].starts_with("config.toml:1:29: include: found \"**/x\"; `**` is not supported"),
        "{diagnostics:?}"
    );
    assert!(diagnostics[1].starts_with("config.toml:1:37: include: found \"a[\"; "), "{diagnostics:?}");
    assert!(
        diagnostics[2].starts_with("config.toml:1:43: include: found \"\"; allowed: a file"),
        "{diagnostics:?}"
    );
}

#[test]
fn errors_quote_nothing_of_an_included_file_that_is_no_configuration() {
    let shadow: String = (0..50).map(|n| format!("user{n}:$6$secret{n}:1:2:3:::\n")).collect();
    for (text, expected) in [
        (
            "DB_SECRET = 'hunter2'\n[secret]\na = 1\n",
            "more.toml:1:1: this file is not a convey configuration",
        ),
        ("\"secret sauce\" = 3\n", "more.toml:1:1: this file is not a convey configuration"),
        (
            "[fronten.secret]\n",
            "more.toml:1:2: this file is not a convey configuration: it has no known key; did you mean `frontends`?",
        ),
        ("secret = 1\nsecret = 2\n", "more.toml:1:1: this file is not a convey configuration"),
        (&shadow, "more.toml:1:26: "),
    ] {
        let directory = directory(&[
            ("config.toml", FRONTEND),
            ("conf.d/a.toml", "[backends.web.servers.a]\naddr = '10.0.0.2:80'\n"),
            ("more.toml", text),
        ]);
        let errors = loaded(directory.path()).expect_err("wrong");
        assert!(errors.len() <= 3 && errors[0].starts_with(expected), "{errors:#?}");
        assert!(
            !errors.iter().any(|error| error.contains("secret") || error.contains("hunter")),
            "{errors:#?}"
        );
    }
}

#[test]
fn keys_of_a_configuration_are_those_that_the_reader_takes() {
    let directory = directory(&[("config.toml", "q = 1\n")]);
    let errors = loaded(directory.path()).expect_err("wrong");
    let allowed = format!("(allowed here: {})", TOP_LEVEL.join(", "));
    assert!(errors.iter().any(|error| error.contains(&allowed)), "{errors:#?}");
}
