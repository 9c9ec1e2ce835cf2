use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

/// Encodes an extension with its number and its length.
fn extension(number: u16, data: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

fn long(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u16).to_be_bytes()[..], data].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    extension(0, &long(&[&[0][..], &long(name)].concat()))
}

fn alpn(names: &[&str]) -> Vec<u8> {
    let names = names.iter().flat_map(|name| [&[name.len() as u8][..], name.as_bytes()].concat());
    extension(16, &long(&names.collect::<Vec<u8>>()))
}

/// Encodes a ClientHello with its message header.
fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    let start = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 0x01], &[1, 0]].concat();
    message(&[start, long(&extensions.concat())].concat())
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[1][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
}

fn record(data: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &long(data)].concat()
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(record).collect()
}

fn named(name: &str, alpn: &[&str]) -> HelloVerdict {
    let alpn = alpn.iter().flat_map(|name| [&[name.len() as u8][..], name.as_bytes()].concat());
    let server_name = (!name.is_empty()).then(|| name.into());
    HelloVerdict::Hello(ClientHello { server_name, alpn: alpn.collect() })
}

/// Returns the first message of a rustls client.
fn of_rustls(name: &str, alpn: &[&str]) -> Vec<u8> {
    let mut config =
        ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let (mut client, mut sent) = (ClientConnection::new(Arc::new(config), name).unwrap(), Vec::new());
    client.write_tls(&mut sent).unwrap();
    sent
}

#[test]
fn a_hello_names_its_server_and_its_protocols() {
    let cases = [
        (hello(&[]), named("", &[])),
        (hello(&[sni(b"api.Example.COM")]), named("api.example.com", &[])),
        (hello(&[sni(b"a_b-c.example.")]), named("a_b-c.example", &[])),
        (hello(&[alpn(&["h2", "http/1.1"])]), named("", &["h2", "http/1.1"])),
        (hello(&[alpn(&["acme-tls/1"]), sni(b"a")]), named("a", &["acme-tls/1"])),
        // An IP address is not a server name.
        (hello(&[sni(b"192.0.2.1")]), named("", &[])),
        (hello(&[sni(b"2001:db8::1")]), named("", &[])),
        // ECH: the outer ClientHello contains the public name of the server that can decrypt the
        // inner one.
        (hello(&[sni(b"public.example"), extension(0xfe0d, &[0; 200])]), named("public.example", &[])),
        // The parser skips a name of another type.
        (hello(&[extension(0, &long(b"\x07\x00\x02ab\x00\x00\x01c"))]), named("c", &[])),
        // TLS 1.0 without extensions.
        (message(&[&[3, 1][..], &[7; 32], b"\x00\x00\x02\x00\x2f\x01\x00"].concat()), named("", &[])),
    ];
    for (message, expected) in cases {
        assert_eq!(parse(&record(&message)), expected);
        assert_eq!(parse(&[record(&message), b"\x14\x03\x03\x00\x01\x01".to_vec()].concat()), expected);
    }
    let HelloVerdict::Hello(both) = parse(&record(&hello(&[alpn(&["h2", "http/1.1"])]))) else { panic!() };
    assert_eq!(both.alpn().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
}

#[test]
fn a_hello_of_a_real_client_is_read() {
    assert_eq!(parse(&of_rustls("api.example", &["h2"])), named("api.example", &["h2"]));
    assert_eq!(parse(&of_rustls("192.0.2.1", &[])), named("", &[]));
}

#[test]
fn bytes_of_other_protocols_are_not_tls() {
    // The last two are an SSL 2 hello and an alert.
    for bytes in
        [&b"GET / HTTP/1.1\r\n"[..], b"\0", b"SSH-2.0-x", b"\x16\x02", b"\x80\x2e\x01\x03", b"\x15\x03"]
    {
        assert_eq!(parse(bytes), HelloVerdict::NotTls, "{bytes:?}");
    }
    for bytes in [&b""[..], b"\x16", b"\x16\x03"] {
        assert_eq!(parse(bytes), HelloVerdict::NeedMore, "{bytes:?}");
    }
}

#[test]
fn ambiguous_hello_is_refused() {
    use HelloFault::*;
    let good = hello(&[sni(b"a")]);
    let cases = [
        ("twice the name", record(&hello(&[sni(b"a"), sni(b"b")])), DoubleExtension),
        (
            "twice another",
            record(&hello(&[extension(9, b""), sni(b"a"), extension(9, b"")])),
            DoubleExtension,
        ),
        ("two names", record(&hello(&[extension(0, &long(b"\0\0\x01a\0\0\x01b"))])), ServerName),
        (
            "an address and a name",
            record(&hello(&[extension(0, &long(b"\0\0\x031.1\0\0\x01b"))])),
            ServerName,
        ),
        (
            "a name, and one of another type that is cut",
            record(&hello(&[extension(0, &long(b"\0\0\x01a.exampl"))])),
            ServerName,
        ),
        ("a name that is cut", record(&hello(&[extension(0, &long(b"\0\0\x02a"))])), Length),
        ("NUL", record(&hello(&[sni(b"a\0.example")])), ServerName),
        ("not ASCII", record(&hello(&[sni("ä.example".as_bytes())])), ServerName),
        ("not UTF-8", record(&hello(&[sni(b"\xff")])), ServerName),
        ("an empty name", record(&hello(&[sni(b"")])), ServerName),
        ("a dot", record(&hello(&[sni(b".")])), ServerName),
        ("a name in brackets", record(&hello(&[sni(b"[foo.com]")])), ServerName),
        ("an address in brackets", record(&hello(&[sni(b"[2001:db8::1]")])), ServerName),
        ("a name with a port", record(&hello(&[sni(b"a.example:443")])), ServerName),
        ("an empty label", record(&hello(&[sni(b"a..b")])), ServerName),
        ("a port", record(&hello(&[sni(b"a:443")])), ServerName),
        ("a long label", record(&hello(&[sni(&[b'a'; 64])])), ServerName),
        ("a long name", record(&hello(&[sni(&b"ab.".repeat(85)[..254])])), ServerName),
        ("no names", record(&hello(&[extension(0, &long(b""))])), Length),
        ("an empty extension", record(&hello(&[extension(0, b"")])), Length),
        ("something behind the names", record(&hello(&[extension(0, b"\0\x04\0\0\x01ab")])), Length),
        ("no protocols", record(&hello(&[alpn(&[])])), Length),
        ("an empty protocol", record(&hello(&[alpn(&["h2", ""])])), Length),
        ("something behind it in the record", record(&[&good[..], &[0]].concat()), Trailing),
        ("something behind the extensions", record(&message(&[&good[4..], &[0]].concat())), Length),
        ("an empty record", [record(&good[..9]), record(b"")].concat(), EmptyRecord),
        ("an alert within", [record(&good[..9]), b"\x15\x03".to_vec()].concat(), Interleaved),
        ("another version within", [record(&good[..9]), b"\x16\x02".to_vec()].concat(), Interleaved),
        ("a ServerHello", record(b"\x02"), OtherMessage),
        ("a version that is none", record(&message(&[&[2][..], &good[5..]].concat())), Version),
        ("no end of the random bytes", record(&message(&[3; 20])), Length),
        ("a record that is too long", b"\x16\x03\x01\x40\x01".to_vec(), RecordTooLong),
        ("a hello that is too long", record(b"\x01\x00\x40\x00"), TooLong),
        ("many records", records(&hello(&[extension(21, &[0; 200])]), 3), TooManyRecords),
    ];
    for (what, bytes, fault) in cases {
        assert_eq!(parse(&bytes), HelloVerdict::Malformed(fault), "{what}");
    }
}

#[test]
fn the_longest_hello_in_the_most_records_is_taken() {
    let empty = hello(&[sni(b"a"), extension(21, b"")]).len();
    let longest = hello(&[sni(b"a"), extension(21, &vec![0; MAX_MESSAGE - empty])]);
    let bytes = records(&longest, MAX_MESSAGE / MAX_RECORDS);
    assert_eq!(bytes.len(), MAX_HELLO);
    assert_eq!(parse(&bytes), named("a", &[]));
    assert_eq!(parse(&bytes[..MAX_HELLO - 1]), HelloVerdict::NeedMore);
}

/// Checks all prefixes: further bytes do not change a verdict, and a verdict needs at most
/// `MAX_HELLO` bytes.
fn check_prefixes(bytes: &[u8]) {
    let mut verdict = HelloVerdict::NeedMore;
    for end in 0..=bytes.len() {
        let now = parse(&bytes[..end]);
        assert!(verdict == HelloVerdict::NeedMore || verdict == now, "{end}: {verdict:?}, then {now:?}");
        assert!(now != HelloVerdict::NeedMore || end < MAX_HELLO);
        verdict = now;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_hello_is_the_same_however_it_is_cut(size in 9_usize..600, alpns in 0_usize..9) {
        let message = hello(&[alpn(&vec!["spdy"; alpns + 1]), extension(21, &[0; 300]), sni(b"a.example")]);
        let cut = records(&message, size);
        prop_assert_eq!(parse(&cut), parse(&record(&message)));
        check_prefixes(&cut);
    }

    #[test]
    fn a_damaged_hello_has_one_verdict(at in 0_usize..90, byte: u8, size in 3_usize..99) {
        let mut bytes = records(&hello(&[sni(b"a.example"), alpn(&["h2"])]), size);
        let at = at.min(bytes.len() - 1);
        bytes[at] = byte;
        check_prefixes(&bytes);
    }
}
