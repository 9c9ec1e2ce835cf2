//! Runs `ip` and other programs of the host, and parses their output.

use std::net::IpAddr;

use convey_dataplane::programs;
use serde_json::Value as Json;

/// Runs a program of the host, and returns its standard output.
///
/// # Errors
/// Operator-facing message: the program is missing or has failed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = programs::command(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} {}: {}", arguments.join(" "), said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `ip -j` with these arguments, and returns its parsed output.
///
/// # Errors
/// Operator-facing message: the program has failed, or its output is not JSON.
pub(crate) fn ip(arguments: &[&str]) -> Result<Vec<Json>, String> {
    let text = output("ip", &[&["-j"], arguments].concat())?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&text).map_err(|error| format!("ip -j {}: {error}", arguments.join(" ")))
}

/// Addresses of an interface, with their prefix lengths, from the output of `ip -j addr show`.
pub(crate) fn addresses(link: &Json) -> Vec<(IpAddr, u8)> {
    let address = |it: &Json| {
        let len = it["prefixlen"].as_u64()?.try_into().ok()?;
        Some((it["local"].as_str()?.parse().ok()?, len))
    };
    link["addr_info"].as_array().into_iter().flatten().filter_map(address).collect()
}
