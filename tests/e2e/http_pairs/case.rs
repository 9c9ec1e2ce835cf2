//! Random exchanges: a request, its response, and how both ends send and read.

use std::collections::BTreeMap;
use std::fmt;

use fastrand::Rng;
use http::HeaderMap;

/// Version of HTTP at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
    Http3,
}

/// Connection of one end: how the library or the socket takes and gives bytes.
#[derive(Debug, Clone)]
pub(super) struct Link {
    /// Window of a stream; `None` is the library's own.
    pub(super) window: Option<u32>,
    /// Longest frame that the end accepts (HTTP/2).
    pub(super) frame: u32,
    /// Bytes of a read and of a write of the socket, at most (TCP).
    pub(super) read: usize,
    pub(super) write: usize,
    /// Receive buffer of the socket; `None` is the kernel's own (TCP).
    pub(super) buffer: Option<usize>,
    /// Whether the reader of a body pauses between its parts.
    pub(super) pauses: bool,
}

/// A request or a response.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) fields: Fields,
    pub(super) len: usize,
    /// Seed of the body's bytes.
    pub(super) seed: u64,
    pub(super) has_length: bool,
    pub(super) trailers: Fields,
    /// Whether the head announces the trailers with `Trailer`.
    pub(super) is_announced: bool,
    /// Bytes that the sender passes to its library at once.
    pub(super) piece: usize,
    /// Whether the sender pauses between pieces.
    pub(super) pauses: bool,
}

/// An exchange over one connection of a client.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) client: Version,
    pub(super) link: Link,
    pub(super) method: &'static str,
    pub(super) request: Message,
    pub(super) status: u16,
    pub(super) response: Message,
    /// Whether the response begins before the request has ended.
    pub(super) is_early: bool,
}

/// Values of each field, in their order.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Fields(pub(super) BTreeMap<String, Vec<Vec<u8>>>);

/// Prefix of the fields that are compared. convey adds others.
pub(super) const PREFIX: &str = "x-case-";

const SIZES: [usize; 12] =
    [1, 2, 100, 1_000, 8_192, 16_368, 16_384, 32_768, 65_535, 65_536, 131_072, 262_144];
const LONGEST: usize = 1 << 20;

/// Bytes of a read or write that is not split.
pub(super) const WHOLE: usize = LONGEST;

/// Parts of a body that pass with one window, read, write or piece, at most: bounds the time of a
/// case.
const MOST_PARTS: usize = 600;

fn pick<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    all[random.usize(..all.len())]
}

impl Link {
    /// Connection with the defaults of the library and of the kernel.
    pub(super) fn plain() -> Link {
        Link { window: None, frame: 16_384, read: WHOLE, write: WHOLE, buffer: None, pauses: false }
    }

    pub(super) fn random(random: &mut Rng) -> Link {
        if random.u8(..4) == 0 {
            return Link::plain();
        }
        let windows = [None, Some(random.u32(1..=64)), Some(random.u32(65..=70_000)), Some(1 << 20)];
        let parts = [1, 3, 17, 100, 4_096, 16_384, WHOLE, WHOLE];
        Link {
            window: pick(random, &windows),
            frame: pick(random, &[16_384, 16_384, 16_385, 100_000]),
            read: pick(random, &parts),
            write: pick(random, &parts),
            buffer: pick(random, &[None, None, Some(4_096)]),
            pauses: random.u8(..4) == 0,
        }
    }

    /// Bytes of a body that pass in a bearable time.
    fn room(&self) -> usize {
        let window = self.window.map_or(usize::MAX, |window| window as usize);
        window.min(self.read).min(self.write).saturating_mul(MOST_PARTS)
    }
}

impl Message {
    fn random(random: &mut Rng, room: usize) -> Message {
        let piece = pick(random, &[1, 2, 15, 16, 17, 1_000, 16_383, 16_384, 16_385, 65_536, LONGEST]);
        Message {
            fields: Fields::random(random, "f"),
            len: length(random).min(room).min(piece * MOST_PARTS),
            seed: random.u64(..),
            has_length: random.bool(),
            trailers: if random.bool() { Fields::random(random, "t") } else { Fields::default() },
            is_announced: true,
            piece,
            pauses: random.u8(..4) == 0,
        }
    }

    pub(super) fn has_trailers(&self) -> bool {
        !self.trailers.0.is_empty()
    }

    /// Whether the head is all of the message.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && !self.has_trailers()
    }

    fn without_body(mut self, has_length: bool) -> Message {
        self.trailers = Fields::default();
        self.has_length = has_length;
        self.len *= usize::from(has_length);
        self
    }

    /// Bytes of the body. `t` is left out: see [`super::link::TE`].
    pub(super) fn body(&self) -> Vec<u8> {
        let mut body = vec![0; self.len];
        Rng::with_seed(self.seed).fill(&mut body);
        body.iter_mut().filter(|byte| **byte == b't').for_each(|byte| *byte = b'u');
        body
    }

    /// Messages that are simpler in one respect.
    fn simpler(&self) -> Vec<Message> {
        let with = |change: fn(&mut Message)| {
            let mut message = self.clone();
            change(&mut message);
            message
        };
        let mut all = vec![
            with(|message| message.len = 0),
            with(|message| message.len /= 2),
            with(|message| message.len = message.len.saturating_sub(1)),
            with(|message| message.fields = Fields::default()),
            with(|message| message.pauses = false),
            with(|message| message.piece = LONGEST),
        ];
        if self.has_trailers() {
            all.push(with(|message| message.trailers = Fields::default()));
            all.push(with(|message| message.trailers = Fields::one()));
        }
        all
    }
}

/// Length of a body: around the sizes of frames and windows, and any other.
fn length(random: &mut Rng) -> usize {
    match random.u8(..8) {
        0 => 0,
        1 => random.usize(..200),
        2..6 => (pick(random, &SIZES) + random.usize(..40)).saturating_sub(20),
        _ => random.usize(..=LONGEST),
    }
}

impl Case {
    /// An exchange with a server of this version, on this link.
    pub(super) fn random(random: &mut Rng, client: Version, server: (Version, &Link)) -> Case {
        let link = Link::random(random);
        let room = link.room().min(server.1.room());
        let mut request = Message::random(random, room);
        let mut response = Message::random(random, room);
        let method = pick(random, &["POST", "POST", "POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "NEW"]);
        let status = pick(random, &[200, 200, 200, 201, 206, 299, 400, 404, 500, 503, 204, 304]);
        if ["GET", "HEAD"].contains(&method) {
            request = request.without_body(false);
        }
        if method == "HEAD" || [204, 304].contains(&status) {
            response = response.without_body(method == "HEAD" && status == 200);
        }
        // convey drops trailers of messages with a length, except of announced ones from servers of
        // HTTP/2.
        if request.has_length {
            request.trailers = Fields::default();
        }
        if response.has_length && server.0 == Version::Http1 {
            response.trailers = Fields::default();
        }
        // hyper sends announced trailers alone.
        request.is_announced = client == Version::Http1 || random.bool();
        response.is_announced = server.0 == Version::Http1 || response.has_length || random.bool();
        let mut case = Case { client, link, method, request, status, response, is_early: random.bool() };
        case.settle();
        case
    }

    /// Whether the head of the response is all of it.
    pub(super) fn is_answered_by_head(&self) -> bool {
        self.method == "HEAD" || [204, 304].contains(&self.status) || self.response.is_empty()
    }

    /// A whole response may end its request, so only a response with a body can be early.
    fn settle(&mut self) {
        self.is_early &= !self.is_answered_by_head();
    }

    /// Cases that are simpler in one respect.
    pub(super) fn simpler(&self) -> Vec<Case> {
        let with = |change: &dyn Fn(&mut Case)| {
            let mut case = self.clone();
            change(&mut case);
            case
        };
        let requests = self.request.simpler().into_iter();
        let responses = self.response.simpler().into_iter();
        let mut all = vec![
            with(&|case| case.link = Link::plain()),
            with(&|case| case.link.window = None),
            with(&|case| (case.link.read, case.link.write) = (WHOLE, WHOLE)),
            with(&|case| (case.link.buffer, case.link.pauses) = (None, false)),
            with(&|case| case.is_early = false),
        ];
        all.extend(requests.map(|request| Case { request, ..self.clone() }));
        all.extend(responses.map(|response| Case { response, ..self.clone() }));
        all.iter_mut().for_each(Case::settle);
        let text = format!("{self:?}");
        all.retain(|case| format!("{case:?}") != text);
        all
    }
}

impl Fields {
    fn random(random: &mut Rng, kind: &str) -> Fields {
        let mut fields = Fields::default();
        for _ in 0..random.usize(1..8) {
            let name = format!("{PREFIX}{kind}{}", random.u8(..9));
            fields.0.entry(name).or_default().push(value(random));
        }
        fields
    }

    fn one() -> Fields {
        Fields([(format!("{PREFIX}t"), vec![b"1".to_vec()])].into())
    }

    /// The fields of this head or trailers that are compared.
    pub(super) fn of(map: &HeaderMap) -> Fields {
        let mut fields = Fields::default();
        for (name, value) in map.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX)) {
            fields.0.entry(name.to_string()).or_default().push(value.as_bytes().to_vec());
        }
        fields
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().flat_map(|(name, values)| values.iter().map(|value| (&**name, &**value)))
    }
}

/// Value of a field: visible bytes, others above 127, and blanks within.
fn value(random: &mut Rng) -> Vec<u8> {
    let len = if random.u8(..8) == 0 { random.usize(..900) } else { random.usize(..30) };
    let byte = |random: &mut Rng| match random.u8(..10) {
        0 => b' ',
        1 => random.u8(128..=255),
        2 => b"\t,;=\"\\%"[random.usize(..7)],
        _ => random.alphanumeric() as u8,
    };
    let value: Vec<u8> = (0..len).map(|_| byte(random)).collect();
    value.trim_ascii().to_vec()
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.all().map(|(name, value)| (name, value.escape_ascii().to_string())))
            .finish()
    }
}
