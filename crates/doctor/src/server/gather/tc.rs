//! Reads the rules of `dsr-server.sh` from the output of `tc filter show`. The JSON output of `tc`
//! is unsuitable, because it repeats a key for several matches of a filter.

use std::net::{IpAddr, Ipv4Addr};

use crate::iproute::output;
use crate::ruleset::SourceRule;

/// Name of the table of rules from tc.
pub(in crate::server) const TC_TABLE: &str = "tc";

/// tc rules of an interface.
pub(super) fn rules(interface: &str) -> Vec<SourceRule> {
    // The program `tc` may be missing.
    read(&output("tc", &["filter", "show", "dev", interface]).unwrap_or_default(), interface)
}

/// Fields of a tc filter that doctor uses.
#[derive(Debug, Default)]
struct TcFilter {
    server: Option<IpAddr>,
    balancer: Option<IpAddr>,
    protocol: Option<&'static str>,
    port: Option<u16>,
    vip: Option<IpAddr>,
}

fn read(text: &str, interface: &str) -> Vec<SourceRule> {
    let filters: Vec<TcFilter> = text.split("filter ").skip(1).map(filter).collect();
    let vips = filters.iter().filter_map(|filter| filter.vip.zip(filter.server));
    let mut rules: Vec<SourceRule> = Vec::new();
    for (vip, server) in vips {
        let of = |filter: &&TcFilter| filter.server == Some(server);
        // A filter without a source applies to all servers.
        let spares = |filter: &&TcFilter| filter.server.is_none() || of(filter);
        let rewriting =
            || filters.iter().filter(of).filter(|filter| filter.vip == Some(vip) && filter.port.is_some());
        let rule = SourceRule {
            table: TC_TABLE.to_owned(),
            interface: Some(interface.to_owned()),
            server: Some(server),
            vip,
            ports: unique(rewriting().filter_map(|filter| filter.port).map(|port| port.to_string())),
            protocols: unique(rewriting().filter_map(|filter| filter.protocol).map(str::to_owned)),
            spared: filters.iter().filter(spares).filter_map(|filter| filter.balancer).collect(),
        };
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

fn filter(text: &str) -> TcFilter {
    let mut filter = TcFilter::default();
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("match ") {
            let mut words = rest.split(['/', ' ']);
            let value = words.next().and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0);
            match (words.next(), rest.rsplit(' ').next()) {
                (Some("ffffffff"), Some("12")) => filter.server = Some(Ipv4Addr::from(value).into()),
                (Some("ffffffff"), Some("16")) => filter.balancer = Some(Ipv4Addr::from(value).into()),
                (Some("00ff0000"), Some("8")) => {
                    filter.protocol = match value >> 16 {
                        6 => Some("tcp"),
                        17 => Some("udp"),
                        _ => None,
                    }
                }
                (Some("ffff0000"), Some("20")) => filter.port = Some((value >> 16) as u16),
                _ => {}
            }
        }
        if let Some((_, rest)) = line.split_once("nat egress ") {
            let mut words = rest.split_whitespace();
            let old = words.next().and_then(|old| old.strip_suffix("/32")).and_then(|ip| ip.parse().ok());
            filter.server = filter.server.or(old);
            filter.vip = words.next().and_then(|ip| ip.parse().ok());
        }
    }
    filter
}

fn unique(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for word in words {
        if !unique.contains(&word) {
            unique.push(word);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
filter parent c0e7: protocol ip pref 1 u32 chain 0 
filter parent c0e7: protocol ip pref 1 u32 chain 0 fh 800: ht divisor 1 
filter parent c0e7: protocol ip pref 1 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 flowid c0e7: not_in_hw 
  match 0a4d000b/ffffffff at 12
  match 0a4d0001/ffffffff at 16
filter parent c0e7: protocol ip pref 2 u32 chain 0 fh 801::800 order 2048 key ht 801 bkt 0 terminal flowid not_in_hw 
  match 0a4d000b/ffffffff at 12
  match 00060000/00ff0000 at 8
  match 00000000/00001fff at 4
  match 00500000/ffff0000 at 20
\taction order 1:  nat egress 10.77.0.11/32 10.77.0.100 pass
\t index 1 ref 1 bind 1
";

    #[test]
    fn the_rules_of_the_script_are_read_as_tc_prints_them() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            read(SHOWN, "eth0"),
            [SourceRule {
                table: TC_TABLE.to_owned(),
                interface: Some("eth0".to_owned()),
                server: Some(ip("10.77.0.11")),
                vip: ip("10.77.0.100"),
                ports: vec!["80".to_owned()],
                protocols: vec!["tcp".to_owned()],
                spared: vec![ip("10.77.0.1")],
            }]
        );
        assert_eq!(read("", "eth0"), []);
        let without_source = SHOWN.replace("  match 0a4d000b/ffffffff at 12\n", "");
        assert_eq!(read(&without_source, "eth0"), read(SHOWN, "eth0"), "rules may leave out the source");
    }
}
