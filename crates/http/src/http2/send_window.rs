//! Send window of a connection over HTTP/2 (RFC 9113, section 5.2), counted from its frames.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Send window of a new connection in bytes. SETTINGS do not change it.
pub(super) const INITIAL_WINDOW: u64 = 65_535;

/// Length of the preface that a client sends first, in bytes.
const PREFACE: usize = 24;

/// Length of the head of a frame, in bytes.
const FRAME_HEAD: usize = 9;

/// Length of a `WINDOW_UPDATE` frame, in bytes.
const UPDATE_LEN: usize = FRAME_HEAD + 4;

/// Types of frames.
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;

/// Window for the data of all streams of a connection together. The library does not expose it.
#[derive(Debug)]
pub(super) struct SendWindow {
    granted: AtomicU64,
    sent: AtomicU64,
}

impl Default for SendWindow {
    fn default() -> SendWindow {
        SendWindow { granted: INITIAL_WINDOW.into(), sent: 0.into() }
    }
}

impl SendWindow {
    /// Number of bytes that the server has allowed convey to send since the connection began.
    pub(super) fn granted(&self) -> u64 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Notes that the server allows convey to send this many more bytes.
    pub(super) fn grant(&self, bytes: u64) {
        self.granted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that convey has sent this many bytes of data.
    pub(super) fn has_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Number of bytes in DATA frames that convey has sent since the connection began.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Byte stream of a connection to a server. It updates the connection's [`SendWindow`] from the
/// frames that pass.
pub(super) struct WindowMeter<T> {
    io: T,
    window: Arc<SendWindow>,
    incoming: FrameReader,
    outgoing: FrameReader,
}

impl<T> WindowMeter<T> {
    pub(super) fn new(io: T, window: Arc<SendWindow>) -> WindowMeter<T> {
        let outgoing = FrameReader { skip: PREFACE, ..FrameReader::default() };
        WindowMeter { io, window, incoming: FrameReader::default(), outgoing }
    }

    fn has_read(&mut self, bytes: &[u8]) {
        self.incoming.read(bytes, |frame| {
            if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
                self.window.grant(frame.increment.into());
            }
        });
    }

    fn has_written(&mut self, bytes: &[u8]) {
        self.outgoing.read(bytes, |frame| {
            if frame.kind == DATA {
                self.window.has_sent(frame.len as u64);
            }
        });
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WindowMeter<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.has_read(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WindowMeter<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, slices))?;
        let mut left = written;
        for slice in slices {
            let len = slice.len().min(left);
            self.has_written(&slice[..len]);
            left -= len;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Parser of the frames of one direction, whose bytes may arrive in pieces.
#[derive(Default)]
struct FrameReader {
    /// Received beginning of a frame.
    head: [u8; UPDATE_LEN],
    held: usize,
    /// Bytes before the next frame.
    skip: usize,
}

/// Head of a frame, with the increment of a `WINDOW_UPDATE`.
struct Frame {
    kind: u8,
    stream: u32,
    len: usize,
    increment: u32,
}

impl FrameReader {
    fn read(&mut self, mut bytes: &[u8], mut on_frame: impl FnMut(Frame)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let wanted = if self.has_head_of_update() { UPDATE_LEN } else { FRAME_HEAD };
            let taken = bytes.len().min(wanted - self.held);
            self.head[self.held..self.held + taken].copy_from_slice(&bytes[..taken]);
            self.held += taken;
            bytes = &bytes[taken..];
            if self.held < wanted {
                return;
            }
            if wanted == FRAME_HEAD && self.has_head_of_update() {
                continue;
            }
            let [a, b, c, kind, _, stream @ .., d, e, f, g] = self.head;
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
            let increment = u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff;
            self.skip = len - (self.held - FRAME_HEAD);
            self.held = 0;
            on_frame(Frame { kind, stream, len, increment });
        }
    }

    /// Whether the head of a `WINDOW_UPDATE` with the valid length has arrived. With another
    /// length, the library ends the connection.
    fn has_head_of_update(&self) -> bool {
        self.held >= FRAME_HEAD && self.head[..4] == [0, 0, 4, WINDOW_UPDATE]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
    }

    proptest! {
        #[test]
        fn window_counts_data_and_updates_of_the_connection(
            frames in proptest::collection::vec((0u8..10, 0u32..3, 0usize..40), 0..20),
            piece in 1usize..60,
        ) {
            let window = Arc::new(SendWindow::default());
            let mut meter = WindowMeter::new((), window.clone());
            let (mut bytes, mut data, mut updates) = (Vec::new(), 0, 0);
            for (kind, stream, len) in frames {
                let payload = if kind == WINDOW_UPDATE { vec![0, 0, 1, len as u8] } else { vec![8; len] };
                bytes.extend(frame(kind, stream, &payload));
                match kind {
                    DATA => data += len as u64,
                    WINDOW_UPDATE if stream == 0 => updates += 256 + len as u64,
                    _ => {}
                }
            }
            bytes.chunks(piece).for_each(|bytes| meter.has_read(bytes));
            let sent = [&[b'P'; PREFACE][..], &bytes].concat();
            sent.chunks(piece).for_each(|bytes| meter.has_written(bytes));
            prop_assert_eq!((window.granted(), window.sent()), (INITIAL_WINDOW + updates, data));
        }
    }
}
