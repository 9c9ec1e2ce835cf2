//! Calls as gRPC makes them: messages with a prefix, a status in the trailers.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use convey_testkit::{BalancerProcess, Loopback};
use fastrand::Rng;
use futures_util::future::join_all;
use h2::server::{self, SendResponse};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::TcpListener;

use super::case::Version;
use super::client::Failure;
use super::streams::{Connection, StreamClients};
use super::{addresses, seeds, setup};
use crate::http2::block_on;
use crate::http3::authority;

const CALLS: usize = 100;
const CONNECTIONS: usize = 5;

/// Calls at once on a connection.
const AT_ONCE: usize = 4;

const UNARY: &str = "/pkg.Service/Unary";
const STREAM: &str = "/pkg.Service/Stream";

/// Messages of a call, and how they are sent.
struct Call {
    messages: Vec<Bytes>,
    /// Whether each message is answered before the next one is sent.
    in_turns: bool,
}

pub(super) fn unary_calls_of_all_sizes_arrive_whole() {
    hundred_calls(UNARY, |random, n| {
        let most = 10_f64 * 1_048_576.0;
        let len = match n {
            0 => 1_024.0,
            1 => most,
            _ => 1_024.0 * (most / 1_024.0).powf(random.f64()),
        };
        Call { messages: vec![message(len as usize, random)], in_turns: false }
    });
}

pub(super) fn streams_of_messages_arrive_whole() {
    hundred_calls(STREAM, |random, n| {
        let messages = (0..24).map(|_| message(random.usize(5..=65_536), random)).collect();
        Call { messages, in_turns: n % 2 == 0 }
    });
}

/// A message of this length, with its prefix.
fn message(len: usize, random: &mut Rng) -> Bytes {
    let mut message = BytesMut::with_capacity(5 + len);
    message.put_u8(0);
    message.put_u32(len as u32);
    message.resize(5 + len, 0);
    random.fill(&mut message[5..]);
    message.freeze()
}

/// Makes as many calls over HTTP/2 as over HTTP/3, a few at once on each connection.
fn hundred_calls(path: &str, call: impl Fn(&mut Rng, usize) -> Call) {
    for seed in seeds(1..2) {
        for version in [Version::Http2, Version::Http3] {
            let mut random = Rng::with_seed(seed);
            let calls: Vec<Call> = (0..CALLS).map(|n| call(&mut random, n)).collect();
            let failed = make(version, path, &calls);
            assert!(
                failed.is_empty(),
                "CONVEY_SEED={seed}: {} of {CALLS} over {version:?}: {failed:?}",
                failed.len()
            );
        }
    }
}

fn make(version: Version, path: &str, calls: &[Call]) -> Vec<String> {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let setup = setup(&lab, Version::Http2).server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        serve(lab.server(1)).await;
        let clients = StreamClients::new(version, addresses(&lab), &authority, None);
        let of_connection = calls.chunks(calls.len() / CONNECTIONS).map(async |calls| {
            let connection = clients.connect().await.unwrap();
            let mut failed = Vec::new();
            for together in calls.chunks(AT_ONCE) {
                let ends = join_all(together.iter().map(|call| finish(&connection, path, call))).await;
                failed.extend(ends.into_iter().filter_map(Result::err).map(|failure| format!("{failure:?}")));
            }
            failed
        });
        join_all(of_connection).await.concat()
    })
}

/// Makes a call, and compares its echo.
async fn finish(connection: &Connection, path: &str, call: &Call) -> Result<(), Failure> {
    let request =
        Request::builder().method("POST").header("content-type", "application/grpc").header("te", "trailers");
    let (mut sending, mut reading) = connection.begin(request, path, false).await?;
    let mut echo = Vec::new();
    if call.in_turns {
        reading.head().await?;
        for message in &call.messages {
            let expected = echo.len() + message.len();
            sending.send(message.clone()).await?;
            while echo.len() < expected {
                echo.extend_from_slice(&reading.data().await?.ok_or("the response is over")?);
            }
        }
        sending.finish().await?;
    } else {
        let sent = async {
            for message in &call.messages {
                sending.send(message.clone()).await?;
            }
            sending.finish().await
        };
        let read = async {
            reading.head().await?;
            reading.rest().await
        };
        ((), echo) = tokio::try_join!(sent, read)?;
    }
    echo.extend(reading.rest().await?);
    let trailers = reading.trailers().await?;
    if echo != call.messages.concat() {
        return Err(format!("{} bytes of {}", echo.len(), call.messages.concat().len()).into());
    }
    let status = trailers.get("grpc-status").ok_or("no status")?;
    if status == "0" { Ok(()) } else { Err(format!("status {status:?}").into()) }
}

/// A server that returns the messages of a call: as they come, or all at the end of a unary call.
async fn serve(addr: SocketAddr) {
    let listener = TcpListener::bind(addr).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = server::handshake(stream).await?;
                while let Some(accepted) = connection.accept().await {
                    let (request, respond) = accepted?;
                    tokio::spawn(echo(request, respond));
                }
                Ok::<_, h2::Error>(())
            });
        }
    });
}

/// Errors are seen by the client.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), Failure> {
    let is_unary = request.uri().path() == UNARY;
    let mut body = request.into_body();
    let head = || Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut stream = if is_unary { None } else { Some(respond.send_response(head(), false)?) };
    let mut all = BytesMut::new();
    while let Some(data) = body.data().await.transpose()? {
        body.flow_control().release_capacity(data.len())?;
        match &mut stream {
            Some(stream) => stream.send_data(data, false)?,
            None => all.extend_from_slice(&data),
        }
    }
    let stream = match stream {
        Some(stream) => stream,
        None => {
            let mut stream = respond.send_response(head(), false)?;
            stream.send_data(all.freeze(), false)?;
            stream
        }
    };
    Ok(end(stream)?)
}

fn end(mut stream: SendStream<Bytes>) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
