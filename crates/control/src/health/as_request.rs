//! HTTP checks of servers that get the requests of mode `http`. The checks use the same HTTP
//! version as requests, and the same reader of responses. So a response that would give a client
//! status 502 also fails the check.

use bytes::{Bytes, BytesMut};
use convey_http_core::{BodyPiece, Exchange, HeadLimits, HeadReader, Malformed, ServerFault};
use convey_model::{BodyPattern, CheckedRequests, HttpCheck};
use futures_util::FutureExt;
use h2::RecvStream;
use h2::client::Builder;
use http::{Request, Response, StatusCode, Uri, Version, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::probe::{ProbeError, request};
use super::reading::{BodyBeginning, BodyVerdict, BoundedStream, MAX_HEAD, MAX_REST, ReadBudget};

/// Size limit of a response head in the HTTP/2 library, in bytes. The library adds 32 bytes for
/// each field.
const MAX_FIELDS: u32 = 128 << 10;

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
        let (head, mut exchange) = self.exchange()?;
        let mut received = BytesMut::new();
        stream.write_all(&head).await.map_err(ProbeError::Broken)?;
        let status = loop {
            let head = exchange.head_from_server(&mut received, &mut Vec::new());
            if let Some(head) = head? {
                break head.status();
            }
            if budget.is_used_up() {
                return Err(ProbeError::LongHead);
            }
            received.reserve(READ);
            if stream.read_buf(&mut received).await.map_err(ProbeError::Broken)? == 0 {
                exchange.server_closed()?;
            }
        };
        self.judge_status(status)?;
        let Some(pattern) = &self.check.expected_body else { return Ok(status) };
        budget.set(MAX_REST);
        let mut beginning = BodyBeginning::default();
        while !beginning.is_cut() && !takes_body(&mut exchange, &mut received, &mut beginning)? {
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
                exchange.server_closed()?;
                break;
            }
        }
        judge_body(status, pattern, &beginning)
    }

    /// Sends the request over HTTP/2, and returns the status of the response.
    pub(super) async fn by_http2(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> Result<u16, ProbeError> {
        let budget = ReadBudget::new(MAX_HEAD + MAX_REST);
        let stream = BoundedStream { stream, budget: budget.clone() };
        let mut builder = Builder::new();
        builder.enable_push(false).max_header_list_size(MAX_FIELDS);
        let (send, connection) = builder.handshake::<_, Bytes>(stream).await?;
        let answer = async {
            let (response, _) = send.ready().await?.send_request(self.request(), true)?;
            let response = response.await?;
            self.judge_head(&response)?;
            let status = response.status().as_u16();
            self.judge_status(status)?;
            match &self.check.expected_body {
                None => Ok(status),
                Some(pattern) => {
                    judge_body(status, pattern, &read_body(pattern, response.into_body()).await?)
                }
            }
        };
        tokio::pin!(answer, connection);
        // Both futures run in this task, so that a timeout of the probe drops both.
        let answer = tokio::select! {
            answer = &mut answer => answer,
            closed = &mut connection => match (answer.await, closed) {
                (Err(ProbeError::Http2(_)), Err(why)) => Err(why.into()),
                (answer, _) => answer,
            },
        };
        answer.map_err(|error| match error {
            ProbeError::Http2(_) if budget.is_used_up() => ProbeError::LongBody,
            error => error,
        })
    }

    /// Bytes of the request over HTTP/1.1, and the parser for its response.
    fn exchange(&self) -> Result<(BytesMut, Exchange), ProbeError> {
        let request = request(self.host, self.check);
        let mut head = BytesMut::from(format!("GET {} HTTP/1.1\r\n", self.check.path).as_bytes());
        for (name, value) in request.headers() {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        let limits = HeadLimits { bytes: usize::MAX, fields: usize::MAX };
        let read = HeadReader::default().request(&mut head.clone(), &limits).map_err(ProbeError::Own)?;
        let mut exchange = Exchange::new(&read.ok_or(ProbeError::Own(Malformed::StartLine))?);
        exchange.limit_response(self.requests.response_head);
        Ok((head, exchange))
    }

    fn request(&self) -> Request<()> {
        let mut request = request(self.host, self.check).map(drop);
        *request.version_mut() = Version::HTTP_2;
        let target = request.uri().clone();
        let uri = Uri::builder().scheme("http").authority(self.host);
        let uri = uri.path_and_query(target.path_and_query().map_or("/", |path| path.as_str())).build();
        *request.uri_mut() = uri.unwrap_or(target);
        for name in ["host", "connection", "keep-alive", "proxy-connection"] {
            request.headers_mut().remove(name);
        }
        request
    }

    /// Validates the head of an HTTP/2 response like the response to a client's request: after
    /// conversion to HTTP/1.1.
    fn judge_head(&self, response: &Response<RecvStream>) -> Result<(), ProbeError> {
        let (status, fields) = (response.status(), response.headers());
        let mut head = BytesMut::from(format!("HTTP/1.1 {} \r\n", status.as_str()).as_bytes());
        for (name, value) in fields {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if has_body && !fields.contains_key(header::CONTENT_LENGTH) {
            head.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let (_, mut exchange) = self.exchange()?;
        exchange.head_from_server(&mut head, &mut Vec::new())?;
        Ok(())
    }

    fn judge_status(&self, status: u16) -> Result<(), ProbeError> {
        match self.check.expects(status) {
            true => Ok(()),
            false => Err(ProbeError::Status { found: status, expected: self.check.statuses() }),
        }
    }
}

/// Consumes the received part of a body. Returns whether the body has ended.
fn takes_body(
    exchange: &mut Exchange,
    received: &mut BytesMut,
    beginning: &mut BodyBeginning,
) -> Result<bool, ServerFault> {
    while !beginning.is_cut() {
        let len = match exchange.piece_from_server(received)? {
            BodyPiece::Data(len) => {
                beginning.add(&received[..len]);
                len
            }
            BodyPiece::Framing(len) | BodyPiece::Trailers(len) => len,
            BodyPiece::End(_) => return Ok(true),
        };
        if len == 0 {
            break;
        }
        let _ = received.split_to(len);
    }
    Ok(false)
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

fn judge_body(status: u16, pattern: &BodyPattern, beginning: &BodyBeginning) -> Result<u16, ProbeError> {
    match beginning.verdict(pattern) {
        BodyVerdict::Matches => Ok(status),
        BodyVerdict::Differs { is_cut } => {
            Err(ProbeError::Body { status, expected: pattern.clone(), is_cut })
        }
    }
}

#[cfg(test)]
mod tests;
