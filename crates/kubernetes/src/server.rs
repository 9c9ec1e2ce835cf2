//! Connections to an API server, over HTTP/1.1 with or without TLS.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use convey_model::{Authorities, BackendTls, CertificatePair, TlsVersion};
use convey_tls::{SpokenWithin, TlsConnector};
use http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use http::{Request, Response, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::bounds::SILENCE;
use crate::client::Transport;
use crate::cluster::{chain, without_user};
use crate::credentials::Credentials;

/// Time limit for connecting, and for the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of an API server, and convey's credentials for it.
pub(crate) struct ApiAccess {
    pub(crate) url: Uri,
    /// Authorities for the server's certificate, in PEM; `None` means the authorities that this
    /// host trusts.
    pub(crate) authorities: Option<Vec<u8>>,
    /// Expected name in the server's certificate; `None` means the host of the URL.
    pub(crate) server_name: Option<String>,
    pub(crate) skip_verify: bool,
    pub(crate) identity: Option<PemIdentity>,
    pub(crate) credentials: Credentials,
    /// Additional header fields of each request.
    pub(crate) fields: HeaderMap,
}

/// Client certificate with its chain and its key, in PEM.
#[derive(Clone)]
pub(crate) struct PemIdentity {
    pub(crate) chain: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

/// HTTP client of an API server. It has at most one open connection.
pub(crate) struct ApiServer {
    /// Host of the URL; an IPv6 address has no brackets.
    host: String,
    port: u16,
    /// Path prefix of all requests, without a trailing slash.
    base: String,
    tls: Option<ApiTls>,
    credentials: Credentials,
    fields: HeaderMap,
    connection: Option<Connection>,
}

/// TLS settings for an API server.
struct ApiTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Open connection to the API server. Dropping it closes the connection.
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

/// Request that failed without an answer.
struct Unanswered {
    why: String,
    /// Whether the request failed before any byte of it was sent.
    is_unsent: bool,
}

impl ApiServer {
    /// Prepares connections to an API server.
    ///
    /// # Errors
    /// The URL or a TLS setting is wrong: operator-facing message.
    pub(crate) fn new(access: ApiAccess) -> Result<ApiServer, String> {
        let url = &access.url;
        let wrong = || format!("server {} is not an http or https URL", without_user(&url.to_string()));
        let (host, authority) = url.host().zip(url.authority()).ok_or_else(wrong)?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let (tls, default_port) = match url.scheme_str() {
            Some("https") => (Some(tls(&access, &host)?), 443),
            Some("http") => (None, 80),
            _ => return Err(wrong()),
        };
        let named = authority.as_str().rsplit('@').next().unwrap_or_default();
        let mut fields = access.fields;
        fields.insert(HOST, HeaderValue::from_str(named).map_err(|error| error.to_string())?);
        fields.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let port = url.port_u16().unwrap_or(default_port);
        let base = url.path().trim_end_matches('/').to_owned();
        Ok(ApiServer { host, port, base, tls, credentials: access.credentials, fields, connection: None })
    }

    async fn open(&self) -> Result<Connection, String> {
        let connected = timeout(CONNECT_TIMEOUT, convey_resolver::connect(&self.host, self.port)).await;
        let connected = connected.map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))?;
        let stream = connected.map_err(|error| error.to_string())?;
        let Some(ApiTls { config, name }) = &self.tls else { return speak(stream).await };
        let connector = tokio_rustls::TlsConnector::from(config.clone());
        let shaken = timeout(CONNECT_TIMEOUT, connector.connect(name.clone(), stream)).await;
        let shaken = shaken.map_err(|_| format!("TLS handshake not finished within {CONNECT_TIMEOUT:?}"))?;
        speak(shaken.map_err(|error| format!("TLS: {error}"))?).await
    }

    /// Sends a request over this connection. The connection is kept if the request is answered.
    async fn send(
        &mut self,
        mut connection: Connection,
        target: &str,
        authorization: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, Unanswered> {
        let failed = |why: String| Unanswered { why, is_unsent: false };
        let mut request = Request::new(Empty::new());
        let target = format!("{}{target}", self.base);
        *request.uri_mut() = target.parse().map_err(|error| failed(format!("{target}: {error}")))?;
        *request.headers_mut() = self.fields.clone();
        request.headers_mut().extend(authorization.map(|value| (AUTHORIZATION, value)));
        let answered = timeout(SILENCE, async {
            connection.sender.ready().await.map_err(|error| (error, true))?;
            connection.sender.send_request(request).await.map_err(|error| {
                let is_unsent = error.is_canceled();
                (error, is_unsent)
            })
        });
        let answered = answered.await.map_err(|_| failed(format!("no answer within {SILENCE:?}")))?;
        let unanswered = |(error, is_unsent)| Unanswered { why: chain(&error), is_unsent };
        let response = answered.map_err(unanswered)?;
        self.connection = Some(connection);
        Ok(response)
    }

    async fn ask(&mut self, target: &str) -> Result<Response<Incoming>, String> {
        let authorization = self.credentials.authorization().await?;
        if let Some(connection) = self.connection.take() {
            match self.send(connection, target, authorization.clone()).await {
                // The API server has closed the connection after its last answer, so the request is
                // repeated.
                Err(unanswered) if unanswered.is_unsent => {}
                answered => return answered.map_err(|unanswered| unanswered.why),
            }
        }
        let connection = self.open().await?;
        self.send(connection, target, authorization).await.map_err(|unanswered| unanswered.why)
    }
}

impl Transport for ApiServer {
    type Body = Incoming;

    async fn get(&mut self, target: &str) -> Result<Response<Incoming>, String> {
        let asked = self.ask(target).await;
        asked.map_err(|why| format!("{}: {why}", authority(&self.host, self.port)))
    }
}

/// Host and port in the format of a URL, with brackets around an IPv6 address. `host` has no
/// brackets.
pub(crate) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Connection, String> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| chain(&error))?;
    // The error is ignored here, because a failed request returns the same error.
    Ok(Connection { sender, driver: tokio::spawn(async move { drop(connection.await) }) })
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn tls(access: &ApiAccess, host: &str) -> Result<ApiTls, String> {
    let certificates = match &access.authorities {
        _ if access.skip_verify => Vec::new(),
        Some(pem) => convey_tls::certificates_of(pem)
            .map_err(|fault| format!("certificate authority of the cluster: {fault}"))?,
        None => convey_tls::authorities_of_host().map_err(|errors| {
            format!("the cluster names no certificate authority, and this host trusts none {errors}")
                .trim_end()
                .to_owned()
        })?,
    };
    let certificate = access.identity.as_ref().map(|PemIdentity { chain, key }| CertificatePair {
        chain_path: Default::default(),
        key_path: Default::default(),
        chain: chain.as_slice().into(),
        key: key.clone().into(),
    });
    let connector = TlsConnector::new(&BackendTls {
        authorities: Authorities { path: None, certificates: certificates.into() },
        server_name: None,
        certificate,
        skip_verify: access.skip_verify,
        min_version: TlsVersion::default(),
    });
    let name = access.server_name.as_deref().unwrap_or(host).trim_end_matches('.').to_owned();
    let name =
        ServerName::try_from(name.clone()).map_err(|_| format!("{name:?} is not a valid server name"))?;
    let config = connector.map_err(|fault| format!("TLS: {fault}"))?.config(SpokenWithin::Http1);
    Ok(ApiTls { config, name })
}

#[cfg(test)]
mod tests;
