//! Connection to an etcd member. Requests and answers are JSON, and each answer has a time limit
//! and a size limit.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::EtcdEndpoint;
use crate::answer::GatewayRefusal;

/// Time limit for connecting, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of an answer in bytes. An answer has the files of a configuration, in base64
/// within JSON.
const MAX_ANSWER: usize = 32 << 20;

/// Maximum length of a line of a watch in bytes. The changes in a line are at most as large as the
/// write request that made them.
const MAX_LINE: usize = 8 << 20;

/// Maximum length in characters of a quotation from an answer in an error message.
const MAX_TOLD: usize = 200;

/// Operator-facing message why a request to a member has failed.
pub(crate) type Fault = String;

/// An open connection to a member. Dropping it closes the connection.
pub(crate) struct MemberConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<hyper::Result<()>>,
    host: String,
    /// Whether the error of the connection was already returned. The task that returns the error
    /// can be awaited only once.
    has_told: bool,
}

impl MemberConnection {
    /// Connects to a member.
    pub(crate) async fn open(member: &EtcdEndpoint, tls: Option<&Arc<ClientConfig>>) -> Result<Self, Fault> {
        let name = member.to_string();
        let opened = in_time("connection", Self::connect(&member.host, member.port, tls)).await;
        let (sender, driver) = opened.map_err(|why| format!("{name}: {why}"))?;
        Ok(MemberConnection { sender, driver, host: name, has_told: false })
    }

    async fn connect(
        host: &str,
        port: u16,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<(SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>), Fault> {
        let bare = host.trim_matches(['[', ']']).to_owned();
        let stream = convey_resolver::connect(&bare, port).await.map_err(|error| error.to_string())?;
        let Some(tls) = tls else { return Self::speak(stream).await };
        let name = ServerName::try_from(bare).map_err(|error| error.to_string())?;
        let stream = tokio_rustls::TlsConnector::from(tls.clone()).connect(name, stream).await;
        Self::speak(stream.map_err(|error| format!("TLS: {error}"))?).await
    }

    async fn speak(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>), Fault> {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| told(&error))?;
        Ok((sender, tokio::spawn(connection)))
    }

    /// Sends a request, waits for the whole answer, and parses it.
    pub(crate) async fn ask<A: DeserializeOwned>(
        &mut self,
        path: &str,
        token: Option<&str>,
        request: &Value,
    ) -> Result<A, Fault> {
        let answered = in_time("answer", async {
            let response = self.send(path, token, request).await?;
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            Ok(body.map_err(|error| error.to_string())?.to_bytes())
        });
        let answer = answered.await.map_err(|why| format!("{}: {why}", self.host))?;
        serde_json::from_slice(&answer).map_err(|error| format!("{}: {error}", self.host))
    }

    /// Sends a request whose answer is an endless stream of lines.
    pub(crate) async fn stream(
        mut self,
        path: &str,
        token: Option<&str>,
        request: &Value,
    ) -> Result<Lines, Fault> {
        let response = in_time("answer", self.send(path, token, request)).await;
        let body = response.map_err(|why| format!("{}: {why}", self.host))?.into_body();
        Ok(Lines { body, read: BytesMut::new(), connection: self })
    }

    async fn send(
        &mut self,
        path: &str,
        token: Option<&str>,
        request: &Value,
    ) -> Result<Response<Incoming>, Fault> {
        let mut message = Request::builder().method(Method::POST).uri(path).header(HOST, &self.host);
        message = message.header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            message = message.header(AUTHORIZATION, token);
        }
        let message = message.body(Full::from(request.to_string())).map_err(|error| error.to_string())?;
        let answered = async {
            self.sender.ready().await?;
            self.sender.send_request(message).await
        };
        let response = match answered.await {
            Ok(response) => response,
            Err(error) => return Err(self.why(&error).await),
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let said = serde_json::from_slice::<GatewayRefusal>(&body)
            .map(|refusal| refusal.message)
            .unwrap_or_default();
        let said = if said.is_empty() { String::from_utf8_lossy(&body).into_owned() } else { said };
        let said = said.trim().chars().take(MAX_TOLD).collect::<String>();
        Err(if said.is_empty() { status.to_string() } else { format!("{status}: {said}") })
    }
}

impl MemberConnection {
    /// Reason why a request failed. If the connection has failed, its error is returned, because it
    /// is more precise than the error of the request.
    async fn why(&mut self, error: &hyper::Error) -> Fault {
        if self.has_told || !(error.is_canceled() || error.is_closed()) {
            return told(error);
        }
        self.has_told = true;
        match (&mut self.driver).await {
            Ok(Err(why)) => told(&why),
            _ => told(error),
        }
    }
}

impl Drop for MemberConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Lines of an endless answer, such as the answer to a watch.
pub(crate) struct Lines {
    body: Incoming,
    read: BytesMut,
    connection: MemberConnection,
}

impl Lines {
    /// Returns the next line, parsed. The future may be dropped while it waits; no received bytes
    /// are lost.
    pub(crate) async fn next<A: DeserializeOwned>(&mut self) -> Result<A, Fault> {
        let host = &self.connection.host;
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(end + 1);
                return serde_json::from_slice(&line).map_err(|error| format!("{host}: {error}"));
            }
            if self.read.len() > MAX_LINE {
                return Err(format!("{host}: a line of the watch is longer than {} MiB", MAX_LINE >> 20));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                Some(Err(error)) => return Err(format!("{host}: {}", told(&error))),
                None => return Err(format!("{host}: the watch has ended")),
            }
        }
    }
}

/// Adds a time limit of [`TIMEOUT`] to an operation. `what` names the operation's result in the
/// error message of a timeout.
async fn in_time<T>(what: &str, done: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(TIMEOUT, done).await.unwrap_or_else(|_| Err(format!("no {what} within {} s", TIMEOUT.as_secs())))
}

/// Text of an error, followed by the text of its source, which is more precise.
fn told(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
