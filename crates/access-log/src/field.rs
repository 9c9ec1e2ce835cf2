//! Fields of an access log line. Pure.

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_millis;

use super::{LoggedRequest, LoggedTls, Record, ServedBy};

macro_rules! fields {
    ($($variant:ident, $name:literal, $doc:literal;)+) => {
        /// Field of an access log line.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Field {
            $(#[doc = $doc] $variant,)+
        }

        impl Field {
            /// All fields, in the order of a JSON line.
            pub const ALL: &[Field] = &[$(Field::$variant),+];

            /// Name in templates and in JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Field::$variant => $name,)+
                }
            }
        }
    };
}

fields! {
    Time, "time", "Time of the end.";
    StartTime, "start_time", "Time of the start.";
    Mode, "mode", "Mode of the frontend.";
    Protocol, "protocol", "TCP or UDP.";
    ClientAddr, "client_addr", "The client's address and port.";
    ClientIp, "client_ip", "The client's address.";
    ClientPort, "client_port", "The client's port.";
    ProxyAddr, "proxy_addr", "The address and port of the proxy whose PROXY header, or `X-Forwarded-For`, names the client.";
    Frontend, "frontend", "The frontend's name.";
    ListenAddr, "listen_addr", "The address and port that the client connected to.";
    ListenIp, "listen_ip", "The address that the client connected to.";
    ListenPort, "listen_port", "The port that the client connected to.";
    Backend, "backend", "The backend's name.";
    Server, "server", "`backend/server`.";
    ServerAddr, "server_addr", "The server's address and port.";
    BytesRx, "bytes_rx", "Bytes from the client.";
    BytesTx, "bytes_tx", "Bytes to the client.";
    QueueMs, "queue_ms", "Milliseconds of waiting for a connection slot and a server.";
    ConnectMs, "connect_ms", "Milliseconds until a server had accepted, retries included.";
    TotalMs, "total_ms", "Milliseconds from the start to the end.";
    Retries, "retries", "Further servers that were tried.";
    Termination, "termination", "Outcome.";
    Reason, "reason", "Reason of an early end.";
    TlsVersion, "tls_version", "TLS version between client and convey.";
    TlsCipher, "tls_cipher", "The cipher suite.";
    TlsClient, "tls_client", "The subject of the client's certificate.";
    Sni, "sni", "The server name that a TLS client sent, if convey terminates TLS or routes by the name.";
    Route, "route", "The matching route (frontends with routes).";
    Method, "method", "The request's method (mode http, like all fields below).";
    Host, "host", "The host that the request is for.";
    Target, "target", "The request's path and query.";
    Status, "status", "The status that the client got.";
    AnsweredBy, "answered_by", "Source of the response: `server` or `convey`.";
    Phase, "phase", "The phase in which the request ended early or got a local reply.";
    HttpVersion, "http_version", "HTTP version of the client: `1.0`, `1.1`, `2` or `3`.";
    TraceId, "trace_id", "The trace that the request belongs to (W3C Trace Context).";
    Compression, "compression", "Compression by convey: `zstd`, `br` or `gzip`.";
}

/// Value of a field.
pub(super) enum Value<'a> {
    /// Unknown or missing value.
    None,
    Word(&'a str),
    /// Two names: `backend/server`.
    Names(&'a str, &'a str),
    /// Address with port, which needs no quotes.
    Address(SocketAddr),
    Ip(IpAddr),
    Time(SystemTime),
    Number(u64),
    Milliseconds(Duration),
}

impl Field {
    /// Value of this field in `record`. `ended` is the wall-clock time at which the connection
    /// ended.
    pub(super) fn of(self, record: &Record, ended: SystemTime) -> Value<'_> {
        let time = |time: Option<Duration>| time.map_or(Value::None, Value::Milliseconds);
        let bytes = |bytes: Option<u64>| bytes.map_or(Value::None, Value::Number);
        match self {
            Field::Time => Value::Time(ended),
            Field::StartTime => Value::Time(ended.checked_sub(record.total).unwrap_or(ended)),
            Field::Mode => Value::Word(record.mode.name()),
            Field::Protocol => Value::Word(record.protocol.name()),
            Field::ClientAddr => Value::Address(record.client),
            Field::ClientIp => Value::Ip(record.client.ip()),
            Field::ClientPort => Value::Number(record.client.port().into()),
            Field::ProxyAddr => record.proxy.map_or(Value::None, Value::Address),
            Field::Frontend => Value::Word(&record.frontend),
            Field::ListenAddr => Value::Address(record.listen),
            Field::ListenIp => Value::Ip(record.listen.ip()),
            Field::ListenPort => Value::Number(record.listen.port().into()),
            Field::Backend => Value::Word(&record.backend),
            Field::Server => match &record.server {
                Some(ServedBy { name, .. }) => Value::Names(&record.backend, name),
                None => Value::None,
            },
            Field::ServerAddr => {
                record.server.as_ref().map_or(Value::None, |server| Value::Address(server.addr))
            }
            Field::BytesRx => bytes(record.bytes_rx),
            Field::BytesTx => bytes(record.bytes_tx),
            Field::QueueMs => time(record.queued),
            Field::ConnectMs => time(record.connect),
            Field::TotalMs => time(Some(record.total)),
            Field::Retries => Value::Number(record.retries.into()),
            Field::Termination => Value::Word(record.termination.name()),
            Field::Reason => record.reason.map_or(Value::None, Value::Word),
            Field::TlsVersion | Field::TlsCipher | Field::TlsClient => {
                record.tls.as_deref().map_or(Value::None, |tls| self.of_tls(tls))
            }
            Field::Sni => {
                let of_hello = record.hello.as_ref().and_then(|hello| hello.sni.as_deref());
                let of_tls = record.tls.as_ref().map(|tls| &*tls.server_name).filter(|name| !name.is_empty());
                of_hello.or(of_tls).map_or(Value::None, Value::Word)
            }
            Field::Route => {
                let of_request = record.request.as_ref().and_then(|request| request.route.as_deref());
                let of_hello = record.hello.as_ref().and_then(|hello| hello.route.as_deref());
                of_request.or(of_hello).map_or(Value::None, Value::Word)
            }
            of_request => {
                record.request.as_deref().map_or(Value::None, |request| of_request.of_request(request))
            }
        }
    }

    /// Whether records of this kind have this field. Some fields exist only for requests, for
    /// routed connections, or for TLS connections.
    pub(super) fn is_for(self, record: &Record) -> bool {
        use Field::{
            AnsweredBy, Compression, Host, HttpVersion, Method, Phase, Route, Sni, Status, Target, TraceId,
        };
        use Field::{TlsCipher, TlsClient, TlsVersion};
        match self {
            Method | Host | Target | Status | AnsweredBy | Phase | HttpVersion | TraceId | Compression => {
                record.request.is_some()
            }
            TlsVersion | TlsCipher | TlsClient => record.tls.is_some(),
            Sni => record.tls.is_some() || record.hello.is_some(),
            Route => record.request.is_some() || record.hello.is_some(),
            _ => true,
        }
    }

    fn of_tls(self, tls: &LoggedTls) -> Value<'_> {
        let said = match self {
            Field::TlsVersion => tls.version,
            Field::TlsCipher => &tls.cipher_suite,
            _ => &tls.client_subject,
        };
        if said.is_empty() { Value::None } else { Value::Word(said) }
    }

    fn of_request(self, request: &LoggedRequest) -> Value<'_> {
        match self {
            Field::Method => Value::Word(&request.method),
            Field::Host => Value::Word(&request.host),
            Field::Target => Value::Word(&request.target),
            Field::Phase => request.phase.map_or(Value::None, Value::Word),
            Field::HttpVersion => Value::Word(request.version),
            Field::TraceId => request.trace_id.as_deref().map_or(Value::None, Value::Word),
            Field::Compression => request.compression.map_or(Value::None, Value::Word),
            Field::Status => request.status.map_or(Value::None, |status| Value::Number(status.into())),
            Field::AnsweredBy if request.status.is_some() => {
                Value::Word(if request.is_answered_here { "convey" } else { "server" })
            }
            _ => Value::None,
        }
    }
}

impl Value<'_> {
    /// Writes the value as text. A missing value is written as `-`.
    pub(super) fn write_text(&self, out: &mut String) -> fmt::Result {
        match self {
            Value::None => out.write_char('-'),
            Value::Word(word) => write_word(out, &[word]),
            Value::Names(backend, server) => write_word(out, &[backend, "/", server]),
            Value::Address(SocketAddr::V4(addr)) => {
                write_ip(out, (*addr.ip()).into())?;
                out.push(':');
                write_number(out, addr.port().into());
                Ok(())
            }
            Value::Address(addr @ SocketAddr::V6(_)) => write!(out, "{addr}"),
            Value::Ip(ip) => write_ip(out, *ip),
            Value::Time(time) => write!(out, "{}", format_rfc3339_millis(*time)),
            Value::Number(n) => {
                write_number(out, *n);
                Ok(())
            }
            Value::Milliseconds(time) => {
                write_milliseconds(out, *time);
                Ok(())
            }
        }
    }

    /// Writes the value as JSON. A missing value is written as `null`.
    pub(super) fn write_json(&self, out: &mut String) -> fmt::Result {
        match self {
            Value::None => out.write_str("null"),
            Value::Word(word) => write_string(out, &[word]),
            Value::Names(backend, server) => write_string(out, &[backend, "/", server]),
            Value::Number(_) | Value::Milliseconds(_) => self.write_text(out),
            Value::Address(_) | Value::Ip(_) | Value::Time(_) => {
                out.write_char('"')?;
                self.write_text(out)?;
                out.write_char('"')
            }
        }
    }
}

/// Writes a text. The text is quoted if it is not a single word, or if it looks like a missing
/// value: names from DNS may contain any characters.
fn write_word(out: &mut String, parts: &[&str]) -> fmt::Result {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'=';
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=';
    // Nearly all names are ASCII, where a check of bytes is faster than one of characters.
    let is_one_word = |part: &&str| part.bytes().all(is_plain) || !part.contains(is_odd);
    if !parts.iter().all(is_one_word) || matches!(parts, ["" | "-"]) {
        return write!(out, "{:?}", parts.concat());
    }
    parts.iter().for_each(|part| out.push_str(part));
    Ok(())
}

fn write_string(out: &mut String, parts: &[&str]) -> fmt::Result {
    let needs_no_escape = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if !parts.iter().all(|part| part.bytes().all(needs_no_escape)) {
        out.push_str(&serde_json::to_string(&parts.concat()).map_err(|_| fmt::Error)?);
        return Ok(());
    }
    out.push('"');
    parts.iter().for_each(|part| out.push_str(part));
    out.push('"');
    Ok(())
}

/// Writes an address like `Display` does, but faster for IPv4.
fn write_ip(out: &mut String, ip: IpAddr) -> fmt::Result {
    let IpAddr::V4(ip) = ip else { return write!(out, "{ip}") };
    for (n, octet) in ip.octets().into_iter().enumerate() {
        if n > 0 {
            out.push('.');
        }
        write_number(out, octet.into());
    }
    Ok(())
}

fn write_number(out: &mut String, n: u64) {
    out.push_str(itoa::Buffer::new().format(n));
}

/// Formats milliseconds with three decimals.
fn write_milliseconds(out: &mut String, time: Duration) {
    write_number(out, time.as_secs().saturating_mul(1_000).saturating_add(time.subsec_millis().into()));
    let micros = time.subsec_micros() % 1_000;
    out.push('.');
    out.push_str(if micros < 10 {
        "00"
    } else if micros < 100 {
        "0"
    } else {
        ""
    });
    write_number(out, micros.into());
}
