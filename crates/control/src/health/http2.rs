//! One request over HTTP/2 on a connection of its own, for HTTP and gRPC checks.

use std::io;

use bytes::Bytes;
use convey_http_core::{HeadLimits, HttpMethod, ResponseHead, ServerFault, StreamResponse};
use futures_util::FutureExt;
use h2::RecvStream;
use h2::client::Builder;
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::probe::ProbeError;
use super::reading::{BoundedStream, MAX_HEAD, MAX_REST, ReadBudget};

/// Size limit of a response head in the HTTP/2 library, in bytes. The library adds 32 bytes for
/// each field.
const MAX_FIELDS: u32 = 128 << 10;

/// Connection-specific header fields of HTTP/1.1, which are invalid in HTTP/2.
const OF_CONNECTIONS: [&str; 3] = ["connection", "keep-alive", "proxy-connection"];

/// Request to send, and the limits of its response.
pub(super) struct StreamCall<'a> {
    pub(super) request: Request<()>,
    /// Body of the request; `None`: the request has no body.
    pub(super) body: Option<Bytes>,
    /// Method of the request.
    pub(super) method: HttpMethod,
    pub(super) limits: &'a HeadLimits,
}

impl StreamCall<'_> {
    /// Sends the request over `stream`, and returns the outcome of `read`, which gets the validated
    /// head of the response and its body. Then the connection ends.
    pub(super) async fn send<S, F, T>(
        self,
        stream: S,
        read: impl FnOnce(ResponseHead, RecvStream) -> F,
    ) -> Result<T, ProbeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        F: Future<Output = Result<T, ProbeError>>,
    {
        let budget = ReadBudget::new(MAX_HEAD + MAX_REST);
        let stream = BoundedStream { stream, budget: budget.clone() };
        let mut builder = Builder::new();
        builder.enable_push(false).max_header_list_size(MAX_FIELDS);
        let (send, connection) = builder.handshake::<_, Bytes>(stream).await?;
        let StreamCall { mut request, body, method, limits } = self;
        for name in OF_CONNECTIONS {
            request.headers_mut().remove(name);
        }
        let answer = async {
            let (response, mut upload) = send.ready().await?.send_request(request, body.is_none())?;
            if let Some(body) = body {
                upload.send_data(body, true)?;
            }
            let response = response.await?;
            let head = head_of(&response, method, limits)?;
            read(head, response.into_body()).await
        };
        let connection = run(connection);
        tokio::pin!(answer, connection);
        // Both futures run in this task, so that a timeout of the probe drops both.
        let answer = tokio::select! {
            answer = &mut answer => {
                // Without a stream the connection ends in order: it sends GOAWAY, as far as that
                // needs no wait.
                let _ = connection.now_or_never();
                answer
            }
            closed = &mut connection => match (answer.await, closed) {
                (Err(ProbeError::Http2(_)), Err(why)) => Err(why.into()),
                (answer, _) => answer,
            },
        };
        answer.map_err(|error| match error {
            ProbeError::Http2(_) if budget.is_used_up() => ProbeError::LongResponse,
            ProbeError::Http2(_) if budget.begins_as_http1() => ProbeError::Http1Only,
            ProbeError::Http2(why) if is_close(&why) => ProbeError::Http2Closed,
            error => error,
        })
    }
}

/// Runs a connection to its end, and drops the connection. The drop is necessary: if writes have
/// failed, the library ends the streams only when the connection is dropped.
async fn run<C: Future>(connection: C) -> C::Output {
    connection.await
}

/// Whether the library reports the end of the connection.
fn is_close(error: &h2::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, UnexpectedEof};
    error.get_io().is_some_and(|error| matches!(error.kind(), BrokenPipe | UnexpectedEof))
}

/// Validates the head of a check's response by the rules for responses to clients' requests.
fn head_of(
    response: &Response<RecvStream>,
    method: HttpMethod,
    limits: &HeadLimits,
) -> Result<ResponseHead, ServerFault> {
    let has_body = !response.body().is_end_stream();
    let start = StreamResponse { status: response.status().as_u16(), method, has_body };
    ResponseHead::of_stream(&start, fields(response.headers()), limits).map_err(ServerFault::Malformed)
}

/// Names and values of header fields, as bytes.
pub(super) fn fields(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    /// Stream that returns no data. Its first write succeeds, and all further writes fail.
    struct Broken {
        has_written: bool,
    }

    impl AsyncRead for Broken {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Broken {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(match std::mem::replace(&mut self.has_written, true) {
                false => Ok(bytes.len()),
                true => Err(io::ErrorKind::BrokenPipe.into()),
            })
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn failed_write_ends_the_call() {
        for _ in 0..20 {
            let call = StreamCall {
                request: Request::get("http://a.example/").body(()).unwrap(),
                body: None,
                method: HttpMethod::Get,
                limits: &HeadLimits::OF_RESPONSES,
            };
            let outcome = call.send(Broken { has_written: false }, async |head, _| Ok(head.status())).await;
            assert!(matches!(outcome, Err(ProbeError::Http2Closed)), "{outcome:?}");
        }
    }
}
