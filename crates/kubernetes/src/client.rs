//! Client of an API server, which reads answers of bounded length and the lines of watches.

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body;
use serde::de::DeserializeOwned;
use tokio::time::{sleep_until, timeout};

use crate::bounds::{AnswerBytes, RequestPace, SILENCE, now};
use crate::cluster::chain;
use crate::objects::{ApiStatus, ObjectList};

/// Transport for requests to an API server, one request at a time.
pub(crate) trait Transport: Send {
    type Body: Body<Data = Bytes, Error: std::error::Error> + Send + Unpin;

    /// Sends a `GET` for this path and query, and returns the response. Its body may arrive later.
    fn get(&mut self, target: &str) -> impl Future<Output = Result<Response<Self::Body>, String>> + Send;
}

/// Error of a request to an API server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ApiFault {
    Refused(ApiStatus),
    /// Any other error, as a message of bounded length on one line.
    Broken(String),
}

impl From<String> for ApiFault {
    fn from(why: String) -> ApiFault {
        ApiFault::Broken(why)
    }
}

/// Client of an API server with limits for answers. A client is used for one list, and for the
/// watches that follow the list.
pub(crate) struct ApiClient<T> {
    transport: T,
    requests: RequestPace,
}

impl<T: Transport> ApiClient<T> {
    pub(crate) fn new(transport: T) -> ApiClient<T> {
        ApiClient { transport, requests: RequestPace::default() }
    }

    /// Reads a page of a list.
    pub(crate) async fn list<K: DeserializeOwned>(
        &mut self,
        target: &str,
    ) -> Result<ObjectList<K>, ApiFault> {
        let page = self.get(target, false).await?.all().await?;
        serde_json::from_slice(&page).map_err(|error| ApiFault::Broken(unreadable(&error)))
    }

    /// Starts a watch.
    pub(crate) async fn watch(&mut self, target: &str) -> Result<WatchLines<T::Body>, ApiFault> {
        Ok(WatchLines { answer: self.get(target, true).await?, read: BytesMut::new(), searched: 0 })
    }

    async fn get(&mut self, target: &str, is_watch: bool) -> Result<Answer<T::Body>, ApiFault> {
        sleep_until(self.requests.next(is_watch, now())?).await;
        let (head, body) = self.transport.get(target).await?.into_parts();
        if head.status.is_success() {
            return Ok(Answer { body, bytes: AnswerBytes::new(is_watch) });
        }
        let refusal = Answer { body, bytes: AnswerBytes::new(false) }.all().await?;
        Err(ApiFault::Refused(status_of(head.status, &refusal)))
    }
}

/// Status in an error response. The body may be any text, because a proxy in front of the API
/// server may have sent the response.
fn status_of(status: StatusCode, body: &[u8]) -> ApiStatus {
    let found = serde_json::from_slice::<ApiStatus>(body).ok();
    let mut found = found.unwrap_or_else(|| ApiStatus {
        message: String::from_utf8_lossy(body).trim().to_owned(),
        ..ApiStatus::default()
    });
    if found.code == 0 {
        found.code = status.as_u16();
    }
    if found.reason.is_empty() {
        found.reason = status.canonical_reason().unwrap_or("Unknown").to_owned();
    }
    found
}

/// Message for an answer that does not follow the API.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    crate::cluster::bounded(&format!("invalid response from the API server: {error}"))
}

/// Response whose body is being read.
struct Answer<B> {
    body: B,
    bytes: AnswerBytes,
}

impl<B: Body<Data = Bytes, Error: std::error::Error> + Unpin> Answer<B> {
    /// Waits for the next bytes of the body; returns `None` at the end of the body.
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame = timeout(SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_| format!("the API server sent nothing for {SILENCE:?}"))?;
            let Some(frame) = frame else { return Ok(None) };
            if let Ok(data) = frame.map_err(|error| chain(&error))?.into_data() {
                self.bytes.add(&data)?;
                return Ok(Some(data));
            }
        }
    }

    async fn all(mut self) -> Result<BytesMut, String> {
        let mut all = BytesMut::new();
        while let Some(data) = self.next().await? {
            all.extend_from_slice(&data);
        }
        Ok(all)
    }
}

/// Response to a watch, as lines.
pub(crate) struct WatchLines<B> {
    answer: Answer<B>,
    /// Received bytes of lines that were not returned yet.
    read: BytesMut,
    /// Number of bytes at the start of `read` that are known to contain no end of line.
    searched: usize,
}

impl<B: Body<Data = Bytes, Error: std::error::Error> + Unpin> WatchLines<B> {
    /// Waits for the next line; `None` at the end of the watch.
    pub(crate) async fn next(&mut self) -> Result<Option<BytesMut>, String> {
        loop {
            if let Some(at) = self.read[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(self.searched + at + 1);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.read.len();
            match self.answer.next().await? {
                Some(data) => self.read.extend_from_slice(&data),
                None if self.read.is_empty() => return Ok(None),
                None => {
                    self.searched = 0;
                    return Ok(Some(self.read.split()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_a_code_and_a_text() {
        let status = |code: u16, body: &str| {
            let ApiStatus { message, reason, code } = status_of(code.try_into().unwrap(), body.as_bytes());
            format!("{message}|{reason}|{code}")
        };
        let refused = r#"{"kind":"Status","message":"no","reason":"Forbidden","code":403}"#;
        assert_eq!(status(403, refused), "no|Forbidden|403");
        assert_eq!(status(502, "<html>\n"), "<html>|Bad Gateway|502");
        assert_eq!(status(503, ""), "|Service Unavailable|503");
        assert_eq!(status(401, "{}"), "|Unauthorized|401");
    }
}
