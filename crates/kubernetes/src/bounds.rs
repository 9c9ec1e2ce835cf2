//! Limits of a client of an API server: bytes of its answers, pages of a list, and the pace of watches.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

/// Bytes of an answer that ends: a page of slices, a Service, an error.
const MAX_ANSWER: usize = 32 << 20;
/// Bytes of a line of a watch. An object of Kubernetes has at most 1.5 MB in etcd.
const MAX_LINE: usize = 8 << 20;
/// Bytes of one watch, which lasts half a minute.
const MAX_WATCH: usize = 64 << 20;
/// Pages of one list: Kubernetes has less than half as many slices.
const MAX_PAGES: u32 = 32;
/// From the beginning of one watch to the beginning of the next.
const WATCH_PACE: Duration = Duration::from_secs(1);
/// Bytes of a file that has a token.
const MAX_TOKEN: u64 = 64 << 10;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answered<B> = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

/// The time of the runtime.
#[expect(clippy::disallowed_methods, reason = "requests and watches are this crate's shell")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A client whose answers are bounded. It serves one list and the watches that follow it.
pub(crate) fn bounded_client(client: Client, token: Option<PathBuf>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let token = token.map(|path| TokenFile { path, last: None });
    Client::new(BoundedService { client, requests: RequestPace::default(), token }, namespace)
}

struct BoundedService {
    client: Client,
    requests: RequestPace,
    token: Option<TokenFile>,
}

impl Service<Request<Body>> for BoundedService {
    type Response = Response<StreamBody<BoundedFrames>>;
    type Error = BoxError;
    type Future = Answered<StreamBody<BoundedFrames>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let begin = self.requests.next(is_watch, now());
        let authorized = self.token.as_mut().map_or(Ok(()), |token| token.authorize(&mut request));
        let client = self.client.clone();
        Box::pin(async move {
            authorized?;
            sleep_until(begin?).await;
            let response = client.send(request).await?;
            Ok(response.map(|body| StreamBody::new(bounded_frames(body, is_watch))))
        })
    }
}

type BoundedFrames = Pin<Box<dyn futures_util::Stream<Item = Result<Frame<bytes::Bytes>, BoxError>> + Send>>;

fn bounded_frames(body: Body, is_watch: bool) -> BoundedFrames {
    let mut bytes = AnswerBytes::new(is_watch);
    Box::pin(BodyStream::new(body).map(move |frame| {
        let frame = frame?;
        bytes.add(frame.data_ref().map_or(&[][..], |data| data))?;
        Ok(frame)
    }))
}

/// Requests of one client so far.
#[derive(Debug, Default)]
struct RequestPace {
    pages: u32,
    next_watch: Option<Instant>,
}

impl RequestPace {
    /// When the next request may begin.
    fn next(&mut self, is_watch: bool, now: Instant) -> Result<Instant, String> {
        if is_watch {
            let begin = self.next_watch.map_or(now, |next| next.max(now));
            self.next_watch = Some(begin + WATCH_PACE);
            return Ok(begin);
        }
        self.pages += 1;
        match self.pages {
            ..=MAX_PAGES => Ok(now),
            _ => Err(format!("the list of the API server has more than {MAX_PAGES} pages")),
        }
    }
}

/// Bytes of one answer so far.
#[derive(Debug)]
struct AnswerBytes {
    is_watch: bool,
    all: usize,
    line: usize,
}

impl AnswerBytes {
    fn new(is_watch: bool) -> AnswerBytes {
        AnswerBytes { is_watch, all: 0, line: 0 }
    }

    fn add(&mut self, data: &[u8]) -> Result<(), String> {
        self.all += data.len();
        let max = if self.is_watch { MAX_WATCH } else { MAX_ANSWER };
        if self.all > max {
            let answer = if self.is_watch { "watch" } else { "answer" };
            return Err(format!("the {answer} of the API server is longer than {} MiB", max >> 20));
        }
        let mut pieces = data.split(|byte| *byte == b'\n');
        let mut longest = self.line + pieces.next().map_or(0, <[u8]>::len);
        self.line = longest;
        for piece in pieces {
            self.line = piece.len();
            longest = longest.max(self.line);
        }
        if self.is_watch && longest > MAX_LINE {
            return Err(format!("a line of the API server's watch is longer than {} MiB", MAX_LINE >> 20));
        }
        Ok(())
    }
}

/// A token that another program writes anew from time to time.
struct TokenFile {
    path: PathBuf,
    /// Used while the file cannot be read.
    last: Option<HeaderValue>,
}

impl TokenFile {
    /// Adds the token of the file. Whitespace around it does not count.
    fn authorize(&mut self, request: &mut Request<Body>) -> Result<(), String> {
        match (self.read(), &self.last) {
            (Ok(value), _) => self.last = Some(value),
            (Err(_), Some(_)) => {}
            (Err(why), None) => return Err(format!("tokenFile {}: {why}", self.path.display())),
        }
        if let Some(value) = &self.last {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        Ok(())
    }

    fn read(&self) -> Result<HeaderValue, String> {
        let (mut text, file) = (String::new(), File::open(&self.path).map_err(|error| error.to_string())?);
        file.take(MAX_TOKEN).read_to_string(&mut text).map_err(|error| error.to_string())?;
        let value = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
        let mut value = value.map_err(|_| "it holds no token".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of pieces of this size that an answer may have, up to a million.
    fn pieces(is_watch: bool, piece: &[u8]) -> usize {
        let mut bytes = AnswerBytes::new(is_watch);
        (0..1_000_000).take_while(|_| bytes.add(piece).is_ok()).count()
    }

    #[test]
    fn answers_and_lines_of_watches_are_bounded() {
        let kibibyte = [b'x'; 1 << 10];
        assert_eq!(pieces(false, &kibibyte), MAX_ANSWER >> 10);
        assert_eq!(pieces(true, &kibibyte), MAX_LINE >> 10);
        let mut line = kibibyte;
        line[500] = b'\n';
        assert_eq!(pieces(true, &line), MAX_WATCH >> 10);
        assert_eq!(pieces(true, &[b'\n'; 256]), MAX_WATCH / 256);
    }

    #[test]
    fn pages_are_bounded_and_watches_keep_a_pace() {
        let (mut requests, now) = (RequestPace::default(), now());
        assert!((0..MAX_PAGES).all(|_| requests.next(false, now) == Ok(now)));
        assert!(requests.next(false, now).is_err());
        let begins: Vec<_> = (0..3).map(|_| requests.next(true, now).unwrap()).collect();
        assert_eq!(begins, [now, now + WATCH_PACE, now + 2 * WATCH_PACE]);
        let late = now + 30 * WATCH_PACE;
        assert_eq!(requests.next(true, late), Ok(late), "a watch that lasted is followed at once");
    }

    #[test]
    fn token_file_may_end_with_a_newline_and_disappear() {
        let folder = std::env::temp_dir().join(format!("convey-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("token");
        std::fs::write(&path, "secret\n").unwrap();
        let mut token = TokenFile { path: path.clone(), last: None };
        let mut sent = || {
            let mut request = Request::new(Body::empty());
            token.authorize(&mut request).map(|()| request.headers()[AUTHORIZATION].clone())
        };
        assert_eq!(sent().unwrap(), "Bearer secret");
        std::fs::write(&path, "other\r\n").unwrap();
        assert_eq!(sent().unwrap(), "Bearer other");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(sent().unwrap(), "Bearer other");
        assert!(TokenFile { path, last: None }.authorize(&mut Request::new(Body::empty())).is_err());
    }
}
