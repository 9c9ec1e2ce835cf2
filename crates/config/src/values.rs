//! Parsers of single values. Each function returns the parsed value, or a message with the value
//! found and the allowed values.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue};
use toml::de::DeValue;

use super::hint;
use convey_http_core::{TextPattern, TextPatternFault, is_token};
use convey_model::{
    BodyPattern, Listen, ListenError, Prefix, ServerAddr, UnixSocket, UnixSocketError, is_of_one_machine,
    is_service,
};

/// Maximum time that can be set, in seconds: one year.
const MAX_SECONDS: u32 = 365 * 24 * 60 * 60;

/// Minimum value of keys whose value is a time other than zero.
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// Minimum interval of checks.
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Text of a wrong value for a message: one line, shortened if the value is long.
pub(super) fn found(value: &DeValue<'_>) -> String {
    const MAX_SHOWN: usize = 60;
    match value {
        DeValue::String(s) if s.chars().count() > MAX_SHOWN => {
            format!("{:?}...", s.chars().take(MAX_SHOWN).collect::<String>())
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

/// Accepts any value, for keys that have no effect.
pub(super) fn anything(_: &DeValue<'_>) -> Result<(), String> {
    Ok(())
}

/// Parses `true` or `false`.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| not_allowed(value, "true, false"))
}

/// Parses any string.
pub(super) fn string(value: &DeValue<'_>) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| not_allowed(value, "a string"))
}

/// Parses an integer in a range.
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

/// Parses an integer from 1 to `most`.
pub(super) fn non_zero(most: u32) -> impl Fn(&DeValue<'_>) -> Result<NonZeroU32, String> {
    move |value| {
        integer(NonZeroU32::MIN.get()..=most)(value).map(|n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN))
    }
}

/// Parses a port: an integer or, as in older files, a string.
pub(super) fn port(value: &DeValue<'_>) -> Result<u16, String> {
    let port = match value {
        DeValue::String(s) => s.parse().ok(),
        _ => as_integer(value),
    };
    port.filter(|port| *port != 0).ok_or_else(|| not_allowed(value, "a port from 1 to 65535"))
}

/// Parses a time: a number of seconds, or a text such as `500ms`. Allowed are times from `min` to
/// one year.
pub(super) fn seconds(min: Duration) -> impl Fn(&DeValue<'_>) -> Result<Duration, String> {
    move |value| {
        let seconds = match value {
            DeValue::Integer(_) => as_integer(value).map(Duration::from_secs),
            DeValue::Float(n) => n.as_str().parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()),
            DeValue::String(text) if text.split(|c: char| !c.is_alphabetic()).any(|unit| unit == "M") => {
                return Err(format!(
                    "found {text:?}: the unit M could mean minutes or months; write \"m\" for minutes, \"days\" for days"
                ));
            }
            DeValue::String(text) => humantime::parse_duration(text).ok(),
            _ => None,
        };
        let range = min..=Duration::from_secs(MAX_SECONDS.into());
        seconds.filter(|seconds| range.contains(seconds)).ok_or_else(|| {
            let min = min.as_secs_f64();
            not_allowed(
                value,
                &format!("seconds from {min} to {MAX_SECONDS}, or a time such as \"2s\" or \"500ms\""),
            )
        })
    }
}

/// Parses the name of one of `all` values.
pub(super) fn choice<T: Copy>(
    all: &'static [T],
    name: impl Fn(T) -> &'static str,
) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let word = value.as_str().unwrap_or_default();
        all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|one| name(*one)).collect();
            let meant = hint::did_you_mean_or_elsewhere(word, &names);
            // If the value is not a string, perhaps only its quotation marks are missing.
            let allowed = if value.as_str().is_some() {
                names.join(", ")
            } else {
                format!("\"{}\"", names.join("\", \""))
            };
            not_allowed(value, &allowed) + &meant
        })
    }
}

/// Parses an IP address without a port.
pub(super) fn ip(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let ip = value.as_str().and_then(|s| s.parse().ok());
    ip.ok_or_else(|| not_allowed(value, "an IP address without a port, such as 127.0.0.1 or ::1"))
}

/// Parses the listen address of a frontend: `IP:port` or `IP:first-last`; wildcards are allowed.
pub(super) fn listen_address(value: &DeValue<'_>) -> Result<Listen, String> {
    const ALLOWED: &str =
        "IP:port, such as 0.0.0.0:80 or [::]:80, or a range of ports, such as 0.0.0.0:21000-21010";
    let host = |text: &str| is_host_name(text.rsplit_once(':').map_or(text, |(host, _)| host));
    if value.as_str().is_some_and(host) {
        return Err(format!("host names are not supported, found {}; allowed: {ALLOWED}", found(value)));
    }
    let listen = match value.as_str().map(str::parse::<Listen>) {
        Some(Ok(listen)) => {
            concrete(listen.first(), value, ALLOWED)?;
            listen
        }
        Some(Err(error @ ListenError::Backwards)) => {
            return Err(format!("{error}, found {}; allowed: {ALLOWED}", found(value)));
        }
        // No range: parses a single address, or returns its error.
        _ => socket_address(value, ALLOWED)?.into(),
    };
    if listen.ip().is_multicast() { Err(not_allowed(value, ALLOWED)) } else { Ok(listen) }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerAddress {
    /// Address of one server: `IP:port`, or `IP` with port 0.
    Ip(SocketAddr),
    /// `NAME:port` or `NAME` with port 0; the name is in lower case.
    Name(String, u16),
    /// `unix:/path` or `unix:@name`.
    Unix(UnixSocket),
}

impl ServerAddress {
    /// Whether connections keep the client's destination port, because the server has no port of
    /// its own.
    pub(super) fn keeps_port(&self) -> bool {
        match self {
            ServerAddress::Ip(addr) => addr.port() == 0,
            ServerAddress::Name(host, port) => *port == 0 && !is_service(host),
            ServerAddress::Unix(_) => false,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Ip(addr) => ServerAddr(*addr).fmt(f),
            ServerAddress::Name(host, 0) => f.write_str(host),
            ServerAddress::Name(host, port) => write!(f, "{host}:{port}"),
            ServerAddress::Unix(socket) => socket.fmt(f),
        }
    }
}

/// Allowed addresses of a server, for error messages.
const SERVER_ADDRESS: &str =
    "IP:port of one server, such as 10.0.0.1:80 or [2001:db8::1]:80, NAME:port, or unix:/PATH";

/// Parses the address of a server: an IP address or a host name. Without a port, connections keep
/// the port that the client connected to.
pub(super) fn server_address(value: &DeValue<'_>) -> Result<ServerAddress, String> {
    let text = value.as_str().unwrap_or_default();
    if is_host_name(text) {
        return Ok(ServerAddress::Name(text.to_ascii_lowercase(), 0));
    }
    // An IPv6 address without brackets is ambiguous: its last group may be meant as the port.
    let ip = match text.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
        Some(ip) => ip.parse().map(IpAddr::V6),
        None => text.parse().map(IpAddr::V4),
    };
    let Ok(ip) = ip else { return server_with_port(value) };
    let addr = SocketAddr::new(ip, 0);
    not_mapped(addr, value, SERVER_ADDRESS)?;
    one_machine(addr, value).map(ServerAddress::Ip)
}

/// Parses the address of a server with a port: an IP address or a host name.
pub(super) fn server_with_port(value: &DeValue<'_>) -> Result<ServerAddress, String> {
    const ALLOWED: &str = SERVER_ADDRESS;
    let refuse = |why: &str| Err(format!("{why}, found {}; allowed: {ALLOWED}", found(value)));
    let text = value.as_str().unwrap_or_default();
    if let Some(parsed) = unix_socket(text) {
        return parsed.map(ServerAddress::Unix).or_else(|why| refuse(&why));
    }
    if is_service(text) && is_host_name(text) {
        return Ok(ServerAddress::Name(text.to_ascii_lowercase(), 0));
    }
    if is_host_name(text) {
        return refuse("the port is missing");
    }
    if let Some((host, port)) = text.rsplit_once(':').filter(|(host, _)| is_host_name(host)) {
        return match port.parse() {
            Ok(_) if is_service(host) => {
                refuse("SRV records contain the port: write the name without a port")
            }
            Ok(port) if port != 0 => Ok(ServerAddress::Name(host.to_ascii_lowercase(), port)),
            _ => refuse("a port is 1 to 65535"),
        };
    }
    one_machine(socket_address(value, ALLOWED)?, value).map(ServerAddress::Ip)
}

/// Parses a unix socket; `None` if the text is meant as another address. The error is the beginning
/// of a sentence.
fn unix_socket(text: &str) -> Option<Result<UnixSocket, String>> {
    // Notations of HAProxy, and a path alone.
    let other = text.strip_prefix("unix@").or_else(|| text.starts_with('/').then_some(text));
    if let Some(path) = other {
        return Some(Err(format!("write a unix socket as \"unix:{path}\"")));
    }
    if let Some(name) = text.strip_prefix("abns@").or_else(|| text.strip_prefix("abnsz@")) {
        return Some(Err(format!("write an abstract unix socket as \"unix:@{name}\"")));
    }
    // `unix:80` is the port of a host that is named `unix`.
    let is_port = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix("unix:").filter(|rest| !is_port(rest))?;
    Some(text.parse().map_err(|why: UnixSocketError| why.to_string()))
}

fn one_machine(addr: SocketAddr, value: &DeValue<'_>) -> Result<SocketAddr, String> {
    if is_of_one_machine(addr.ip()) { Ok(addr) } else { Err(not_allowed(value, SERVER_ADDRESS)) }
}

/// Parses the address of a name server: an IP address, and a port unless the port is 53.
pub(super) fn name_server(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let text = value.as_str().unwrap_or_default();
    let addr = text.parse().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, 53))).ok();
    addr.filter(|addr| addr.port() != 0 && !addr.ip().is_unspecified()).ok_or_else(|| {
        not_allowed(value, "IP or IP:port of a name server, such as 10.0.0.53 or 127.0.0.1:8600")
    })
}

/// Parses a SNAT address: an address of this host that replaces the addresses of clients.
pub(super) fn snat_address(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let ip = value.as_str().and_then(|s| s.parse().ok());
    let usable = |ip: &IpAddr| {
        let mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        !mapped && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
    };
    ip.filter(usable)
        .ok_or_else(|| not_own_address(value, "an address of this host without a port, such as 10.0.0.1"))
}

/// Parses a source address: an address of this host for connections to servers.
pub(super) fn source_address(value: &DeValue<'_>) -> Result<IpAddr, String> {
    let ip: Option<IpAddr> = value.as_str().and_then(|s| s.parse().ok());
    // A link-local IPv6 address is usable only together with an interface.
    let usable =
        |ip: &IpAddr| is_of_one_machine(*ip) && !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    ip.filter(usable).ok_or_else(|| {
        not_own_address(value, "an address of this host without a port, such as 10.0.0.1 or 2001:db8::1")
    })
}

/// Error for a value that is no address of this host. If it is an address, the error names its kind.
fn not_own_address(value: &DeValue<'_>, allowed: &str) -> String {
    match value.as_str().and_then(unusable_kind) {
        Some(kind) => format!("found {} ({kind}); allowed: {allowed}", found(value)),
        None => not_allowed(value, allowed),
    }
}

/// Kind of an address from which this host cannot send to servers.
fn unusable_kind(text: &str) -> Option<String> {
    let (address, zone) = text.split_once('%').unzip();
    let ip: IpAddr = address.unwrap_or(text).parse().ok()?;
    let mapped = if let IpAddr::V6(ip) = ip { ip.to_ipv4_mapped() } else { None };
    Some(match ip {
        _ if zone.is_some() => "an address with a zone".to_owned(),
        _ if ip.is_unspecified() => "the wildcard address; without this key, the kernel chooses".to_owned(),
        _ if ip.is_multicast() => "a multicast address".to_owned(),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => "a link-local address".to_owned(),
        _ => format!("an IPv4-mapped address; write {}", mapped?),
    })
}

/// Parses a range of ports, such as `"33768-61000"`.
pub(super) fn snat_ports(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    range(value.as_str().unwrap_or_default())
        .filter(|(from, to)| *from > 0 && from <= to)
        .map(|(from, to)| from..=to)
        .ok_or_else(|| not_allowed(value, "a range of ports from 1 to 65535, such as \"33768-61000\""))
}

/// Parses a network or a single address.
pub(super) fn network(value: &DeValue<'_>) -> Result<Prefix, String> {
    network_or(value, "")
}

/// Parses a network or a single address. The error message also lists `others` as allowed.
pub(super) fn network_or(value: &DeValue<'_>, others: &str) -> Result<Prefix, String> {
    let text = value.as_str().unwrap_or_default();
    text.parse().map_err(|()| {
        let allowed = "a network, such as 10.0.0.0/8 (all bits after the prefix are zero), or an address";
        let meant = Prefix::around(text).map(|network| format!("; did you mean \"{network}\"?"));
        not_allowed(value, &format!("{allowed}{others}")) + &meant.unwrap_or_default()
    })
}

/// Parses the path and query of a health check.
pub(super) fn http_path(value: &DeValue<'_>) -> Result<String, String> {
    let path = value.as_str().filter(|path| {
        let parsed = path.parse::<PathAndQuery>().ok();
        path.starts_with('/') && path.is_ascii() && parsed.is_some_and(|parsed| parsed.as_str() == *path)
    });
    path.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "a path that begins with `/`, encoded as in a URL"))
}

/// Parses the `Host` of a health check: a name or an address, optionally with a port.
pub(super) fn http_host(value: &DeValue<'_>) -> Result<String, String> {
    let host = value.as_str().filter(|host| {
        let authority = host.parse::<Authority>().ok();
        authority.is_some_and(|authority| !authority.host().is_empty() && !host.contains('@'))
    });
    host.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "a host, such as www.example.org or app.internal:8080"))
}

/// Parses the name of a gRPC service.
pub(super) fn grpc_service(value: &DeValue<'_>) -> Result<String, String> {
    let name = value.as_str().filter(|name| name.len() <= 255 && !name.chars().any(char::is_control));
    name.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "the name of a service, such as shop.Cart, of at most 255 bytes"))
}

/// Parses a method. Refuses lower case, because `get` is another method than `GET`.
pub(super) fn method(value: &DeValue<'_>) -> Result<Box<str>, String> {
    let text = value.as_str().filter(|text| is_token(text.as_bytes()));
    match text {
        Some(text) if text.bytes().any(|byte| byte.is_ascii_lowercase()) => Err(format!(
            "found {}; methods are case-sensitive: did you mean {:?}?",
            found(value),
            text.to_uppercase()
        )),
        Some(text) => Ok(text.into()),
        None => Err(not_allowed(value, "a method, such as GET, or a list of methods")),
    }
}

/// Headers that users cannot set for a health check, because convey sets them: the headers of the
/// connection, the length and the destination.
const OWN_HEADERS: [&str; 7] =
    ["host", "connection", "content-length", "transfer-encoding", "expect", "te", "upgrade"];

/// Checks the name of a header for health checks. The error is the end of a sentence about the
/// name.
pub(super) fn header_name(name: &str) -> Result<(), String> {
    let Ok(parsed) = name.parse::<HeaderName>() else {
        return Err("is not a valid HTTP header name".to_owned());
    };
    match parsed.as_str() {
        "host" => Err("is set by the key `host` of the health check".to_owned()),
        own if OWN_HEADERS.contains(&own) => {
            Err("is a header of the connection, which convey sets itself".to_owned())
        }
        _ => Ok(()),
    }
}

/// Parses the value of a header.
pub(super) fn header_value(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().filter(|text| text.is_ascii() && text.parse::<HeaderValue>().is_ok());
    text.map(str::to_owned).ok_or_else(|| {
        // The value may be a secret, so the message does not quote it.
        let found = value
            .as_str()
            .map_or_else(|| found(value), |text| format!("{} characters", text.chars().count()));
        format!(
            "found {found}; allowed: a string of printable ASCII characters, without a newline at its end"
        )
    })
}

/// Parses a regular expression for the body of a response.
pub(super) fn body_pattern(value: &DeValue<'_>) -> Result<BodyPattern, String> {
    const EXAMPLE: &str = "^OK";
    // An empty expression would accept each body.
    if value.as_str() == Some("") {
        return Err(not_allowed(value, &a_regex(EXAMPLE)));
    }
    parsed_regex(value, EXAMPLE, BodyPattern::parse)
}

/// Parses a regular expression for values of requests. An error message has the example.
pub(super) fn regex(value: &DeValue<'_>, example: &str) -> Result<TextPattern, String> {
    parsed_regex(value, example, TextPattern::parse)
}

fn parsed_regex<P>(
    value: &DeValue<'_>,
    example: &str,
    parse: fn(&str) -> Result<P, TextPatternFault>,
) -> Result<P, String> {
    let allowed = a_regex(example);
    let text = value.as_str().ok_or_else(|| not_allowed(value, &allowed))?;
    parse(text).map_err(|why| format!("found {}: {why}; allowed: {allowed}", found(value)))
}

fn a_regex(example: &str) -> String {
    format!("a regular expression, such as {example:?}")
}

/// Parses HTTP status codes: `200`, `"200"` or `"200-399"`.
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

/// Both ends of a range `from-to`, without checks of their order.
fn range(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-')?;
    from.trim().parse().ok().zip(to.trim().parse().ok())
}

fn socket_address(value: &DeValue<'_>, allowed: &str) -> Result<SocketAddr, String> {
    let refuse = |why: &str| Err(format!("{why}, found {}; allowed: {allowed}", found(value)));
    let Some(text) = value.as_str() else { return Err(not_allowed(value, allowed)) };
    if let Ok(addr) = text.parse() {
        return concrete(addr, value, allowed);
    }
    if let Some(meant) = in_brackets(text) {
        let why = format!("an IPv6 address with a port needs brackets: did you mean `{meant}`?");
        Err(format!("{why} Found {}; allowed: {allowed}", found(value)))
    } else if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        refuse("the port is missing")
    } else {
        Err(not_allowed(value, allowed))
    }
}

/// Puts an IPv6 address without brackets into the notation with a port: `[IP]:PORT`. The last group
/// may be meant as the port or as a range of ports. `None` if the text is no such address.
fn in_brackets(text: &str) -> Option<String> {
    let is_address = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port != 0);
    if let Some((ip, ports)) = text.rsplit_once(':').filter(|(ip, _)| is_address(ip))
        && ports.splitn(2, '-').all(is_port)
    {
        return Some(format!("[{ip}]:{ports}"));
    }
    is_address(text).then(|| format!("[{text}]:PORT"))
}

/// Returns the address, unless its port is 0 or it is an IPv4-mapped address.
fn concrete(addr: SocketAddr, value: &DeValue<'_>, allowed: &str) -> Result<SocketAddr, String> {
    match addr.port() {
        0 => Err(format!("a port is 1 to 65535, found {}; allowed: {allowed}", found(value))),
        _ => not_mapped(addr, value, allowed).map(|()| addr),
    }
}

fn not_mapped(addr: SocketAddr, value: &DeValue<'_>, allowed: &str) -> Result<(), String> {
    match addr.ip() {
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            Err(format!("write an IPv4 address in IPv4 notation, found {}; allowed: {allowed}", found(value)))
        }
        _ => Ok(()),
    }
}

/// Whether the text is a valid host name (RFC 1123, section 2.1). Underscores are allowed, because
/// names of containers have them.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_number = name.rsplit('.').next().is_some_and(|last| last.chars().all(|c| c.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(is_label) && !is_number
}

pub(super) fn as_integer<T: TryFrom<i128>>(value: &DeValue<'_>) -> Option<T> {
    let integer = value.as_integer()?;
    let n = i128::from_str_radix(integer.as_str(), integer.radix()).ok()?;
    T::try_from(n).ok()
}

pub(super) fn not_allowed(value: &DeValue<'_>, allowed: &str) -> String {
    format!("found {}; allowed: {allowed}", found(value))
}
