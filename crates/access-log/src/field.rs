//! Fields of an access log line. Pure.

use std::io::Write;
use std::time::Duration;

use super::style::Style;
use super::{LoggedRequest, LoggedTls, Record};
use convey_model::UnixSocket;

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
    ServerAddr, "server_addr", "The server's address and port, or its unix socket.";
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

impl Field {
    /// Writes the value of this field in `record`. `ended` is the time at which the connection
    /// ended, counted from 1970.
    #[inline]
    pub(super) fn write<S: Style>(self, to: &mut S, record: &Record<'_>, ended: Duration) {
        match self {
            Field::Time => to.with(|line| line.time(ended)),
            Field::StartTime => to.with(|line| line.time(ended.saturating_sub(record.total))),
            Field::Mode => to.keyword(record.mode.name()),
            Field::Protocol => to.keyword(record.protocol.name()),
            Field::ClientAddr => to.with(|line| line.addr(record.client)),
            Field::ClientIp => to.with(|line| line.ip(record.client.ip())),
            Field::ClientPort => to.number(|line| line.number(record.client.port().into())),
            Field::ProxyAddr => optional(to, record.proxy, |to, proxy| to.with(|line| line.addr(proxy))),
            Field::Frontend => to.word(record.frontend.as_bytes()),
            Field::ListenAddr => to.with(|line| line.addr(record.listen)),
            Field::ListenIp => to.with(|line| line.ip(record.listen.ip())),
            Field::ListenPort => to.number(|line| line.number(record.listen.port().into())),
            Field::Backend => to.word(record.backend.as_bytes()),
            Field::Server => optional(to, record.server, |to, server| {
                to.names(record.backend, server.name);
            }),
            Field::ServerAddr => {
                optional(to, record.server, |to, server| match UnixSocket::of(server.addr) {
                    Some(socket) => to.word(socket.text().as_bytes()),
                    None => to.with(|line| line.addr(server.addr)),
                });
            }
            Field::BytesRx => optional(to, record.bytes_rx, |to, n| to.number(|line| line.number(n))),
            Field::BytesTx => optional(to, record.bytes_tx, |to, n| to.number(|line| line.number(n))),
            Field::QueueMs => optional(to, record.queued, write_milliseconds),
            Field::ConnectMs => optional(to, record.connect, write_milliseconds),
            Field::TotalMs => write_milliseconds(to, record.total),
            Field::Retries => to.number(|line| line.number(record.retries.into())),
            Field::Termination => to.keyword(record.termination.name()),
            Field::Reason => optional(to, record.reason, S::keyword),
            Field::TlsVersion | Field::TlsCipher | Field::TlsClient => {
                optional(to, record.tls, |to, tls| self.write_of_tls(to, tls));
            }
            Field::Sni => {
                let of_hello = record.hello.and_then(|hello| hello.sni);
                let of_tls = record.tls.map(|tls| &*tls.server_name).filter(|name| !name.is_empty());
                write_name(to, of_hello.or(of_tls));
            }
            Field::Route => {
                let of_request = record.request.as_ref().and_then(|request| request.route);
                write_name(to, of_request.or(record.hello.and_then(|hello| hello.route)));
            }
            of_request => {
                optional(to, record.request.as_ref(), |to, request| of_request.write_of_request(to, request));
            }
        }
    }

    /// Whether records of this kind have this field. Some fields exist only for requests, for
    /// routed connections, or for TLS connections.
    pub(super) fn is_for(self, record: &Record<'_>) -> bool {
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

    fn write_of_tls(self, to: &mut impl Style, tls: &LoggedTls) {
        let value = match self {
            Field::TlsVersion => tls.version,
            Field::TlsCipher => &tls.cipher_suite,
            _ => &tls.client_subject,
        };
        write_name(to, Some(value).filter(|value| !value.is_empty()));
    }

    #[inline]
    fn write_of_request<S: Style>(self, to: &mut S, request: &LoggedRequest<'_>) {
        match self {
            Field::Method => write_word(to, request.method),
            Field::Host => write_word(to, request.host),
            Field::Target => write_word(to, request.target),
            Field::Phase => optional(to, request.phase, S::keyword),
            Field::HttpVersion => to.keyword(request.version),
            Field::TraceId => optional(to, request.trace_id, |to, id| {
                to.with(|line| drop(write!(line.out, "{id:032x}")));
            }),
            Field::Compression => optional(to, request.compression, S::keyword),
            Field::Status => {
                optional(to, request.status, |to, status| to.number(|line| line.number(status.into())));
            }
            Field::AnsweredBy if request.status.is_some() => {
                to.keyword(if request.is_answered_here { "convey" } else { "server" });
            }
            _ => to.none(),
        }
    }
}

#[inline]
fn optional<S: Style, T>(to: &mut S, value: Option<T>, write: impl FnOnce(&mut S, T)) {
    match value {
        Some(value) => write(to, value),
        None => to.none(),
    }
}

fn write_milliseconds(to: &mut impl Style, time: Duration) {
    to.number(|line| line.milliseconds(time));
}

/// Writes a part of a request's head, which is empty if convey could not read the head.
#[inline]
fn write_word<S: Style>(to: &mut S, word: &[u8]) {
    optional(to, Some(word).filter(|word| !word.is_empty()), S::word);
}

fn write_name(to: &mut impl Style, name: Option<&str>) {
    optional(to, name, |to, name| to.word(name.as_bytes()));
}
