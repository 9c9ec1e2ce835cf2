//! HTTP client for an ACME authority. Each request has its own connection, a time limit, and a size
//! limit for the response.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use convey_model::{Authorities, BackendTls, TlsVersion};
use convey_tls::{SpokenWithin, TlsConnector, TlsFault};
use http::header::{HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error as ThisError;
use tokio::time::timeout;

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of an answer in bytes. A certificate chain has some kilobytes.
const MAX_ANSWER: usize = 1 << 20;

/// `User-Agent` of requests.
const AGENT: &str = concat!("convey/", env!("CARGO_PKG_VERSION"), " instant-acme");

/// Reason why an order failed.
#[derive(Debug, ThisError)]
#[error("{what}")]
pub struct OrderFault {
    /// Operator-facing message.
    pub what: String,
    /// Number of seconds that the authority requested to wait before the next attempt
    /// (`Retry-After`); `None` if it requested no delay.
    pub retry_after: Option<u64>,
}

/// Number of seconds in `Retry-After` of the last error response.
#[derive(Debug, Clone, Default)]
pub(crate) struct AskedToWait(Arc<Mutex<Option<u64>>>);

impl AskedToWait {
    pub(crate) fn take(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note<B>(&self, response: &Response<B>) {
        if response.status().is_client_error() || response.status().is_server_error() {
            let value = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
                value.and_then(|value| value.trim().parse().ok());
        }
    }
}

/// HTTP client that the ACME library uses.
pub(crate) struct DirectoryClient {
    tls: Arc<ClientConfig>,
    asked_to_wait: AskedToWait,
}

impl DirectoryClient {
    pub(crate) fn new(authorities: &Authorities, asked_to_wait: AskedToWait) -> Result<Self, TlsFault> {
        let connector = TlsConnector::new(&BackendTls {
            authorities: authorities.clone(),
            server_name: None,
            certificate: None,
            skip_verify: false,
            min_version: TlsVersion::default(),
        })?;
        Ok(DirectoryClient { tls: connector.config(SpokenWithin::Http1), asked_to_wait })
    }
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (tls, asked_to_wait) = (self.tls.clone(), self.asked_to_wait.clone());
        Box::pin(async move {
            // The library would parse the response as a directory regardless of its status, so the
            // status is checked here.
            let is_directory = request.method() == Method::GET;
            let place = request.uri().to_string();
            let response = match timeout(TIMEOUT, ask(request, tls)).await {
                Ok(response) => response.map_err(|error| format!("{place}: {error}")),
                Err(_) => Err(format!("{place}: no answer within {} s", TIMEOUT.as_secs())),
            };
            let response = response.map_err(|error| Error::Other(error.into()))?;
            asked_to_wait.note(&response);
            if is_directory && !response.status().is_success() {
                let (head, body) = response.into_parts();
                let said = said(&body.collect().await.map(|body| body.to_bytes()).unwrap_or_default());
                return Err(Error::Other(format!("{place}: {}{said}", head.status).into()));
            }
            Ok(BytesResponse::from(response))
        })
    }
}

/// Text of a problem document (RFC 7807), after a colon; empty for other documents.
fn said(document: &[u8]) -> String {
    let document: serde_json::Value = serde_json::from_slice(document).unwrap_or_default();
    document["detail"].as_str().map_or(String::new(), |detail| format!(": {detail}"))
}

async fn ask(
    mut request: Request<BodyWrapper<Bytes>>,
    tls: Arc<ClientConfig>,
) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let uri = request.uri().clone();
    let host = uri.host().filter(|_| uri.scheme_str() == Some("https")).ok_or("not an https URL")?;
    let bare = host.trim_matches(['[', ']']).to_owned();
    let stream = convey_resolver::connect(&bare, uri.port_u16().unwrap_or(443)).await?;
    let stream = tokio_rustls::TlsConnector::from(tls).connect(ServerName::try_from(bare)?, stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).parse::<Uri>()?;
    *request.uri_mut() = path;
    let fields = request.headers_mut();
    fields.insert(HOST, HeaderValue::from_str(&authority)?);
    fields.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    let answered = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        Ok(Response::from_parts(head, Full::new(body)))
    };
    let answered = answered.await;
    connection.abort();
    answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_refuses_may_ask_to_wait() {
        let asked = AskedToWait::default();
        let note = |status: u16, seconds: &str| {
            asked.note(&Response::builder().status(status).header(RETRY_AFTER, seconds).body(()).unwrap());
        };
        note(200, "5");
        assert_eq!(asked.take(), None, "it asks when to look again, and refuses nothing");
        note(429, "3600");
        assert_eq!((asked.take(), asked.take()), (Some(3_600), None));
        note(503, "Wed, 21 Oct 2015 07:28:00 GMT");
        assert_eq!(asked.take(), None);
    }
}
