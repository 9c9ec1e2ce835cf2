//! What it was measured on and with.

use std::fs;
use std::process::Command;

use crate::site::cores;

/// Cores, processor, kernel, and the versions of the programs, pingora's if it takes part.
pub(crate) fn describe(has_pingora: bool) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // What follows the version names who built it.
    let kernel = release.trim().split('-').next().unwrap_or_default();
    let programs =
        [("haproxy", "-v"), ("nginx", "-v"), ("nft", "--version"), ("wrk", "-v"), ("h2load", "--version")];
    let mut versions: Vec<String> =
        programs.iter().map(|(program, flag)| format!("{program} {}", version(program, flag))).collect();
    versions.extend(has_pingora.then(|| format!("pingora {}", pingora())));
    let convey = env!("CARGO_PKG_VERSION");
    format!("{} cores ({model}), Linux {kernel}; convey {convey}, {}", cores(), versions.join(", "))
}

/// The version that `benches/pingora` is made of.
fn pingora() -> &'static str {
    let lock = include_str!("../pingora/Cargo.lock");
    let after = lock.split_once("name = \"pingora-proxy\"\nversion = \"").map(|(_, after)| after);
    after.and_then(|after| after.split('"').next()).unwrap_or("?")
}

/// The first word with a digit and a dot that a program says of itself.
fn version(program: &str, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return "?".to_owned() };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let is_version = |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    let word = said.split([' ', '\n', '/']).find(is_version).unwrap_or("?");
    let number = |c: char| c.is_ascii_digit() || c == '.';
    word.trim_start_matches(|c| !number(c)).split(|c| !number(c)).next().unwrap_or("?").to_owned()
}
