//! Client of the control socket of a running convey.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use convey_api::ErrorReport;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::HOST;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Timeout of a response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Timeout of a response about all flows: convey itself gives up after 8 seconds.
const PATIENCE_WITH_FLOWS: Duration = Duration::from_secs(10);

/// Timeout of a change. A reload waits for name servers, and for a file that is being read.
const PATIENCE_WITH_CHANGES: Duration = Duration::from_secs(30);

fn patience(method: &Method, path: &str) -> Duration {
    match path.starts_with("/v1/flows") || path.starts_with("/v1/explain") {
        _ if method != Method::GET => PATIENCE_WITH_CHANGES,
        true => PATIENCE_WITH_FLOWS,
        false => PATIENCE,
    }
}

/// Client of a control socket that accepted a connection when the client was created.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
}

/// Failed request, with an operator-facing error message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Client {
    /// Returns a client of the first of `places` that accepts a connection.
    ///
    /// # Errors
    /// No socket accepts connections.
    pub async fn find(places: &[PathBuf]) -> Result<Client, Refused> {
        let mut failed = Vec::new();
        for path in places {
            match UnixStream::connect(path).await {
                Ok(_) => return Ok(Client { path: path.clone() }),
                Err(error) => failed.push(connect_error(path, &error)),
            }
        }
        let why = if failed.is_empty() { "--socket is empty".to_owned() } else { failed.join("; ") };
        Err(Refused(format!("cannot reach a running convey: {why}")))
    }

    /// Returns the id of the process that listens on the socket; `None`: the id is unknown.
    pub async fn process(&self) -> Option<u32> {
        let stream = UnixStream::connect(&self.path).await.ok()?;
        stream.peer_cred().ok()?.pid()?.try_into().ok()
    }

    /// Requests `path`, and parses the response.
    ///
    /// # Errors
    /// The request failed, or the response is invalid.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refused> {
        read(&self.request(Method::GET, path, None).await?)
    }

    /// Requests `path`, and returns the text of a successful response.
    ///
    /// # Errors
    /// The request failed.
    pub async fn answer(&self, path: &str) -> Result<String, Refused> {
        Ok(String::from_utf8_lossy(&self.request(Method::GET, path, None).await?).into_owned())
    }

    /// Sends a change, and parses the response.
    ///
    /// # Errors
    /// convey refused the change, or did not respond.
    pub async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Refused> {
        read(&self.request(method, path, body).await?)
    }

    /// Requests `path`, and returns the status and text of the response, successful or not.
    ///
    /// # Errors
    /// There is no response.
    pub async fn text(&self, path: &str) -> Result<(StatusCode, String), Refused> {
        let (status, body) = self.exchange(Method::GET, path, None).await?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Bytes, Refused> {
        let (status, body) = self.exchange(method, path, body).await?;
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }

    /// Passes each line at `path` to `take` as it arrives, until `take` returns `false` or the
    /// stream ends.
    ///
    /// # Errors
    /// convey refused the request, or did not respond.
    pub async fn stream(&self, path: &str, mut take: impl FnMut(&str) -> bool) -> Result<(), Refused> {
        let gone = |error: &dyn std::fmt::Display| Refused(format!("{}: {error}", self.path.display()));
        let Ok(asked) = timeout(PATIENCE, self.send(Method::GET, path, None)).await else {
            return Err(self.is_silent(PATIENCE).await);
        };
        let (answer, _connection) = asked?;
        let (head, mut body) = answer.into_parts();
        if !head.status.is_success() {
            let body = body.collect().await.map_err(|error| gone(&error))?.to_bytes();
            return Err(refusal(head.status, &body));
        }
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            // The process has ended; discard the incomplete line.
            let Ok(frame) = frame else { return Ok(()) };
            text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                if !take(String::from_utf8_lossy(&line).trim_end()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Refused> {
        let gone = |error: &dyn std::fmt::Display| Refused(format!("{}: {error}", self.path.display()));
        let patience = patience(&method, path);
        let answer = async {
            let (answer, _connection) = self.send(method, path, body).await?;
            let (head, body) = answer.into_parts();
            let body = body.collect().await.map_err(|error| gone(&error))?.to_bytes();
            Ok((head.status, body))
        };
        match timeout(patience, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(self.is_silent(patience).await),
        }
    }

    /// Error for a response that did not arrive within `patience`.
    async fn is_silent(&self, patience: Duration) -> Refused {
        let process = match self.process().await {
            Some(process) => format!("process {process}"),
            None => "the process".to_owned(),
        };
        let path = self.path.display();
        Refused(format!("{path}: no response within {patience:?}: {process} is stopped or overloaded"))
    }

    /// Sends a request. Dropping the returned connection aborts the response.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Response<Incoming>, OpenConnection), Refused> {
        let body = Full::<Bytes>::from(body.map(Value::to_string).unwrap_or_default());
        let request = Request::builder().method(method).uri(path).header(HOST, "convey").body(body);
        let request = request.map_err(|error| Refused(format!("{path}: {error}")))?;
        let gone = |error: &dyn std::fmt::Display| Refused(format!("{}: {error}", self.path.display()));
        let stream = UnixStream::connect(&self.path).await.map_err(|error| gone(&error))?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| gone(&error))?;
        let connection = OpenConnection(tokio::spawn(connection).abort_handle());
        let answer = sender.send_request(request).await.map_err(|error| gone(&error))?;
        Ok((answer, connection))
    }
}

/// Connection to convey, closed on drop.
struct OpenConnection(AbortHandle);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> Refused {
    let Ok(ErrorReport { error, problems }) = serde_json::from_slice(body) else {
        return Refused(format!("{status}: {}", String::from_utf8_lossy(body).trim_end()));
    };
    Refused([error].into_iter().chain(problems).collect::<Vec<_>>().join("\n  "))
}

/// Reads a response.
///
/// # Errors
/// A field is missing or has another type, as in a response of another version of convey. The error
/// names the field.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| {
        let version = env!("CARGO_PKG_VERSION");
        Refused(format!(
            "invalid response from convey: {error}; this command is of version {version}: use the version of the \
             running convey"
        ))
    })
}

fn connect_error(path: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "is convey running?",
        io::ErrorKind::PermissionDenied => "only root, convey's user and its group have access",
        _ => "--socket selects another path",
    };
    format!("{}: {error} ({hint})", path.display())
}

#[cfg(test)]
mod tests {
    use convey_api::ChangeReport;

    use super::*;

    #[test]
    fn missing_field_is_named_with_the_version_of_the_command() {
        let Refused(error) = read::<ChangeReport>(br#"{ "warnings": [] }"#).unwrap_err();
        assert!(error.starts_with("invalid response from convey: missing field `changed`"), "{error}");
        assert!(error.contains(env!("CARGO_PKG_VERSION")), "{error}");
    }
}
