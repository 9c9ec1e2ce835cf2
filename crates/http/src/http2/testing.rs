//! A server in memory that sends any frames, for the fuzzer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use convey_http_core::{
    BodyFraming, ClientIdentity, FieldRules, ForwardedFields, Frame, HeadLimits, HeadReader, OutgoingRequest,
    RequestChanges,
};
use h2::client::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::kept::KeptConnection;
use super::outgoing::OutgoingStream;
use super::receive::ReceiveQueue;
use super::servers::StreamShare;
use crate::idle::ServerPlace;

/// Maximum number of polls of one stream. A server that sends a few kilobytes needs far fewer.
const MAX_TURNS: usize = 10_000;

/// Name and value of a field.
pub type ServedField = (Vec<u8>, Vec<u8>);

/// Response of a server, as a request receives it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServedResponse {
    /// Status and framing of the final head, if it has arrived.
    pub head: Option<(u16, BodyFraming)>,
    /// Fields of the head, and then the trailers.
    pub fields: Vec<ServedField>,
    /// Data that has arrived.
    pub body: Vec<u8>,
    /// Whether the response is complete.
    pub is_whole: bool,
}

/// Sends a request over HTTP/2 to a server that sends these bytes and closes the connection. Reads
/// the response in parts of about `read` bytes; the connection delivers `arrive` bytes at a time.
///
/// # Panics
/// The stream neither ends nor fails.
pub fn response_from_http2(request: &[u8], server: &[u8], arrive: usize, read: usize) -> ServedResponse {
    let cx = &mut Context::from_waker(Waker::noop());
    let mut response = ServedResponse::default();
    let io = ServerBytes { left: server, arrive };
    let mut handshake = std::pin::pin!(Builder::new().enable_push(false).handshake::<_, Bytes>(io));
    let Poll::Ready(Ok((send, mut connection))) = handshake.as_mut().poll(cx) else { return response };
    let place = ServerPlace { id: 0, addr: ([10, 0, 0, 2], 80).into(), source: None, tls: 0 };
    let queue = ReceiveQueue::new(arrive);
    let mut kept = KeptConnection::new(send, Arc::default(), queue.clone(), Arc::new(Notify::new()));
    let mut stream = OutgoingStream::new(kept.another(StreamShare::uncounted(place), None));
    let mut request = BytesMut::from(request);
    let head = HeadReader::default().request(&mut request, &HeadLimits::default());
    let Ok(Some(head)) = head else { return response };
    let changes = RequestChanges {
        client: ClientIdentity { ip: [10, 0, 0, 1].into(), scheme: "http", subject: None, is_trusted: false },
        forwarded: ForwardedFields::default(),
        server: place.addr,
        host: None,
        path: None,
        fields: &FieldRules::default(),
    };
    stream.begin(&OutgoingRequest::new(&head, &changes));
    if !request.is_empty() {
        match stream.poll_room(cx, request.len()) {
            Poll::Ready(Ok(room)) if room == request.len() => {}
            _ => return response,
        }
        if stream.send_data(request.freeze(), true).is_err() {
            return response;
        }
    }
    let mut is_over = false;
    for _ in 0..MAX_TURNS {
        match response.poll(&mut stream, cx, read) {
            Poll::Ready(is_whole) => {
                response.is_whole = is_whole;
                return response;
            }
            Poll::Pending if is_over => panic!("the connection is over and its stream waits"),
            Poll::Pending => is_over = queue.poll(|| Pin::new(&mut connection).poll(cx)).is_ready(),
        }
    }
    panic!("the response has no end");
}

impl ServedResponse {
    /// Receives the response. Returns whether it is complete.
    fn poll(&mut self, stream: &mut OutgoingStream, cx: &mut Context<'_>, read: usize) -> Poll<bool> {
        let limits = &HeadLimits::OF_RESPONSES;
        while self.head.is_none() {
            let Ok(head) = ready!(stream.poll_head(cx, limits)) else { return Poll::Ready(false) };
            if !head.is_interim() {
                self.head = Some((head.status(), head.framing()));
                self.fields.extend(head.fields().map(|field| (field.name.to_vec(), field.value.to_vec())));
            }
        }
        if self.head.is_some_and(|(_, framing)| framing.is_empty()) {
            return Poll::Ready(true);
        }
        loop {
            match ready!(stream.poll_frame(cx, read, limits)) {
                Err(_) => return Poll::Ready(false),
                Ok(Frame::Data(data)) => self.body.extend_from_slice(&data),
                Ok(Frame::End) => return Poll::Ready(true),
                Ok(Frame::Trailers(trailers)) => {
                    let fields = trailers.fields().map(|(name, value)| (name.to_vec(), value.to_vec()));
                    self.fields.extend(fields);
                    return Poll::Ready(true);
                }
            }
        }
    }
}

/// Connection to a server that sends these bytes, and reads nothing.
struct ServerBytes<'a> {
    left: &'a [u8],
    arrive: usize,
}

impl AsyncRead for ServerBytes<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let len = self.left.len().min(self.arrive).min(buffer.remaining());
        let (now, later) = self.left.split_at(len);
        buffer.put_slice(now);
        self.left = later;
        cx.waker().wake_by_ref();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ServerBytes<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
