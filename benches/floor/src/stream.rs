//! Receives and sends through the buffers of the worker.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::body::Body;
use crate::head::invalid;
use crate::splice;
use crate::worker::{self, BUFFER, Buffers, MAX_HEAD, Worker};

/// Bytes of a body from which it is spliced.
const SPLICED: u64 = 64 * 1024;

/// Received bytes that begin with a head.
pub(crate) struct Source<'a> {
    pub(crate) received: &'a [u8],
    /// Buffer for the strict parser.
    pub(crate) parsed: &'a mut BytesMut,
}

/// Receives until there is a whole head: first the bytes `left` by an earlier receive, then those
/// of the socket. `parse` writes the head for the other side into the output buffer. Returns its
/// result, and the place of the bytes after the head in the input buffer; `None`: the peer has
/// closed, or the connection is a client's and drains.
pub(crate) async fn receive_head<H>(
    stream: &mut TcpStream,
    left: &mut Vec<u8>,
    is_client: bool,
    mut parse: impl FnMut(&Worker, Source<'_>, &mut Vec<u8>) -> io::Result<Option<(usize, H)>>,
) -> io::Result<Option<(H, Range<usize>)>> {
    let mut length = 0;
    loop {
        if length > 0 || !left.is_empty() {
            let found = worker::with(|worker| find_head(worker, left, length, &mut parse))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        length = receive(stream, is_client && left.is_empty()).await?;
        if length == 0 {
            return Ok(None);
        }
    }
}

/// Parses the head that begins with the bytes of `left` and continues in the input buffer, which
/// has received `length` bytes. If it is incomplete, `left` has all bytes afterwards.
fn find_head<H>(
    worker: &Worker,
    left: &mut Vec<u8>,
    length: usize,
    parse: &mut impl FnMut(&Worker, Source<'_>, &mut Vec<u8>) -> io::Result<Option<(usize, H)>>,
) -> io::Result<Option<(H, Range<usize>)>> {
    let Buffers { input, output, parsed } = &mut *worker.buffers.borrow_mut();
    let is_whole = left.is_empty();
    if !is_whole {
        left.extend_from_slice(&input[..length]);
    }
    let received = if is_whole { &input[..length] } else { &left[..] };
    let length = received.len();
    match parse(worker, Source { received, parsed }, output)? {
        Some((end, head)) => {
            if !is_whole {
                input[..length].copy_from_slice(left);
                left.clear();
            }
            Ok(Some((head, end..length)))
        }
        None if length > MAX_HEAD => Err(invalid()),
        None => {
            if is_whole {
                left.extend_from_slice(&input[..length]);
            }
            Ok(None)
        }
    }
}

/// Receives into the input buffer. Returns the number of bytes; 0: the peer has closed, or the
/// connection is idle and drains.
async fn receive(stream: &mut TcpStream, is_idle: bool) -> io::Result<usize> {
    poll_fn(|cx| {
        worker::with(|worker| {
            if is_idle && worker.is_draining() {
                return Poll::Ready(Ok(0));
            }
            let mut buffers = worker.buffers.borrow_mut();
            let mut free = ReadBuf::new(&mut buffers.input[..BUFFER]);
            match Pin::new(&mut *stream).poll_read(cx, &mut free) {
                Poll::Ready(received) => Poll::Ready(received.map(|()| free.filled().len())),
                Poll::Pending => {
                    worker.begin_wait();
                    Poll::Pending
                }
            }
        })
    })
    .await
}

/// Sends the output buffer and a part of the input buffer. Waits only if the socket does not take
/// all at once.
pub(crate) async fn send(stream: &mut TcpStream, input: Range<usize>) -> io::Result<()> {
    let rest = poll_fn(|cx| {
        worker::with(|worker| {
            let buffers = worker.buffers.borrow();
            let (head, body) = (&buffers.output[..], &buffers.input[input.clone()]);
            let stream = Pin::new(&mut *stream);
            let sent = match (head, body) {
                (head, []) => stream.poll_write(cx, head),
                ([], body) => stream.poll_write(cx, body),
                _ => stream.poll_write_vectored(cx, &[IoSlice::new(head), IoSlice::new(body)]),
            };
            let sent = match sent {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            Poll::Ready(io::Result::Ok(rest(head, body, sent)))
        })
    })
    .await?;
    if rest.is_empty() {
        return Ok(());
    }
    worker::with(|worker| worker.begin_wait());
    stream.write_all(&rest).await
}

/// Relays the rest of a body. Returns the number of its bytes.
pub(crate) async fn relay(from: &mut TcpStream, to: &mut TcpStream, body: &mut Body) -> io::Result<u64> {
    let mut relayed = 0;
    while !body.is_complete() {
        if let Body::Length(left) = *body
            && left >= SPLICED
        {
            splice::relay(from, to, left).await?;
            return Ok(relayed + left);
        }
        let length = receive(from, false).await?;
        if length == 0 {
            return match body {
                Body::UntilClose => Ok(relayed),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let taken = worker::with(|worker| {
            let buffers = &mut *worker.buffers.borrow_mut();
            // Other connections have used the buffer while this one waited.
            buffers.output.clear();
            body.take(&buffers.input[..length])
        })?;
        if taken < length {
            return Err(invalid());
        }
        send(to, 0..length).await?;
        relayed += length as u64;
    }
    Ok(relayed)
}

/// Copy of the bytes that were not sent.
fn rest(head: &[u8], body: &[u8], sent: usize) -> Vec<u8> {
    match sent.checked_sub(head.len()) {
        Some(of_body) => body[of_body..].to_vec(),
        None => [&head[sent..], body].concat(),
    }
}
