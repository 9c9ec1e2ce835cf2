//! Messages of HTTP/1 as convey and as hyper read them from the same bytes. The tests of this crate
//! and the fuzz targets share these readers.
//!
//! - `convey` reads messages in typed heads and frames, from bytes in pieces of any size.
//! - `relay` forwards messages as the relay does (as bytes) and as the frame path does.
//! - `hyper` reads messages with hyper.
//! - `checks` compares them, with the reasons for which hyper may refuse more than convey.

pub(crate) mod checks;
pub(crate) mod convey;
pub(crate) mod hyper;
pub(crate) mod relay;

use bytes::{Bytes, BytesMut};
use convey_http_core::{HeadLimits, HeadReader, Malformed, RequestHead, ResponseHead, ServerFault, Trailers};

/// Requests whose responses have different framings: with a body, without, with a tunnel, and for a
/// client that knows no chunks.
pub(crate) const REQUESTS: [&str; 4] = [
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
];

/// Name in lower case, and value.
pub(crate) type Field = (String, Bytes);

/// A message, however it is framed and however its bytes arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) start: Start,
    /// Fields by name. Fields with the same name keep their order.
    pub(crate) fields: Vec<Field>,
    pub(crate) data: BytesMut,
    pub(crate) trailers: Vec<Field>,
    pub(crate) is_whole: bool,
}

/// Start line of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    /// Request with a method, path and query, and host.
    Request {
        method: Bytes,
        target: Bytes,
        host: Bytes,
    },
    Response {
        status: u16,
    },
}

/// Reason why no message follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// More bytes are needed for the next head or the rest of the body.
    Missing,
    /// The last message is the last of its connection.
    Last,
    Request(Malformed),
    Response(ServerFault),
}

/// Messages of one direction of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Messages {
    pub(crate) all: Vec<Message>,
    pub(crate) stop: Stop,
    /// Number of bytes after the last message; 0 if the bytes are malformed.
    pub(crate) rest: usize,
}

impl Start {
    pub(crate) fn request(method: &[u8], target: &[u8], host: &[u8]) -> Start {
        let [method, target, host] = [method, target, host].map(Bytes::copy_from_slice);
        Start::Request { method, target, host }
    }
}

impl Message {
    pub(crate) fn of_request(head: &RequestHead) -> Message {
        let start = Start::request(head.method_token(), head.path_and_query(), head.host());
        Message::new(start, head.fields().map(|field| (field.name, field.value)))
    }

    pub(crate) fn of_response(head: &ResponseHead) -> Message {
        let start = Start::Response { status: head.status() };
        Message::new(start, head.fields().map(|field| (field.name, field.value)))
    }

    pub(crate) fn new<'a>(start: Start, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Message {
        Message {
            start,
            fields: sorted(fields),
            data: BytesMut::new(),
            trailers: Vec::new(),
            is_whole: false,
        }
    }

    pub(crate) fn end(&mut self, trailers: Option<&Trailers>) {
        self.trailers = trailers.map(|trailers| sorted(trailers.fields())).unwrap_or_default();
        self.is_whole = true;
    }

    /// Status of a response; 0: the message is a request.
    pub(crate) fn status(&self) -> u16 {
        if let Start::Response { status } = self.start { status } else { 0 }
    }

    /// Returns the message without these fields.
    #[must_use]
    pub(crate) fn without(mut self, names: &[&str]) -> Message {
        self.fields.retain(|(name, _)| !names.contains(&&**name));
        self
    }
}

impl Messages {
    /// Messages of which no byte is missing.
    pub(crate) fn whole(&self) -> Vec<Message> {
        self.all.iter().filter(|message| message.is_whole).cloned().collect()
    }

    fn count_rest(&mut self, len: usize) {
        self.rest = match self.stop {
            Stop::Missing | Stop::Last => len,
            Stop::Request(_) | Stop::Response(_) => 0,
        };
    }
}

/// Returns fields in the order of their names.
pub(crate) fn sorted<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<Field> {
    let lower = |name: &[u8]| String::from_utf8_lossy(name).to_ascii_lowercase();
    let mut fields: Vec<Field> =
        fields.map(|(name, value)| (lower(name), Bytes::copy_from_slice(value))).collect();
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    fields
}

/// Limits of the messages that convey accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Limits of a head, and of the trailers of a response.
    pub(crate) head: HeadLimits,
    /// Maximum number of bytes of a request's body in chunks.
    pub(crate) body: Option<u64>,
}

impl Limits {
    pub(crate) const OF_REQUESTS: Limits =
        Limits { head: HeadLimits { bytes: 16 * 1024, fields: 100 }, body: None };
    pub(crate) const OF_RESPONSES: Limits = Limits { head: HeadLimits::OF_RESPONSES, body: None };
}

/// Parses the head of a valid request.
///
/// # Panics
/// The request is invalid.
pub(crate) fn parsed_request(text: &str) -> RequestHead {
    let head = HeadReader::default().request(&mut text.into(), &HeadLimits::default());
    head.expect("valid").expect("whole")
}

/// Splits bytes into pieces of these sizes, again and again. A size of 0 counts as 1. Without a
/// size, all bytes are one piece.
pub(crate) fn pieces<'b>(bytes: &'b [u8], sizes: &[usize]) -> impl Iterator<Item = &'b [u8]> {
    let sizes = if sizes.is_empty() { &[usize::MAX] } else { sizes };
    let (mut left, mut sizes) = (bytes, sizes.iter().cycle());
    std::iter::from_fn(move || {
        let len = sizes.next().map_or(1, |size| *size.max(&1)).min(left.len());
        let (piece, rest) = left.split_at(len);
        left = rest;
        Some(piece).filter(|piece| !piece.is_empty())
    })
}
