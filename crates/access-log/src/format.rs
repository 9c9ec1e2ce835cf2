//! Format of access log lines: text, JSON, or a template. Pure.

use std::time::Duration;

use super::digits::append;
use super::style::{Json, Line, Text};
use super::{Field, Record};

/// Default format of lines for connections, sessions and flows.
const TEXT: &str = "{time} mode={mode} protocol={protocol} client_addr={client_addr} proxy_addr={proxy_addr} frontend={frontend} \
    listen_addr={listen_addr} server={server} server_addr={server_addr} bytes_rx={bytes_rx} bytes_tx={bytes_tx} \
    queue_ms={queue_ms} connect_ms={connect_ms} total_ms={total_ms} retries={retries} termination={termination} \
    reason={reason}";

/// Default format of lines for requests.
const REQUEST_TEXT: &str = "{time} client_addr={client_addr} frontend={frontend} method={method} host={host} target={target} \
    status={status} answered_by={answered_by} route={route} server={server} server_addr={server_addr} bytes_rx={bytes_rx} \
    bytes_tx={bytes_tx} total_ms={total_ms} retries={retries} termination={termination} reason={reason}";

/// Suffix of [`TEXT`] for connections with a route by server name.
const ROUTED_TEXT: &str = " sni={sni} route={route}";

/// Suffix of [`REQUEST_TEXT`] for requests that ended early or got a local reply.
const EARLY_TEXT: &str = " phase={phase}";

/// Format that turns a record into a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// Text of the format in the configuration.
    source: String,
    layout: Layout,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Layout {
    Text(Box<TextLayout>),
    Json(Vec<JsonMember>),
    Template(Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TextLayout {
    of_connections: Vec<Part>,
    of_requests: Vec<Part>,
    /// Suffix for connections with a route by server name.
    of_routed: Vec<Part>,
    /// Suffix for requests that ended early or got a local reply.
    of_early: Vec<Part>,
}

/// Text of a template, and the field behind it. A longer text has several parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    text: [u8; Part::MAX_TEXT],
    text_len: u8,
    field: Option<Field>,
}

/// Member of a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JsonMember {
    /// `,"NAME":`
    name: String,
    field: Field,
}

/// Reason why a template is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatError {
    /// No field has this name.
    UnknownField(String),
    /// A brace has no matching brace. A literal brace must be written twice.
    Unbalanced,
    /// The text is neither the name of a format nor a template with a field.
    NoField,
}

impl Default for Format {
    fn default() -> Format {
        let [of_connections, of_requests, of_routed, of_early] =
            [TEXT, REQUEST_TEXT, ROUTED_TEXT, EARLY_TEXT].map(|text| parse(text).unwrap_or_default());
        let layout = Layout::Text(Box::new(TextLayout { of_connections, of_requests, of_routed, of_early }));
        Format { source: "text".to_owned(), layout }
    }
}

impl Format {
    /// Parses `text`, `json`, or a template such as `{client_ip} {server} {total_ms}`. Literal
    /// braces are written twice.
    ///
    /// # Errors
    /// The template has an unknown field, no field at all, or a single brace.
    pub fn parse(source: &str) -> Result<Format, FormatError> {
        let layout = match source {
            "text" => return Ok(Format::default()),
            "json" => Layout::Json(Field::ALL.iter().map(|field| JsonMember::new(*field)).collect()),
            template => {
                let parts = parse(template)?;
                if parts.iter().all(|part| part.field.is_none()) {
                    return Err(FormatError::NoField);
                }
                Layout::Template(parts)
            }
        };
        Ok(Format { source: source.to_owned(), layout })
    }

    /// Text of the format in the configuration.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Appends the line of a record. `ended` is the time at which the connection ended.
    pub(super) fn write(&self, line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
        match &self.layout {
            Layout::Text(layout) => layout.write(line, record, ended),
            Layout::Json(members) => write_json(members, line, record, ended),
            Layout::Template(parts) => write_parts(parts, line, record, ended),
        }
        line.out.push(b'\n');
    }
}

impl TextLayout {
    fn write(&self, line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
        let parts = if record.request.is_some() { &self.of_requests } else { &self.of_connections };
        write_parts(parts, line, record, ended);
        if record.hello.is_some() {
            write_parts(&self.of_routed, line, record, ended);
        }
        if record.request.as_ref().is_some_and(|request| request.phase.is_some()) {
            write_parts(&self.of_early, line, record, ended);
        }
    }
}

impl Part {
    const MAX_TEXT: usize = 16;

    fn new(text: &[u8], field: Option<Field>) -> Part {
        let mut padded = [0; Part::MAX_TEXT];
        padded[..text.len()].copy_from_slice(text);
        Part { text: padded, text_len: text.len() as u8, field }
    }

    /// Parts of a text and of the field behind it.
    fn all_of(text: &str, field: Option<Field>) -> impl Iterator<Item = Part> {
        let (last, chunks) = (text.len().saturating_sub(1) / Part::MAX_TEXT, text.as_bytes());
        (0..=last).map(move |n| {
            let chunk = &chunks[n * Part::MAX_TEXT..chunks.len().min((n + 1) * Part::MAX_TEXT)];
            Part::new(chunk, field.filter(|_| n == last))
        })
    }
}

impl JsonMember {
    fn new(field: Field) -> JsonMember {
        JsonMember { name: format!(",\"{}\":", field.name()), field }
    }
}

fn write_parts(parts: &[Part], line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
    for part in parts {
        append(line.out, &part.text, usize::from(part.text_len));
        if let Some(field) = part.field {
            field.write(&mut Text(line), record, ended);
        }
    }
}

fn write_json(members: &[JsonMember], line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
    let begin = line.out.len();
    for member in members.iter().filter(|member| member.field.is_for(record)) {
        line.out.extend_from_slice(member.name.as_bytes());
        member.field.write(&mut Json(line), record, ended);
    }
    // Each member begins with a comma.
    if let Some(first) = line.out.get_mut(begin) {
        *first = b'{';
    }
    line.out.push(b'}');
}

fn parse(template: &str) -> Result<Vec<Part>, FormatError> {
    let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let brace = &from[..1];
        if from[1..].starts_with(brace) {
            text.push_str(brace);
            rest = &from[2..];
            continue;
        }
        let (name, after) =
            from.strip_prefix('{').and_then(|from| from.split_once('}')).ok_or(FormatError::Unbalanced)?;
        let field = Field::ALL.iter().find(|field| field.name() == name);
        let field = *field.ok_or_else(|| FormatError::UnknownField(name.to_owned()))?;
        parts.extend(Part::all_of(&std::mem::take(&mut text), Some(field)));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.extend(Part::all_of(&text, None));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use super::super::{LineWriter, LoggedHello, LoggedRequest, ServedBy};
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
        };
        let record = Record { request: Some(request), ..Record::sample() };
        let text = line("text", &record);
        assert!(
            text.contains(
                " method=GET host=shop.example target=\"/a b\" status=404 answered_by=convey route=- "
            ),
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
}
