//! Any bytes as the beginning of a connection with a PROXY header: a header is found however the
//! bytes are cut, and a written header reads back the same.

#![no_main]

use convey_model::ProxyVersion;
use convey_proxy_protocol::{Header, MAX_HEADER, ProxyHeaderError, parse, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Ok(header) => {
            assert!(header.len <= bytes.len() && header.len <= MAX_HEADER);
            whole(bytes, &header);
            written_again(&header);
        }
        Err(ProxyHeaderError::Incomplete) => assert!(bytes.len() < MAX_HEADER),
        // More bytes do not fix a fault.
        Err(fault) => assert_eq!(parse(&[bytes, b"\r\n"].concat()), Err(fault)),
    }
});

/// No prefix of a header is complete, and the bytes after it do not matter.
fn whole(bytes: &[u8], header: &Header<'_>) {
    for len in 0..header.len {
        assert_eq!(parse(&bytes[..len]), Err(ProxyHeaderError::Incomplete));
    }
    assert_eq!(parse(&bytes[..header.len]), Ok(*header));
}

fn written_again(header: &Header<'_>) {
    for version in ProxyVersion::ALL {
        let mut written = b"before".to_vec();
        write(version, header.addresses, header.tlvs, &mut written);
        let read = parse(&written[6..]).expect("a header");
        let addresses = header.addresses.map(|of| (of.source, of.destination));
        assert_eq!(read.addresses.map(|of| (of.source, of.destination)), addresses);
        assert_eq!(read.len, written.len() - 6);
        if version == ProxyVersion::V2 && addresses.is_some() {
            assert_eq!((read.addresses, read.tlvs), (header.addresses, header.tlvs));
        }
    }
}
