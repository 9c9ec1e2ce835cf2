//! Sends a file to its client in pieces, between which the thread's other connections get a turn.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_files::beneath::{self, DiskWait};
use convey_http_core::BodyEncoder;
use convey_proxy::ClientStream;
use convey_snapshot::stats::Counter;
use convey_stream::More;
use rustix::fs::sendfile;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::yield_now;

use super::directory_page::{PART, PageInParts};
use super::disk::aside;
use super::reply::{Reply, ReplyPiece};
use super::store::{FileCache, FileContent, LoadedFile};
use crate::buffer;
use crate::data_queue::FRAME;
use crate::ends::ClientEnd;
use crate::forward::StallLimit;
use crate::streams::IncomingStream;
use crate::time_limit::TimeLimit;

/// Maximum number of bytes of a large file that are sent in one turn.
const TURN: u64 = 128 * 1024;

/// Maximum number of bytes of a large file that are sent in one turn if convey has to copy them.
const COPIED: u64 = 32 * 1024;

/// Number of bytes that convey checks for presence in the page cache with one check, and reads
/// ahead if they are absent.
pub(super) const AHEAD: u64 = 1024 * 1024;

/// A response on its way to the client.
pub(super) struct Sending<'a, 'b> {
    pub(super) end: &'a mut ClientEnd<'b>,
    /// Framing of the body. Streams frame it themselves.
    pub(super) encoder: BodyEncoder,
    /// Whether the end of a stream was sent.
    pub(super) has_ended: bool,
    pub(super) time_limit: &'a mut TimeLimit,
    pub(super) client: &'a ClientStream,
    pub(super) cache: &'a FileCache,
    /// Time limit for a client that reads too little.
    pub(super) stall: StallLimit,
    /// Called with the number of bytes that the client has accepted.
    pub(super) moved: &'a mut (dyn FnMut(u64) + Send),
}

impl Sending<'_, '_> {
    /// Sends the whole response, whose head is written already.
    ///
    /// # Errors
    /// Returns the reason why the connection is over.
    pub(super) async fn send(
        mut self,
        written: Vec<u8>,
        reply: Reply,
        file: Option<&LoadedFile>,
    ) -> Result<(), Counter> {
        self.time_limit.renew(self.stall.bound());
        let content = file.map(|file| &file.content);
        let (mut pieces, mut before) = (reply.pieces.into_iter().peekable(), &written[..]);
        while let Some(piece) = pieces.next() {
            let more = if pieces.peek().is_none() { More::No } else { More::Data };
            match (&piece, content) {
                // A short piece is sent together with the bytes before it.
                (ReplyPiece::Bytes(bytes), _) => self.write(before, bytes, more).await?,
                (ReplyPiece::OfFile(range), Some(FileContent::Small(content))) => {
                    let part = part(content, range).ok_or(Counter::FileChanged)?;
                    self.write(before, part, more).await?;
                }
                (ReplyPiece::OfFile(range), Some(FileContent::Open(opened))) => {
                    self.write(before, &[], More::Data).await?;
                    let is_known = file.is_some_and(|file| file.was_in_memory(range, self.cache));
                    let was_there = self.send_range(opened, range.clone(), is_known).await?;
                    file.filter(|_| was_there).iter().for_each(|file| file.is_in_memory(range, self.cache));
                }
                (ReplyPiece::Page(page), _) => {
                    self.write(before, &[], More::Data).await?;
                    return self.send_page(page.clone()).await;
                }
                (ReplyPiece::OfFile(_), None) => return Err(Counter::FileChanged),
            }
            before = &[];
        }
        self.write(before, &[], More::No).await?;
        self.end()
    }

    /// Ends the stream, unless its end was sent with the last data. Does nothing for HTTP/1.
    pub(super) fn end(&mut self) -> Result<(), Counter> {
        match &mut *self.end {
            ClientEnd::Stream(stream) if !self.has_ended => {
                self.has_ended = true;
                stream.send_data(Bytes::new(), true).map_err(|_| Counter::ClientReset)
            }
            _ => Ok(()),
        }
    }

    /// Notes that the client has accepted bytes.
    fn has_taken(&mut self, bytes: u64) {
        (self.moved)(bytes);
        self.stall.has_taken(bytes);
    }

    /// Waits until the client has read too little for too long.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<Counter> {
        self.stall.poll_over(cx, self.time_limit, self.client, || None).map(|()| Counter::ClientTooSlow)
    }

    /// Sends the page of a directory. Each part is made once the client has room for it.
    async fn send_page(&mut self, mut page: PageInParts) -> Result<(), Counter> {
        while !page.is_complete() {
            self.room(PART as u64).await?;
            let (Some(part), mut out) = (page.next().await?, Vec::new()) else { break };
            self.encoder.data(part.as_bytes(), &mut out);
            if page.is_complete() {
                self.encoder.end(None, &mut out);
            }
            let more = if page.is_complete() { More::No } else { More::Data };
            self.write(&out, &[], more).await?;
        }
        self.end()
    }

    /// Writes both slices, one after the other.
    pub(super) async fn write(&mut self, first: &[u8], second: &[u8], more: More) -> Result<(), Counter> {
        let (mut sent, all) = (0, first.len() + second.len());
        poll_fn(|cx| {
            while sent < all {
                let left =
                    (first.get(sent..).unwrap_or_default(), &second[sent.saturating_sub(first.len())..]);
                match poll_write_both(self.end, cx, left, more) {
                    Poll::Pending => return self.poll_too_slow(cx).map(Err),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Counter::ClientReset)),
                    Poll::Ready(Ok(n)) => {
                        sent += n;
                        self.has_ended |= sent == all && more == More::No;
                        self.has_taken(n as u64);
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Sends a part of an open file. Returns whether the part is short (at most `TURN` bytes) and
    /// this call has checked that it is in the page cache. If so, later calls can skip the check
    /// for a while.
    async fn send_range(
        &mut self,
        file: &Arc<OwnedFd>,
        range: Range<u64>,
        is_in_memory: bool,
    ) -> Result<bool, Counter> {
        let is_short = range.end - range.start <= TURN;
        let is_known = is_in_memory && is_short;
        let (mut at, mut in_memory_to) = (range.start, if is_known { range.end } else { range.start });
        while at < range.end {
            let most = if self.end.socket().is_some() { TURN } else { COPIED };
            let room = self.room(most.min(range.end - at)).await?;
            let end = at + room;
            if end > in_memory_to {
                in_memory_to = range.end.min(at + AHEAD);
                if !has_in_memory(file, at..in_memory_to) {
                    read_ahead(file.clone(), at..in_memory_to).await?;
                }
            }
            let sent = match self.end.socket() {
                Some(socket) => send_some(socket, file, at..end)?,
                None => self.copy_some(file, at..end).await?,
            };
            at += sent;
            if sent > 0 {
                self.has_taken(sent);
            }
            if at < range.end && sent > 0 {
                // Other connections get a turn, and tasks with new input are woken.
                yield_now().await;
            }
        }
        Ok(is_short && !is_known)
    }

    /// Waits until the client accepts bytes. Returns their number, at most `most`.
    async fn room(&mut self, most: u64) -> Result<u64, Counter> {
        let room = usize::try_from(most).unwrap_or(usize::MAX);
        let room = poll_fn(|cx| match self.end.poll_writable(cx, room) {
            Poll::Ready(room) => Poll::Ready(room.map_err(|_| Counter::ClientReset)),
            Poll::Pending => self.poll_too_slow(cx).map(Err),
        });
        Ok(room.await? as u64)
    }

    /// Reads a part of a file, and writes it to the client, which has room for all of it. So convey
    /// need not keep bytes, or read them twice.
    async fn copy_some(&mut self, file: &Arc<OwnedFd>, range: Range<u64>) -> Result<u64, Counter> {
        let most = usize::try_from(range.end - range.start).unwrap_or(buffer::SIZE).min(buffer::SIZE);
        let end = &mut *self.end;
        let copied = poll_fn(|cx| {
            Poll::Ready(buffer::with(|buffer| {
                let buffer = &mut buffer[..most];
                match beneath::read_at(file, buffer, range.start, DiskWait::Never) {
                    Err(Errno::AGAIN) => Ok(None),
                    Ok(0) | Err(_) => Err(Counter::FileChanged),
                    Ok(read) => give(end, cx, &buffer[..read]).map(Some),
                }
            }))
        });
        let sent = match copied.await? {
            Some(sent) => sent,
            None => {
                let piece = read_aside(file.clone(), range.start, most).await?;
                poll_fn(|cx| Poll::Ready(give(self.end, cx, &piece))).await?
            }
        };
        if self.end.is_writing() {
            self.room(1).await?;
        }
        Ok(sent as u64)
    }
}

/// Sends as many of these bytes on a stream as its client accepts. Returns the number of sent
/// bytes.
fn poll_send(
    stream: &mut dyn IncomingStream,
    cx: &mut Context<'_>,
    bytes: &[u8],
    is_end: bool,
) -> Poll<io::Result<usize>> {
    let room = ready!(stream.poll_room(cx, bytes.len().min(FRAME)))?;
    stream.send_data(Bytes::copy_from_slice(&bytes[..room]), is_end && room == bytes.len())?;
    Poll::Ready(Ok(room))
}

/// Writes bytes for which the client has room. Returns the number of accepted bytes. Bytes that a
/// TLS session has encrypted count as accepted, even if the session still buffers them.
fn give(end: &mut ClientEnd<'_>, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Counter> {
    let written = match end {
        ClientEnd::Socket(socket) => socket.poll_write(cx, bytes, More::No),
        ClientEnd::Stream(stream) => poll_send(&mut **stream, cx, bytes, false),
    };
    match written {
        Poll::Ready(Ok(sent)) => Ok(sent),
        Poll::Ready(Err(_)) => Err(Counter::ClientReset),
        Poll::Pending if end.is_writing() => Ok(bytes.len()),
        Poll::Pending => Ok(0),
    }
}

/// Writes bytes of two slices, the first slice first, with one call where possible. Returns the
/// number of written bytes.
fn poll_write_both(
    end: &mut ClientEnd<'_>,
    cx: &mut Context<'_>,
    (first, second): (&[u8], &[u8]),
    more: More,
) -> Poll<io::Result<usize>> {
    match end {
        ClientEnd::Socket(socket) if more == More::No && !first.is_empty() && !second.is_empty() => {
            socket.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)])
        }
        end => {
            let (bytes, more) = match (first.is_empty(), second.is_empty()) {
                (true, _) => (second, more),
                (false, true) => (first, more),
                (false, false) => (first, More::Data),
            };
            match end {
                ClientEnd::Socket(socket) => socket.poll_write(cx, bytes, more),
                ClientEnd::Stream(stream) => poll_send(&mut **stream, cx, bytes, more == More::No),
            }
        }
    }
}

pub(super) fn part<'a>(content: &'a [u8], range: &Range<u64>) -> Option<&'a [u8]> {
    content.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Whether a part of a file is in the page cache, judged by its first and its last byte.
pub(super) fn has_in_memory(file: &OwnedFd, range: Range<u64>) -> bool {
    let mut byte = [0];
    [range.start, range.end - 1]
        .into_iter()
        .all(|at| beneath::read_at(file, &mut byte, at, DiskWait::Never) != Err(Errno::AGAIN))
}

/// Reads a part of a file into the page cache, in a disk thread.
pub(super) async fn read_ahead(file: Arc<OwnedFd>, range: Range<u64>) -> Result<(), Counter> {
    let read = move || {
        let (mut buffer, mut at) = (vec![0; 64 * 1024], range.start);
        while at < range.end {
            match beneath::read_at(&file, &mut buffer, at, DiskWait::Allowed) {
                Ok(0) => return Ok(()),
                Ok(read) => at += read as u64,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    aside(read).await.and_then(Result::ok).ok_or(Counter::FileChanged)
}

/// Reads a part of a file in a disk thread, at most `most` bytes.
async fn read_aside(file: Arc<OwnedFd>, at: u64, most: usize) -> Result<Vec<u8>, Counter> {
    let read = move || {
        let mut piece = vec![0; most];
        let read = beneath::read_at(&file, &mut piece, at, DiskWait::Allowed).unwrap_or(0);
        piece.truncate(read);
        piece
    };
    aside(read).await.filter(|piece| !piece.is_empty()).ok_or(Counter::FileChanged)
}

/// Sends a part of a file with `sendfile`. Returns the number of bytes; 0: the socket is full.
fn send_some(socket: &TcpStream, file: &OwnedFd, range: Range<u64>) -> Result<u64, Counter> {
    let (mut at, mut moved) = (range.start, None);
    let outcome = socket.try_io(Interest::WRITABLE, || {
        // A short count means that the socket is full, or that the file has shrunk. The next call
        // returns an error if the socket is full, and 0 if the file has shrunk.
        while at < range.end {
            let most = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let n = sendfile(socket, file, Some(&mut at), most)?;
            *moved.get_or_insert(0) += n as u64;
            if n == 0 {
                break;
            }
        }
        Ok(())
    });
    match (moved, outcome) {
        // The file has become shorter.
        (Some(0), _) => Err(Counter::FileChanged),
        (Some(n), _) => Ok(n),
        (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        // The file was truncated while the kernel read it. A socket has other errors.
        (None, Err(error)) if matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::NODATA)) => {
            Err(Counter::FileChanged)
        }
        (None, _) => Err(Counter::ClientReset),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn file_that_has_shrunk_is_found_although_the_socket_has_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let file = memfd_create("shrunk", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&file, &[b'x'; 4096]).unwrap();
        socket.writable().await.unwrap();
        assert_eq!(send_some(&socket, &file, 0..65_536), Ok(4096));
        assert_eq!(send_some(&socket, &file, 4096..65_536), Err(Counter::FileChanged));
    }
}
