//! HTTP checks of servers to which mode `http` forwards requests. The checks use the same HTTP
//! version and the same reader of responses as clients' requests. So if a server's response is
//! invalid and clients would get status 502, the check fails, too.

use bytes::BytesMut;
use convey_http_core::{
    BodyDecoder, Frame, HeadLimits, HeadReader, HttpMethod, MAX_INTERIM_RESPONSES, ResponseHead, ServerFault,
};
use convey_model::{BodyPattern, CheckedRequests, HttpCheck};
use futures_util::FutureExt;
use h2::RecvStream;
use http::header::HOST;
use http::{Request, Uri, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::http2::StreamCall;
use super::probe::{ProbeError, request};
use super::reading::{BodyBeginning, BodyVerdict, BoundedStream, MAX_HEAD, MAX_REST, ReadBudget};

/// Size of a read buffer, in bytes.
const READ: usize = 4096;

/// Check request to one server.
pub(super) struct CheckRequest<'a> {
    pub(super) check: &'a HttpCheck,
    /// Value of `Host` in the request.
    pub(super) host: &'a str,
    pub(super) requests: &'a CheckedRequests,
}

impl CheckRequest<'_> {
    /// Sends the request over HTTP/1.1, and returns the status of the response.
    pub(super) async fn by_http1(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> Result<u16, ProbeError> {
        let budget = ReadBudget::new(MAX_HEAD);
        let mut stream = BoundedStream { stream, budget: budget.clone() };
        stream.write_all(&self.http1_request()).await.map_err(ProbeError::Broken)?;
        let limits = &self.requests.response_head;
        let (mut received, mut reader) = (BytesMut::new(), ResponseReader::default());
        let head = loop {
            if let Some(head) = reader.next(&mut received, limits)? {
                break head;
            }
            if budget.is_used_up() {
                return Err(ProbeError::LongHead);
            }
            received.reserve(READ);
            if stream.read_buf(&mut received).await.map_err(ProbeError::Broken)? == 0 {
                return Err(ServerFault::Closed.into());
            }
        };
        let status = head.status();
        self.check_status(status)?;
        let Some(pattern) = &self.check.expected_body else { return Ok(status) };
        budget.set(MAX_REST);
        let mut body = BodyDecoder::of_response(head.framing(), *limits);
        let mut beginning = BodyBeginning::default();
        while !take_body(&mut body, &mut received, &mut beginning)? {
            if budget.is_used_up() {
                return Err(ProbeError::LongBody);
            }
            received.reserve(READ);
            let read = match stream.read_buf(&mut received).now_or_never() {
                Some(read) => read,
                None if beginning.matches_already(pattern) => return Ok(status),
                None => stream.read_buf(&mut received).await,
            };
            if read.map_err(ProbeError::Broken)? == 0 {
                body.connection_ended().ok_or(ServerFault::Closed)?;
                break;
            }
        }
        check_body(status, pattern, &beginning)
    }

    /// Sends the request over HTTP/2, and returns the status of the response.
    pub(super) async fn by_http2(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> Result<u16, ProbeError> {
        let call = StreamCall {
            request: self.request(),
            body: None,
            method: HttpMethod::Get,
            limits: &self.requests.response_head,
        };
        let judged = async |head: ResponseHead, body| {
            let status = head.status();
            self.check_status(status)?;
            match &self.check.expected_body {
                None => Ok(status),
                Some(pattern) => check_body(status, pattern, &read_body(pattern, body).await?),
            }
        };
        call.send(stream, judged).await
    }

    /// Bytes of the request over HTTP/1.1.
    fn http1_request(&self) -> Vec<u8> {
        let request = request(self.host, self.check);
        let mut head = format!("GET {} HTTP/1.1\r\n", self.check.path).into_bytes();
        for (name, value) in request.headers() {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Head of the request over HTTP/2.
    fn request(&self) -> Request<()> {
        let mut request = request(self.host, self.check).map(drop);
        *request.version_mut() = Version::HTTP_2;
        let target = request.uri().clone();
        let uri = Uri::builder().scheme("http").authority(self.host);
        let uri = uri.path_and_query(target.path_and_query().map_or("/", |path| path.as_str())).build();
        *request.uri_mut() = uri.unwrap_or(target);
        request.headers_mut().remove(HOST);
        request
    }

    fn check_status(&self, status: u16) -> Result<(), ProbeError> {
        match self.check.expects(status) {
            true => Ok(()),
            false => Err(ProbeError::Status { found: status, expected: self.check.statuses() }),
        }
    }
}

/// Reader of the final head of an HTTP/1.1 response. It skips interim responses (status 1xx).
#[derive(Default)]
struct ResponseReader {
    head: HeadReader,
    interim: u8,
}

impl ResponseReader {
    /// Removes the final head from the front of `received`. `None`: more bytes have to be received.
    fn next(
        &mut self,
        received: &mut BytesMut,
        limits: &HeadLimits,
    ) -> Result<Option<ResponseHead>, ServerFault> {
        while let Some(head) =
            self.head.response(received, HttpMethod::Get, limits).map_err(ServerFault::Malformed)?
        {
            if head.status() == 101 {
                return Err(ServerFault::UnaskedUpgrade);
            }
            if !head.is_interim() {
                return Ok(Some(head));
            }
            self.interim += 1;
            if self.interim > MAX_INTERIM_RESPONSES {
                return Err(ServerFault::TooManyInterim);
            }
        }
        Ok(None)
    }
}

/// Consumes the received part of a body. Returns whether no more bytes are needed.
fn take_body(
    body: &mut BodyDecoder,
    received: &mut BytesMut,
    beginning: &mut BodyBeginning,
) -> Result<bool, ServerFault> {
    let mut left = &received[..];
    while !beginning.is_cut() {
        match body.next(&mut left).map_err(ServerFault::Malformed)? {
            Some(Frame::Data(data)) => beginning.add(data),
            Some(Frame::Trailers(_) | Frame::End) => {}
            None => break,
        }
    }
    let rest = left.len();
    let _ = received.split_to(received.len() - rest);
    Ok(body.has_ended() || beginning.is_cut())
}

/// Reads a body over HTTP/2 until more bytes cannot change the verdict.
async fn read_body(pattern: &BodyPattern, mut body: RecvStream) -> Result<BodyBeginning, h2::Error> {
    let mut beginning = BodyBeginning::default();
    while !beginning.is_cut() {
        let data = match body.data().now_or_never() {
            Some(data) => data,
            None if beginning.matches_already(pattern) => break,
            None => body.data().await,
        };
        let Some(data) = data.transpose()? else { break };
        beginning.add(&data);
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(beginning)
}

fn check_body(status: u16, pattern: &BodyPattern, beginning: &BodyBeginning) -> Result<u16, ProbeError> {
    match beginning.verdict(pattern) {
        BodyVerdict::Matches => Ok(status),
        BodyVerdict::Differs { is_cut } => {
            Err(ProbeError::Body { status, expected: pattern.clone(), is_cut })
        }
    }
}

#[cfg(test)]
mod tests;
