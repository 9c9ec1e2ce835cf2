//! Writes packets to begin from into the corpus of every target.

use std::fmt::Display;
use std::{fs, io};

use convey_forward::{CacheEvent, KnownFlow, Segment, TableRow, encode};
use convey_model::{Addr, FlowKey, Protocol, ProxyVersion};
use convey_proxy_protocol::Addresses;
use convey_wire::{IcmpError, TcpFlags, TestPacket, icmp_error, parse};

fn main() -> io::Result<()> {
    for (family, client, vip, router) in [
        ("v4", "10.0.0.9:4242", "10.0.0.1:80", Addr::v4([10, 0, 0, 7])),
        ("v6", "[fd00::9]:4242", "[fd00::1]:80", Addr::v6([7; 16])),
    ] {
        let packet = || TestPacket::from(client).to(vip).seq(7);
        let mut padded = packet().syn().bytes();
        padded.resize(80, 0);
        let answer = TestPacket::from(vip).to(client).seq(7).ack(8).payload(&[7; 60]);
        let about = |packet: TestPacket, error| {
            let (frame, mut bytes) = (packet.bytes(), Vec::new());
            icmp_error(&frame, &parse(&frame).expect("a packet"), error, router, &mut bytes);
            bytes
        };
        let fragments = packet().udp().payload(&[7; 60]).fragments(9, 24);
        let mut seeds = vec![
            ("syn", packet().syn().tcp_options(&[2, 4, 5, 180, 4, 2, 8, 10]).bytes()),
            ("syn-ack", packet().syn().ack(8).bytes()),
            ("data", packet().ack(8).psh().payload(b"GET / HTTP/1.1\r\n\r\n").bytes()),
            ("fin", packet().ack(8).fin().bytes()),
            ("rst", packet().rst().bytes()),
            ("partial", packet().ack(8).payload(b"odd").partial().bytes()),
            ("last-hop", packet().ack(8).ttl(1).bytes()),
            ("padded", padded),
            ("udp", packet().udp().payload(b"hello").bytes()),
            ("first-fragment", fragments[0].clone()),
            ("later-fragment", fragments[1].clone()),
            ("too-big", about(answer.clone(), IcmpError::TooBig { mtu: 1_280 })),
            ("unreachable", about(answer.udp(), IcmpError::PortUnreachable)),
        ];
        if family == "v4" {
            seeds.push((
                "ip-options",
                packet().ack(8).ip_options(&[7, 7, 4, 0, 0, 0, 0]).payload(b"hello").bytes(),
            ));
            seeds.push(("may-be-cut", packet().ack(8).may_be_cut(9).payload(&[7; 2_000]).bytes()));
            seeds.push(("without-checksum", packet().udp().without_checksum().bytes()));
        } else {
            let options = packet().udp().payload(&[7; 60]).cut_extension(60, &[0, 1, 4, 0, 0, 0, 0]);
            seeds.push(("later-fragment-with-options", options.fragments(9, 24)[1].clone()));
            seeds.push(("extension", packet().syn().extension(60, &[0, 1, 4, 0, 0, 0, 0]).bytes()));
        }
        let seeds: Vec<_> =
            seeds.into_iter().map(|(name, frame)| (format!("{family}-{name}"), frame)).collect();
        write("parse", &seeds)?;
    }

    write("proxy_header", &proxy_headers())?;
    write("client_hello", &client_hellos())?;
    write("http_request", &http_requests())?;
    write("http1_messages", &http1_messages())?;
    write("http_forwarded", &http_forwarded())?;
    write("http3_frames", &http3_frames())?;
    write("handed_over", &handed_over())?;
    write("config_file", &texts(&[("sample", include_str!("../config.toml")), ("small", SMALL_FILE)]))?;
    write("etcd_answer", &texts(&ETCD_ANSWERS))?;
    write("dns_answer", &dns_answers())?;
    write("kubernetes_answers", &kubernetes_answers())?;
    write("control_api", &control_requests())?;
    write("http2_client", &http2_clients())?;
    write("http2_server", &http2_servers())?;
    write("udp_table", &udp_calls())?;

    // As `handle_frame` reads it: how packets are forwarded; then what happens (0: a client's
    // packet, 5: a server's, 10: a router's error, 13: time passes, 15: any bytes; 16 times how it
    // is sent: 2 in fragments), who, flags, a number.
    let handshake = [[0, 1, SYN, 0], [5, 0, SYN | ACK, 1], [0, 1, ACK, 1]];
    let close = [[0, 1, FIN | ACK, 1], [5, 0, FIN | ACK, 2], [0, 1, ACK, 2], [13, 255, 255, 2]];
    let connection = [&handshake[..], &close, &handshake].concat().concat();
    let reset = [&handshake[..], &[[5, 0, RST, 0], [0, 1, ACK, 9]]].concat().concat();
    let flood = (0..12).map(|n| [0, n, SYN, 0]).collect::<Vec<_>>().concat();
    let errors =
        [&handshake[..], &[[10, 0, 0, 1], [16 + 10, 1, ACK, 1], [5 * 16 + 11, 0, 0, 200]]].concat().concat();
    let fragments = [&handshake[..], &[[2 * 16, 1, 0xf0, 200], [2 * 16 + 5, 0, 0xf0, 201]]].concat().concat();
    let other = [&[15, 1, 1, 20][..], &[0; 20]].concat();
    let scenarios = [
        ("connection", connection),
        ("reset", reset),
        ("flood", flood),
        ("errors", errors),
        ("fragments", fragments),
        ("other", other),
    ];
    for setup in 0..16u8 {
        let seed =
            |(name, steps): &(&str, Vec<u8>)| (format!("{setup}-{name}"), [&[setup], &steps[..]].concat());
        write("handle_frame", &scenarios.iter().map(seed).collect::<Vec<_>>())?;
    }

    // As `events` reads it: 0 a SYN, 1 its answer, 2 the client sends, 4 the server does, 5 the
    // end, 7 something forged, 9 a flood, 10 time passes; then who, and two numbers.
    let open = [[0, 1, 0, 0], [1, 1, 0, 0], [2, 1, 0, 9]];
    let life = [&open[..], &[[4, 1, 0, 90], [7, 1, 1, 5], [5, 1, 0, 0], [10, 255, 255, 2]]].concat().concat();
    let crowd = [&open[..], &[[9, 0, 31, 0], [10, 10, 60, 1], [9, 0, 31, 0], [2, 1, 0, 9]]].concat().concat();
    let silence = [&open[..], &[[10, 255, 255, 255], [4, 1, 0, 9], [11, 0, 0, 0], [10, 255, 255, 60]]]
        .concat()
        .concat();
    for setup in 0..4u8 {
        let seed = |(name, steps): (&str, &[u8])| (format!("{setup}-{name}"), [&[setup], steps].concat());
        let seeds = [("life", &life[..]), ("crowd", &crowd), ("silence", &silence)].map(seed);
        write("events", &seeds)?;
    }
    Ok(())
}

const SMALL_FILE: &str = "[frontends.web]\nmode = \"http\"\nlisten_addr = \"10.0.0.1:80\"\n[[frontends.web.routes]]\npath = \"/a\"\n\
    backend = \"web\"\n[backends.web.servers]\na = { addr = \"a.test:80\", weight = 2 }\n";

const ETCD_ANSWERS: [(&str, &str); 4] = [
    (
        "range",
        r#"{"header":{"revision":"9223372036854775807"},"kvs":[{"key":"L2VkZ2UvY29uZmlnLnRvbWw=","mod_revision":"11","value":"aGk="}],"count":"1"}"#,
    ),
    ("watch", r#"{"result":{"events":[{"kv":{"key":"YQ=="}}],"canceled":true,"compact_revision":"9"}}"#),
    ("refused", r#"{"error":{"grpc_code":14,"message":"no leader","details":[]}}"#),
    ("lease", r#"{"result":{"ID":"7587","TTL":"60"}}"#),
];

fn texts(of: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    of.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
}

/// Answers with an address of each family and with a service, and a hosts file.
fn dns_answers() -> Vec<(String, Vec<u8>)> {
    let header = |answers: u8| [&[0, 7, 0x81, 0x80, 0, 1, 0, answers][..], &[0; 4]].concat();
    let question = |kind: u8| [&b"\x01a\x04test\0"[..], &[0, kind, 0, 1]].concat();
    let record = |kind: u8, data: &[u8]| {
        [&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60][..], &(data.len() as u16).to_be_bytes(), data].concat()
    };
    let answer = |kind: u8, data: &[u8]| [header(1), question(kind), record(kind, data)].concat();
    let service = [&[0, 1, 0, 2, 0x1f, 0x90][..], b"\x01b\x04test\0"].concat();
    vec![
        ("a".to_owned(), answer(1, &[10, 0, 0, 2])),
        ("aaaa".to_owned(), answer(28, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2])),
        ("srv".to_owned(), answer(33, &service)),
        ("hosts".to_owned(), b"10.0.0.2 a.test b # c\n::1 localhost\n".to_vec()),
    ]
}

/// As `kubernetes_answers` reads them: the port and the cut, then a list and lines of watches.
fn kubernetes_answers() -> Vec<(String, Vec<u8>)> {
    const SLICE: &str = r#"{"metadata":{"name":"web-1","resourceVersion":"7"},"addressType":"IPv4","ports":[{"name":"http","port":80}],"endpoints":[{"addresses":["10.0.0.2"],"conditions":{"ready":true},"zone":"z1","targetRef":{"kind":"Pod","name":"web-a"}},{"addresses":["10.0.0.3"],"conditions":{"serving":true,"terminating":true}}]}"#;
    const SERVICE: &str =
        r#"{"metadata":{"name":"web","annotations":{"convey.dev/weight":"3","convey.dev/slow-start":"1m"}}}"#;
    let list = |next: &str, item: &str| {
        format!(r#"8{{"metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":[{item}]}}"#)
    };
    let event = |kind: &str, object: &str| format!(r#"{{"type":"{kind}","object":{object}}}"#);
    let gone = r#"{"kind":"Status","message":"too old","reason":"Expired","code":410}"#;
    let bookmark = event("BOOKMARK", r#"{"metadata":{"resourceVersion":"9"}}"#);
    let watch =
        ["8", &event("MODIFIED", SLICE), "\n", &bookmark, "\n", &event("DELETED", SLICE), "\n"].concat();
    let texts = [
        ("list-and-watch", [&list("", SLICE), &*watch].join("\0")),
        ("pages", [&list("more", SLICE), &*list("", SLICE)].join("\0")),
        ("gone", [&list("", SLICE), &*format!("8{}\n", event("ERROR", gone)), &list("", "")].join("\0")),
        ("refused", format!("={gone}")),
        ("service", [&list("", SERVICE), &*format!("8{}\n", event("MODIFIED", SERVICE))].join("\0")),
    ];
    texts.map(|(name, text)| (name.to_owned(), [&[0xf0], text.as_bytes()].concat())).to_vec()
}

/// Inputs of `control_api`: a requester, then a request.
fn control_requests() -> Vec<(String, Vec<u8>)> {
    let requests = [
        ("status", "GET /v1/status"),
        ("stats", "GET /stats"),
        ("metrics", "GET /metrics"),
        ("ready", "GET /readyz"),
        ("backend", "GET /v1/backends/app"),
        ("server", "GET /v1/backends/app/servers/a"),
        ("events", "GET /v1/events?since=7"),
        (
            "flows",
            "GET /v1/flows?client=192.0.2.0/24&older_than=1h&min_bytes=1&limit=9&sort=age&count_by=client",
        ),
        ("kill", "DELETE /v1/flows/p0.1f.9a3c"),
        ("explain", "GET /v1/explain?client=192.0.2.1:99&frontend=web&url=http://a/b"),
        ("overlays", "GET /v1/overlays"),
        ("reset", "DELETE /v1/overlays?backend=app&server=a"),
        ("drain", "PATCH /v1/backends/app/servers/a\n\n{\"state\":\"drain\",\"weight\":0,\"force\":true}"),
        ("all", "PATCH /v1/backends/app\n\n{\"weight\":7}"),
        (
            "add",
            "PUT /v1/backends/app/servers/b\n\n{\"addr\":\"10.0.0.2:80\",\"backup\":true,\"max_connections\":9}",
        ),
        ("remove", "DELETE /v1/backends/app/servers/a?force=true"),
        ("log", "PUT /v1/log-level\n\n{\"level\":\"debug\"}"),
        ("reload", "POST /v1/reload\nAuthorization: Bearer no"),
        ("trace", "GET /v1/trace?client=192.0.2.1&server=app/a&drops=any&sample=2&rate=9&count=3&timeout=5s"),
        ("host", "GET /v1/access\nHost: b.example"),
    ];
    let each = requests.into_iter().flat_map(|(name, text)| [0, 1, 2, 6].map(|who: u8| (name, who, text)));
    each.map(|(name, who, text)| (format!("{name}-{who}"), [&[who], text.as_bytes()].concat())).collect()
}

/// As `http2_client` reads them: how bytes arrive and what is answered, then frames by type, flags,
/// stream and length.
fn http2_clients() -> Vec<(String, Vec<u8>)> {
    const GET: &[u8] = b"\x01\x05\x01\x06\x82\x86\x84\x41\x01a";
    const POST: &[u8] = b"\x01\x04\x01\x06\x83\x86\x84\x41\x01a";
    const LENGTH: &[u8] = b"\x01\x04\x01\x0a\x83\x86\x84\x41\x01a\x0f\x0d\x015";
    const DATA: &[u8] = b"\0\0\x01\x02he";
    const LAST: &[u8] = b"\0\x01\x01\x03llo";
    const TRAILERS: &[u8] = b"\x01\x05\x01\x0f\0\x0bgrpc-status\x010";
    let kinds = [
        ("get", GET.to_vec()),
        ("post", [POST, DATA, LAST].concat()),
        ("length", [LENGTH, DATA, LAST].concat()),
        ("too-short", [LENGTH, LAST].concat()),
        ("trailers", [POST, DATA, TRAILERS].concat()),
        ("padded", [POST, b"\0\x09\x01\x05\x02hi\0\0"].concat()),
        ("continued", b"\x01\x01\x01\x02\x82\x86\x09\x04\x01\x04\x84\x41\x01a".to_vec()),
        ("malformed", b"\x01\x05\x01\x0a\x82\x86\x84\x41\x01a\0\x01X\0".to_vec()),
        ("table", [GET, b"\x01\x05\x03\x06\x82\x86\xbe\x44\x01/"].concat()),
        ("reset", [POST, DATA, b"\x03\0\x01\x04\0\0\0\x08"].concat()),
        ("leaves", [GET, b"\x07\0\0\x08\0\0\0\0\0\0\0\0"].concat()),
        ("settings", [b"\x04\0\0\x06\0\x04\0\0\0\x01", GET].concat()),
        ("window", [GET, b"\x08\0\x01\x04\0\0\xff\xff\x08\0\0\x04\0\0\xff\xff"].concat()),
        ("ping", [b"\x06\0\0\x08ping-bit", GET].concat()),
        (
            "websocket",
            b"\x01\x04\x01\x24\x42\x07CONNECT\0\x09:protocol\x09websocket\x87\x84\x01\x01a".to_vec(),
        ),
        ("raw", b"\xffany bytes".to_vec()),
    ];
    let each = kinds.iter().flat_map(|(name, frames)| (0..4u8).map(move |how| (name, how | 0xf0, frames)));
    each.map(|(name, how, frames)| (format!("{name}-{}", how & 3), [&[how], &frames[..]].concat())).collect()
}

/// As `http2_server` reads them: the request and how bytes arrive, then frames by type, flags,
/// stream and length.
fn http2_servers() -> Vec<(String, Vec<u8>)> {
    const HEAD: &[u8] = b"\x01\x04\x01\x01\x88";
    const LENGTH: &[u8] = b"\x01\x04\x01\x13\x88\0\x0econtent-length\x015";
    const INTERIM: &[u8] = b"\x01\x04\x01\x0d\0\x07:status\x03103";
    const DATA: &[u8] = b"\0\0\x01\x02he";
    const LAST: &[u8] = b"\0\x01\x01\x03llo";
    const TRAILERS: &[u8] = b"\x01\x05\x01\x0f\0\x0bgrpc-status\x010";
    let kinds = [
        ("whole", [HEAD, DATA, LAST].concat()),
        ("length", [LENGTH, DATA, LAST].concat()),
        ("too-short", [LENGTH, LAST].concat()),
        ("interim", [INTERIM, HEAD, LAST].concat()),
        ("trailers", [HEAD, DATA, TRAILERS].concat()),
        ("padded", [HEAD, b"\0\x09\x01\x05\x02hi\0\0"].concat()),
        ("continued", [&b"\x01\0\x01\x01\x88"[..], b"\x09\x05\x01\0", LAST].concat()),
        ("reset", [HEAD, DATA, b"\x03\0\x01\x04\0\0\0\x08"].concat()),
        ("going-away", b"\x07\0\0\x08\0\0\0\0\0\0\0\0".to_vec()),
        ("settings", [b"\x04\0\0\x06\0\x03\0\0\0\x01", HEAD, LAST].concat()),
        ("window", [b"\x08\0\x01\x04\0\0\xff\xff", HEAD, LAST].concat()),
        ("ping", [b"\x06\0\0\x08ping-bit", HEAD, LAST].concat()),
        ("raw", b"\xffany bytes".to_vec()),
    ];
    let each = kinds.iter().flat_map(|(name, frames)| (0..4u8).map(move |how| (name, how | 0xe0, frames)));
    each.map(|(name, how, frames)| (format!("{name}-{}", how & 3), [&[how], &frames[..]].concat())).collect()
}

/// As `udp_table` reads them: the call (0 the client sends, 4 its server does, 7 and 8 a table is
/// full, 9 to 11 a client or a source makes room, 12 time is over, 15 it passes), a client and an
/// address, a number.
fn udp_calls() -> Vec<(String, Vec<u8>)> {
    let stream = [[0, 4, 1], [4, 4, 0], [0, 4, 0], [15, 0, 20]];
    let crowd: Vec<[u8; 3]> = (0..16).map(|client| [0, client << 2, client & 1]).collect();
    let rest = [[7, 0, 0], [8, 1, 0], [9, 0, 0], [10, 4, 0], [11, 4, 0], [12, 0, 9], [13, 0, 0], [14, 0, 0]];
    let handed_over = [[0, 4, 7], [0, 8, 3], [15, 0, 11], [11, 4, 0]];
    vec![
        ("stream".to_owned(), [&stream[..], &rest].concat().concat()),
        ("crowd".to_owned(), [&crowd, &stream[..], &rest].concat().concat()),
        ("handed-over".to_owned(), [&handed_over[..], &stream].concat().concat()),
    ]
}

/// Headers of both versions before a request.
fn http_requests() -> Vec<(String, Vec<u8>)> {
    let requests = [
        ("get", "GET /a?b HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, x\r\nX: 1\r\n\r\n"),
        ("post", "POST / HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello"),
        (
            "chunks",
            "PUT /%2F HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
        ),
        (
            "absolute",
            "GET http://a.example/ HTTP/1.1\r\nHost: A.example\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n",
        ),
        ("upgrade", "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        ("old", "\r\nGET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    ];
    requests.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).to_vec()
}

/// As `http1_messages` reads them: requests, or the request whose response follows; the sizes of the
/// pieces; then bytes.
fn http1_messages() -> Vec<(String, Vec<u8>)> {
    const CHUNKS: &str = "2;x=y\r\nhi\r\n03\r\nabc\r\n0\r\nX-Sum: 1\r\nContent-Length: 5\r\n\r\n";
    let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{CHUNKS}");
    let responses = [
        ("length", "HTTP/1.1 200 OK\r\nContent-Length: 02\r\nConnection: close, x\r\nX: 1\r\n\r\nhi"),
        ("chunks", &chunked),
        ("until-close", "HTTP/1.0 404 Not here\r\n\r\nany bytes"),
        ("none", "HTTP/1.1 304 \r\nContent-Length: 5\r\n\r\n"),
        ("interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nLink: a\r\n\r\nHTTP/1.1 204\r\n\r\n"),
        ("upgrade", "HTTP/1.1 101 \r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n\0any"),
    ];
    let of_request = |(name, text): (&str, &str), request: u8| {
        (format!("response-{name}-{request}"), [&[0x80 | request, 0x21], text.as_bytes()].concat())
    };
    let responses = responses.into_iter().flat_map(|one| (0..4).map(move |request| of_request(one, request)));
    let requests = http_requests().into_iter();
    requests.map(|(name, bytes)| (name, [&[0, 0x21][..], &bytes].concat())).chain(responses).collect()
}

/// Heads of HTTP/1 and HTTP/2, each behind a byte that selects the version and the
/// change.
fn http_forwarded() -> Vec<(String, Vec<u8>)> {
    let old = http_requests().into_iter().map(|(name, bytes)| (name, [&[0x40][..], &bytes].concat()));
    let new = [
        ("http2-get", "\x01GET\0/a?b\0a.example\0cookie:a=1\0cookie:b=2\0\0"),
        ("http2-post", "\x1fPOST\0/\0a:80\0content-length:5\0te:trailers\0\0hello"),
        ("http2-chunks", "\x27PUT\0/%2F\0[::1]\0host:[::1]\0x-forwarded-for:10.0.0.1\0\0hello"),
    ];
    old.chain(new.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))).collect()
}

/// Hellos of TLS 1.2 and 1.3, whole and over two records.
fn client_hellos() -> Vec<(String, Vec<u8>)> {
    let extensions: [&[u8]; 6] = [
        b"\0\0\0\x10\0\x0e\0\0\x0bapi.example",      // the server's name
        b"\0\x10\0\x0e\0\x0c\x02h2\x08http/1.1",     // ALPN
        b"\0\x0d\0\x06\0\x04\x04\x03\x08\x04",       // signature algorithms
        b"\0\x0a\0\x04\0\x02\0\x1d",                 // groups
        b"\0\x2b\0\x05\x04\x03\x04\x03\x03",         // versions
        b"\xfe\x0d\0\x0a\0\0\x01\0\x01\x07\0\0\0\0", // ECH
    ];
    let share = [&b"\0\x33\0\x26\0\x24\0\x1d\0\x20"[..], &[7; 32]].concat();
    let hello = |extensions: &[&[u8]]| {
        let extensions = extensions.concat();
        let start = [&[3, 3][..], &[7; 32], b"\0\0\x04\x13\x01\xc0\x2b\x01\0"].concat();
        let body = [&start[..], &(extensions.len() as u16).to_be_bytes(), &extensions].concat();
        [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
    };
    let record = |data: &[u8]| [&[22, 3, 1][..], &(data.len() as u16).to_be_bytes(), data].concat();
    let new = hello(&[&extensions[..], &[&share]].concat());
    let kinds = [
        ("tls12", record(&hello(&extensions[..4]))),
        ("tls13", record(&new)),
        ("split", new.chunks(50).flat_map(record).collect()),
        ("without-name", record(&hello(&extensions[2..4]))),
        ("old", record(b"\x01\0\0\x29\x03\x0177777777777777777777777777777777\0\0\x02\0\x2f\x01\0")),
        ("ssl2", b"\x80\x2e\x01\x03\x01".to_vec()),
    ];
    kinds.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec()
}

fn proxy_headers() -> Vec<(String, Vec<u8>)> {
    let of = |source: &str, destination: &str| {
        let [source, destination] = [source, destination].map(|addr| addr.parse().expect("an address"));
        Some(Addresses { source, destination, transport: Protocol::Tcp })
    };
    // ALPN, a checksum, a unique id.
    let tlvs = b"\x01\0\x02h2\x03\0\x04\0\0\0\0\x05\0\x03abc";
    let clients = [
        ("v4", of("192.168.0.1:56324", "192.168.0.11:443")),
        ("v6", of("[2001:db8::1]:1", "[2001:db8::2]:65535")),
        ("unknown", None),
    ];
    let kinds = [
        ("line", ProxyVersion::V1, &b""[..]),
        ("plain", ProxyVersion::V2, b""),
        ("tlvs", ProxyVersion::V2, tlvs),
    ];
    let each = clients.into_iter().flat_map(|client| kinds.map(|kind| (client, kind)));
    each.map(|((client, addresses), (kind, version, tlvs))| {
        let mut bytes = Vec::new();
        convey_proxy_protocol::write(version, addresses, tlvs, &mut bytes);
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
        (format!("{client}-{kind}"), bytes)
    })
    .chain([("local".to_owned(), convey_proxy_protocol::local(ProxyVersion::V2).to_vec())])
    .collect()
}

/// As `http3_frames` reads them: how the stream is cut and which it is, then frames.
fn http3_frames() -> Vec<(String, Vec<u8>)> {
    // GET, https, `/`, and the host by a name of the table.
    const HEAD: &[u8] = b"\x01\x08\0\0\xd1\xd7\xc1\x50\x01a";
    const AGAIN: &[u8] = b"\x01\x0c\0\0\xd1\xd7\xc1\x2c\xb9\x58\xd3\x3f\x01/";
    const BODY: &[u8] = b"\0\x03abc\0\0\0\x40\x02de";
    const TRAILERS: &[u8] = b"\x01\x06\0\0\x21x\x01y";
    const UNKNOWN: &[u8] = b"\x21\x02hi";
    let kinds = [
        ("request", [&[1][..], HEAD, BODY, TRAILERS].concat()),
        ("byte-by-byte", [&[3][..], UNKNOWN, HEAD, BODY].concat()),
        ("twice", [&[9][..], AGAIN].concat()),
        ("too-long", [&[1][..], HEAD, b"\x01\x40\x80"].concat()),
        ("within-data", [&[5][..], HEAD, b"\0\x80\0\xff\xffabc"].concat()),
        ("control", b"\x02\0\x04\0\x07\x01\0".to_vec()),
        ("other", b"\0\x02\x3f\xe1\x1f".to_vec()),
    ];
    kinds.map(|(name, bytes)| (name.to_owned(), bytes)).to_vec()
}

/// Tables of an upgrade, and rows without a frame around them.
fn handed_over() -> Vec<(String, Vec<u8>)> {
    let addr = |addr: &str| addr.parse().expect("an address");
    let event = |client, vip| {
        let key = FlowKey::tcp(addr(client), addr(vip));
        CacheEvent { key, segment: Segment { flags: SYN, seq: 7, ack: 0, len: 1 } }
    };
    let events = [event("10.0.0.9:4242", "10.0.0.1:80"), event("[fd00::9]:4242", "[fd00::1]:80")];
    // A TCP flow whose other fields are 0.
    let mut flow = vec![0; KnownFlow::LEN];
    flow[4 * 16 + 4 * 2] = 6;
    let flows: Vec<KnownFlow> = KnownFlow::read(&flow).into_iter().collect();
    let mut rows = Vec::new();
    events.iter().for_each(|event| event.write(&mut rows));
    vec![
        ("events".to_owned(), encode::<CacheEvent>(&events)),
        ("event-rows".to_owned(), rows),
        ("flows".to_owned(), encode(&flows)),
        ("flow-rows".to_owned(), flow),
    ]
}

const FIN: u8 = TcpFlags::FIN;
const SYN: u8 = TcpFlags::SYN;
const RST: u8 = TcpFlags::RST;
const ACK: u8 = TcpFlags::ACK;

fn write(target: &str, seeds: &[(impl Display, Vec<u8>)]) -> io::Result<()> {
    let corpus = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(&corpus)?;
    seeds.iter().try_for_each(|(name, bytes)| fs::write(format!("{corpus}/{name}"), bytes))
}
