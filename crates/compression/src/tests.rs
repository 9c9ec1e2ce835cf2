//! Tests that other decoders can decode the output of the encoders, for pieces of any size.

use std::io::{Read, Write};

use convey_http_core::ContentCoding;
use proptest::prelude::*;

use super::*;

/// Body decoded by another decoder; `None` if the body is incomplete.
fn decoded(coding: ContentCoding, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match coding {
        ContentCoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).ok().map(drop),
        ContentCoding::Brotli => {
            ::brotli::Decompressor::new(bytes, 4_096).read_to_end(&mut out).ok().map(drop)
        }
        ContentCoding::Zstd => decoded_zstd(bytes, &mut out),
    }
    .map(|()| out)
}

fn decoded_zstd(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut decoder = zstd_safe::DCtx::try_create()?;
    let mut input = zstd_safe::InBuffer::around(bytes);
    loop {
        let mut piece = Vec::with_capacity(64 * 1024);
        let left = {
            let mut output = zstd_safe::OutBuffer::around(&mut piece);
            decoder.decompress_stream(&mut output, &mut input).ok()?
        };
        out.extend_from_slice(&piece);
        match (left, input.pos() == bytes.len()) {
            (0, _) => return Some(()),
            (_, true) if piece.is_empty() => return None,
            _ => {}
        }
    }
}

/// Part of a body that another decoder can decode before the end of the body.
fn decoded_so_far(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        ContentCoding::Gzip => {
            let mut decoder = flate2::write::GzDecoder::new(&mut out);
            decoder.write_all(bytes).unwrap();
            decoder.flush().unwrap();
            drop(decoder);
        }
        ContentCoding::Brotli => {
            let _ = ::brotli::Decompressor::new(bytes, 4_096).read_to_end(&mut out);
        }
        ContentCoding::Zstd => _ = decoded_zstd(bytes, &mut out),
    }
    out
}

#[test]
fn a_client_has_all_that_was_flushed_before_the_end_comes() {
    for coding in ContentCoding::ALL {
        let (mut encoder, mut out, mut sent) = (Encoder::new(coding, None).unwrap(), Vec::new(), Vec::new());
        for event in 0..200 {
            let event = format!("event: tick\ndata: {event}\n\n");
            sent.extend_from_slice(event.as_bytes());
            encoder.write(event.as_bytes(), &mut out).unwrap();
            assert!(encoder.has_unflushed());
            encoder.flush(&mut out).unwrap();
            assert!(!encoder.has_unflushed());
            assert_eq!(decoded_so_far(coding, &out), sent, "{coding:?}");
        }
        assert_eq!(decoded(coding, &out), None, "{coding:?}: its end has not come");
        encoder.finish(&mut out).unwrap();
        assert_eq!(decoded(coding, &out), Some(sent), "{coding:?}");
    }
}

#[test]
fn an_empty_body_is_a_whole_one() {
    for coding in ContentCoding::ALL {
        let mut out = Vec::new();
        Encoder::new(coding, None).unwrap().finish(&mut out).unwrap();
        assert_eq!(decoded(coding, &out), Some(Vec::new()), "{coding:?}");
    }
}

#[test]
fn body_of_another_length_than_announced_is_an_encoder_fault() {
    for written in [&b"short"[..], b"much longer than was said"] {
        let mut encoder = Encoder::new(ContentCoding::Zstd, Some(10)).unwrap();
        let mut out = Vec::new();
        let outcome = encoder.write(written, &mut out).and_then(|()| encoder.finish(&mut out));
        assert_eq!(outcome, Err(EncoderFault));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn body_written_in_any_pieces_decompresses_to_the_original(
        seed in proptest::collection::vec(any::<u8>(), 1..2_000),
        repeats in 1_usize..60,
        piece in 1_usize..40_000,
        flush_each in 1_usize..9,
        is_known in any::<bool>(),
    ) {
        let body = seed.repeat(repeats);
        for coding in ContentCoding::ALL {
            let len = is_known.then_some(body.len() as u64);
            let (mut encoder, mut out) = (Encoder::new(coding, len).unwrap(), Vec::new());
            for (at, piece) in body.chunks(piece).enumerate() {
                encoder.write(piece, &mut out).unwrap();
                if at % flush_each == 0 {
                    encoder.flush(&mut out).unwrap();
                }
            }
            encoder.finish(&mut out).unwrap();
            let whole = decoded(coding, &out);
            prop_assert_eq!(whole.as_deref(), Some(&body[..]));
        }
    }
}
