//! One probe of one server.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::model::{HealthCheck, ProbeKind, is_shortage};

/// Why a probe failed, in words for an operator.
#[derive(Debug, Error)]
pub(super) enum ProbeError {
    #[error("no answer within {0:?}")]
    Timeout(std::time::Duration),
    #[error("connect failed: {0}")]
    Connect(std::io::Error),
    #[error("HTTP failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("HTTP status {found}, expected {}-{}", expected.start(), expected.end())]
    Status { found: u16, expected: RangeInclusive<u16> },
}

impl ProbeError {
    /// Whether the probe failed for want of something here, and so says nothing of the server.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, ProbeError::Connect(error) if is_shortage(error))
    }
}

/// Probes the server at `addr`; says what was seen.
pub(super) async fn probe(addr: SocketAddr, check: &HealthCheck) -> Result<String, ProbeError> {
    let target = SocketAddr::new(addr.ip(), check.port.unwrap_or(addr.port()));
    let attempt = async {
        match &check.kind {
            ProbeKind::None => Ok("not probed".to_owned()),
            ProbeKind::Tcp => tcp(target).await,
            ProbeKind::Http { path, expected_status } => http(target, path, expected_status).await,
        }
    };
    timeout(check.timeout, attempt).await.unwrap_or(Err(ProbeError::Timeout(check.timeout)))
}

async fn tcp(target: SocketAddr) -> Result<String, ProbeError> {
    let stream = TcpStream::connect(target).await.map_err(ProbeError::Connect)?;
    // A reset instead of a close: the probe leaves no TIME_WAIT behind, here or there.
    let _ = stream.set_zero_linger();
    Ok("connect succeeded".to_owned())
}

async fn http(target: SocketAddr, path: &str, expected: &RangeInclusive<u16>) -> Result<String, ProbeError> {
    let stream = TcpStream::connect(target).await.map_err(ProbeError::Connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path)
        .header(hyper::header::HOST, target.to_string())
        .header(hyper::header::USER_AGENT, concat!("convey/", env!("CARGO_PKG_VERSION"), " health check"))
        .header(hyper::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("the path was validated with the configuration");
    // Both run in this task, so that a probe that times out takes its connection with it.
    let response = sender.send_request(request);
    tokio::pin!(response, connection);
    let response = tokio::select! {
        response = &mut response => response?,
        closed = &mut connection => {
            closed?;
            response.await?
        }
    };
    let found = response.status().as_u16();
    if expected.contains(&found) {
        Ok(format!("HTTP status {found}"))
    } else {
        Err(ProbeError::Status { found, expected: expected.clone() })
    }
}
