//! Any bytes as the beginning of a TLS connection: the verdict is the same however they are cut,
//! comes within the limit, and agrees with what rustls reads as a server.

#![no_main]

use std::io::Read;

use convey_client_hello::{ClientHello, HelloFault, HelloVerdict, MAX_HELLO, parse};
use libfuzzer_sys::fuzz_target;
use rustls::server::Acceptor;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // The first byte sets the length of the records: few inputs would have valid ones by
    // themselves.
    if let [size, message @ ..] = bytes {
        let chunks = message.chunks(usize::from(*size).max(1) * 4);
        let record = |data: &[u8]| [&[22, 3, 1][..], &(data.len() as u16).to_be_bytes(), data].concat();
        check(&chunks.flat_map(record).collect::<Vec<u8>>());
        let header = [&[1][..], &(message.len() as u32).to_be_bytes()[1..]].concat();
        check(&record(&[&header[..], message].concat()));
    }
});

fn check(bytes: &[u8]) {
    let verdict = parse(bytes);
    // All cuts of short inputs, and some of long ones.
    for end in (0..bytes.len()).step_by(bytes.len() / 64 + 1) {
        let before = parse(&bytes[..end]);
        assert!(before == HelloVerdict::NeedMore || before == verdict);
    }
    match &verdict {
        HelloVerdict::NeedMore => assert!(bytes.len() < MAX_HELLO),
        HelloVerdict::Hello(hello) => well_formed(hello),
        HelloVerdict::NotTls | HelloVerdict::Malformed(_) => {}
    }
    assert_eq!(parse(&[bytes, b"\x17\x03\x03"].concat()), if_more(&verdict, bytes));
    as_rustls_reads_it(bytes, &verdict);
}

/// With more bytes, only the number of missing bytes changes.
fn if_more(verdict: &HelloVerdict, bytes: &[u8]) -> HelloVerdict {
    match verdict {
        HelloVerdict::NeedMore => parse(&[bytes, b"\x17\x03\x03"].concat()),
        known => known.clone(),
    }
}

fn well_formed(hello: &ClientHello) {
    if let Some(name) = &hello.server_name {
        let is_of_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        assert!((1..=253).contains(&name.len()) && name.bytes().all(is_of_name) && !name.ends_with('.'));
    }
    assert!(hello.alpn().all(|name| !name.is_empty()));
}

/// Checks that both parsers read the same name and protocols. convey may refuse a hello that rustls
/// accepts, but only for a known reason to be stricter.
fn as_rustls_reads_it(bytes: &[u8], verdict: &HelloVerdict) {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() && acceptor.read_tls(&mut rest.by_ref().take(4_096)).is_ok_and(|read| read > 0) {
        let Ok(accepted) = acceptor.accept() else { return };
        let Some(accepted) = accepted else { continue };
        let theirs = accepted.client_hello();
        match verdict {
            HelloVerdict::Hello(ours) => {
                let name = theirs.server_name().map(str::to_ascii_lowercase);
                assert_eq!(
                    ours.server_name.as_deref(),
                    name.as_deref().map(|name| name.trim_end_matches('.'))
                );
                let protocols = theirs.alpn().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
                assert_eq!(ours.alpn().collect::<Vec<_>>(), protocols);
            }
            HelloVerdict::Malformed(
                HelloFault::EmptyRecord
                | HelloFault::TooManyRecords
                | HelloFault::TooLong
                | HelloFault::Trailing
                | HelloFault::Interleaved
                | HelloFault::Version
                | HelloFault::ServerName,
            ) => {}
            other => panic!("rustls takes it, and we say {other:?}"),
        }
        return;
    }
}
