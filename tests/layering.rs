//! The import rule of ARCHITECTURE.md, and the purity of the rooms that are pure.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What each room may import; whatever is in no list may import nothing.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("main", &["app", "cli", "logging"]),
    (
        "app",
        &[
            "admin",
            "balance",
            "cli",
            "config",
            "control",
            "dataplane",
            "demo",
            "files",
            "forward",
            "health",
            "logging",
            "model",
            "net",
            "proxy",
            "snapshot",
            "stats",
        ],
    ),
    ("admin", &["forward", "snapshot", "stats", "model"]),
    ("control", &["config", "files", "health", "snapshot", "stats", "net", "model"]),
    ("dataplane", &["forward", "programs", "snapshot", "wire", "stats", "model"]),
    ("proxy", &["snapshot", "stats", "model"]),
    ("demo", &["config", "programs", "snapshot", "wire", "stats", "model"]),
    ("forward", &["snapshot", "wire", "model"]),
    ("snapshot", &["balance", "stats", "model"]),
    ("balance", &["model"]),
    ("health", &["model"]),
    ("config", &["files", "model"]),
    ("cli", &["model"]),
    ("logging", &[]),
    ("net", &["files", "model"]),
    ("files", &[]),
    ("programs", &[]),
    ("wire", &["model"]),
    ("stats", &["model"]),
    ("model", &[]),
];

/// Files and directories, from `src`, that take data and the time as arguments.
const PURE: &[&str] = &[
    "model",
    "wire",
    "balance",
    "snapshot",
    "forward",
    "health/state.rs",
    "health/ejection.rs",
    "health/warmup.rs",
    "proxy/udp/table.rs",
    "control/state.rs",
    "control/state/returning.rs",
    "control/state/turnover.rs",
    "control/state/vanished.rs",
    "control/digest.rs",
    "control/draining.rs",
    "control/flood.rs",
    "control/names.rs",
    "config/loops.rs",
    "config/resolved.rs",
];

/// What nothing pure may name: sockets, threads, files, logs, clocks.
const IMPURE: &[&str] =
    &["std::net::Tcp", "std::net::Udp", "std::thread", "std::fs", "std::time::Instant", "log::", "tokio::"];

/// Lists of wakers, no input or output.
const PURE_ALL_THE_SAME: &[&str] = &["tokio::sync::"];

#[test]
fn rooms_import_only_what_lies_to_their_right() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        faults.extend(forbidden_imports(&path, &text));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pure_rooms_know_no_socket_thread_file_log_or_clock() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        if PURE.iter().any(|pure| path.starts_with(pure)) {
            faults.extend(impurities(&path, &text));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_room_is_in_the_rule() {
    let rooms: BTreeSet<String> =
        sources().iter().filter_map(|(path, _)| room(path).map(str::to_owned)).collect();
    let ruled: BTreeSet<String> = MAY_IMPORT.iter().map(|(room, _)| (*room).to_owned()).collect();
    assert_eq!(rooms, ruled);
    for pure in PURE {
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(pure).exists(), "no src/{pure}");
    }
}

#[test]
fn the_check_finds_forbidden_imports_however_they_are_written() {
    for (path, text) in [
        ("balance/ring.rs", "use crate::snapshot::Pool;"),
        ("balance/ring.rs", "use crate::{\n    model::Server,\n    stats,\n};"),
        ("balance/ring.rs", "fn f() { crate::proxy::start() }"),
        ("balance/deep/file.rs", "use super::super::super::stats::Traffic;"),
        ("model.rs", "use super::stats::Traffic;"),
        ("config/mod.rs", "pub use crate::control;"),
        ("main.rs", "use convey::{app, stats};"),
    ] {
        assert_eq!(forbidden_imports(Path::new(path), text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("balance/ring.rs", "use super::{Loads, stats};\nuse crate::{balance, model};"),
        (
            "balance/ring.rs",
            "// crate::stats is not for us\n#[cfg(test)]\nmod tests {\n    use crate::stats;\n}",
        ),
        ("app/mod.rs", "use crate::{admin, demo};"),
    ] {
        assert_eq!(forbidden_imports(Path::new(path), text), [""; 0], "{path}: {text}");
    }
}

#[test]
fn the_check_finds_impurities_however_they_are_written() {
    for text in [
        "use std::net::{SocketAddr, TcpStream};",
        "use std::net::UdpSocket;",
        "use std::{fmt, thread};",
        "fn f() { std::fs::read(\"x\"); }",
        "use log::info;",
        "fn f() { log::warn!(\"x\") }",
        "use tokio::{net, sync::Notify};",
        "use std::time::{Duration, Instant};",
        "fn f() { let now = SystemTime::now(); }",
    ] {
        assert_eq!(impurities(Path::new("model.rs"), text).len(), 1, "{text}");
    }
    let pure = "use std::net::{IpAddr, SocketAddr};\nuse std::time::Duration;\nuse tokio::sync::Notify;\n\
                // Instant::now is the shell's\nfn catalog() -> catalog::Item {}";
    assert_eq!(impurities(Path::new("model.rs"), pure), [""; 0]);
}

/// Every source file, by its path from `src`. Tests beside the code are not bound by the rule.
fn sources() -> Vec<(PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut directories) = (Vec::new(), vec![src.clone()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.strip_prefix(&src).unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 20, "where is the source?");
    found
}

fn forbidden_imports(path: &Path, text: &str) -> Vec<String> {
    let Some(room) = room(path) else { return Vec::new() };
    let allowed = MAY_IMPORT.iter().find(|(name, _)| *name == room).map_or(&[][..], |(_, allowed)| allowed);
    let inside = if path.ends_with("mod.rs") { path.parent().unwrap() } else { path };
    let up = "super::".repeat(inside.components().count());
    let rooms = paths(text).into_iter().filter_map(|named| {
        let prefixes = ["crate::", "convey::", &up];
        let rest = prefixes.iter().find_map(|prefix| named.strip_prefix(prefix))?;
        Some(rest.split("::").next().unwrap_or_default().to_owned())
    });
    let rooms: BTreeSet<String> = rooms.collect();
    let is_room = |name: &str| MAY_IMPORT.iter().any(|(room, _)| *room == name);
    let forbidden =
        rooms.iter().filter(|name| is_room(name) && *name != room && !allowed.contains(&name.as_str()));
    forbidden.map(|name| format!("{}: {room} may not import {name}", path.display())).collect()
}

fn impurities(path: &Path, text: &str) -> Vec<String> {
    let is_impure = |named: &str| {
        let clock = named.split("::").any(|part| part == "SystemTime") || named.ends_with("Instant::now");
        let known = IMPURE.iter().any(|impure| named.starts_with(impure));
        (clock || known) && !PURE_ALL_THE_SAME.iter().any(|pure| named.starts_with(pure))
    };
    let found = paths(text).into_iter().filter(|named| is_impure(named));
    found.map(|named| format!("{}: {named} is not pure", path.display())).collect()
}

/// The room a file belongs to; `lib.rs` only lists them.
fn room(path: &Path) -> Option<&str> {
    let first = path.components().next()?.as_os_str().to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (name != "lib").then_some(name)
}

/// Every path of two parts or more that the code names, with `use` trees written out.
fn paths(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut rest = code.as_str();
    let mut found = Vec::new();
    while let Some(start) = rest.find(is_word) {
        rest = read_tree(&rest[start..], String::new(), &mut found);
    }
    found.retain(|path| path.contains("::"));
    found
}

/// Reads `a::b` or `a::{b, c::d}` and notes its paths; returns what follows.
fn read_tree<'a>(text: &'a str, prefix: String, found: &mut Vec<String>) -> &'a str {
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    let path = prefix + &text[..end];
    let rest = &text[end..];
    match rest.strip_prefix("::") {
        Some(deeper) if deeper.starts_with(is_word) => read_tree(deeper, path + "::", found),
        Some(group) if group.starts_with('{') => {
            let mut rest = &group[1..];
            while let Some(next) = rest.find(|c| is_word(c) || c == '}') {
                rest = &rest[next..];
                if let Some(after) = rest.strip_prefix('}') {
                    return after;
                }
                rest = read_tree(rest, format!("{path}::"), found);
            }
            ""
        }
        _ => {
            found.push(path);
            rest
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
