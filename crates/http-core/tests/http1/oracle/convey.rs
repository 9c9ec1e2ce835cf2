//! Messages that convey reads from bytes in pieces, with the types that the frame path uses.

use bytes::{Buf, BytesMut};
use convey_http_core::{
    BodyDecoder, ExchangeState, Frame, HeadReader, HeadVerdict, Malformed, RequestHead, ResponseDecoder,
    ResponseHead, ServerFault, Trailers,
};

use super::{Limits, Message, Messages, Stop, pieces};

/// Requests of one connection.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) messages: Messages,
    pub(crate) heads: Vec<RequestHead>,
    pub(crate) trailers: Vec<Option<Trailers>>,
    pub(crate) places: Vec<Places>,
    limits: Limits,
    arrived: usize,
    received: BytesMut,
    reader: HeadReader,
    body: Option<BodyDecoder>,
}

/// Places of the parts of a request in the bytes of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) head: usize,
    pub(crate) body: usize,
    /// End of the body; 0: it has not arrived.
    pub(crate) end: usize,
}

/// Reads requests until one is the last of its connection, or is malformed.
pub(crate) fn requests(bytes: &[u8], sizes: &[usize], limits: Limits) -> Requests {
    let mut requests = Requests {
        messages: Messages { all: Vec::new(), stop: Stop::Missing, rest: 0 },
        heads: Vec::new(),
        trailers: Vec::new(),
        places: Vec::new(),
        limits,
        arrived: 0,
        received: BytesMut::new(),
        reader: HeadReader::default(),
        body: None,
    };
    for piece in pieces(bytes, sizes) {
        requests.arrived += piece.len();
        requests.received.extend_from_slice(piece);
        while requests.messages.stop == Stop::Missing && requests.step() {}
    }
    requests.messages.count_rest(requests.received.len());
    requests
}

impl Requests {
    /// Reads a head, or bytes of a body. Returns whether another step is possible.
    fn step(&mut self) -> bool {
        let read = match self.body.take() {
            None => self.read_head(),
            Some(body) => self.read_body(body),
        };
        read.unwrap_or_else(|malformed| {
            self.messages.stop = Stop::Request(malformed);
            false
        })
    }

    fn read_head(&mut self) -> Result<bool, Malformed> {
        let begin = self.at();
        let Some(head) = self.reader.request(&mut self.received, &self.limits.head)? else {
            return Ok(false);
        };
        self.messages.all.push(Message::of_request(&head));
        self.trailers.push(None);
        self.places.push(Places { head: begin, body: self.at(), end: 0 });
        let mut body = BodyDecoder::of_request(head.framing());
        if let Some(most) = self.limits.body {
            body.limit(most);
        }
        self.heads.push(head);
        match body.has_ended() {
            true => self.end(None),
            false => self.body = Some(body),
        }
        Ok(true)
    }

    fn read_body(&mut self, mut body: BodyDecoder) -> Result<bool, Malformed> {
        let received = self.received.split();
        let message = self.messages.all.last_mut().expect("a head came before");
        let (len, last) = body.decode(&received, |data| message.data.extend_from_slice(data))?;
        self.received.extend_from_slice(&received[len..]);
        match last {
            None => self.body = Some(body),
            Some(Frame::Trailers(trailers)) => self.end(Some(trailers)),
            Some(Frame::Data(_) | Frame::End) => self.end(None),
        }
        Ok(self.body.is_none())
    }

    fn end(&mut self, trailers: Option<Trailers>) {
        let end = self.at();
        self.places.last_mut().expect("a head came before").end = end;
        self.messages.all.last_mut().expect("a head came before").end(trailers.as_ref());
        *self.trailers.last_mut().expect("a head came before") = trailers;
        if !self.heads.last().is_some_and(|head| head.is_http11() && head.keeps_alive()) {
            self.messages.stop = Stop::Last;
        }
    }

    fn at(&self) -> usize {
        self.arrived - self.received.len()
    }
}

/// Response to one request.
#[derive(Debug)]
pub(crate) struct Response {
    /// Interim responses, and the final one.
    pub(crate) messages: Messages,
    pub(crate) heads: Vec<ResponseHead>,
    pub(crate) trailers: Option<Trailers>,
    pub(crate) state: ExchangeState,
    decoder: ResponseDecoder,
}

/// Reads the response to a request, from a server that closes its connection after these bytes.
pub(crate) fn response(request: &RequestHead, bytes: &[u8], sizes: &[usize], limits: Limits) -> Response {
    let mut state = ExchangeState::new(request);
    state.note_request_end();
    let mut response = Response {
        messages: Messages { all: Vec::new(), stop: Stop::Missing, rest: 0 },
        heads: Vec::new(),
        trailers: None,
        state,
        decoder: ResponseDecoder::new(request.method(), limits.head),
    };
    let mut received = BytesMut::new();
    for piece in pieces(bytes, sizes) {
        received.extend_from_slice(piece);
        if let Err(fault) = response.read(&mut received) {
            response.messages.stop = Stop::Response(fault);
            break;
        }
    }
    response.close();
    response.messages.count_rest(received.len());
    response
}

impl Response {
    fn read(&mut self, received: &mut BytesMut) -> Result<(), ServerFault> {
        while self.state.awaits_head() {
            let head = self.decoder.next_head(received).map_err(ServerFault::Malformed)?;
            let Some((head, len)) = head else { return Ok(()) };
            received.advance(len);
            self.take_head(head)?;
        }
        if self.messages.stop == Stop::Missing {
            let bytes = received.split();
            let message = self.messages.all.last_mut().expect("a head came before");
            let decoded = self.decoder.decode(&bytes, |data| message.data.extend_from_slice(data));
            let (len, last) = decoded.map_err(ServerFault::Malformed)?;
            received.extend_from_slice(&bytes[len..]);
            match last {
                None => {}
                Some(Frame::Trailers(trailers)) => self.end(Some(trailers)),
                Some(Frame::Data(_) | Frame::End) => self.end(None),
            }
        }
        Ok(())
    }

    fn take_head(&mut self, head: ResponseHead) -> Result<(), ServerFault> {
        let verdict = self.state.take_head(&head)?;
        self.messages.all.push(Message::of_response(&head));
        match verdict {
            HeadVerdict::Final => {
                self.decoder.begin_body(&head, self.state.has_changed());
                if self.decoder.has_ended() {
                    self.end(None);
                }
            }
            HeadVerdict::PassInterim | HeadVerdict::DropInterim => {
                self.messages.all.last_mut().expect("just pushed").is_whole = true;
            }
        }
        self.heads.push(head);
        Ok(())
    }

    fn end(&mut self, trailers: Option<Trailers>) {
        self.messages.all.last_mut().expect("a head came before").end(trailers.as_ref());
        self.trailers = trailers;
        self.state.note_response_end();
        self.messages.stop = Stop::Last;
    }

    /// Handles the end of the server's connection.
    fn close(&mut self) {
        if self.messages.stop != Stop::Missing {
            return;
        }
        match self.decoder.connection_ended() {
            true => self.end(None),
            false => self.messages.stop = Stop::Response(ServerFault::Closed),
        }
    }
}
