//! Format of access log lines: text, JSON, combined, or a template. Pure.

use std::fmt;
use std::time::Duration;

use super::combined;
use super::digits::append;
use super::style::{Json, Line, Style, Text};
use super::{Field, HeaderField, Record, WantedOfResponse};

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
    /// Object with all fields that a record has.
    Json(Vec<JsonMember>),
    /// Object with chosen fields.
    JsonOf(Vec<JsonMember>),
    Combined([HeaderField; 2]),
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
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    text: [u8; Part::MAX_TEXT],
    text_len: u8,
    field: Option<AnyField>,
}

/// Field of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AnyField {
    Field(Field),
    Header(Box<HeaderField>),
}

/// Member of a JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JsonMember {
    /// `,"NAME":`
    name: String,
    field: AnyField,
}

/// Reason why a template is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatError {
    /// No field has this name.
    UnknownField(String),
    /// A header cannot have this name.
    InvalidHeader(String),
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
    /// Parses `text`, `json`, `combined`, or a template such as `{client_ip} {server} {total_ms}`. Literal
    /// braces are written twice.
    ///
    /// # Errors
    /// The template has an unknown field, no field at all, or a single brace.
    pub fn parse(source: &str) -> Result<Format, FormatError> {
        let layout = match source {
            "text" => return Ok(Format::default()),
            "json" => Layout::Json(
                Field::ALL.iter().map(|field| JsonMember::new(AnyField::Field(*field))).collect(),
            ),
            "combined" => Layout::Combined(combined::headers()),
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

    /// JSON objects with these fields, in this order.
    ///
    /// # Errors
    /// A field is unknown, or there is none.
    pub fn json_of(fields: &[&str]) -> Result<Format, FormatError> {
        let members: Result<Vec<_>, _> =
            fields.iter().map(|name| Ok(JsonMember::new(AnyField::parse(name)?))).collect();
        let members = members?;
        if members.is_empty() {
            return Err(FormatError::NoField);
        }
        Ok(Format { source: format!("{fields:?}"), layout: Layout::JsonOf(members) })
    }

    /// Text of the format in the configuration.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Headers in a line.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderField> {
        let (parts, members, combined): (&[Part], &[JsonMember], &[HeaderField]) = match &self.layout {
            Layout::Text(_) | Layout::Json(_) => (&[], &[], &[]),
            Layout::JsonOf(members) => (&[], members, &[]),
            Layout::Combined(headers) => (&[], &[], headers),
            Layout::Template(parts) => (parts, &[], &[]),
        };
        let fields = parts.iter().filter_map(|part| part.field.as_ref());
        let fields = fields.chain(members.iter().map(|member| &member.field));
        let of_fields = fields.filter_map(|field| match field {
            AnyField::Header(header) => Some(&**header),
            AnyField::Field(_) => None,
        });
        of_fields.chain(combined)
    }

    /// Facts about responses that lines need. `None` if they need none.
    pub(super) fn wanted_of_response(&self) -> Option<WantedOfResponse> {
        WantedOfResponse::of(self.headers(), matches!(self.layout, Layout::Combined(_)))
    }

    /// Appends the line of a record. `ended` is the time at which the connection ended.
    pub(super) fn write(&self, line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
        match &self.layout {
            Layout::Text(layout) => layout.write(line, record, ended),
            Layout::Json(members) => {
                let has = |member: &&JsonMember| member.field.is_for(record);
                write_json(members.iter().filter(has), line, record, ended);
            }
            Layout::JsonOf(members) => write_json(members.iter(), line, record, ended),
            Layout::Combined(headers) => combined::write(headers, line, record, ended),
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

    fn new(text: &[u8], field: Option<AnyField>) -> Part {
        let mut padded = [0; Part::MAX_TEXT];
        padded[..text.len()].copy_from_slice(text);
        Part { text: padded, text_len: text.len() as u8, field }
    }

    /// Parts of a text and of the field behind it.
    fn all_of(text: &str, field: Option<AnyField>) -> Vec<Part> {
        let chunks = text.as_bytes().chunks(Part::MAX_TEXT);
        let mut parts: Vec<_> = chunks.map(|chunk| Part::new(chunk, None)).collect();
        match parts.last_mut() {
            Some(last) => last.field = field,
            None => parts.push(Part::new(b"", field)),
        }
        parts
    }
}

impl AnyField {
    fn parse(name: &str) -> Result<AnyField, FormatError> {
        if let Some(header) = HeaderField::parse(name) {
            return match header.is_valid() {
                true => Ok(AnyField::Header(Box::new(header))),
                false => Err(FormatError::InvalidHeader(name.to_owned())),
            };
        }
        let field = Field::ALL.iter().find(|field| field.name() == name);
        let field = *field.ok_or_else(|| FormatError::UnknownField(name.to_owned()))?;
        Ok(AnyField::Field(field))
    }

    #[inline]
    fn write(&self, to: &mut impl Style, record: &Record<'_>, ended: Duration) {
        match self {
            AnyField::Field(field) => field.write(to, record, ended),
            AnyField::Header(header) => {
                let request = record.request.as_ref();
                let headers = request.and_then(|request| request.headers);
                header.write(to, headers, request.and_then(|request| request.response));
            }
        }
    }

    fn is_for(&self, record: &Record<'_>) -> bool {
        match self {
            AnyField::Field(field) => field.is_for(record),
            AnyField::Header(_) => record.request.is_some(),
        }
    }
}

impl fmt::Display for AnyField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnyField::Field(field) => f.write_str(field.name()),
            AnyField::Header(header) => header.fmt(f),
        }
    }
}

impl JsonMember {
    fn new(field: AnyField) -> JsonMember {
        JsonMember { name: format!(",\"{field}\":"), field }
    }
}

fn write_parts(parts: &[Part], line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
    for part in parts {
        append(line.out, &part.text, usize::from(part.text_len));
        if let Some(field) = &part.field {
            field.write(&mut Text(line), record, ended);
        }
    }
}

fn write_json<'a>(
    members: impl Iterator<Item = &'a JsonMember>,
    line: &mut Line<'_>,
    record: &Record<'_>,
    ended: Duration,
) {
    let begin = line.out.len();
    for member in members {
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
        parts.extend(Part::all_of(&std::mem::take(&mut text), Some(AnyField::parse(name)?)));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.extend(Part::all_of(&text, None));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
