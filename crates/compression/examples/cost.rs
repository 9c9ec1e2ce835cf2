//! Cost of each coding for a file:
//! `cargo run --profile dist -p convey-compression --example cost -- FILE...`
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};
use std::{env, fs};

use convey_compression::{Encoder, EncoderFault};
use convey_http_core::ContentCoding;

/// Bytes for one call of the encoder, as when convey compresses responses of servers.
const PIECE: usize = 16 * 1024;

const MEASURED: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in env::args().skip(1) {
        let body = fs::read(&file)?;
        println!("{file}: {} bytes", body.len());
        for coding in ContentCoding::ALL {
            let (began, mut rounds, mut len) = (Instant::now(), 0, 0);
            while began.elapsed() < MEASURED {
                len = compressed(coding, &body).map_err(|_| "the encoder refuses it")?;
                rounds += 1;
            }
            let megabytes = body.len() as f64 * f64::from(rounds) / 1e6;
            let (milliseconds, ratio) =
                (began.elapsed().as_secs_f64() * 1e3 / megabytes, body.len() as f64 / len as f64);
            println!("  {:5} {milliseconds:5.1} ms per MB, {ratio:4.1} times smaller", coding.name());
        }
    }
    Ok(())
}

fn compressed(coding: ContentCoding, body: &[u8]) -> Result<usize, EncoderFault> {
    let (mut encoder, mut out) = (Encoder::new(coding, Some(body.len() as u64))?, Vec::new());
    for piece in body.chunks(PIECE) {
        encoder.write(piece, &mut out)?;
    }
    encoder.finish(&mut out)?;
    Ok(out.len())
}
