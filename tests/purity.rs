//! Purity of code that is marked as pure: it takes data and the time as arguments. Cargo enforces
//! the imports between crates; this test keeps sockets, threads, files, logs and clocks out of the
//! pure ones. It also checks that visible type names are unique.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that are pure as a whole.
const PURE_CRATES: [&str; 14] = [
    "api",
    "balance",
    "client-hello",
    "compression",
    "explain",
    "forward",
    "http-core",
    "http2",
    "model",
    "pacing",
    "proxy-protocol",
    "snapshot",
    "trace",
    "wire",
];

/// The names that no pure code may use.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "libc::",
    "log::",
    "nix::",
    "rustix::",
    "socket2::",
    "tokio::",
    "convey_random::",
];

/// Modules of which some names are pure. Taken in as a whole they would hide the others.
const PURE_IN_PART: [&str; 3] = ["std::io", "std::net", "std::time"];

/// Lists of wakers and names of errors, no input or output.
const PURE_ALL_THE_SAME: &[&str] = &["rustix::io::Errno", "std::env::VarError", "tokio::sync::"];

#[test]
fn pure_code_knows_no_socket_thread_file_log_or_clock() {
    let sources = sources();
    let say_so = sources.iter().filter(|(_, text)| says_that_it_is_pure(text));
    let modules: Vec<PathBuf> = say_so.map(|(path, _)| directory_of_module(path)).collect();
    assert!(modules.len() > PURE_CRATES.len());
    let is_pure = |path: &Path| modules.iter().any(|pure| directory_of_module(path).starts_with(pure));
    let pure = sources.iter().filter(|(path, _)| is_pure(path));
    let faults: Vec<String> = pure.flat_map(|(path, text)| impurities(path, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_core_says_that_it_is_pure() {
    let sources = sources();
    for name in PURE_CRATES {
        let lib = Path::new("crates").join(name).join("src/lib.rs");
        let (_, text) = sources.iter().find(|(path, _)| *path == lib).unwrap();
        assert!(says_that_it_is_pure(text), "{}", lib.display());
    }
}

/// Crates of the packet path, which other programs and targets build alone.
const CRATES_WITHOUT_RUNTIME: [&str; 5] = ["balance", "forward", "model", "trace", "wire"];

#[test]
fn packet_crates_depend_on_no_runtime_and_no_c_library() {
    for name in CRATES_WITHOUT_RUNTIME {
        let tree = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--locked",
                "--offline",
                "--edges",
                "normal",
                "--prefix",
                "none",
                "--format",
                "{p}",
            ])
            .args(["--package", &format!("convey-{name}")])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            // Features that only other crates enable do not count.
            .env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION")
            .output()
            .unwrap();
        let (tree, errors) = (String::from_utf8_lossy(&tree.stdout), String::from_utf8_lossy(&tree.stderr));
        let crates: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(crates.contains(&"convey-model"), "{errors}");
        for unwanted in ["libc", "rustix", "tokio"] {
            assert!(!crates.contains(&unwanted), "convey-{name} depends on {unwanted}");
        }
    }
}

/// A comparison would treat a new mode or kind like one of the others. A `match` without `_` does
/// not compile until it has an arm.
#[test]
fn modes_and_kinds_of_dsr_are_matched_and_never_compared() {
    let compares = |(path, text): (PathBuf, String)| {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let found = code.lines().find(|line| tells_by_one(line));
        found.map(|found| format!("{}: {found}", path.display()))
    };
    let faults: Vec<String> = sources().into_iter().filter_map(compares).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_check_of_modes_finds_comparisons_however_they_are_written() {
    for line in [
        "if config.mode == Mode::Proxy {",
        "mode != Mode::Dsr",
        "if let Mode::Dsr(kind) = mode {",
        "let Mode::Dsr(kind) = mode else { return };",
        "matches!(frontend.mode, Mode::Passthrough)",
        "matches!(kind, DsrKind::L2)",
    ] {
        assert!(tells_by_one(line), "{line}");
    }
    for line in ["match mode {", "Mode::Proxy => true,", "mode: Mode::Proxy,"] {
        assert!(!tells_by_one(line), "{line}");
    }
}

fn tells_by_one(line: &str) -> bool {
    ["Mode::", "DsrKind::"].iter().any(|kind| {
        let compared = ["==", "!=", "let"].iter().any(|word| line.contains(&format!("{word} {kind}")));
        compared || (line.contains("matches!(") && line.contains(kind))
    })
}

/// Within a crate, the name `Server` should identify one type. So no two types that other files of
/// the crate see have the same name. Across crates, the path tells them apart.
#[test]
fn visible_type_names_are_unique_within_a_crate() {
    let mut all: BTreeMap<(PathBuf, String), Vec<PathBuf>> = BTreeMap::new();
    for (path, text) in sources() {
        let place = |name| (crate_of(&path), name);
        visible_types(&text).for_each(|name| all.entry(place(name)).or_default().push(path.clone()));
    }
    all.retain(|_, places| places.len() > 1);
    assert!(all.is_empty(), "two types of a crate have the same name: {all:#?}");
}

/// Returns the directory of the crate that a source file belongs to: `src` or `crates/NAME`.
fn crate_of(path: &Path) -> PathBuf {
    let parts = if path.starts_with("crates") { 2 } else { 1 };
    path.components().take(parts).collect()
}

#[test]
fn the_check_of_names_finds_types_however_they_are_written() {
    let text = "pub struct A;\npub(super) enum B {\npub unsafe trait C {}\npub type D = u8;\n\
                pub(in crate::app) struct E<T>(T);\npub struct F(pub(super) u32);\nstruct Private;\n    \
                type Err = ();\npub fn f() {";
    assert_eq!(visible_types(text).collect::<String>(), "ABCDEF");
}

/// The names of the types that a file defines and others see.
fn visible_types(text: &str) -> impl Iterator<Item = String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter_map(|line| {
        let rest = line.strip_prefix("pub")?;
        let scope_end = if rest.starts_with('(') { rest.find(')')? + 1 } else { 0 };
        let mut words = rest[scope_end..].split_whitespace();
        let kind = words.find(|word| *word != "unsafe")?;
        let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
        let name = words.next().filter(|_| is_type)?;
        name.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned)
    })
}

/// Uses of random numbers that need not be secret: jitter, samples, initial values of counters, ids
/// that authorise nothing.
const PREDICTABLE: [&str; 18] = [
    "crates/access-log/src/lines.rs: fastrand::u32",
    "crates/control/src/dns.rs: fastrand::f64",
    "crates/control/src/health/schedule.rs: fastrand::f64",
    "crates/dataplane/src/net/reserved_ports/records.rs: fastrand::u32",
    "crates/dataplane/src/pipeline.rs: fastrand::u16",
    "crates/http/src/http3/quic.rs: fastrand::bool",
    "crates/http/src/request.rs: fastrand::u64",
    "crates/http/src/variables.rs: fastrand::u128",
    "crates/http/src/stack/traces.rs: fastrand::u128",
    "crates/http/src/stack/traces.rs: fastrand::u64",
    "crates/kubernetes/src/annotations.rs: fastrand::f64",
    "crates/kubernetes/src/watch.rs: fastrand::f64",
    "crates/proxy/src/listener.rs: fastrand::f64",
    "crates/proxy/src/quic/late.rs: fastrand::f64",
    "crates/proxy/src/udp/relay.rs: fastrand::u32",
    "crates/proxy/src/registry.rs: fastrand::u32",
    "src/app/acme.rs: fastrand::f64",
    "src/app/sources/etcd/follow.rs: fastrand::f64",
];

/// `fastrand` is seeded by the time, and each number that it returns reveals the next ones.
#[test]
fn secrets_come_from_the_kernels_generator() {
    let predictable = sources().into_iter().flat_map(|(path, text)| {
        let found = paths(&text).into_iter().filter(|named| named.starts_with("fastrand::"));
        found.map(move |named| format!("{}: {named}", path.display())).collect::<Vec<_>>()
    });
    let mut unknown: Vec<String> = predictable.collect();
    unknown.retain(|found| !PREDICTABLE.contains(&&**found));
    assert!(unknown.is_empty(), "take seeds, ids and ports from `convey_random`: {}", unknown.join("\n"));
}

/// Files with thread-local variables. Except for those with a comment, they are scratch memory that holds
/// nothing between two calls, so any thread may use its own. The state of a worker is a value that
/// is passed on.
const THREAD_LOCAL: [&str; 13] = [
    "crates/http/src/buffer.rs",
    "crates/http/src/files/date.rs",
    "crates/http/src/http2/client.rs",
    "crates/proxy/src/contained.rs",
    "crates/proxy/src/relay.rs",
    "crates/proxy/src/udp/socket.rs",
    "crates/stream/src/poll_clock.rs",
    "crates/stream/src/tls_layer.rs",
    "crates/tls/src/chooser.rs",
    // Number of the thread, which chooses its buffer of the access log; any number would do.
    "crates/access-log/src/lines.rs",
    // Sessions of UDP, which only the tasks of their worker use.
    "crates/proxy/src/udp/relay.rs",
    // Counters for tests.
    "crates/proxy/src/context.rs",
    "crates/proxy/src/registry.rs",
];

#[test]
fn thread_local_variables_are_scratch_memory() {
    let mut found: Vec<PathBuf> = sources()
        .into_iter()
        .filter(|(_, text)| text.contains("thread_local!"))
        .map(|(path, _)| path)
        .collect();
    found.retain(|path| !THREAD_LOCAL.iter().any(|known| path == Path::new(known)));
    assert!(found.is_empty(), "state of a worker belongs into a value: {found:?}");
}

#[test]
fn the_check_finds_impurities_however_they_are_written() {
    for text in [
        "use std::net::{SocketAddr, TcpStream};",
        "use std::net::UdpSocket;",
        "use std::net;",
        "use std::{fmt, net};",
        "fn f() { std::env::var(\"X\"); }",
        "use std::{fmt, thread};",
        "fn f() { std::fs::read(\"x\"); }",
        "use log::info;",
        "fn f() { log::warn!(\"x\") }",
        "use tokio::{net, sync::Notify};",
        "use rustix::{fs, io::Errno};",
        "fn f() { nix::unistd::getpid(); }",
        "fn f() -> libc::pid_t { 1 }",
        "fn f(socket: socket2::Socket) {}",
        "use std::time::{Duration, Instant};",
        "fn f() { let now = SystemTime::now(); }",
    ] {
        assert_eq!(impurities(Path::new("model.rs"), text).len(), 1, "{text}");
    }
    let pure = "use std::net::{IpAddr, SocketAddr};\nuse std::time::Duration;\nuse tokio::sync::Notify;\nuse rustix::io::Errno;\n\
                // Instant::now is the shell's\nfn catalog() -> catalog::Item {}";
    assert_eq!(impurities(Path::new("model.rs"), pure), [""; 0]);
}

#[test]
fn the_word_counts_in_the_first_lines_alone() {
    assert!(says_that_it_is_pure("//! Up or down. Pure: outcomes in, changes out.\n\nuse x;"));
    assert!(says_that_it_is_pure("//! Up or down.\n//! Pure.\n"));
    assert!(!says_that_it_is_pure("//! Up or down.\n\n/// Pure.\nfn f() {}"));
}

/// Folder of a module's submodules.
fn directory_of_module(path: &Path) -> PathBuf {
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "mod") => path.parent().unwrap().to_owned(),
        _ => path.with_extension(""),
    }
}

/// Whether the comment at the top of the file has the word.
fn says_that_it_is_pure(text: &str) -> bool {
    let mut head = text.lines().take_while(|line| line.starts_with("//!"));
    head.any(|line| line.split_whitespace().any(|word| word == "Pure." || word == "Pure:"))
}

/// All source files of the program and its crates, by path. Files of tests are exempt.
fn sources() -> Vec<(PathBuf, String)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(project.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let mut directories: Vec<PathBuf> = crates.chain([project.join("src")]).collect();
    let mut found = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing");
            if path.is_dir() && !is_test {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(project).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 100, "where is the source?");
    found
}

fn impurities(path: &Path, text: &str) -> Vec<String> {
    let is_impure = |named: &str| {
        let clock = named.ends_with("SystemTime::now") || named.ends_with("Instant::now");
        let known = IMPURE.iter().any(|impure| named.starts_with(impure));
        (clock || known || PURE_IN_PART.contains(&named))
            && !PURE_ALL_THE_SAME.iter().any(|pure| named.starts_with(pure))
    };
    let found = paths(text).into_iter().filter(|named| is_impure(named));
    found.map(|named| format!("{}: {named} is not pure", path.display())).collect()
}

/// All paths of two parts or more that the code names, with `use` trees expanded.
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

/// Parses `a::b` or `a::{b, c::d}` and notes its paths. Returns the remaining text.
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
