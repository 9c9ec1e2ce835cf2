//! `sni` and `alpn` of a route: the TLS connections that it is for (proxy mode).

use std::net::IpAddr;

use toml::de::DeValue;

use super::http::{Written, host_pattern};
use crate::problem::{Place, Placed};
use crate::reader::TomlTable;
use crate::values::{found, not_allowed};
use convey_http_core::HostPattern;
use convey_model::SniRouteConfig;

/// The keys of a route that are for proxy mode alone.
const KEYS: [&str; 2] = ["sni", "alpn"];

/// Most bytes of a protocol's name: its length has one byte (RFC 7301 3.1).
const MAX_PROTOCOL: usize = 255;

/// What a connection has to ask for.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedSni {
    /// Where the keys stand that are there.
    pub(crate) keys: Vec<Place>,
    hosts: Vec<Placed<Written<HostPattern>>>,
    alpn: Vec<Placed<String>>,
    /// Whether both are as they should be.
    is_right: bool,
}

impl ParsedSni {
    /// Reads it of the table of a route.
    pub(super) fn read(table: &mut TomlTable<'_>) -> ParsedSni {
        let keys: Vec<Place> = KEYS.iter().filter_map(|key| table.place_of(key)).collect();
        let [is_by_host, is_by_protocol] = KEYS.map(|key| table.has(key));
        let (hosts, alpn) = (table.at_least_one(KEYS[0], name), table.at_least_one(KEYS[1], protocol));
        let is_right = hosts.is_empty() != is_by_host && alpn.is_empty() != is_by_protocol;
        ParsedSni { keys, hosts, alpn, is_right }
    }

    /// A route for each name with each protocol, and where the name stands, or else the protocol.
    pub(crate) fn routes<'a>(
        &'a self,
        backend: &'a str,
    ) -> impl Iterator<Item = (&'a Place, SniRouteConfig)> + use<'a> {
        let hosts = if self.is_right { optional(&self.hosts) } else { Vec::new() };
        hosts.into_iter().flat_map(move |host| {
            optional(&self.alpn).into_iter().filter_map(move |alpn| {
                let place = host.map(|host| &host.place).or(alpn.map(|alpn| &alpn.place))?;
                let text = host.map(|host| &*host.value.text);
                let alpn = alpn.map(|alpn| alpn.value.clone());
                let route = SniRouteConfig {
                    name: SniRouteConfig::name_of(text, alpn.as_deref()),
                    host: host.map_or(HostPattern::Any, |host| host.value.pattern.clone()),
                    alpn,
                    backend: backend.to_owned(),
                };
                Some((place, route))
            })
        })
    }
}

/// Each of them, or once none if there is none.
fn optional<T>(all: &[T]) -> Vec<Option<&T>> {
    if all.is_empty() { vec![None] } else { all.iter().map(Some).collect() }
}

fn name(value: &DeValue<'_>) -> Result<Written<HostPattern>, String> {
    let text = value.as_str().unwrap_or_default();
    if text == "*" {
        return Err(
            "found \"*\"; connections of no route go to the frontend's own backend: set that".to_owned()
        );
    }
    if text.parse::<IpAddr>().is_ok() || text.starts_with('[') {
        let why = "clients name hosts, never addresses (RFC 6066)";
        return Err(format!("found {}, an address; {why}", found(value)));
    }
    host_pattern(value)
}

/// The name of a protocol within TLS (ALPN), also of a frontend's `tls.alpn`.
pub(super) fn protocol(value: &DeValue<'_>) -> Result<String, String> {
    let allowed = "the name of a protocol as clients offer it, such as h2, http/1.1 or acme-tls/1";
    let is_name = |text: &&str| (1..=MAX_PROTOCOL).contains(&text.len()) && !text.contains(char::is_control);
    match value.as_str().filter(is_name) {
        Some("http/2" | "http2") => Err(format!("found {}; clients offer HTTP/2 as \"h2\"", found(value))),
        Some(text) => Ok(text.to_owned()),
        None => Err(not_allowed(value, allowed)),
    }
}
