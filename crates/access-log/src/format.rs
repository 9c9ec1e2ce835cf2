//! Format of access log lines: text, JSON, or a template. Pure.

use std::time::SystemTime;

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
    parts: Option<Vec<Part>>,
    /// Parts of a line for a request. `None` if requests use `parts`, like connections.
    of_requests: Option<Vec<Part>>,
    /// Suffix for connections with a route by server name.
    of_routed: Vec<Part>,
    /// Suffix for requests that ended early or got a local reply.
    of_early: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
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
        let (parts, of_requests) = (parse(TEXT).unwrap_or_default(), parse(REQUEST_TEXT).ok());
        let [of_routed, of_early] = [ROUTED_TEXT, EARLY_TEXT].map(|text| parse(text).unwrap_or_default());
        Format { source: "text".to_owned(), parts: Some(parts), of_requests, of_routed, of_early }
    }
}

impl Format {
    /// Parses `text`, `json`, or a template such as `{client_ip} {server} {total_ms}`. Literal
    /// braces are written twice.
    ///
    /// # Errors
    /// The template has an unknown field, no field at all, or a single brace.
    pub fn parse(source: &str) -> Result<Format, FormatError> {
        let parts = match source {
            "text" => return Ok(Format::default()),
            "json" => None,
            template => {
                let parts = parse(template)?;
                if !parts.iter().any(|part| matches!(part, Part::Field(_))) {
                    return Err(FormatError::NoField);
                }
                Some(parts)
            }
        };
        Ok(Format {
            source: source.to_owned(),
            parts,
            of_requests: None,
            of_routed: Vec::new(),
            of_early: Vec::new(),
        })
    }

    /// Text of the format in the configuration.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Appends the line of a record. `ended` is the wall-clock time at which the connection ended.
    pub fn write(&self, out: &mut String, record: &Record, ended: SystemTime) {
        let of_requests = self.of_requests.as_ref().filter(|_| record.request.is_some());
        let of_routed = record.hello.iter().flat_map(|_| &self.of_routed);
        let phase = record.request.as_ref().and_then(|request| request.phase);
        let of_early = phase.iter().flat_map(|_| &self.of_early);
        let written = match of_requests.or(self.parts.as_ref()) {
            Some(parts) => parts.iter().chain(of_routed).chain(of_early).try_for_each(|part| match part {
                Part::Text(text) => {
                    out.push_str(text);
                    Ok(())
                }
                Part::Field(field) => field.of(record, ended).write_text(out),
            }),
            None => write_json(out, record, ended),
        };
        debug_assert!(written.is_ok(), "a string takes everything");
        out.push('\n');
    }
}

fn write_json(out: &mut String, record: &Record, ended: SystemTime) -> std::fmt::Result {
    let has = |field: &&Field| field.is_for(record);
    for (n, field) in Field::ALL.iter().filter(has).enumerate() {
        out.push_str(if n == 0 { "{\"" } else { ",\"" });
        out.push_str(field.name());
        out.push_str("\":");
        field.of(record, ended).write_json(out)?;
    }
    out.push('}');
    Ok(())
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
        parts.extend([Part::Text(std::mem::take(&mut text)), Part::Field(field)]);
        rest = after;
    }
    text.push_str(rest);
    parts.push(Part::Text(text));
    parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::super::{LoggedHello, LoggedRequest, ServedBy};
    use super::*;

    fn line(source: &str, record: &Record) -> String {
        let mut line = String::new();
        let ended = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        Format::parse(source).unwrap().write(&mut line, record, ended);
        line
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
            method: "GET".into(),
            host: "shop.example".into(),
            target: "/a b".into(),
            route: None,
            status: Some(404),
            is_answered_here: true,
            phase: Some("route"),
            version: "1.1",
            trace_id: None,
            compression: None,
        };
        let record = Record { request: Some(Box::new(request)), ..Record::sample() };
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
        let hello = LoggedHello { sni: Some("api.example".into()), route: None };
        let record = Record { hello: Some(Box::new(hello)), ..Record::sample() };
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
        let served = ServedBy { name: forged.into(), addr: "10.0.0.2:8080".parse().unwrap() };
        let record = Record { frontend: "-".into(), server: Some(served), ..Record::sample() };
        let text = line("{frontend} {server}", &record);
        assert_eq!(text, "\"-\" \"app/a\\nb end=closed \\u{1b}[2J\\u{2028}\\\\\"\n");
        let json = line("json", &record);
        assert_eq!(json.lines().count(), 1, "{json}");
        let object: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(object["server"], format!("app/{forged}"));
    }
}
