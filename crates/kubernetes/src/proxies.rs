//! Checks the proxy settings in the environment. convey does not support proxies, so it refuses to
//! connect to an API server behind a proxy, unless `NO_PROXY` excludes the server. The rules are
//! those of `kubectl`.

use std::env;
use std::net::IpAddr;

use convey_model::Prefix;
use http::Uri;

/// Environment variables that select a proxy for https; the first one that is set applies.
const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
/// Environment variables that exclude servers from the proxy; the first one that is set applies.
const EXCLUDED: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Proxy settings in the environment.
#[derive(Debug, Default)]
pub(crate) struct ProxyVariables {
    /// Name of the variable that selects a proxy; `None` without a proxy.
    proxy: Option<&'static str>,
    /// Excluded hosts, networks and domains, separated by commas.
    excluded: String,
}

impl ProxyVariables {
    pub(crate) fn of_environment() -> ProxyVariables {
        let value = |name: &&str| env::var(name).ok().filter(|value| !value.is_empty());
        ProxyVariables {
            proxy: PROXY.into_iter().find(|name| value(name).is_some()),
            excluded: EXCLUDED.iter().find_map(value).unwrap_or_default(),
        }
    }

    /// Checks that convey may connect to this server without a proxy.
    ///
    /// # Errors
    /// The environment requires a proxy for this server.
    pub(crate) fn check(&self, server: &Uri) -> Result<(), String> {
        let Some(name) = self.proxy else { return Ok(()) };
        let default_port = if server.scheme_str() == Some("http") { 80 } else { 443 };
        let port = server.port_u16().unwrap_or(default_port);
        match is_excluded(&self.excluded, server.host().unwrap_or_default(), port) {
            true => Ok(()),
            false => Err(format!(
                "the environment variable {name} is set, but convey supports no proxies: add the API server to NO_PROXY"
            )),
        }
    }
}

fn is_excluded(excluded: &str, host: &str, port: u16) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let ip = host.parse::<IpAddr>().ok();
    let is_local = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
    is_local || excluded.split(',').any(|entry| excludes(&entry.trim().to_ascii_lowercase(), &host, ip, port))
}

/// Whether an entry of `NO_PROXY` excludes a host. An entry is `*`, a network, an address, or a
/// domain. A domain matches itself and its subdomains; a domain with a leading dot matches only its
/// subdomains. An address or a domain may be limited to a port.
fn excludes(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if entry.contains('/') {
        return Prefix::around(entry).zip(ip).is_some_and(|(network, ip)| network.contains(ip));
    }
    let (name, only) = split_port(entry);
    if name.is_empty() || only.is_some_and(|only| only != port) {
        return false;
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return ip == Some(address);
    }
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    match host.strip_suffix(name) {
        Some("") => !name.starts_with('.'),
        Some(rest) => name.starts_with('.') || rest.ends_with('.'),
        None => false,
    }
}

/// Splits `name:port` and `[address]:port` into name and port. An IPv6 address without brackets has
/// no port.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    let split = entry.rsplit_once(':').filter(|(name, _)| !name.contains(':') || name.ends_with(']'));
    let (name, port) = match split.map(|(name, port)| (name, port.parse())) {
        Some((name, Ok(port))) => (name, Some(port)),
        _ => (entry, None),
    };
    (name.trim_matches(['[', ']']), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_excludes_hosts_domains_and_networks() {
        for (excluded, server, is_out) in [
            ("", "https://10.0.0.1:6443", false),
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.1:6443", true),
            ("", "https://[::1]:6443", true),
            ("*", "https://10.0.0.1:6443", true),
            ("192.0.2.1, 10.0.0.1", "https://10.0.0.1:6443", true),
            ("10.0.0.1:6443", "https://10.0.0.1:6443", true),
            ("10.0.0.1:6443", "https://10.0.0.1", false),
            ("10.0.0.1:443", "https://10.0.0.1", true),
            ("10.0.0.0/8", "https://10.0.0.1:6443", true),
            ("10.0.0.0/8", "https://api.example.org", false),
            ("2001:db8::1", "https://[2001:db8::1]:6443", true),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443", true),
            ("example.org", "https://example.org", true),
            ("Example.org", "https://API.example.org", true),
            ("example.org", "https://myexample.org", false),
            (".example.org", "https://example.org", false),
            (".example.org", "https://api.example.org", true),
            ("*.example.org", "https://api.example.org", true),
            ("*.example.org", "https://example.org", false),
            (",,/", "https://example.org", false),
        ] {
            let proxies = ProxyVariables { proxy: Some("HTTPS_PROXY"), excluded: excluded.to_owned() };
            assert_eq!(proxies.check(&server.parse().unwrap()).is_ok(), is_out, "{excluded} {server}");
            let none = ProxyVariables { proxy: None, ..proxies };
            assert!(none.check(&server.parse().unwrap()).is_ok());
        }
    }
}
