//! A single probe of a server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket, UnixStream};
use tokio::time::{sleep, timeout};

use super::Finding;
use super::as_request::CheckRequest;
use super::grpc::{self, GrpcFault, printable};
use super::path::PathFault;
use super::reading::{BodyVerdict, BoundedStream, MAX_HEAD, MAX_REST, ReadBudget, check_body};
use super::tls::{self, TlsError};
use convey_http_core::{HeadLimits, Malformed, ServerFault};
use convey_model::{
    BodyPattern, CheckTls, CheckedRequests, GrpcCheck, HealthCheck, HttpCheck, HttpVersion, ProbeKind,
    UnixSocket,
};
use convey_proxy_protocol::local;
use convey_snapshot::{connect_error, is_shortage, source_error};
use convey_tls::SpokenWithin;

/// Random bytes of a probe's datagram. A probe with a signature ignores ICMP errors that do not
/// quote these bytes: see [`probe`].
pub(super) type Signature = [u8; 16];

/// Pause between two attempts to connect to a unix socket whose accept queue is full.
const UNIX_RETRY: Duration = Duration::from_millis(10);

/// Result of a probe that did not fail.
#[derive(Debug)]
pub(super) struct ProbeAnswer {
    pub(super) finding: Finding,
    /// Operator-facing message.
    pub(super) reason: String,
}

/// Source and target of a probe.
#[derive(Debug, Clone, Copy)]
struct ProbePath {
    target: SocketAddr,
    /// Local address to send from; `None`: the kernel chooses.
    from: Option<IpAddr>,
}

/// Settings of the backend's requests that HTTP and gRPC checks also use.
#[derive(Debug, Clone, Copy)]
struct AsRequests<'a> {
    tls: Option<&'a CheckTls>,
    requests: Option<&'a CheckedRequests>,
}

/// Reason why a probe failed; operator-facing message.
#[derive(Debug, Error)]
pub(super) enum ProbeError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("connect failed: {0}")]
    Connect(io::Error),
    #[error("datagram refused: {0}")]
    Udp(#[from] io::Error),
    #[error("HTTP failed: {0}")]
    Http(#[from] hyper::Error),
    // The error may quote up to 16 KiB that the server sent.
    #[error("HTTP/2 failed: {}", printable(&.0.to_string()))]
    Http2(#[from] h2::Error),
    #[error("HTTP/2 failed: the server answers in HTTP/1.1")]
    Http1Only,
    #[error("HTTP/2 failed: the server closed the connection")]
    Http2Closed,
    #[error("HTTP failed: {0}")]
    Broken(io::Error),
    #[error("invalid response (clients would get a 502): {}", .0.label())]
    Refused(ServerFault),
    #[error("the request of the check is malformed: {}", .0.label())]
    Own(Malformed),
    #[error("HTTP status {found}, expected {expected}")]
    Status { found: u16, expected: String },
    #[error("HTTP status {status}, but the body does not match {expected}{}", cut_words(*is_cut))]
    Body { status: u16, expected: BodyPattern, is_cut: bool },
    #[error("TLS failed: {0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Path(#[from] PathFault),
    #[error("the head of the response is longer than {} KiB", MAX_HEAD >> 10)]
    LongHead,
    #[error("the body does not match in the first {} KiB of the response", MAX_REST >> 10)]
    LongBody,
    #[error("the server sent more than {} KiB", (MAX_HEAD + MAX_REST) >> 10)]
    LongResponse,
    #[error(transparent)]
    Grpc(#[from] GrpcFault),
}

impl From<ServerFault> for ProbeError {
    fn from(fault: ServerFault) -> ProbeError {
        match fault {
            ServerFault::Closed => ProbeError::Broken(io::Error::other(
                "the server closed the connection before its response was complete",
            )),
            fault => ProbeError::Refused(fault),
        }
    }
}

fn cut_words(is_cut: bool) -> &'static str {
    if is_cut { " in its first 64 KiB" } else { "" }
}

impl ProbeError {
    /// Whether the probe failed because of this host, for example because it lacks ports. Then
    /// there is no finding about the server.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            ProbeError::Connect(error) | ProbeError::Udp(error) => is_shortage(error),
            ProbeError::Tls(error) => matches!(error, TlsError::NoAuthority(_) | TlsError::Setup(_)),
            ProbeError::Path(fault) => matches!(fault, PathFault::Ours(_)),
            ProbeError::Timeout(_)
            | ProbeError::Http(_)
            | ProbeError::Http2(_)
            | ProbeError::Http1Only
            | ProbeError::Http2Closed
            | ProbeError::Broken(_)
            | ProbeError::Refused(_)
            | ProbeError::Own(_)
            | ProbeError::LongHead
            | ProbeError::LongBody
            | ProbeError::LongResponse
            | ProbeError::Grpc(_)
            | ProbeError::Status { .. }
            | ProbeError::Body { .. } => false,
        }
    }

    /// Whether the server refused the probe immediately, because nothing listens on the port.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, ProbeError::Connect(error) | ProbeError::Udp(error)
            if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Probes the server at `addr`, and returns the finding.
///
/// Anyone can forge an ICMP error "port unreachable", and hit the probe by trying all local ports.
/// So a second probe with a `signature` confirms a refusal over UDP. The signature consists of
/// random bytes that a real refusal quotes, and that an attacker has not seen. With `from`, the
/// probe is sent from that local address; without it, from the source address of the check.
pub(super) async fn probe(
    addr: SocketAddr,
    check: &HealthCheck,
    signature: Option<Signature>,
    from: Option<IpAddr>,
) -> Result<ProbeAnswer, ProbeError> {
    let from = from.or_else(|| check.source_to(addr.ip()));
    let path = ProbePath { target: SocketAddr::new(addr.ip(), check.port.unwrap_or(addr.port())), from };
    let header = check.proxy_header_at(addr).map_or(&[][..], local);
    let attempt = async {
        let answer = match &check.kind {
            ProbeKind::None => Ok("not probed".to_owned()),
            ProbeKind::Tcp => tcp(path, header, check.tls_at(addr)).await,
            ProbeKind::Udp => udp(path, header, signature.as_ref().map_or(&[], |bytes| bytes)).await,
            ProbeKind::Http(http_check) => {
                let settings = AsRequests { tls: check.tls_at(addr), requests: check.requests_at(addr) };
                http(path, header, http_check, settings).await
            }
            ProbeKind::Grpc(grpc_check) => {
                let settings = AsRequests { tls: check.tls_at(addr), requests: check.requests_at(addr) };
                grpc(path, header, grpc_check, settings).await
            }
        };
        answer.map(|reason| ProbeAnswer { finding: Finding::Answer, reason })
    };
    let silence = match check.kind {
        ProbeKind::Udp => Ok(ProbeAnswer {
            finding: Finding::Silence,
            reason: format!("datagram not refused within {:?}", check.timeout),
        }),
        ProbeKind::None | ProbeKind::Tcp | ProbeKind::Http(_) | ProbeKind::Grpc(_) => {
            Err(ProbeError::Timeout(check.timeout))
        }
    };
    timeout(check.timeout, attempt).await.unwrap_or(silence)
}

/// Operator-facing reason why a single check failed.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct CheckFailed(ProbeError);

/// Checks a server once, without a schedule. Returns the outcome as an operator-facing message. If
/// this host cannot perform the check, the message of the reason is returned, too, because there is
/// no finding about the server.
///
/// # Errors
/// The server failed the check.
pub async fn check_once(addr: SocketAddr, check: &HealthCheck) -> Result<String, CheckFailed> {
    match probe(addr, check, None, None).await {
        Ok(seen) => Ok(seen.reason),
        Err(error) if error.is_ours() => Ok(format!("not checked: {error}")),
        Err(error) => Err(CheckFailed(error)),
    }
}

/// Connects to the server, and sends the PROXY header that the server expects.
async fn connect(ProbePath { target, from }: ProbePath, header: &[u8]) -> Result<TcpStream, ProbeError> {
    let connected = async {
        let mut stream = match (UnixSocket::of(target), from) {
            (Some(unix), _) => connect_unix(unix).await?,
            (None, None) => TcpStream::connect(target).await?,
            (None, Some(from)) => {
                let connected = socket_of(from)?.connect(target).await;
                connected.map_err(|error| connect_error(error, Some(from)))?
            }
        };
        stream.write_all(header).await?;
        io::Result::Ok(stream)
    };
    connected.await.map_err(ProbeError::Connect)
}

/// Connects to a unix socket. While the accept queue of the server is full, this tries again: the
/// time limit of the check ends it. The result is a `TcpStream` that wraps a unix socket, as in the
/// data path: reads and writes are the same system calls.
async fn connect_unix(unix: UnixSocket) -> io::Result<TcpStream> {
    let stream = loop {
        match UnixStream::connect(unix.path()).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(UNIX_RETRY).await,
            connected => break connected?,
        }
    };
    TcpStream::from_std(OwnedFd::from(stream.into_std()?).into())
}

/// Value of `Host` in checks without a configured host: the server's address, or `localhost` for a
/// unix socket.
fn default_host(target: SocketAddr) -> String {
    UnixSocket::of(target).map_or_else(|| target.to_string(), |_| "localhost".to_owned())
}

/// Socket that will connect from the address `from`. The kernel chooses the port later, together
/// with the server's address, so checks of different servers can use the same port
/// (`IP_BIND_ADDRESS_NO_PORT`, ip(7)).
fn socket_of(from: IpAddr) -> io::Result<TcpSocket> {
    let socket = if from.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    socket.bind(SocketAddr::new(from, 0)).map_err(|error| source_error(error, from))?;
    Ok(socket)
}

async fn tcp(path: ProbePath, header: &[u8], check: Option<&CheckTls>) -> Result<String, ProbeError> {
    let stream = connect(path, header).await?;
    if let Some(check) = check {
        let stream = tls::connect_as_backend(stream, path.target.ip(), check, SpokenWithin::Bytes).await?;
        let _ = stream.get_ref().0.set_zero_linger();
        return Ok("TLS handshake succeeded".to_owned());
    }
    // Closes with a reset, so that no TIME_WAIT remains on either side.
    let _ = stream.set_zero_linger();
    Ok("connect succeeded".to_owned())
}

async fn udp_socket(from: IpAddr) -> io::Result<UdpSocket> {
    UdpSocket::bind((from, 0)).await.map_err(|error| source_error(error, from))
}

/// Sends a datagram, and returns when it is answered or refused. Usually neither happens.
async fn udp(
    ProbePath { target, from }: ProbePath,
    header: &[u8],
    signature: &[u8],
) -> Result<String, ProbeError> {
    let socket = if target.is_ipv4() {
        let socket = udp_socket(from.unwrap_or(Ipv4Addr::UNSPECIFIED.into())).await?;
        setsockopt(&socket, sockopt::Ipv4RecvErr, &true).map_err(io::Error::from)?;
        socket
    } else {
        let socket = udp_socket(from.unwrap_or(Ipv6Addr::UNSPECIFIED.into())).await?;
        setsockopt(&socket, sockopt::Ipv6RecvErr, &true).map_err(io::Error::from)?;
        socket
    };
    socket.connect(target).await.map_err(|error| connect_error(error, from))?;
    let datagram = [header, signature].concat();
    let is_made_up = |error: &io::Error| {
        !signature.is_empty() && error.kind() != io::ErrorKind::WouldBlock && !quotes(&socket, &datagram)
    };
    // A forged error may arrive before anything is sent.
    while let Err(error) = socket.send(&datagram).await {
        if is_shortage(&error) || error.kind() != io::ErrorKind::ConnectionRefused || !is_made_up(&error) {
            return Err(error.into());
        }
    }
    loop {
        match socket.recv(&mut [0]).await {
            Ok(_) => return Ok("datagram answered".to_owned()),
            Err(error) if is_made_up(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether one of the pending errors quotes this signed datagram. Reads all pending errors.
fn quotes(socket: &UdpSocket, datagram: &[u8]) -> bool {
    let mut quoted = [0; 64];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let mut found = false;
    while let Ok(len) = nix::sys::socket::recv(socket.as_raw_fd(), &mut quoted, flags) {
        found |= quoted[..len.min(quoted.len())].starts_with(datagram);
    }
    found
}

async fn http(
    path: ProbePath,
    header: &[u8],
    check: &HttpCheck,
    AsRequests { tls: of_backend, requests }: AsRequests<'_>,
) -> Result<String, ProbeError> {
    let within = requests.map(|requests| match requests.version {
        HttpVersion::H1 => SpokenWithin::Http1,
        HttpVersion::H2 => SpokenWithin::Http2,
        HttpVersion::Auto => SpokenWithin::Http,
    });
    let target = path.target;
    let (ip, stream) = (target.ip(), connect(path, header).await?);
    let stream = match (check.tls, of_backend) {
        (None, None) => {
            let found = exchange_request(stream, target, check, requests, false).await?;
            return Ok(format!("HTTP status {found}"));
        }
        (Some(tls), _) => {
            tls::connect(stream, ip, check, (tls, within.unwrap_or(SpokenWithin::Bytes))).await?
        }
        (None, Some(tls)) => {
            tls::connect_as_backend(stream, ip, tls, within.unwrap_or(SpokenWithin::Http1)).await?
        }
    };
    let chose_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok(format!("HTTPS status {}", exchange_request(stream, target, check, requests, chose_http2).await?))
}

async fn grpc(
    path: ProbePath,
    header: &[u8],
    check: &GrpcCheck,
    AsRequests { tls, requests }: AsRequests<'_>,
) -> Result<String, ProbeError> {
    let address = default_host(path.target);
    let host = check.host.as_deref().unwrap_or(&address);
    let limits = requests.map_or(HeadLimits::OF_RESPONSES, |requests| requests.response_head);
    let stream = connect(path, header).await?;
    let Some(tls) = tls else { return grpc::call(stream, check, host, &limits).await };
    let stream = tls::connect_as_backend(stream, path.target.ip(), tls, SpokenWithin::Http2).await?;
    grpc::call(stream, check, host, &limits).await
}

/// Sends the check's request over a stream. Returns the status of the response if the check accepts
/// the status and the body.
async fn exchange_request<S>(
    stream: S,
    target: SocketAddr,
    check: &HttpCheck,
    requests: Option<&CheckedRequests>,
    chose_http2: bool,
) -> Result<u16, ProbeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let address = default_host(target);
    let host = check.host.as_deref().unwrap_or(&address);
    let Some(requests) = requests else { return exchange_leniently(stream, host, check).await };
    let request = CheckRequest { check, host, requests };
    match requests.version {
        HttpVersion::H2 => request.by_http2(stream).await,
        HttpVersion::Auto if chose_http2 => request.by_http2(stream).await,
        HttpVersion::H1 | HttpVersion::Auto => request.by_http1(stream).await,
    }
}

/// Sends the check's request to a server that mode `http` does not use, and returns the status of
/// the response. Clients of the other modes read responses themselves, and accept more responses
/// than the reader of mode `http`. So this check also accepts more responses than
/// `exchange_request`.
async fn exchange_leniently<S>(stream: S, host: &str, check: &HttpCheck) -> Result<u16, ProbeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let budget = ReadBudget::new(MAX_HEAD);
    let stream = BoundedStream { stream, budget: budget.clone() };
    let mut client = hyper::client::conn::http1::Builder::new();
    let (mut sender, connection) = client.max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await?;
    // Both futures run in this task, so that a timeout of the probe drops both.
    let answer = async {
        let response = sender.send_request(request(host, check)).await;
        let response = response.map_err(|error| budget.blame(ProbeError::LongHead, error))?;
        budget.set(MAX_REST);
        let status = response.status().as_u16();
        if !check.expects(status) {
            return Err(ProbeError::Status { found: status, expected: check.statuses() });
        }
        if let Some(pattern) = &check.expected_body {
            let verdict = check_body(pattern, response.into_body()).await;
            let verdict = verdict.map_err(|error| budget.blame(ProbeError::LongBody, error))?;
            if let BodyVerdict::Differs { is_cut } = verdict {
                return Err(ProbeError::Body { status, expected: pattern.clone(), is_cut });
            }
        }
        Ok(status)
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        answer = &mut answer => answer,
        closed = &mut connection => match (answer.await, closed) {
            (Err(ProbeError::Http(_)), Err(why)) => Err(why.into()),
            (answer, _) => answer,
        },
    }
}

impl ReadBudget {
    /// Returns `too_long` if the response has used up the budget; otherwise converts `error`.
    fn blame(&self, too_long: ProbeError, error: hyper::Error) -> ProbeError {
        if self.is_used_up() { too_long } else { error.into() }
    }
}

pub(super) fn request(host: &str, check: &HttpCheck) -> Request<Empty<Bytes>> {
    let mut request = Request::get(&check.path)
        .header(hyper::header::HOST, host)
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("path and host were validated with the configuration");
    put_headers(&check.headers, request.headers_mut());
    request
}

/// Adds the `User-Agent` of health checks and the configured headers. A configured `User-Agent`
/// replaces the default one.
pub(super) fn put_headers(configured: &[(String, String)], headers: &mut HeaderMap) {
    const NAME: &str = concat!("convey/", env!("CARGO_PKG_VERSION"), " health check");
    headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
    for (name, value) in configured {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn check_from_a_named_address_takes_no_port_before_it_connects() {
        let socket = socket_of(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(socket.local_addr().unwrap().port(), 0);
    }
}
