use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::ExchangePhase;

/// An exchange, the bytes that the client received, and the number of bytes after the response.
struct Told {
    exchange: Exchange,
    to_client: String,
    behind: usize,
}

fn request(text: &str) -> (RequestHead, BytesMut) {
    let mut received = BytesMut::from(text);
    let head = HeadReader::default().request(&mut received, &HeadLimits::default()).unwrap().unwrap();
    (head, received)
}

/// Forwards a whole request and its response, which arrives in pieces that end at these offsets.
fn tell(asked: &str, answered: &str, cuts: &[usize]) -> Result<Told, ServerFault> {
    let (head, body) = request(asked);
    let mut exchange = Exchange::new(&head);
    let sent = exchange.from_client(&body).unwrap();
    assert!(sent == body.len() && exchange.state().is_request_whole(), "{asked:?}");
    answer(exchange, answered, cuts)
}

/// Reads the head of the response, and writes it for the client. Returns whether the head is
/// complete.
fn read_head(
    exchange: &mut Exchange,
    received: &mut BytesMut,
    out: &mut Vec<u8>,
) -> Result<bool, ServerFault> {
    let (read, head) = exchange.head_from_server(received, out)?;
    let _ = received.split_to(read);
    let Some(head) = head else { return Ok(false) };
    exchange.write_head(&OutgoingResponse::new(&head, &FieldRules::default()), out);
    Ok(true)
}

fn answer(mut exchange: Exchange, answered: &str, cuts: &[usize]) -> Result<Told, ServerFault> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (answered.len() + 1)).collect();
    places.extend([0, answered.len()]);
    places.sort_unstable();
    let (mut received, mut out, mut has_head) = (BytesMut::new(), Vec::new(), false);
    for piece in places.windows(2) {
        received.extend_from_slice(&answered.as_bytes()[piece[0]..piece[1]]);
        if !has_head {
            has_head = read_head(&mut exchange, &mut received, &mut out)?;
        }
        if has_head {
            let len = exchange.from_server(&received)?;
            out.extend_from_slice(&received.split_to(len));
        }
    }
    Ok(Told { exchange, to_client: String::from_utf8(out).unwrap(), behind: received.len() })
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const GET_10: &str = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn responses_reach_the_client_and_both_connections_go_on_where_they_can() {
    let cases = [
        (GET, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true, true),
        (POST, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true, true),
        (GET, "HTTP/1.1 204 No Content\r\n\r\n", true, true),
        (GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", true, true),
        ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true, true),
        // The server closes its connection; the client's connection stays open.
        (GET, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", true, false),
        (GET, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", true, false),
        // The client asked for the close, or speaks HTTP/1.0.
        (GET_10, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false, true),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            false,
            true,
        ),
    ];
    for (asked, answered, client_stays, server_stays) in cases {
        let told = tell(asked, answered, &[]).unwrap();
        let end = told.exchange.state().end();
        assert_eq!((end.client_stays, end.server_stays), (client_stays, server_stays), "{answered:?}");
        assert_eq!(told.to_client.contains("Connection: close"), !client_stays, "{}", told.to_client);
        assert_eq!(told.behind, 0);
    }
}

#[test]
fn a_response_until_the_end_of_the_connection_ends_both() {
    let mut told = tell(GET, "HTTP/1.1 200 OK\r\n\r\nok", &[]).unwrap();
    assert!(
        !told.exchange.state().is_response_whole() && told.to_client.ends_with("Connection: close\r\n\r\nok")
    );
    told.exchange.server_closed().unwrap();
    assert!(told.exchange.state().is_response_whole());
    assert_eq!(told.exchange.state().end(), ExchangeEnd { client_stays: false, server_stays: false });
}

#[test]
fn a_server_that_closes_early_leaves_a_response_that_is_not_whole() {
    for answered in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"] {
        let mut told = tell(GET, answered, &[]).unwrap();
        assert_eq!(told.exchange.server_closed(), Err(ServerFault::Closed), "{answered:?}");
        let has_answered = answered.ends_with("ok");
        assert_eq!(told.exchange.state().may_be_repeated(), !has_answered, "{answered:?}");
    }
}

#[test]
fn idempotent_request_without_passed_body_may_be_repeated() {
    let may = |asked: &str, body: usize| {
        let (head, received) = request(asked);
        let mut exchange = Exchange::new(&head);
        exchange.from_client(&received[..body]).unwrap();
        exchange.state().may_be_repeated()
    };
    let put = POST.replace("POST", "PUT");
    assert!(may(GET, 0) && may(&put, 0));
    assert!(!may(&put, 1) && !may(POST, 0));
}

#[test]
fn unprocessed_request_may_go_elsewhere_before_its_body_is_passed() {
    for (body, may) in [(0, true), (1, false)] {
        let (head, received) = request(POST);
        let mut exchange = Exchange::new(&head);
        exchange.from_client(&received[..body]).unwrap();
        assert_eq!(
            (exchange.state().may_be_sent_elsewhere(), exchange.state().may_be_repeated()),
            (may, false)
        );
    }
}

#[test]
fn interim_responses_reach_clients_that_know_them() {
    let answered = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                    HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let told = tell(POST, answered, &[]).unwrap();
    assert_eq!(told.to_client, answered);
    let told = tell(GET_10, answered, &[]).unwrap();
    assert!(told.to_client.starts_with("HTTP/1.1 200 OK\r\n"), "{}", told.to_client);
    let endless = "HTTP/1.1 102 Processing\r\n\r\n".repeat(usize::from(MAX_INTERIM_RESPONSES) + 1);
    assert_eq!(tell(GET, &endless, &[]).err(), Some(ServerFault::TooManyInterim));
}

#[test]
fn interim_response_rules_out_another_server_but_not_a_local_reply() {
    let mut told = tell(GET, "HTTP/1.1 103 Early Hints\r\n\r\n", &[]).unwrap();
    assert!(!told.exchange.state().has_answered() && !told.exchange.state().may_be_sent_elsewhere());
    told.exchange.state_mut().note_answer();
    assert!(told.exchange.state().has_answered());
}

#[test]
fn phase_follows_the_request_and_then_the_response() {
    let (head, body) = request(POST);
    let mut exchange = Exchange::new(&head);
    assert_eq!(exchange.state().phase(), ExchangePhase::UpstreamRequest);
    exchange.from_client(&body).unwrap();
    assert_eq!(exchange.state().phase(), ExchangePhase::ResponseHead);
    let interim = answer(exchange, "HTTP/1.1 103 Early Hints\r\n\r\n", &[]).unwrap().exchange;
    assert_eq!(interim.state().phase(), ExchangePhase::ResponseHead);
    let part = answer(interim, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh", &[]).unwrap();
    assert_eq!(part.exchange.state().phase(), ExchangePhase::Bodies);
    let changed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(tell(UPGRADE, changed, &[]).unwrap().exchange.state().phase(), ExchangePhase::Tunnel);
}

#[test]
fn a_connection_changes_only_if_the_client_asked_for_it() {
    let changes =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nframes";
    let mut told = tell(UPGRADE, changes, &[]).unwrap();
    assert!(
        told.exchange.state().has_changed() && told.to_client.ends_with("Upgrade: websocket\r\n\r\nframes")
    );
    assert_eq!(told.exchange.from_client(b"GET / no request").unwrap(), 16);
    assert_eq!(
        (told.exchange.opaque_from_client(), told.exchange.opaque_from_server()),
        (u64::MAX, u64::MAX)
    );
    assert_eq!(tell(GET, changes, &[]).err(), Some(ServerFault::UnaskedUpgrade));
    let refused = tell(UPGRADE, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", &[]).unwrap();
    assert!(!refused.exchange.state().has_changed() && refused.exchange.state().end().client_stays);
}

#[test]
fn chunked_response_is_unchunked_for_an_http10_client() {
    let (head, _) = request(GET_10);
    let (mut exchange, mut out) = (Exchange::new(&head), Vec::new());
    let answered = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: 1\r\n\r\n";
    let mut received = BytesMut::from(answered);
    assert!(read_head(&mut exchange, &mut received, &mut out).unwrap());
    assert!(exchange.removes_chunks());
    assert_eq!(out, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    let mut data = Vec::new();
    while !exchange.state().is_response_whole() {
        let piece = exchange.piece_from_server(&received).unwrap();
        let (BodyPiece::Data(len) | BodyPiece::Framing(len) | BodyPiece::Trailers(len) | BodyPiece::End(len)) =
            piece;
        let bytes = received.split_to(len);
        if let BodyPiece::Data(_) = piece {
            data.extend_from_slice(&bytes);
        }
    }
    assert_eq!(
        (&data[..], exchange.state().end()),
        (&b"ok"[..], ExchangeEnd { client_stays: false, server_stays: true })
    );
}

#[test]
fn head_and_trailers_of_a_response_have_limits() {
    let head = |fields: usize| {
        let fields = "Set-Cookie: a=b\r\n".repeat(fields - 1);
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{fields}\r\n")
    };
    let trailers = |fields: usize| format!("{}0\r\n{}\r\n", head(1), "Grpc-Status: 0\r\n".repeat(fields));
    let long = |name: &str, of: &str, len: usize| {
        of.replacen("\r\n\r\n", &format!("\r\n{name}: {}\r\n\r\n", "x".repeat(len)), 1)
    };
    let is_whole = |limits: Option<HeadLimits>, answered: &str| {
        let mut exchange = Exchange::new(&request(GET).0);
        limits.into_iter().for_each(|limits| exchange.limit_response(limits));
        answer(exchange, answered, &[]).map(drop)
    };
    let fault = |malformed| Err(ServerFault::Malformed(malformed));
    for (limits, most) in [(None, 256), (Some(HeadLimits { bytes: 65_535, fields: 1_000 }), 1_000)] {
        for (of, malformed) in
            [(&head as &dyn Fn(usize) -> String, Malformed::TooManyFields), (&trailers, Malformed::Trailers)]
        {
            assert_eq!(is_whole(limits, &of(most)), Ok(()));
            assert_eq!(is_whole(limits, &of(most + 1)), fault(malformed));
        }
    }
    let room = 65_535 - long("X", &head(1), 0).len();
    assert_eq!(is_whole(None, &long("X", &head(1), room)), Ok(()));
    assert_eq!(is_whole(None, &long("X", &head(1), room + 1)), fault(Malformed::HeadTooLong));
    let long_trailer = |len: usize| format!("{}0\r\nX: {}\r\n\r\n", head(1), "x".repeat(len));
    assert_eq!(is_whole(None, &long_trailer(65_000)), Ok(()));
    assert_eq!(is_whole(None, &long_trailer(65_535)), fault(Malformed::Trailers));
}

#[test]
fn an_answer_before_the_whole_request_is_passed_on_and_ends_both() {
    let (head, body) = request(POST);
    let mut exchange = Exchange::new(&head);
    assert_eq!((exchange.from_client(&body[..1]).unwrap(), exchange.opaque_from_client()), (1, 1));
    let told = answer(exchange, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n", &[]).unwrap();
    assert!(told.exchange.state().is_response_whole() && told.to_client.contains("Connection: close"));
    assert_eq!(told.exchange.state().end(), ExchangeEnd { client_stays: false, server_stays: false });
}

#[test]
fn the_next_request_and_a_second_response_are_not_passed_on() {
    let (head, mut received) = request(&format!("{POST}{GET}"));
    let mut exchange = Exchange::new(&head);
    assert_eq!(exchange.from_client(&received.split()).unwrap(), 2);
    assert_eq!(exchange.from_client(GET.as_bytes()).unwrap(), 0);
    let twice = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".repeat(2);
    let told = answer(exchange, &twice, &[]).unwrap();
    assert_eq!((told.to_client.len(), told.behind), (twice.len() / 2, twice.len() / 2));
}

proptest! {
    #[test]
    fn exchange_is_independent_of_read_boundaries(cuts in prop::collection::vec(any::<usize>(), 0..8)) {
        let answered = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                        4;x=y\r\nbody\r\n0\r\nEtag: 1\r\n\r\n";
        let (whole, cut) = (tell(GET, answered, &[]).unwrap(), tell(GET, answered, &cuts).unwrap());
        prop_assert_eq!(&whole.to_client, &cut.to_client);
        prop_assert_eq!(whole.exchange.state().end(), cut.exchange.state().end());
        prop_assert_eq!(cut.exchange.state().end(), ExchangeEnd { client_stays: true, server_stays: true });
    }

    #[test]
    fn reframed_body_is_independent_of_read_boundaries(
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        for (fields, body, data, trailers, behind) in [
            ("Transfer-Encoding: chunked", "4;x=y\r\nbody\r\n2\r\n-2\r\n0\r\nX: 1\r\n\r\nmore", "body-2", "X: 1\r\n\r\n", "more"),
            ("Transfer-Encoding: chunked", "0\r\n\r\n", "", "\r\n", ""),
            ("Content-Length: 6", "body-2more", "body-2", "", "more"),
        ] {
            let (head, _) = request(GET);
            let (mut exchange, mut out) = (Exchange::new(&head), Vec::new());
            let mut received = BytesMut::from(&*format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{body}"));
            prop_assert!(read_head(&mut exchange, &mut received, &mut out).unwrap());
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (received.len() + 1)).collect();
            places.extend([0, received.len()]);
            places.sort_unstable();
            let (mut seen, mut last, mut rest) = (Vec::new(), Vec::new(), BytesMut::new());
            for piece in places.windows(2) {
                rest.extend_from_slice(&received[piece[0]..piece[1]]);
                while !exchange.state().is_response_whole() {
                    let (len, to) = match exchange.piece_from_server(&rest).unwrap() {
                        BodyPiece::Data(0) | BodyPiece::Framing(0) | BodyPiece::Trailers(0) => break,
                        BodyPiece::Data(len) => (len, Some(&mut seen)),
                        BodyPiece::Framing(len) => (len, None),
                        BodyPiece::Trailers(len) | BodyPiece::End(len) => (len, Some(&mut last)),
                    };
                    let bytes = rest.split_to(len);
                    to.into_iter().for_each(|to: &mut Vec<u8>| to.extend_from_slice(&bytes));
                }
            }
            prop_assert_eq!(String::from_utf8(seen).unwrap(), data);
            prop_assert_eq!(String::from_utf8(last).unwrap(), trailers);
            prop_assert_eq!(&rest[..], behind.as_bytes());
            prop_assert_eq!(exchange.state().end(), ExchangeEnd { client_stays: true, server_stays: true });
        }
    }
}
