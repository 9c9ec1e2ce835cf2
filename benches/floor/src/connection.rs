//! Connection of a client: requests, one after the other, and their responses.

use std::hint::black_box;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Instant;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::body::Body;
use crate::counters::Ended;
use crate::head::{self, Request, Response};
use crate::{pool, stream, strict, worker};

/// Longest part of a response's body, in bytes, that is copied behind its head: one slice costs
/// less than two.
const JOINED: usize = 2048;

struct Connection {
    stream: TcpStream,
    /// Address of the client, for `X-Forwarded-For`.
    address: String,
    /// Received bytes of the next request.
    left: Vec<u8>,
    /// Memory that each request reads and writes, with `--touch`.
    touched: Box<[u8]>,
}

/// Head and body of the final response, after they were sent.
struct Relayed {
    response: Response,
    /// Bytes to the client.
    sent: u64,
    /// Whether the server has sent nothing after the response.
    is_clean: bool,
}

/// Serves a client until one of the two closes the connection.
pub(crate) async fn serve(stream: TcpStream, address: IpAddr) -> io::Result<()> {
    let touched = worker::with(|worker| vec![0; worker.options.touch].into());
    let mut connection = Connection { stream, address: address.to_string(), left: Vec::new(), touched };
    while let Some((request, rest)) = connection.receive_request().await? {
        if !connection.exchange(request, rest).await? {
            return connection.stream.shutdown().await;
        }
    }
    Ok(())
}

impl Connection {
    /// Receives the head of a request. Returns it, and the place of the bytes after it in the input
    /// buffer; `None`: the connection is over.
    async fn receive_request(&mut self) -> io::Result<Option<(Request, Range<usize>)>> {
        let Connection { stream, address, left, .. } = self;
        stream::receive_head(stream, left, true, |worker, source, output| {
            let routes = worker.routes.as_ref();
            match worker.options.strict {
                true => strict::request(source, address, routes, output),
                false => head::request(source.received, address, routes, output),
            }
        })
        .await
    }

    /// Relays a request, whose head was received, and its response. Returns whether another request
    /// may follow.
    async fn exchange(&mut self, request: Request, rest: Range<usize>) -> io::Result<bool> {
        self.touch();
        let (number, began) =
            worker::with(|worker| (worker.pool.next(), worker.counters.is_some().then(|| worker.now())));
        let mut body = Body::new(request.framing);
        let mut received = rest.start as u64;
        let taken = take(&mut body, rest, &mut self.left)?;
        received += taken.len() as u64;
        let mut server = pool::send(number, taken).await?;
        if !body.is_complete() {
            received += stream::relay(&mut self.stream, &mut server, &mut body).await?;
        }
        let Relayed { response, sent, is_clean } = self.respond(&request, &mut server).await?;
        if let Some(began) = began {
            count((number, response.status), (received, sent), began);
        }
        if response.keeps_alive && is_clean {
            worker::with(|worker| worker.pool.keep(number, server));
        }
        Ok(response.client_stays)
    }

    /// Relays a response, and the interim responses before it.
    async fn respond(&mut self, request: &Request, server: &mut TcpStream) -> io::Result<Relayed> {
        let (mut left, mut sent) = (Vec::new(), 0);
        loop {
            let head = stream::receive_head(server, &mut left, false, |worker, source, output| {
                let client_stays = request.keeps_alive && !worker.is_draining();
                match worker.options.strict {
                    true => strict::response(source, request.is_head, client_stays, output),
                    false => head::response(source.received, request.is_head, client_stays, output),
                }
            });
            let (response, rest) = head.await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let mut body = Body::new(response.framing);
            let taken = take(&mut body, rest, &mut left)?;
            let (unjoined, length) = join(taken);
            stream::send(&mut self.stream, unjoined).await?;
            sent += length as u64;
            if response.status < 200 {
                continue;
            }
            if !body.is_complete() {
                sent += stream::relay(server, &mut self.stream, &mut body).await?;
            }
            return Ok(Relayed { response, sent, is_clean: left.is_empty() });
        }
    }

    /// Reads and writes each byte of the connection's memory.
    fn touch(&mut self) {
        if !self.touched.is_empty() {
            self.touched.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            black_box(&self.touched);
        }
    }
}

/// Returns the part of the input buffer at `rest` that belongs to a body, and copies the rest to
/// `left`.
fn take(body: &mut Body, rest: Range<usize>, left: &mut Vec<u8>) -> io::Result<Range<usize>> {
    worker::with(|worker| {
        let input = &worker.buffers.borrow().input;
        let end = rest.start + body.take(&input[rest.clone()])?;
        left.extend_from_slice(&input[end..rest.end]);
        Ok(rest.start..end)
    })
}

/// Joins a short part of a body with the head before it. Returns the part that remains in the input
/// buffer, and the number of bytes to send.
fn join(body: Range<usize>) -> (Range<usize>, usize) {
    worker::with(|worker| {
        let buffers = &mut *worker.buffers.borrow_mut();
        let length = buffers.output.len() + body.len();
        if body.len() > JOINED {
            return (body, length);
        }
        buffers.output.extend_from_slice(&buffers.input[body]);
        (0..0, length)
    })
}

fn count((server, status): (usize, u16), (received, sent): (u64, u64), began: Instant) {
    worker::with(|worker| {
        if let Some(counters) = &worker.counters {
            let took = worker.now().saturating_duration_since(began);
            counters.count(&Ended { server, status, received, sent, took });
        }
    });
}
