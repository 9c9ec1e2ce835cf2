//! Examples of the specification, and headers that receivers must refuse.

use proptest::prelude::*;

use super::*;
use convey_model::ProxyVersion;

/// Encodes a version 2 header with this command, this family, and the bytes that follow them.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let fixed = [&parse::SIGNATURE[..], &[command, family], &(rest.len() as u16).to_be_bytes()];
    [&fixed.concat(), rest].concat()
}

const V4: &[u8] = &[192, 168, 0, 1, 192, 168, 0, 11, 0xdc, 0x04, 0x01, 0xbb];

fn addresses(source: &str, destination: &str, transport: Protocol) -> Option<Addresses> {
    let [source, destination] = [source, destination].map(|addr| addr.parse().unwrap());
    Some(Addresses { source, destination, transport })
}

fn of_v4(transport: Protocol) -> Option<Addresses> {
    addresses("192.168.0.1:56324", "192.168.0.11:443", transport)
}

#[test]
fn lines_of_version_1_are_read_as_the_specification_says() {
    let widest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let in_brackets = format!("[{widest}]:65535");
    let cases = [
        ("PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n".to_owned(), of_v4(Protocol::Tcp)),
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n".to_owned(),
            addresses("255.255.255.255:65535", "255.255.255.255:65535", Protocol::Tcp),
        ),
        (
            format!("PROXY TCP6 {widest} {widest} 65535 65535\r\n"),
            addresses(&in_brackets, &in_brackets, Protocol::Tcp),
        ),
        (
            "PROXY TCP6 ::1 2001:DB8::2 1 0\r\n".to_owned(),
            addresses("[::1]:1", "[2001:db8::2]:0", Protocol::Tcp),
        ),
        ("PROXY UNKNOWN\r\n".to_owned(), None),
        (format!("PROXY UNKNOWN {widest} {widest} 65535 65535\r\n"), None),
        ("PROXY UNKNOWN what\never \u{e9}\r\n".to_owned(), None),
    ];
    for (line, addresses) in cases {
        let with_more = format!("{line}GET / HTTP/1.1\r\n\r\n");
        let header = parse(with_more.as_bytes()).unwrap();
        let expected = Header { version: ProxyVersion::V1, addresses, tlvs: &[], len: line.len() };
        assert_eq!(header, expected, "{line}");
    }
    assert_eq!(format!("PROXY UNKNOWN {widest} {widest} 65535 65535\r\n").len(), 107, "the longest");
}

#[test]
fn headers_of_version_2_are_read_as_the_specification_says() {
    let v6 = [&[0xfd; 16][..], &[0x20; 16], &[0, 1, 0, 2]].concat();
    let of_v6 = |transport| {
        addresses(
            "[fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd]:1",
            "[2020:2020:2020:2020:2020:2020:2020:2020]:2",
            transport,
        )
    };
    let (alpn, noop) = ([1, 0, 2, b'h', b'2'], [4, 0, 0]);
    let fields = [&alpn[..], &noop].concat();
    let cases = [
        (v2(0x21, 0x11, V4), of_v4(Protocol::Tcp), &[][..]),
        (v2(0x21, 0x12, V4), of_v4(Protocol::Udp), &[]),
        (v2(0x21, 0x21, &v6), of_v6(Protocol::Tcp), &[]),
        (v2(0x21, 0x22, &[&v6, &fields[..]].concat()), of_v6(Protocol::Udp), &fields),
        (v2(0x21, 0x11, &[V4, &fields].concat()), of_v4(Protocol::Tcp), &fields),
        (v2(0x21, 0x31, &[&[7; 216], &alpn[..]].concat()), None, &alpn),
        (v2(0x21, 0x00, &[]), None, &[]),
        (v2(0x21, 0x00, &[9; 5]), None, &[]),
        (v2(0x20, 0x00, &[]), None, &[]),
        (v2(0x20, 0x11, V4), None, &[]),
        (v2(0x20, 0xff, &[1, 2]), None, &[]),
    ];
    for (bytes, addresses, tlvs) in cases {
        let with_more = [&bytes[..], b"GET"].concat();
        let expected = Header { version: ProxyVersion::V2, addresses, tlvs, len: bytes.len() };
        assert_eq!(parse(&with_more), Ok(expected), "{bytes:x?}");
    }
}

#[test]
fn malformed_headers_are_refused() {
    let line = |rest: &str| format!("PROXY {rest}\r\n").into_bytes();
    let mut lines: Vec<Vec<u8>> = [
        "TCP4 192.168.0.1 192.168.0.11 56324",
        "TCP4 192.168.0.1 192.168.0.11 56324 443 ",
        "TCP4  192.168.0.1 192.168.0.11 56324 443",
        "TCP4 192.168.0.1 192.168.0.11 56324 0443",
        "TCP4 192.168.0.1 192.168.0.11 +56324 443",
        "TCP4 192.168.0.1 192.168.0.11 56324 65536",
        "TCP4 192.168.0.01 192.168.0.11 56324 443",
        "TCP4 192.168.0.256 192.168.0.11 56324 443",
        "TCP4 ::1 ::1 56324 443",
        "TCP6 192.168.0.1 192.168.0.11 56324 443",
        "UDP4 192.168.0.1 192.168.0.11 56324 443",
        "tcp4 192.168.0.1 192.168.0.11 56324 443",
        "UNKNOWNS",
        "",
    ]
    .map(line)
    .into();
    lines.push(b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\nGET / HTTP/1.1\r\n".to_vec());
    lines.push(format!("PROXY UNKNOWN {}\r\n", "x".repeat(92)).into_bytes());
    let sum = [3, 0, 4, 0, 0, 0, 0];
    let others = [
        (b"GET / HTTP/1.1\r\n".to_vec(), HeaderFault::NotAHeader),
        (b"PROXYTCP4".to_vec(), HeaderFault::NotAHeader),
        (b"proxy TCP4".to_vec(), HeaderFault::NotAHeader),
        (b"\r\n\r\n\0\r\nQUIX".to_vec(), HeaderFault::NotAHeader),
        (v2(0x11, 0x11, V4), HeaderFault::Version),
        (v2(0x31, 0x11, V4), HeaderFault::Version),
        (v2(0x22, 0x11, V4), HeaderFault::Command),
        (v2(0x21, 0x41, V4), HeaderFault::Family),
        (v2(0x21, 0x13, V4), HeaderFault::Family),
        (v2(0x21, 0x10, V4), HeaderFault::Family),
        (v2(0x21, 0x01, V4), HeaderFault::Family),
        (v2(0x21, 0x11, &V4[1..]), HeaderFault::TooShort),
        (v2(0x21, 0x21, V4), HeaderFault::TooShort),
        (v2(0x21, 0x31, &[0; 215]), HeaderFault::TooShort),
        (v2(0x21, 0x11, &[0; MAX_HEADER]), HeaderFault::TooLong),
        (v2(0x20, 0x00, &[0; MAX_HEADER]), HeaderFault::TooLong),
        (v2(0x21, 0x11, &[V4, &[4, 0]].concat()), HeaderFault::Tlv),
        (v2(0x21, 0x11, &[V4, &[4, 0, 1]].concat()), HeaderFault::Tlv),
        (v2(0x21, 0x11, &[V4, &[3, 0, 3, 0, 0, 0]].concat()), HeaderFault::Tlv),
        (v2(0x21, 0x11, &[V4, &sum, &sum].concat()), HeaderFault::Tlv),
        (v2(0x21, 0x11, &[V4, &sum].concat()), HeaderFault::Checksum),
    ];
    let all = lines.into_iter().map(|line| (line, HeaderFault::Line)).chain(others);
    for (bytes, fault) in all {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(parse(&bytes), Err(fault.into()), "{text:?}");
    }
}

#[test]
fn a_header_in_parts_is_incomplete_until_its_last_byte() {
    let headers = [
        b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n".to_vec(),
        v2(0x21, 0x11, &[V4, &[4, 0, 2, 7, 7]].concat()),
        v2(0x20, 0x00, &[]),
    ];
    for header in headers {
        for len in 0..header.len() {
            assert_eq!(parse(&header[..len]), Err(ProxyHeaderError::Incomplete), "{len} of {header:x?}");
        }
        assert_eq!(parse(&header).unwrap().len, header.len());
    }
}

#[test]
fn the_header_of_a_check_names_no_client() {
    for version in ProxyVersion::ALL {
        let bytes = local(version);
        let header = parse(bytes).unwrap();
        assert_eq!((header.addresses, header.len, header.version), (None, bytes.len(), version));
    }
}

#[test]
fn without_addresses_of_one_family_the_client_is_not_known() {
    let mixed = addresses("10.0.0.1:1", "[::1]:2", Protocol::Tcp);
    for (version, addresses) in ProxyVersion::ALL.into_iter().flat_map(|v| [(v, None), (v, mixed)]) {
        let mut bytes = Vec::new();
        write(version, addresses, &[4, 0, 0], &mut bytes);
        assert_eq!(parse(&bytes).unwrap().addresses, None);
    }
}

#[test]
fn the_checksum_of_fields_that_are_passed_on_is_made_anew() {
    let fields = [&[3, 0, 4][..], &[9; 4], &[1, 0, 1, b'x']].concat();
    let mut bytes = b"before".to_vec();
    write(ProxyVersion::V2, of_v4(Protocol::Tcp), &fields, &mut bytes);
    let header = parse(&bytes[6..]).unwrap();
    assert_eq!((header.addresses, &header.tlvs[7..]), (of_v4(Protocol::Tcp), &fields[7..]));
    // Changes each byte of the addresses, and the last byte of the last field.
    for at in (6 + 16..6 + 28).chain([bytes.len() - 1]) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert_eq!(parse(&changed[6..]), Err(HeaderFault::Checksum.into()), "byte {at}");
    }
}

proptest! {
    #[test]
    fn written_header_parses_back(
        ips in prop_oneof![any::<[[u8; 4]; 2]>().prop_map(|ips| ips.map(Into::into)), any::<[[u8; 16]; 2]>().prop_map(|ips| ips.map(Into::into))],
        ports in any::<[u16; 2]>(),
        value in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let ips: [std::net::IpAddr; 2] = ips;
        let [source, destination] = [0, 1].map(|n| SocketAddr::new(ips[n], ports[n]));
        let addresses = Some(Addresses { source, destination, transport: Protocol::Tcp });
        let fields = [&[5, 0, value.len() as u8][..], &value].concat();
        for version in ProxyVersion::ALL {
            let mut bytes = Vec::new();
            write(version, addresses, &fields, &mut bytes);
            let header = parse(&bytes).unwrap();
            let tlvs = if version == ProxyVersion::V1 { &[][..] } else { &fields };
            prop_assert_eq!((header.addresses, header.tlvs, header.len), (addresses, tlvs, bytes.len()));
        }
    }

    #[test]
    fn parser_does_not_panic_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..3usize) {
        let begin = [&b"PROXY TCP4 1.2.3.4 "[..], &parse::SIGNATURE, b""][kind];
        let _ = parse(&[begin, &bytes].concat());
    }
}
