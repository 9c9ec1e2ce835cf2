//! What a single value may be. Each function turns a value of the file into what it means, or says what
//! was found and what is allowed.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use toml::de::DeValue;

use super::hint;

/// The longest time that can be set: a year.
const MAX_SECONDS: u32 = 365 * 24 * 60 * 60;

/// Shortest time that can be set where zero makes no sense.
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// How a value that is not allowed is shown in a message: on one line, and not all of a long one.
pub(super) fn found(value: &DeValue<'_>) -> String {
    const LONGEST: usize = 60;
    match value {
        DeValue::String(s) if s.chars().count() > LONGEST => {
            format!("{:?}...", s.chars().take(LONGEST).collect::<String>())
        }
        DeValue::String(s) => format!("{s:?}"),
        DeValue::Integer(n) => n.to_string(),
        DeValue::Float(n) => n.to_string(),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Any value at all: for keys that have no effect.
pub(super) fn anything(_: &DeValue<'_>) -> Result<(), String> {
    Ok(())
}

/// `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| not_allowed(value, "true, false"))
}

/// Any string.
pub(super) fn string(value: &DeValue<'_>) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| not_allowed(value, "a string"))
}

/// An integer in a range.
pub(super) fn integer<T>(range: RangeInclusive<T>) -> impl Fn(&DeValue<'_>) -> Result<T, String>
where
    T: TryFrom<i128> + PartialOrd + Display,
{
    move |value| {
        as_integer(value).filter(|n| range.contains(n)).ok_or_else(|| {
            not_allowed(value, &format!("an integer from {} to {}", range.start(), range.end()))
        })
    }
}

/// A port, as an integer or, as files of old have it, a string.
pub(super) fn port(value: &DeValue<'_>) -> Result<u16, String> {
    let port = match value {
        DeValue::String(s) => s.parse().ok(),
        _ => as_integer(value),
    };
    port.filter(|port| *port != 0).ok_or_else(|| not_allowed(value, "a port from 1 to 65535"))
}

/// A number of seconds, at least `min` and at most a year.
pub(super) fn seconds(min: Duration) -> impl Fn(&DeValue<'_>) -> Result<Duration, String> {
    move |value| {
        let seconds = match value {
            DeValue::Integer(_) => as_integer(value).map(Duration::from_secs),
            DeValue::Float(n) => n.as_str().parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()),
            _ => None,
        };
        let range = min..=Duration::from_secs(MAX_SECONDS.into());
        seconds.filter(|seconds| range.contains(seconds)).ok_or_else(|| {
            not_allowed(value, &format!("seconds from {} to {MAX_SECONDS}", min.as_secs_f64()))
        })
    }
}

/// One of a few words.
pub(super) fn choice<T: Copy>(
    all: &'static [T],
    name: impl Fn(T) -> &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let word = value.as_str().unwrap_or_default();
        all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|one| name(*one)).collect();
            let meant = hint::did_you_mean(word, names.iter().copied());
            not_allowed(value, &names.join(", ")) + &meant
        })
    }
}

/// An IP address without a port.
pub(super) fn ip(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let ip = value.as_str().and_then(|s| s.parse().ok());
    ip.ok_or_else(|| not_allowed(value, "an IP address without a port, such as 127.0.0.1 or ::1"))
}

/// Where a frontend listens: `IP:port`, wildcards too.
pub(super) fn listen_address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    const ALLOWED: &str = "IP:port, such as 0.0.0.0:80 or [::]:80";
    let addr = socket_address(value, ALLOWED)?;
    if addr.ip().is_multicast() { Err(not_allowed(value, ALLOWED)) } else { Ok(addr) }
}

/// Where a server listens: `IP:port` of one machine.
pub(super) fn server_address(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    const ALLOWED: &str = "IP:port of one server, such as 10.0.0.1:80 or [2001:db8::1]:80";
    let addr = socket_address(value, ALLOWED)?;
    let one_machine = !addr.ip().is_unspecified() && !addr.ip().is_multicast();
    if one_machine { Ok(addr) } else { Err(not_allowed(value, ALLOWED)) }
}

/// An address of ours that stands for clients.
pub(super) fn snat_address(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let ip = value.as_str().and_then(|s| s.parse().ok());
    let usable = |ip: &IpAddr| {
        let mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        !mapped && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
    };
    ip.filter(usable)
        .ok_or_else(|| not_allowed(value, "an address of this host without a port, such as 10.0.0.1"))
}

/// A range of ports: `"33768-61000"`.
pub(super) fn snat_ports(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    range(value.as_str().unwrap_or_default())
        .filter(|(from, to)| *from > 0 && from <= to)
        .map(|(from, to)| from..=to)
        .ok_or_else(|| not_allowed(value, "a range of ports from 1 to 65535, such as \"33768-61000\""))
}

/// Path and query of a probe.
pub(super) fn http_path(value: &DeValue<'_>) -> Result<String, String> {
    let path = value.as_str().filter(|path| {
        let parsed = path.parse::<PathAndQuery>().ok();
        path.starts_with('/') && path.is_ascii() && parsed.is_some_and(|parsed| parsed.as_str() == *path)
    });
    path.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "a path that begins with `/`, encoded as in a URL"))
}

/// Status codes of HTTP: `200`, `"200"` or `"200-399"`.
pub(super) fn status_range(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    let range = match value {
        DeValue::String(s) => range(s).or_else(|| range(&format!("{s}-{s}"))),
        _ => as_integer(value).map(|status| (status, status)),
    };
    range
        .filter(|(from, to)| (100..=599).contains(from) && (*from..=599).contains(to))
        .map(|(from, to)| from..=to)
        .ok_or_else(|| {
            not_allowed(value, "a status from 100 to 599, such as 200, or a range, such as \"200-399\"")
        })
}

/// Both ends of `from-to`.
fn range(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-')?;
    from.trim().parse().ok().zip(to.trim().parse().ok())
}

fn socket_address(value: &DeValue<'_>, allowed: &str) -> Result<SocketAddr, String> {
    let refuse = |why: &str| Err(format!("{why}, found {}; allowed: {allowed}", found(value)));
    let Some(text) = value.as_str() else { return Err(not_allowed(value, allowed)) };
    if let Ok(addr) = text.parse::<SocketAddr>() {
        let mapped = matches!(addr.ip(), IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        return match addr.port() {
            0 => refuse("a port is 1 to 65535"),
            _ if mapped => refuse("an IPv4 address is written as one"),
            _ => Ok(addr),
        };
    }
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let bare_host = host.trim_start_matches('[').trim_end_matches(']');
    if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        refuse("the port is missing")
    } else if bare_host.parse::<IpAddr>().is_ok() {
        Err(not_allowed(value, allowed))
    } else if host.contains(|c: char| c.is_ascii_alphabetic()) && !host.contains(['/', ':', '[']) {
        refuse("host names are not supported")
    } else {
        Err(not_allowed(value, allowed))
    }
}

fn as_integer<T: TryFrom<i128>>(value: &DeValue<'_>) -> Option<T> {
    let integer = value.as_integer()?;
    let n = i128::from_str_radix(integer.as_str(), integer.radix()).ok()?;
    T::try_from(n).ok()
}

fn not_allowed(value: &DeValue<'_>, allowed: &str) -> String {
    format!("found {}; allowed: {allowed}", found(value))
}
