//! Size limits for responses to health checks.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use convey_model::BodyPattern;

/// Size limit of a response up to the end of its head, in bytes, including interim responses.
pub(super) const MAX_HEAD: usize = 64 << 10;
/// Size limit of a response after its head, in bytes, including framing.
pub(super) const MAX_REST: usize = 256 << 10;
/// Maximum number of matches of a body with one match after each received piece. After that, small
/// pieces are collected before the next match.
const MAX_EARLY_MATCHES: usize = 256;

/// Number of bytes of a response that may still be read.
#[derive(Debug, Clone)]
pub(super) struct ReadBudget(Arc<Reading>);

#[derive(Debug)]
struct Reading {
    left: AtomicUsize,
    /// First byte of the response, or 1 for a zero byte; 0: none so far.
    first: AtomicU8,
}

impl ReadBudget {
    pub(super) fn new(bytes: usize) -> ReadBudget {
        ReadBudget(Arc::new(Reading { left: AtomicUsize::new(bytes), first: AtomicU8::new(0) }))
    }

    /// Sets the number of bytes that may still be read.
    pub(super) fn set(&self, bytes: usize) {
        self.0.left.store(bytes, Ordering::Relaxed);
    }

    /// Whether the budget is used up, because the response reached the limit.
    pub(super) fn is_used_up(&self) -> bool {
        self.0.left.load(Ordering::Relaxed) == 0
    }

    /// Whether the response begins like an HTTP/1.1 response. In HTTP/2, the same first byte would
    /// begin a frame that is too long.
    pub(super) fn begins_as_http1(&self) -> bool {
        self.0.first.load(Ordering::Relaxed) == b'H'
    }

    fn take(&self, read: &[u8]) {
        if let (Some(first), 0) = (read.first(), self.0.first.load(Ordering::Relaxed)) {
            self.0.first.store((*first).max(1), Ordering::Relaxed);
        }
        self.set(self.0.left.load(Ordering::Relaxed).saturating_sub(read.len()));
    }
}

/// Stream whose reads fail once the budget is used up.
pub(super) struct BoundedStream<S> {
    pub(super) stream: S,
    pub(super) budget: ReadBudget,
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.budget.is_used_up() {
            return Poll::Ready(Err(io::Error::other("the answer is too long")));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.budget.take(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Result of matching a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyVerdict {
    Matches,
    Differs { is_cut: bool },
}

/// Reads a body until more bytes cannot change the verdict.
pub(super) async fn check_body(
    pattern: &BodyPattern,
    mut body: Incoming,
) -> Result<BodyVerdict, hyper::Error> {
    let mut beginning = BodyBeginning::default();
    while !beginning.is_cut {
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None if beginning.matches_already(pattern) => return Ok(BodyVerdict::Matches),
            None => body.frame().await,
        };
        let Some(frame) = frame else { break };
        beginning.add(frame?.data_ref().map_or(&[][..], |data| data));
    }
    Ok(beginning.verdict(pattern))
}

/// Beginning of a body, which is matched against a pattern.
#[derive(Debug, Default)]
pub(super) struct BodyBeginning {
    bytes: Vec<u8>,
    is_cut: bool,
    matched_len: usize,
    matches: usize,
}

impl BodyBeginning {
    pub(super) fn add(&mut self, data: &[u8]) {
        let space = BodyPattern::MAX_BODY - self.bytes.len();
        self.is_cut = data.len() > space;
        self.bytes.extend_from_slice(&data[..data.len().min(space)]);
    }

    /// Whether the body is longer than the bytes that a pattern is matched against.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Verdict of the pattern on the bytes received so far. Call it when the body has ended or is
    /// cut.
    pub(super) fn verdict(&self, pattern: &BodyPattern) -> BodyVerdict {
        match pattern.matches(&self.bytes) {
            true => BodyVerdict::Matches,
            false => BodyVerdict::Differs { is_cut: self.is_cut },
        }
    }

    /// Whether the pattern matches already, no matter which bytes follow. To limit the cost, small
    /// pieces are matched together.
    pub(super) fn matches_already(&mut self, pattern: &BodyPattern) -> bool {
        let grown = self.bytes.len() - self.matched_len;
        if grown == 0 || (self.matches >= MAX_EARLY_MATCHES && grown < self.matched_len / 16) {
            return false;
        }
        (self.matched_len, self.matches) = (self.bytes.len(), self.matches + 1);
        pattern.matches_whatever_follows(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::health::check_once;
    use convey_model::{HealthCheck, HttpCheck, ProbeKind};

    #[tokio::test]
    async fn stream_fails_once_its_budget_is_used_up() {
        let budget = ReadBudget::new(10);
        let mut stream = BoundedStream { stream: tokio::io::repeat(b'x'), budget: budget.clone() };
        let mut bytes = [0; 6];
        assert!(stream.read_exact(&mut bytes).await.is_ok() && !budget.is_used_up());
        assert!(stream.read_exact(&mut bytes).await.is_ok() && budget.is_used_up());
        assert!(stream.read_exact(&mut bytes).await.is_err());
        budget.set(1);
        assert!(stream.read_exact(&mut bytes[..1]).await.is_ok());
    }

    /// Outcome of a check of a server that answers each connection with `head`, and then repeats
    /// `endless` forever.
    async fn checked(head: &'static str, endless: &'static str) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(head.as_bytes()).await;
            while !endless.is_empty() && stream.write_all(endless.as_bytes()).await.is_ok() {}
            std::future::pending::<()>().await;
        });
        let expected_body = Some(BodyPattern::parse("ready").unwrap());
        let http = HttpCheck { path: "/".to_owned(), expected_body, ..HttpCheck::default() };
        let check =
            HealthCheck { timeout: Duration::from_secs(20), ..HealthCheck::new(ProbeKind::Http(http)) };
        let outcome = check_once(addr, &check).await;
        server.abort();
        outcome.map_err(|why| why.to_string())
    }

    #[tokio::test]
    async fn answer_without_end_is_read_up_to_a_limit() {
        const OK: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let endless = checked("", "HTTP/1.1 100 Continue\r\n\r\n").await.unwrap_err();
        assert_eq!(endless, "the head of the response is longer than 64 KiB");
        let endless = checked("HTTP/1.1 200 OK\r\n", "x-a: b\r\n").await.unwrap_err();
        assert!(endless.starts_with("HTTP failed") || endless.starts_with("the head"), "{endless}");
        let chunks = checked(OK, "1\r\nx\r\n").await.unwrap_err();
        assert!(chunks.contains("body does not match in the first 256 KiB"), "{chunks}");
        let body = checked("HTTP/1.1 200 OK\r\n\r\n", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx").await.unwrap_err();
        assert!(body.contains("in its first 64 KiB"), "{body}");
    }

    #[tokio::test]
    async fn verdict_comes_as_soon_as_it_is_certain() {
        let events = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ready\n\n";
        assert_eq!(checked(events, "").await, Ok("HTTP status 200".to_owned()));
    }

    #[test]
    fn body_in_small_pieces_is_matched_a_bounded_number_of_times() {
        let pattern = BodyPattern::parse("never").unwrap();
        let mut beginning = BodyBeginning::default();
        for _ in 0..=BodyPattern::MAX_BODY {
            beginning.add(b"x");
            assert!(!beginning.matches_already(&pattern));
        }
        assert!(beginning.is_cut && beginning.matches < MAX_EARLY_MATCHES + 128, "{}", beginning.matches);
    }
}
