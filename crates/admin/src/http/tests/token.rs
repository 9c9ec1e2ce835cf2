//! Tests of changes at the statistics address, with and without the token.

use convey_config::{AdminToken, fixture::config};
use convey_control::{Done, ReloadHistory, RemovedOverlays, RequestRefusal, Requested};
use hyper::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};

use super::*;

pub(super) const SECRET: &str = "correct-horse-battery";

/// Loads a configuration with this token.
pub(super) fn has_token(loads: &ReloadHistory, secret: &str) {
    let mut config = config(vec![], vec![]);
    config.stats.token = Some(AdminToken::new("/etc/convey/token".into(), secret).unwrap());
    loads.succeed(&config, Timestamp(1));
}

/// Answers requests of operators, and returns the names of the requesters.
fn names(mut requests: mpsc::Receiver<OperatorRequest>) -> mpsc::UnboundedReceiver<String> {
    let (told, names) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(OperatorRequest { what, by, answer }) = requests.recv().await {
            let _ = told.send(by);
            let _ = answer.send(match what {
                Requested::Reset(_) => Ok(Done::Reset(RemovedOverlays::default())),
                other => Err(RequestRefusal::Refused(format!("{other:?}"))),
            });
        }
    });
    names
}

async fn send(addr: SocketAddr, method: Method, path: &str, header: &str) -> Response<String> {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut client, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(AUTHORIZATION, header);
    let (head, body) =
        client.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.into()).unwrap())
}

async fn reset(addr: SocketAddr, secret: &str) -> StatusCode {
    send(addr, Method::DELETE, "/v1/overlays", &format!("Bearer {secret}")).await.status()
}

#[tokio::test]
async fn token_permits_changes_and_is_logged_with_its_address() {
    let mut admin = admin();
    has_token(&admin.loads, SECRET);
    let mut names = names(std::mem::replace(&mut admin.requests, mpsc::channel(1).1));
    let addr = start(LIMITS, &admin).await;
    assert_eq!(reset(addr, SECRET).await, StatusCode::OK);
    assert_eq!(names.recv().await.unwrap(), "token from 127.0.0.1");

    has_token(&admin.loads, "another-horse-battery");
    assert_eq!(reset(addr, SECRET).await, StatusCode::UNAUTHORIZED, "a reload has another token");
    assert_eq!(reset(addr, "another-horse-battery").await, StatusCode::OK);
}

#[tokio::test]
async fn wrong_tokens_get_429_after_ten_and_the_right_one_passes() {
    let mut admin = admin();
    has_token(&admin.loads, SECRET);
    let addr = start(LIMITS, &admin).await;
    let wrong = send(addr, Method::GET, "/v1/overlays", "Bearer wrong").await;
    assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(wrong.headers()[WWW_AUTHENTICATE], "Bearer realm=\"convey\"");
    assert!(wrong.body().contains("the token does not match stats.token_file"), "{}", wrong.body());
    for _ in 1..10 {
        assert_eq!(reset(addr, "wrong").await, StatusCode::UNAUTHORIZED);
    }
    let refused = send(addr, Method::DELETE, "/v1/overlays", "Bearer wrong").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()[RETRY_AFTER], "61");
    let told = admin.events.since(0);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].text.contains("a wrong token from 127.0.0.1"), "{}", told[0].text);
    assert_eq!(ask(addr, Method::GET, "/v1/overlays").await.status(), StatusCode::OK, "reading needs none");
    let mut names = names(std::mem::replace(&mut admin.requests, mpsc::channel(1).1));
    assert_eq!(reset(addr, SECRET).await, StatusCode::OK);
    assert_eq!(names.recv().await.unwrap(), "token from 127.0.0.1");
}

#[tokio::test]
async fn without_a_token_in_the_file_a_header_is_no_matter() {
    let admin = admin();
    let addr = start(LIMITS, &admin).await;
    assert_eq!(send(addr, Method::GET, "/v1/overlays", "Bearer x").await.status(), StatusCode::OK);
    let refused = send(addr, Method::DELETE, "/v1/overlays", "Bearer x").await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    has_token(&admin.loads, SECRET);
    let of_a_proxy = send(addr, Method::GET, "/v1/overlays", "Basic dXNlcjpwYXNz").await;
    assert_eq!(of_a_proxy.status(), StatusCode::OK, "another scheme is that of a proxy");
}

#[tokio::test]
async fn a_page_of_another_site_is_not_allowed_to_send_the_token() {
    let admin = admin();
    has_token(&admin.loads, SECRET);
    let addr = start(LIMITS, &admin).await;
    let preflight = ask(addr, Method::OPTIONS, "/v1/overlays").await;
    assert_eq!(preflight.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(preflight.headers().keys().all(|name| !name.as_str().starts_with("access-control")));
}
