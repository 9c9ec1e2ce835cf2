use proptest::prelude::*;

use super::*;

/// Returns how many of these bytes belong to the body.
fn read(framing: BodyFraming, bytes: &[u8]) -> Result<BodyProgress, Malformed> {
    BodyReader::new(framing).advance(bytes)
}

#[test]
fn a_body_ends_where_its_length_says() {
    assert_eq!(read(BodyFraming::Empty, b"GET"), Ok(BodyProgress::Ends(0)));
    assert_eq!(read(BodyFraming::Length(3), b"abcGET"), Ok(BodyProgress::Ends(3)));
    assert_eq!(read(BodyFraming::Length(9), b"abc"), Ok(BodyProgress::All));
    assert_eq!(read(BodyFraming::UntilClose, b"abc"), Ok(BodyProgress::All));
    let mut body = BodyReader::new(BodyFraming::Length(u64::MAX));
    assert_eq!(body.advance(b"abc"), Ok(BodyProgress::All));
    assert_eq!((body.opaque(), body.may_end()), (u64::MAX - 3, false));
}

#[test]
fn chunks_end_with_an_empty_one_and_its_trailers() {
    let whole = [
        "0\r\n\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "00000000000000a\r\n0123456789\r\n000\r\n\r\n",
        "A;name=value;other=\"quoted\"\r\n0123456789\r\n0;x\r\n\r\n",
        "1\r\nx\r\n0\r\nX-Checksum: 1234\r\nGrpc-Status: 0\r\n\r\n",
        "4\r\n\r\n\r\n\r\n0\r\n\r\n",
    ];
    for text in whole {
        let followed = format!("{text}GET / HTTP/1.1\r\n");
        assert_eq!(
            read(BodyFraming::Chunked, followed.as_bytes()),
            Ok(BodyProgress::Ends(text.len())),
            "{text:?}"
        );
    }
}

#[test]
fn chunks_that_could_be_read_in_two_ways_are_refused() {
    let long = format!("1;{}\r\n", "x".repeat(5_000));
    let trailers = format!("0\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    let cases = [
        ("\r\n", Malformed::ChunkSize),
        ("0x3\r\nabc\r\n", Malformed::ChunkSize),
        ("+3\r\nabc\r\n", Malformed::ChunkSize),
        (" 3\r\nabc\r\n", Malformed::ChunkSize),
        ("3 \r\nabc\r\n", Malformed::ChunkSize),
        ("3\nabc\r\n", Malformed::ChunkSize),
        ("3\rabc\r\n", Malformed::ChunkSize),
        ("3;a\nabc\r\n", Malformed::ChunkSize),
        ("3;a\rx\nabc\r\n", Malformed::ChunkSize),
        ("3;\0\r\nabc\r\n", Malformed::ChunkSize),
        ("-1\r\nabc\r\n", Malformed::ChunkSize),
        ("10000000000000003\r\nabc\r\n", Malformed::ChunkSize),
        ("ffffffffffffffff\r\nabc\r\n", Malformed::ChunkSize),
        ("8000000000000000\r\nabc\r\n", Malformed::ChunkSize),
        (&long, Malformed::ChunkSize),
        ("3\r\nabcd\r\n", Malformed::ChunkEnd),
        ("3\r\nabc\n0\r\n\r\n", Malformed::ChunkEnd),
        ("3\r\nabc0\r\n\r\n", Malformed::ChunkEnd),
        ("3\r\nabc\rx", Malformed::ChunkEnd),
        ("0\r\n\n", Malformed::Trailers),
        ("0\r\nX : y\r\n\r\n", Malformed::Trailers),
        ("0\r\nX: y\n\r\n", Malformed::Trailers),
        ("0\r\n folded\r\n\r\n", Malformed::Trailers),
        ("0\r\nX: \0\r\n\r\n", Malformed::Trailers),
        ("0\r\nContent-LENGTH: 3\r\n\r\n", Malformed::Trailers),
        ("0\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::Trailers),
        ("0\r\nHost: b\r\n\r\n", Malformed::Trailers),
        ("0\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n", Malformed::Trailers),
        ("0\r\nX_Forwarded_Proto: https\r\n\r\n", Malformed::Trailers),
        (&trailers, Malformed::Trailers),
    ];
    for (text, expected) in cases {
        assert_eq!(read(BodyFraming::Chunked, text.as_bytes()), Err(expected), "{text:?}");
    }
}

proptest! {
    /// The test also skips opaque bytes without parsing them.
    #[test]
    fn chunks_end_at_the_same_byte_however_they_are_cut_up(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        cuts in prop::collection::vec(1usize..30, 1..40),
        follows in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut bytes = Vec::new();
        for chunk in &chunks {
            bytes.extend(format!("{:x};n=1\r\n", chunk.len()).into_bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\nX: y\r\n\r\n");
        let end = bytes.len();
        bytes.extend(&follows);
        let (mut body, mut at) = (BodyReader::new(BodyFraming::Chunked), 0);
        for cut in cuts.into_iter().cycle() {
            let next = &bytes[at..(at + cut).min(bytes.len())];
            let opaque = body.opaque().min(next.len() as u64) as usize;
            let hidden: Vec<u8> = next.iter().enumerate().map(|(n, byte)| if n < opaque { 0 } else { *byte }).collect();
            match body.advance(&hidden) {
                Ok(BodyProgress::All) => at += next.len(),
                Ok(BodyProgress::Ends(len)) => {
                    prop_assert_eq!(at + len, end);
                    break;
                }
                Err(why) => prop_assert!(false, "{:?} at {}", why, at),
            }
            prop_assert!(at < bytes.len(), "the end was not seen");
        }
    }
}

#[test]
fn body_data_is_separated_from_framing_at_any_read_boundary() {
    let chunks = "3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\nA: 1\r\nB: 2\r\n\r\nGET /";
    for (framing, bytes, trailers, rest) in [
        (BodyFraming::Chunked, chunks, "A: 1\r\nB: 2\r\n", "GET /"),
        (BodyFraming::Length(19), "abc0123456789abcdefGET /", "", "GET /"),
        (BodyFraming::UntilClose, "abc0123456789abcdef", "", ""),
    ] {
        for cut in 1..bytes.len() {
            let (mut reader, mut data, mut told) = (BodyReader::new(framing), String::new(), String::new());
            let mut left = bytes;
            let mut is_over = false;
            while !left.is_empty() && !is_over {
                let window = &left[..left.len().min(cut)];
                let len = match reader.next(window.as_bytes()).unwrap() {
                    BodyPiece::Data(len) => {
                        data.push_str(&left[..len]);
                        len
                    }
                    BodyPiece::Trailers(len) => {
                        told.push_str(&left[..len]);
                        len
                    }
                    BodyPiece::Framing(len) => len,
                    BodyPiece::End(len) => {
                        is_over = true;
                        len
                    }
                };
                left = &left[len..];
            }
            let expected = ("abc0123456789abcdef", rest);
            assert_eq!((&*data, left), expected, "{framing:?}, {cut} bytes at a time");
            assert_eq!(told.trim_end(), trailers.trim_end());
        }
    }
}

#[test]
fn chunks_beyond_a_limit_are_refused_before_their_data_comes() {
    let limited = |bytes: &[u8]| {
        let mut body = BodyReader::new(BodyFraming::Chunked);
        body.limit(10);
        body.advance(bytes)
    };
    assert_eq!(limited(b"4\r\nabcd\r\n6\r\nabcdef\r\n0\r\n\r\n"), Ok(BodyProgress::Ends(25)));
    assert_eq!(limited(b"4\r\nabcd\r\n7\r\n"), Err(Malformed::BodyTooLong));
    assert_eq!(limited(b"7fffffffffffffff\r\n"), Err(Malformed::BodyTooLong));
    assert_eq!(limited(b"4\r\nabcd\r\n"), Ok(BodyProgress::All));
}

#[test]
fn padded_sizes_and_a_length_among_trailers_are_read_of_responses_alone() {
    let trailer = b"0\r\nContent-Length: 3\r\n\r\n";
    let mut of_response = BodyReader::of_response(BodyFraming::Chunked);
    assert_eq!(of_response.advance(trailer), Ok(BodyProgress::Ends(trailer.len())));
    assert_eq!(BodyReader::of_request(BodyFraming::Chunked).advance(trailer), Err(Malformed::Trailers));
    let other = b"0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(BodyReader::of_response(BodyFraming::Chunked).advance(other), Err(Malformed::Trailers));
    let padded = b"3 \t\r\nabc\r\n0   ;x=y\r\n\r\n";
    let mut of_response = BodyReader::of_response(BodyFraming::Chunked);
    assert_eq!(of_response.advance(padded), Ok(BodyProgress::Ends(padded.len())));
    let mut of_request = BodyReader::of_request(BodyFraming::Chunked);
    assert_eq!(of_request.advance(padded), Err(Malformed::ChunkSize));
    for wrong in ["3 3\r\n", " 3\r\n", "3 \n", "3 x=y\r\n"] {
        let mut body = BodyReader::of_response(BodyFraming::Chunked);
        assert_eq!(body.advance(wrong.as_bytes()), Err(Malformed::ChunkSize), "{wrong:?}");
    }
    let endless = format!("3{}", " ".repeat(5_000));
    assert_eq!(
        BodyReader::of_response(BodyFraming::Chunked).advance(endless.as_bytes()),
        Err(Malformed::ChunkSize)
    );
}
