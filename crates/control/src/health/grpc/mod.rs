//! gRPC checks: calls of `grpc.health.v1.Health/Check`.

mod message;
mod reply;
#[cfg(test)]
mod tests;

use convey_http_core::{HeadLimits, HttpMethod, Malformed, ResponseHead, ServerFault, Trailers};
use convey_model::GrpcCheck;
use h2::RecvStream;
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::{Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};

use super::http2::{StreamCall, fields};
use super::probe::{ProbeError, put_headers};
pub(super) use reply::{GrpcFault, printable};

/// Method of the health service.
const PATH: &str = "/grpc.health.v1.Health/Check";

/// Maximum length of a response's message with its prefix, in bytes.
const MAX_MESSAGE: usize = 4 << 10;

/// Calls the health service of a server over `stream`. `host` is the `:authority` of the call.
pub(super) async fn call(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    check: &GrpcCheck,
    host: &str,
    limits: &HeadLimits,
) -> Result<String, ProbeError> {
    let call = StreamCall {
        request: request(check, host)?,
        body: Some(message::request(&check.service).into()),
        method: HttpMethod::Post,
        limits,
    };
    call.send(stream, |head, body| judge(head, body, limits)).await?;
    Ok("gRPC health status SERVING".to_owned())
}

fn request(check: &GrpcCheck, host: &str) -> Result<Request<()>, ProbeError> {
    // Requests of clients have this scheme within TLS, too.
    let uri = Uri::builder().scheme("http").authority(host).path_and_query(PATH).build();
    let mut request = Request::post(uri.map_err(|_| ProbeError::Own(Malformed::Host))?)
        .body(())
        .map_err(|_| ProbeError::Own(Malformed::StartLine))?;
    let headers = request.headers_mut();
    put_headers(&check.headers, headers);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    Ok(request)
}

/// Reads the rest of a response, and judges it.
async fn judge(head: ResponseHead, mut body: RecvStream, limits: &HeadLimits) -> Result<(), ProbeError> {
    reply::check_head(&head)?;
    let mut message = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        if message.len() + data.len() > MAX_MESSAGE {
            return Err(GrpcFault::LongMessage.into());
        }
        message.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len())?;
    }
    let trailers = match body.trailers().await? {
        Some(found) => Trailers::of_stream(fields(&found), limits).map_err(ServerFault::Malformed)?,
        None => None,
    };
    Ok(reply::check(&head, &message, trailers.as_ref())?)
}
