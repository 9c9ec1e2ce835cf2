//! Parser of `/etc/hosts` (hosts(5)). It exists because hickory's parser skips names with
//! underscores. Pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use convey_model::DnsRecords;

/// Time to live of addresses from the file, which does not specify one.
const TTL: Duration = Duration::from_secs(5);

/// Addresses by host name, in lower case.
#[derive(Debug, Default)]
pub(super) struct Hosts(HashMap<String, Vec<IpAddr>>);

impl Hosts {
    /// Parses the text of the file: each line has an address and its names; `#` begins a comment.
    pub(super) fn parse(text: &str) -> Hosts {
        let mut hosts = Hosts::default();
        for line in text.trim_start_matches('\u{feff}').lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(Ok(ip)) = words.next().map(str::parse) else { continue };
            for name in words {
                hosts.0.entry(plain(name)).or_default().push(ip);
            }
        }
        hosts
    }

    /// IPv4 and IPv6 addresses of a name; `None` if the file does not have the name.
    pub(super) fn get(&self, host: &str) -> Option<(DnsRecords, DnsRecords)> {
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) =
            self.0.get(&plain(host))?.iter().copied().partition(|ip| ip.is_ipv4());
        Some((DnsRecords::new(v4, TTL), DnsRecords::new(v6, TTL)))
    }
}

/// Normalized name: lower case, without a trailing dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_all_addresses_of_its_lines() {
        let hosts = Hosts::parse(
            "\u{feff}10.0.0.1 App.internal app # app.old\n\n10.0.0.2\tapp.internal.\n::1 app\nweb 1\nfe80::1%eth0 far\n\
             10.0.0.3 web_1",
        );
        let found = |name: &str| {
            let (v4, v6) = hosts.get(name)?;
            let both = v4.into_addresses().into_iter().chain(v6.into_addresses());
            Some(both.map(|addr| addr.to_string()).collect::<Vec<_>>().join(" "))
        };
        for (name, expected) in [
            ("app.internal", Some("10.0.0.1 10.0.0.2")),
            ("APP", Some("10.0.0.1 ::1")),
            ("app.", Some("10.0.0.1 ::1")),
            ("web_1", Some("10.0.0.3")),
            ("app.old", None),
            ("far", None),
            ("1", None),
        ] {
            assert_eq!(found(name).as_deref(), expected, "{name}");
        }
    }
}
