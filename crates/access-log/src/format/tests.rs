use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use super::super::{
    LineWriter, LoggedHello, LoggedRequest, LoggedResponse, MAX_HEADER_VALUE, RequestHeaders, ServedBy,
};
use super::*;

fn line(source: &str, record: &Record) -> String {
    let mut line = Vec::new();
    let format = Format::parse(source).unwrap();
    LineWriter::new(Arc::new(format)).write(&mut line, record, Duration::from_secs(1));
    String::from_utf8(line).unwrap()
}

#[test]
fn text_is_words_with_names() {
    assert_eq!(
        line("text", &Record::sample()),
        "1970-01-01T00:00:01.000Z mode=proxy protocol=tcp client_addr=[2001:db8::7]:5000 proxy_addr=- \
         frontend=\"my \\\"web\\\"\" listen_addr=10.0.0.1:80 server=app/a server_addr=10.0.0.2:8080 bytes_rx=312 \
         bytes_tx=0 queue_ms=0.000 connect_ms=- total_ms=25.001 retries=1 termination=reset reason=client_reset\n"
    );
    let refused = Record { server: None, reason: None, bytes_tx: None, ..Record::sample() };
    assert!(line("text", &refused).contains(" server=- server_addr=- bytes_rx=312 bytes_tx=- "));
}

#[test]
fn addresses_numbers_and_times_are_written_as_rust_writes_them() {
    for client in ["0.0.0.0:0", "255.10.1.99:65535", "[::ffff:1.2.3.4]:1", "[fe80::1%3]:80"] {
        for micros in [0, 9, 10, 99, 100, 999, 1_000, 61_000_042, u64::MAX / 1_000] {
            let (client, total) = (client.parse::<SocketAddr>().unwrap(), Duration::from_micros(micros));
            let record = Record { client, total, bytes_rx: Some(micros), ..Record::sample() };
            let expected =
                format!("{client} {} {micros} {}.{:03}\n", client.ip(), micros / 1_000, micros % 1_000);
            assert_eq!(line("{client_addr} {client_ip} {bytes_rx} {total_ms}", &record), expected);
        }
    }
}

#[test]
fn json_is_an_object_with_every_field() {
    let line = line("json", &Record { server: None, ..Record::sample() });
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    let of_connections = Field::ALL.iter().filter(|field| field.is_for(&Record::sample())).count();
    assert_eq!(object.as_object().unwrap().len(), of_connections);
    assert_eq!(object["frontend"], "my \"web\"");
    assert_eq!(object["server"], serde_json::Value::Null);
    assert_eq!(object["total_ms"], 25.001);
    assert_eq!(object["start_time"], "1970-01-01T00:00:00.974Z");
    assert_eq!(object["bytes_tx"], 0);
}

#[test]
fn a_request_has_a_line_of_its_own() {
    let request = LoggedRequest {
        method: b"GET",
        host: b"shop.example",
        target: b"/a b",
        route: None,
        status: Some(404),
        is_answered_here: true,
        phase: Some("route"),
        version: "1.1",
        trace_id: None,
        compression: None,
        headers: None,
        response: None,
    };
    let record = Record { request: Some(request), ..Record::sample() };
    let text = line("text", &record);
    assert!(
        text.contains(" method=GET host=shop.example target=\"/a b\" status=404 answered_by=convey route=- "),
        "{text}"
    );
    assert!(text.ends_with(" reason=client_reset phase=route\n"), "{text}");
    assert_eq!(line("{phase}", &record), "route\n");
    let object: serde_json::Value = serde_json::from_str(&line("json", &record)).unwrap();
    assert_eq!(object["phase"], "route");
    assert_eq!(
        object.as_object().unwrap().len(),
        Field::ALL.iter().filter(|field| field.is_for(&record)).count()
    );
    assert_eq!((&object["status"], &object["target"]), (&404.into(), &"/a b".into()));
}

#[test]
fn request_with_a_malformed_head_has_no_method_host_and_target() {
    let request = LoggedRequest {
        method: b"",
        host: b"",
        target: b"",
        route: None,
        status: Some(400),
        is_answered_here: true,
        phase: None,
        version: "1.1",
        trace_id: None,
        compression: None,
        headers: None,
        response: None,
    };
    let record = Record { request: Some(request), ..Record::sample() };
    assert!(line("text", &record).contains(" method=- host=- target=- status=400 "));
    assert_eq!(line("{method} {host} {target}", &record), "- - -\n");
    let object: serde_json::Value = serde_json::from_str(&line("json", &record)).unwrap();
    for key in ["method", "host", "target"] {
        assert_eq!(object.get(key), Some(&serde_json::Value::Null), "{key}");
    }
}

#[test]
fn a_connection_that_is_routed_has_its_name_and_its_route() {
    let hello = LoggedHello { sni: Some("api.example"), route: None };
    let record = Record { hello: Some(hello), ..Record::sample() };
    let text = line("text", &record);
    assert!(text.ends_with(" reason=client_reset sni=api.example route=-\n"), "{text}");
    let object: serde_json::Value = serde_json::from_str(&line("json", &record)).unwrap();
    assert_eq!((&object["sni"], &object["route"]), (&"api.example".into(), &serde_json::Value::Null));
    assert!(object.get("method").is_none());
    assert_eq!(line("{sni}", &record), "api.example\n");
}

#[test]
fn a_template_has_fields_and_text() {
    assert_eq!(
        line("{client_ip} -> {{{server}}} {bytes_rx}", &Record::sample()),
        "2001:db8::7 -> {app/a} 312\n"
    );
    let text = "a text that is longer than one part, and ends with another, ";
    let template = format!("{text}{{client_ip}}{text}");
    assert_eq!(line(&template, &Record::sample()), format!("{text}2001:db8::7{text}\n"));
    for (template, error) in [
        ("{clint}", FormatError::UnknownField("clint".into())),
        ("{}", FormatError::UnknownField(String::new())),
        ("{client_ip", FormatError::Unbalanced),
        ("client}", FormatError::Unbalanced),
        ("jsn", FormatError::NoField),
        ("", FormatError::NoField),
    ] {
        assert_eq!(Format::parse(template), Err(error), "{template}");
    }
}

#[test]
fn forged_names_are_quoted_and_stay_in_their_field() {
    let forged = "a\nb end=closed \u{1b}[2J\u{2028}\\";
    let served = ServedBy { name: forged, addr: "10.0.0.2:8080".parse().unwrap() };
    let record = Record { frontend: "-", server: Some(served), ..Record::sample() };
    let text = line("{frontend} {server}", &record);
    assert_eq!(text, "\"-\" \"app/a\\nb end=closed \\u{1b}[2J\\u{2028}\\\\\"\n");
    let json = line("json", &record);
    assert_eq!(json.lines().count(), 1, "{json}");
    let object: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(object["server"], format!("app/{forged}"));
}

/// Headers of a request.
#[derive(Debug)]
struct Headers(&'static [(&'static str, &'static [u8])]);

impl RequestHeaders for Headers {
    fn each_value<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name)).for_each(|(_, value)| each(value));
    }
}

/// Request with these headers, to a response with these fields and a head of 100 bytes.
fn with_request(
    headers: &Headers,
    fields: &[(&'static str, &'static str)],
    format: &Format,
    use_record: impl FnOnce(&Record),
) {
    let response = format.wanted_of_response().map(|wanted| {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), Cow::Borrowed(value.as_bytes())));
        LoggedResponse::keep(Arc::new(wanted), fields, 100)
    });
    let request = LoggedRequest {
        method: b"GET",
        host: b"shop.example",
        target: b"/a?b=\"c\"",
        route: None,
        status: Some(200),
        is_answered_here: false,
        phase: None,
        version: "2",
        trace_id: None,
        compression: None,
        headers: Some(headers),
        response: response.as_ref(),
    };
    let client = "192.0.2.7:5000".parse().unwrap();
    use_record(&Record { client, bytes_tx: Some(1_148), request: Some(request), ..Record::sample() });
}

#[test]
fn headers_are_found_in_any_case_joined_and_cut() {
    const LONG: &[u8] = &[b'a'; 2_000];
    let headers =
        Headers(&[("X-A", b"one"), ("x-a", b"two"), ("Cookie", b"a=1"), ("cookie", b"b=2"), ("Long", LONG)]);
    let fields = [("Set-Cookie", "x"), ("set-cookie", "y z")];
    for (template, expected) in [
        ("{request_header:X-a}", "\"one, two\"\n".to_owned()),
        ("{request_header:cookie}", "\"a=1; b=2\"\n".to_owned()),
        ("{request_header:none} {response_header:None}", "- -\n".to_owned()),
        ("{request_header:long}", format!("{}\n", "a".repeat(MAX_HEADER_VALUE))),
        ("{response_header:set-cookie}", "\"x, y z\"\n".to_owned()),
    ] {
        let format = Format::parse(template).unwrap();
        with_request(&headers, &fields, &format, |record| assert_eq!(line(template, record), expected));
    }
    assert_eq!(line("{request_header:X-A}", &Record::sample()), "-\n", "a connection has no headers");
    let invalid = FormatError::InvalidHeader("response_header:a b".into());
    assert_eq!(Format::parse("{response_header:a b}"), Err(invalid));
}

#[test]
fn combined_line_is_escaped_as_nginx_does() {
    let headers = Headers(&[("Referer", b"https://a.example/\xc3\xa9"), ("User-Agent", b"x \\ \"y\"\t")]);
    let format = Format::parse("combined").unwrap();
    with_request(&headers, &[], &format, |record| {
        assert_eq!(
            line("combined", record),
            "192.0.2.7 - - [01/Jan/1970:00:00:01 +0000] \"GET /a?b=\\x22c\\x22 HTTP/2.0\" 200 1048 \
             \"https://a.example/\\xC3\\xA9\" \"x \\x5C \\x22y\\x22\\x09\"\n"
        );
        let left = LoggedRequest { status: None, method: b"", ..record.request.clone().unwrap() };
        let left = Record { request: Some(left), bytes_tx: Some(0), ..record.clone() };
        assert!(line("combined", &left).contains("] \"-\" 499 0 "));
    });
    assert!(line("combined", &Record::sample()).contains("] \"-\" - 0 \"-\" \"-\"\n"));
}

#[test]
fn list_of_fields_is_an_object_in_this_order() {
    let format = Format::json_of(&["status", "request_header:X-A", "tls_version"]).unwrap();
    assert_eq!(format.source(), r#"["status", "request_header:X-A", "tls_version"]"#);
    let headers = Headers(&[("X-A", b"say \"a\"")]);
    with_request(&headers, &[], &format, |record| {
        let mut line = Vec::new();
        LineWriter::new(Arc::new(format.clone())).write(&mut line, record, Duration::ZERO);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"status\":200,\"request_header:X-A\":\"say \\\"a\\\"\",\"tls_version\":null}\n"
        );
    });
    assert_eq!(Format::json_of(&[]), Err(FormatError::NoField));
    assert_eq!(Format::json_of(&["sttus"]), Err(FormatError::UnknownField("sttus".into())));
}
