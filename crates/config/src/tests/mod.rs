//! Tests of the file's syntax and messages, as users see them.

mod accepted;
mod access;
mod acme;
mod environment;
mod http;
mod include;
mod kubernetes;
mod modes;
mod proxy_headers;
mod quic;
mod refused;
mod requests;
mod sample;
mod sni;
mod source;
mod tls;
mod unix_socket;

use super::{Problem, parse};

/// A valid file, for tests that add an error.
const GOOD: &str = r#"
[frontends.web]
listen_addr = "10.0.0.1:80"
backend = "web"
[backends.web.servers.a]
addr = "10.0.0.2:80"
"#;

/// Errors of a file that cannot be used.
fn errors(text: &str) -> Vec<String> {
    let problems = parse("config.toml", text).expect_err("the file has errors");
    problems.iter().map(Problem::to_string).collect()
}

/// Warnings of a file that can be used.
fn warnings(text: &str) -> Vec<String> {
    let loaded = parse("config.toml", text).expect("the file has no errors");
    loaded.warnings.iter().map(Problem::to_string).collect()
}
