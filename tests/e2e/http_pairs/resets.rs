//! Servers of HTTP/2 that reset streams, and the error codes that clients get.

use bytes::Bytes;
use convey_testkit::{BalancerProcess, Loopback};
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use h3::error::{Code, StreamError};
use http::{Request, Response};
use tokio::net::TcpListener;

use super::case::Version;
use super::client::Failure;
use super::streams::{Connection, StreamClients};
use super::{addresses, setup};
use crate::http2::block_on;
use crate::http3::authority;

/// Codes of servers, and the codes of clients of HTTP/2 and HTTP/3. A client may repeat a request
/// whose stream is refused, so it must not get this code after the head of a response.
const CODES: [Codes; 5] = [
    (Reason::CANCEL, Reason::CANCEL, Code::H3_REQUEST_CANCELLED),
    (Reason::ENHANCE_YOUR_CALM, Reason::ENHANCE_YOUR_CALM, Code::H3_EXCESSIVE_LOAD),
    (Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR, Code::H3_INTERNAL_ERROR),
    (Reason::INTERNAL_ERROR, Reason::INTERNAL_ERROR, Code::H3_INTERNAL_ERROR),
    (Reason::FLOW_CONTROL_ERROR, Reason::INTERNAL_ERROR, Code::H3_INTERNAL_ERROR),
];

/// A server that resets each stream with the code in its path: after data if the path begins with
/// `/late`, and without a response if it begins with `/early`.
async fn serve(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut connection = server::handshake(stream).await?;
            while let Some(accepted) = connection.accept().await {
                let (request, respond) = accepted?;
                tokio::spawn(reset(request, respond));
            }
            Ok::<_, h2::Error>(())
        });
    }
}

/// An error means that the client has left, which the test sees.
async fn reset(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    let (kind, code) = head.uri.path().rsplit_once('/').unwrap();
    let code = Reason::from(code.parse::<u32>().unwrap());
    if kind == "/early" {
        respond.send_reset(code);
        return Ok(());
    }
    let mut stream = respond.send_response(Response::new(()), false)?;
    stream.send_data(Bytes::from_static(b"x"), false)?;
    // The client ends its request once it has the data.
    while let Some(data) = body.data().await {
        data?;
    }
    stream.send_reset(code);
    Ok(())
}

/// Code of a reset.
fn code(failure: &Failure) -> u64 {
    if let Some(error) = failure.downcast_ref::<h2::Error>() {
        assert!(error.is_reset() && error.is_remote(), "{error:?}");
        return u32::from(error.reason().unwrap()).into();
    }
    match failure.downcast_ref() {
        Some(StreamError::RemoteTerminate { code, .. }) => code.value(),
        other => panic!("{other:?}"),
    }
}

/// Makes a call of this type. Returns its status if it gets a response, and the code of the reset.
async fn call(client: &Connection, path: &str, kind: &str) -> (Option<u16>, Option<u64>) {
    let request = Request::builder().method("POST").header("content-type", kind);
    let (mut sending, mut reading) = client.begin(request, path, false).await.unwrap();
    let status = match reading.head().await {
        Ok(status) => status,
        Err(failure) => return (None, Some(code(&failure))),
    };
    assert!(reading.data().await.unwrap().is_some());
    if status == 200 {
        sending.finish().await.unwrap();
    }
    (Some(status), reading.rest().await.err().map(|failure| code(&failure)))
}

/// A row of [`CODES`].
type Codes = (Reason, Reason, Code);

/// Returns the code of a client from a row.
type CodeOfClient = fn(&Codes) -> u64;

/// Calls `check` with a client of each version, whose server resets streams, and with the function
/// that returns the client's code.
fn with_clients(check: impl AsyncFn(&Connection, CodeOfClient)) {
    let lab = Loopback::new();
    let authority = authority(&lab);
    let setup = setup(&lab, Version::Http2).health("kind = \"none\"").server("a", lab.server(1), "");
    let _balancer = BalancerProcess::start(&lab, &setup);
    block_on(async {
        tokio::spawn(serve(TcpListener::bind(lab.server(1)).await.unwrap()));
        let versions: [(Version, CodeOfClient); 2] =
            [(Version::Http2, |codes| u32::from(codes.1).into()), (Version::Http3, |codes| codes.2.value())];
        for (version, of_client) in versions {
            let clients = StreamClients::new(version, addresses(&lab), &authority, None);
            check(&clients.connect().await.unwrap(), of_client).await;
        }
    });
}

pub(super) fn code_of_a_server_that_resets_its_response_reaches_the_client() {
    with_clients(async |client, of_client| {
        for codes in &CODES {
            let path = format!("/late/{}", u32::from(codes.0));
            for kind in ["text/plain", "application/grpc"] {
                let outcome = call(client, &path, kind).await;
                assert_eq!(outcome, (Some(200), Some(of_client(codes))), "{kind}, {codes:?}");
            }
        }
    });
}

pub(super) fn early_reset_of_a_grpc_call_reaches_its_client_with_its_code() {
    with_clients(async |client, of_client| {
        for codes in &CODES {
            let path = format!("/early/{}", u32::from(codes.0));
            let has_status = of_client(codes) != of_client(&CODES[3]);
            let reset = (None, Some(of_client(codes)));
            for (kind, is_grpc) in [("application/grpc+proto", true), ("text/plain", false)] {
                let expected = if is_grpc && has_status { reset } else { (Some(502), None) };
                assert_eq!(call(client, &path, kind).await, expected, "{kind}, {codes:?}");
            }
        }
    });
}
