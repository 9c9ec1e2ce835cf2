//! TLS of health checks, with the TLS settings of the backend or of an HTTPS check.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use http::uri::Authority;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector as Handshake;
use tokio_rustls::client::TlsStream;

use convey_config::files;
use convey_model::{Authorities, BackendTls, CheckTls, HttpCheck, TlsCheck, TlsVersion};
use convey_tls::{NoAuthorities, SpokenWithin, TlsConnector, TlsFault, server_name};

/// Reason why a TLS handshake with a server failed; operator-facing message.
#[derive(Debug, Error)]
pub(super) enum TlsError {
    #[error("{0}")]
    Handshake(io::Error),
    #[error("no certificate authority is installed on this host (package ca-certificates){}", because(.0))]
    NoAuthority(NoAuthorities),
    #[error("{0}")]
    Name(rustls::Error),
    #[error("{0}")]
    Setup(TlsFault),
}

/// Errors of reading the authorities, as the end of a message; nothing if there were none.
fn because(errors: &NoAuthorities) -> String {
    let errors = errors.to_string();
    if errors.is_empty() { errors } else { format!(": {errors}") }
}

/// Performs the TLS handshake of an HTTPS check with the server at `ip`. The certificate must be
/// valid for the host of the check, or for `ip` if the check has no host.
pub(super) async fn connect(
    stream: TcpStream,
    ip: IpAddr,
    check: &HttpCheck,
    (tls, within): (TlsCheck, SpokenWithin),
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = server_name(host(check), ip).map_err(TlsError::Name)?;
    let connector = match tls.skip_verify {
        true => UNVERIFIED.clone().map_err(TlsError::Setup)?,
        false => verified().await?,
    };
    perform_handshake(stream, name, connector.config(within)).await
}

/// Performs a TLS handshake with the TLS settings of the backend.
pub(super) async fn connect_as_backend(
    stream: TcpStream,
    ip: IpAddr,
    check: &CheckTls,
    within: SpokenWithin,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = server_name(check.name.as_deref(), ip).map_err(TlsError::Name)?;
    let connector = connector_of(&check.tls).map_err(TlsError::Setup)?;
    perform_handshake(stream, name, connector.config(within)).await
}

async fn perform_handshake(
    stream: TcpStream,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, TlsError> {
    Handshake::from(config).connect(name, stream).await.map_err(TlsError::Handshake)
}

/// Host of the check without its port; `None`: the check has no host.
fn host(check: &HttpCheck) -> Option<&str> {
    let host = check.host.as_deref()?;
    let without_port = match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && host.parse::<Authority>().is_ok() =>
        {
            name
        }
        _ => host,
    };
    Some(without_port.trim_matches(['[', ']']))
}

/// Connector for these settings, cached for as long as the settings are in use.
fn connector_of(settings: &Arc<BackendTls>) -> Result<Arc<TlsConnector>, TlsFault> {
    static MADE: Mutex<Vec<(Weak<BackendTls>, Arc<TlsConnector>)>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = made.iter().find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(settings))) {
        return Ok(known.clone());
    }
    made.retain(|(of, _)| of.strong_count() > 0);
    let new = Arc::new(TlsConnector::new(settings)?);
    made.push((Arc::downgrade(settings), new.clone()));
    Ok(new)
}

/// Connector that trusts the certificate authorities of this host. The authorities are read once,
/// for the first check that needs them.
async fn verified() -> Result<Arc<TlsConnector>, TlsError> {
    static VERIFIED: OnceCell<Arc<TlsConnector>> = OnceCell::const_new();
    let connector = VERIFIED.get_or_try_init(|| async {
        let found = files::aside(convey_tls::authorities_of_host).await;
        let found = found.unwrap_or_else(|| Err(NoAuthorities::default())).map_err(TlsError::NoAuthority)?;
        settings(found.into(), false).map_err(TlsError::Setup)
    });
    connector.await.cloned()
}

static UNVERIFIED: LazyLock<Result<Arc<TlsConnector>, TlsFault>> =
    LazyLock::new(|| settings(Arc::default(), true));

fn settings(certificates: Arc<[Vec<u8>]>, skip_verify: bool) -> Result<Arc<TlsConnector>, TlsFault> {
    let connector = TlsConnector::new(&BackendTls {
        authorities: Authorities { path: None, certificates },
        server_name: None,
        certificate: None,
        skip_verify,
        min_version: TlsVersion::default(),
    })?;
    Ok(Arc::new(connector))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_the_host_of_the_check_without_its_port() {
        let name = |host: Option<&str>| {
            let check = HttpCheck { host: host.map(str::to_owned), ..HttpCheck::default() };
            server_name(self::host(&check), [10, 0, 0, 1].into()).map(|name| name.to_str().into_owned())
        };
        for (host, expected) in [
            (None, "10.0.0.1"),
            (Some("www.example.org"), "www.example.org"),
            (Some("app.internal:8443"), "app.internal"),
            (Some("[::1]:443"), "::1"),
            (Some("[::1]"), "::1"),
        ] {
            assert_eq!(name(host).unwrap(), expected);
        }
        assert!(name(Some("a b")).is_err());
    }
}
