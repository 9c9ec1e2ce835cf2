//! Servers of HTTP/1.1 and HTTP/2 that answer each case as it wants.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, server};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::case::{Case, Link, Version};
use super::client::{Failure, Received, read_http2, read_hyper, send_http2};
use super::link::{add_fields, body, frames};

/// Cases by their number in the path, and the requests that came.
pub(super) struct Cases {
    pub(super) all: Vec<Case>,
    received: Mutex<Vec<Vec<Result<Received, String>>>>,
}

impl Cases {
    pub(super) fn new(all: Vec<Case>) -> Arc<Cases> {
        let received = all.iter().map(|_| Vec::new()).collect();
        Arc::new(Cases { all, received: Mutex::new(received) })
    }

    pub(super) fn path(number: usize) -> String {
        format!("/case/{number}")
    }

    /// Requests of this case that came to the server.
    pub(super) fn received(&self, number: usize) -> Vec<Result<Received, String>> {
        std::mem::take(&mut self.received.lock().unwrap()[number])
    }

    fn add(&self, number: usize, received: Result<Received, Failure>) {
        let received = received.map_err(|failure| failure.to_string());
        self.received.lock().unwrap()[number].push(received);
    }
}

/// Number of the case in this path.
fn number<B>(request: &Request<B>) -> usize {
    request.uri().path().rsplit('/').next().unwrap().parse().unwrap()
}

/// Serves connections with this link, until the runtime ends.
pub(super) fn start(addr: SocketAddr, version: Version, link: &Link, cases: &Arc<Cases>) -> JoinHandle<()> {
    let (link, cases, listener) = (link.clone(), cases.clone(), listen(addr, link));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            match version {
                Version::Http1 => drop(tokio::spawn(serve_http1(stream, link.clone(), cases.clone()))),
                _ => drop(tokio::spawn(serve_http2(stream, link.clone(), cases.clone()))),
            }
        }
    })
}

fn listen(addr: SocketAddr, link: &Link) -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    if let Some(buffer) = link.buffer {
        socket.set_recv_buffer_size(buffer as u32).unwrap();
    }
    socket.bind(addr).unwrap();
    socket.listen(1024).unwrap()
}

async fn serve_http1(stream: TcpStream, link: Link, cases: Arc<Cases>) -> Result<(), hyper::Error> {
    let stream = TokioIo::new(link.of_server(stream));
    let pauses = link.pauses;
    let service = service_fn(move |request| answer_http1(request, cases.clone(), pauses));
    hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await
}

async fn answer_http1(
    request: Request<Incoming>,
    cases: Arc<Cases>,
    pauses: bool,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let number = number(&request);
    let case = cases.all[number].clone();
    let received = Received::of_request(&request);
    let (gate, opened) = oneshot::channel();
    let reading = tokio::spawn(async move {
        cases.add(number, read_hyper(received, request.into_body(), pauses).await);
        let _ = gate.send(());
    });
    if !case.is_early {
        reading.await.unwrap();
    }
    let body = match case.is_answered_by_head() {
        true => Empty::new().boxed_unsync(),
        false => body(&case.response, Some(opened)),
    };
    Ok(head_of_response(&case, body))
}

fn head_of_response<B>(case: &Case, body: B) -> Response<B> {
    let mut response = Response::builder().status(case.status).body(body).unwrap();
    add_fields(&case.response, response.headers_mut());
    response
}

async fn serve_http2(stream: TcpStream, link: Link, cases: Arc<Cases>) -> Result<(), h2::Error> {
    let mut builder = server::Builder::new();
    if let Some(window) = link.window {
        builder.initial_window_size(window);
    }
    builder.max_frame_size(link.frame).data_frame_budget(1 << 30);
    let mut connection = builder.handshake(link.over(stream)).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        tokio::spawn(answer_http2(request, respond, cases.clone(), link.pauses));
    }
    Ok(())
}

/// Errors are seen by the client.
async fn answer_http2(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    cases: Arc<Cases>,
    pauses: bool,
) -> Result<(), Failure> {
    let number = number(&request);
    let case = cases.all[number].clone();
    let received = Received::of_request(&request);
    let (gate, opened) = oneshot::channel();
    let reading = async move {
        cases.add(number, read_http2(received, request.into_body(), pauses).await);
        let _ = gate.send(());
    };
    let responding = async {
        let mut opened = Some(opened);
        if !case.is_early {
            let _ = opened.take().unwrap().await;
        }
        let is_over = case.is_answered_by_head();
        let stream = respond.send_response(head_of_response(&case, ()), is_over)?;
        if !is_over {
            send_http2(frames(&case.response, opened), stream).await?;
        }
        Ok(())
    };
    tokio::join!(reading, responding).1
}
