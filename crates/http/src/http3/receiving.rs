//! Receiving direction of HTTP/3 streams: limits the data that waits for its reader, and notices
//! resets of streams that nobody reads.

use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use convey_http_core::Malformed;
use h3::error::Code;
use h3::quic::{RecvStream, StreamErrorIncoming, StreamId};
use quinn::ReadError;
use tokio::io::ReadBuf;
use tokio::time::{Sleep, sleep};

use super::frames::{FrameFilter, FrameTooLong};
use super::quic::{id, number, of_connection, of_stream};

/// Maximum number of bytes that are read from a stream at once.
const READ: usize = 16 * 1024;

/// Maximum number of data bytes of a stream that the library buffers.
const MAX_UNREAD: usize = 32 * 1024;

/// Maximum number of bytes that are read ahead of the library.
const MAX_AHEAD: usize = 16 * 1024;

/// Time between two checks for the reset of a stream with [`MAX_AHEAD`] bytes.
const PROBE: Duration = Duration::from_secs(1);

/// Receiving direction of a stream, for the HTTP/3 library.
pub(super) struct ReceivingStream(SharedReceiver);

impl ReceivingStream {
    pub(super) fn new(stream: quinn::RecvStream, filter: FrameFilter) -> ReceivingStream {
        let receiver =
            Receiver { stream, filter, unread: 0, unread_ahead: 0, ahead: BytesMut::new(), end: None };
        ReceivingStream(SharedReceiver(Arc::new(Mutex::new(receiver))))
    }

    /// Returns another handle to the stream.
    pub(super) fn share(&self) -> SharedReceiver {
        self.0.clone()
    }
}

impl RecvStream for ReceivingStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.0.lock().poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self.0.lock().stream.stop(number(code));
    }

    fn recv_id(&self) -> StreamId {
        id(self.0.lock().stream.id())
    }
}

/// Receiving direction of a stream, shared by the HTTP/3 library, which reads it, and the request
/// of the stream. One task uses both, because the QUIC library wakes only one task for each stream.
#[derive(Clone)]
pub(super) struct SharedReceiver(Arc<Mutex<Receiver>>);

impl SharedReceiver {
    /// Reason why the request is malformed, if convey has found one that the library does not
    /// detect.
    pub(super) fn fault(&self) -> Option<Malformed> {
        self.lock().filter.fault()
    }

    /// Protocol of an extended CONNECT, once its head was received.
    pub(super) fn protocol(&self) -> Option<Bytes> {
        self.lock().filter.protocol().cloned()
    }

    /// Notes that the request has taken `len` bytes of data from the library.
    pub(super) fn note_taken(&self, len: usize) {
        let mut receiver = self.lock();
        receiver.unread = receiver.unread.saturating_sub(len).max(receiver.unread_ahead);
    }

    fn lock(&self) -> MutexGuard<'_, Receiver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Detects the reset of a stream while nobody reads it.
///
/// The QUIC library can wait for a reset (`received_reset`). However, if the whole stream has
/// arrived, this wait would leave a waker in the library until the connection ends. So the watcher
/// reads ahead instead. After [`MAX_AHEAD`] bytes it reads only one byte a second. A reset discards
/// all data in the QUIC library, so the next read reports the reset.
pub(super) struct ResetWatcher {
    stream: SharedReceiver,
    /// Time of the next read of a stream with [`MAX_AHEAD`] bytes.
    probe: Option<Pin<Box<Sleep>>>,
}

impl ResetWatcher {
    pub(super) fn new(stream: SharedReceiver) -> ResetWatcher {
        ResetWatcher { stream, probe: None }
    }

    /// Waits until the client resets its direction of the stream, or until the connection ends.
    /// Remains pending if the client finishes the stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut receiver = self.stream.lock();
        loop {
            match receiver.end {
                Some(ReceiveEnd::Failed(_)) => return Poll::Ready(()),
                Some(ReceiveEnd::Finished | ReceiveEnd::TooLong) => return Poll::Pending,
                None => {}
            }
            let most = MAX_AHEAD.saturating_sub(receiver.ahead.len());
            if most == 0 {
                let probe = self.probe.get_or_insert_with(|| Box::pin(sleep(PROBE)));
                ready!(probe.as_mut().poll(cx));
            }
            self.probe = None;
            let unread = receiver.unread;
            let passed = receiver.poll_read(cx, most.max(1));
            receiver.unread_ahead += receiver.unread - unread;
            receiver.ahead.extend_from_slice(&ready!(passed));
        }
    }
}

/// Stream of the QUIC library, with the filter of its frames.
struct Receiver {
    stream: quinn::RecvStream,
    filter: FrameFilter,
    /// Number of data bytes in `ahead` and in the HTTP/3 library's buffer.
    unread: usize,
    /// Number of those data bytes that are in `ahead`.
    unread_ahead: usize,
    /// Filtered bytes that the HTTP/3 library has not read yet.
    ahead: BytesMut,
    /// End of the stream, which follows `ahead`.
    end: Option<ReceiveEnd>,
}

enum ReceiveEnd {
    Finished,
    /// The client has reset the stream, or its connection has ended.
    Failed(ReadError),
    /// A frame was too long.
    TooLong,
}

impl Receiver {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // The library also polls while it still has buffered data. It then returns the buffered
        // data first, and polls again later.
        if self.unread - self.unread_ahead > MAX_UNREAD {
            return Poll::Pending;
        }
        if self.ahead.is_empty() && self.end.is_none() {
            self.ahead = ready!(self.poll_read(cx, READ));
        }
        if !self.ahead.is_empty() {
            self.unread_ahead = 0;
            return Poll::Ready(Ok(Some(mem::take(&mut self.ahead).freeze())));
        }
        Poll::Ready(match &self.end {
            Some(ReceiveEnd::Failed(error)) => Err(of_read(error)),
            Some(ReceiveEnd::TooLong) => {
                let error_code = Code::H3_EXCESSIVE_LOAD.value();
                Err(StreamErrorIncoming::StreamTerminated { error_code })
            }
            Some(ReceiveEnd::Finished) | None => Ok(None),
        })
    }

    /// Reads up to `most` bytes at a time, until some bytes pass the filter, and returns these. At
    /// the end of the stream, sets `end` and returns the filter's remaining bytes, if any.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<BytesMut> {
        // The buffer is on the stack, so that a waiting stream needs no memory for it. Received
        // data gets a buffer of its own size.
        let mut room = [MaybeUninit::uninit(); READ];
        while self.end.is_none() {
            let mut room = ReadBuf::uninit(&mut room[..most]);
            if let Err(error) = ready!(self.stream.poll_read_buf(cx, &mut room)) {
                self.end = Some(ReceiveEnd::Failed(error));
            } else if room.filled().is_empty() {
                self.end = Some(ReceiveEnd::Finished);
                return Poll::Ready(self.filter.end());
            } else {
                let passed = self.pass(room.filled());
                if !passed.is_empty() {
                    return Poll::Ready(passed);
                }
            }
        }
        Poll::Ready(BytesMut::new())
    }

    fn pass(&mut self, received: &[u8]) -> BytesMut {
        match self.filter.pass(received.into()) {
            Ok((passed, data)) => {
                self.unread += data;
                passed
            }
            Err(FrameTooLong) => {
                let _ = self.stream.stop(number(Code::H3_EXCESSIVE_LOAD.value()));
                self.end = Some(ReceiveEnd::TooLong);
                BytesMut::new()
            }
        }
    }
}

fn of_read(error: &ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into_inner() },
        ReadError::ConnectionLost(error) => of_stream(of_connection(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other.clone())),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::Ipv4Addr;
    use std::task::Waker;

    use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};
    use rcgen::{CertificateParams, KeyPair};
    use rustls::RootCertStore;
    use rustls::pki_types::PrivateKeyDer;

    use super::super::frames::StreamKind;
    use super::*;

    /// Data of an upload, more than convey reads ahead.
    const DATA: usize = 2 * MAX_AHEAD;

    /// Header of a DATA frame with this data.
    const HEADER: [u8; 5] = [0, 0x80, 0, (DATA >> 8) as u8, DATA as u8];

    /// Connects two endpoints. Returns the connection of the client and that of the server.
    async fn connect() -> (Connection, Connection, [Endpoint; 2]) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut trusted = RootCertStore::empty();
        trusted.add(certificate.der().clone()).unwrap();
        let config = ServerConfig::with_single_cert(vec![certificate.der().clone()], private).unwrap();
        let at = (Ipv4Addr::LOCALHOST, 0).into();
        let (server, client) = (Endpoint::server(config, at).unwrap(), Endpoint::client(at).unwrap());
        let config = ClientConfig::with_root_certificates(Arc::new(trusted)).unwrap();
        let connecting = client.connect_with(config, server.local_addr().unwrap(), "a.example").unwrap();
        let accepting = async { server.accept().await.unwrap().await };
        let (of_client, of_server) = tokio::join!(connecting, accepting);
        (of_client.unwrap(), of_server.unwrap(), [client, server])
    }

    /// Number of bytes that were read ahead, and of those that are data.
    fn ahead(stream: &SharedReceiver) -> (usize, usize) {
        let receiver = stream.lock();
        assert_eq!(receiver.unread, receiver.unread_ahead, "the library has read nothing");
        (receiver.ahead.len(), receiver.unread_ahead)
    }

    #[tokio::test]
    async fn waiting_upload_is_read_ahead_to_the_bound_and_then_bytewise() {
        let (client, server, _endpoints) = connect().await;
        let (mut sending, _) = client.open_bi().await.unwrap();
        sending.write_all(&[&HEADER[..], &[7; DATA]].concat()).await.unwrap();
        sending.finish().unwrap();
        let (_, receiving) = server.accept_bi().await.unwrap();
        assert_eq!(sending.stopped().await, Ok(None), "the server's library has the whole upload");

        let mut stream = ReceivingStream::new(receiving, FrameFilter::new(StreamKind::Request, 100));
        let shared = stream.share();
        let mut watcher = ResetWatcher::new(shared.clone());
        let cx = &mut Context::from_waker(Waker::noop());
        tokio::time::pause();
        let mut expected = MAX_AHEAD;
        for _ in 0..3 {
            for _ in 0..2 {
                assert!(watcher.poll(cx).is_pending());
                assert_eq!(ahead(&shared), (expected, expected - HEADER.len()));
            }
            tokio::time::advance(PROBE + Duration::from_millis(1)).await;
            expected += 1;
        }

        // The library gets all of it once the request goes on.
        let read = poll_fn(|cx| stream.poll_data(cx)).await.unwrap().unwrap();
        assert_eq!(read.len(), expected - 1);
        assert_eq!(shared.lock().unread, read.len() - HEADER.len());
        shared.note_taken(read.len() - HEADER.len());
        assert_eq!(ahead(&shared), (0, 0));
    }
}
