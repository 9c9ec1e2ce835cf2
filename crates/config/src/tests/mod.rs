//! The language of the file, as its users meet it.

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
mod tls;

use super::{Problem, parse};

/// A file with nothing wrong, to put something wrong into.
const GOOD: &str = r#"
[frontends.web]
listen_addr = "10.0.0.1:80"
backend = "web"
[backends.web.servers.a]
addr = "10.0.0.2:80"
"#;

/// What is said about a file that cannot be used.
fn errors(text: &str) -> Vec<String> {
    let problems = parse("config.toml", text).expect_err("the file has errors");
    problems.iter().map(Problem::to_string).collect()
}

/// What is said about a file that can.
fn warnings(text: &str) -> Vec<String> {
    let loaded = parse("config.toml", text).expect("the file has no errors");
    loaded.warnings.iter().map(Problem::to_string).collect()
}
