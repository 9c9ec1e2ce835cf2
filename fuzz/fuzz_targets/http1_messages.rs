//! Any bytes as messages of HTTP/1, in typed heads and frames: they do not depend on how the bytes
//! are cut, hyper reads the same messages, and convey forwards the same messages, as bytes and in
//! frames.

#![no_main]

#[path = "../../crates/http-core/tests/http1/oracle/mod.rs"]
mod oracle;

use convey_http_core::HeadLimits;
use libfuzzer_sys::fuzz_target;
use oracle::{Limits, REQUESTS, checks, parsed_request};

/// Limits that short messages exceed.
const SMALL: Limits = Limits { head: HeadLimits { bytes: 64, fields: 4 }, body: Some(16) };

// The first byte: below 128, the bytes are requests; else they are the response to the request that
// its last bits select; 64: with small limits. The second byte has the sizes of the pieces in which the bytes arrive.
fuzz_target!(|bytes: &[u8]| {
    let [how, sizes, bytes @ ..] = bytes else { return };
    let sizes = [usize::from(sizes & 15) + 1, usize::from(sizes >> 4) + 1];
    let is_limited = how & 64 != 0;
    if *how < 128 {
        let limits = if is_limited { SMALL } else { Limits::OF_REQUESTS };
        let read = checks::requests(bytes, &sizes, limits);
        checks::forwarded_requests(bytes, &read, &sizes, limits);
    } else {
        let request = parsed_request(REQUESTS[usize::from(*how) % REQUESTS.len()]);
        let limits = if is_limited { SMALL } else { Limits::OF_RESPONSES };
        checks::response(&request, bytes, &sizes, limits);
    }
});
