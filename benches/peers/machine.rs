//! Description of the machine and the programs of a run.

use std::fs;
use std::process::Command;

use crate::peer::Peer;
use crate::site::cores;

/// Cores, processor, kernel, and versions of the programs. Optional programs are listed only if
/// they take part.
pub(crate) fn describe(peers: &[Peer]) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The rest of the release names the distribution's build.
    let kernel = release.trim().split('-').next().unwrap_or_default();
    let programs =
        [("haproxy", "-v"), ("nginx", "-v"), ("nft", "--version"), ("wrk", "-v"), ("h2load", "--version")];
    let mut versions: Vec<String> =
        programs.iter().map(|(program, flag)| format!("{program} {}", version(program, flag))).collect();
    let has = |peer: Peer| peers.contains(&peer);
    versions.extend(has(Peer::Pingora).then(|| format!("pingora {}", pingora())));
    versions.extend(has(Peer::Caddy).then(|| format!("caddy {}", caddy())));
    let convey = env!("CARGO_PKG_VERSION");
    format!("{} cores ({model}), Linux {kernel}; convey {convey}, {}", cores(), versions.join(", "))
}

/// Version of the pingora crates in `benches/pingora`.
fn pingora() -> &'static str {
    let lock = include_str!("../pingora/Cargo.lock");
    let after = lock.split_once("name = \"pingora-proxy\"\nversion = \"").map(|(_, after)| after);
    after.and_then(|after| after.split('"').next()).unwrap_or("?")
}

/// Version of Caddy's built-in module: custom builds have no other version.
fn caddy() -> String {
    let output = Command::new("caddy").arg("build-info").output();
    let said =
        output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    let after = said.split_whitespace().skip_while(|word| *word != "github.com/caddyserver/caddy/v2").nth(1);
    after.unwrap_or("?").trim_start_matches('v').to_owned()
}

/// First word with a digit and a dot in a program's version output.
fn version(program: &str, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return "?".to_owned() };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let is_version = |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    let word = said.split([' ', '\n', '/']).find(is_version).unwrap_or("?");
    let number = |c: char| c.is_ascii_digit() || c == '.';
    word.trim_start_matches(|c| !number(c)).split(|c| !number(c)).next().unwrap_or("?").to_owned()
}
