//! Syslog messages. Pure.

/// Maximum length of the text of a message, in bytes. Longer texts are truncated, because common
/// receivers take at most 8 KiB.
pub(super) const MAX_TEXT: usize = 8000;

/// Severity of a line without a level (`info`).
const USUAL_SEVERITY: u8 = 6;

/// Format of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageFormat {
    /// RFC 5424, for servers.
    Rfc5424,
    /// Format of syslog(3), for the service of the host. It has no time: the service adds it.
    Local,
}

/// Parts that all messages of a process share.
#[derive(Debug)]
pub(super) struct MessageHeader {
    pub(super) format: MessageFormat,
    pub(super) facility: u8,
    pub(super) tag: String,
    /// Name of the host; `-` if it is unknown.
    pub(super) host: String,
    pub(super) process: u32,
}

impl MessageHeader {
    /// Appends the message of a line to `out`. The line may begin with a level, such as `<4>`. Returns
    /// false if the line has no text.
    pub(super) fn write(&self, line: &[u8], time: &str, out: &mut Vec<u8>) -> bool {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let (severity, text) = match line {
            [b'<', level @ b'0'..=b'7', b'>', text @ ..] => (level - b'0', text),
            text => (USUAL_SEVERITY, text),
        };
        if text.is_empty() {
            return false;
        }
        let MessageHeader { format, facility, tag, host, process } = self;
        let priority = facility * 8 + severity;
        let head = match format {
            MessageFormat::Rfc5424 => format!("<{priority}>1 {time} {host} {tag} {process} - - "),
            MessageFormat::Local => format!("<{priority}>{tag}[{process}]: "),
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(truncated(text));
        true
    }
}

/// First bytes of a text, up to `MAX_TEXT`, without a part of a character at the end.
fn truncated(text: &[u8]) -> &[u8] {
    let is_continuation = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = text.len().min(MAX_TEXT);
    // A character has at most 4 bytes.
    let begin = (end.saturating_sub(3)..=end).rev().find(|at| !is_continuation(at));
    &text[..begin.unwrap_or(end)]
}

/// Returns a name that is valid as `HOSTNAME` (RFC 5424, section 6.2.4).
pub(super) fn host_name(name: &str) -> String {
    let name = name.trim();
    let is_valid = (1..=255).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid { name.to_owned() } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_has_priority_time_host_and_tag() {
        let header = |format| MessageHeader {
            format,
            facility: 16,
            tag: "lb".to_owned(),
            host: host_name("node1\n"),
            process: 7,
        };
        let written = |format, line: &str| {
            let mut out = Vec::new();
            let is_written = header(format).write(line.as_bytes(), "2026-03-01T12:00:00.125Z", &mut out);
            is_written.then(|| String::from_utf8(out).unwrap())
        };
        let cases = [
            ("status=200\n", "<134>1 2026-03-01T12:00:00.125Z node1 lb 7 - - status=200"),
            ("<3>no server\n", "<131>1 2026-03-01T12:00:00.125Z node1 lb 7 - - no server"),
            ("<9>a", "<134>1 2026-03-01T12:00:00.125Z node1 lb 7 - - <9>a"),
        ];
        for (line, expected) in cases {
            assert_eq!(written(MessageFormat::Rfc5424, line).as_deref(), Some(expected));
        }
        assert_eq!(written(MessageFormat::Local, "<4>a b\n").as_deref(), Some("<132>lb[7]: a b"));
        assert_eq!(written(MessageFormat::Local, "<4>\n"), None);
        let long = written(MessageFormat::Local, &"x".repeat(MAX_TEXT + 1)).unwrap();
        assert_eq!(long.len(), "<134>lb[7]: ".len() + MAX_TEXT);
        for (character, rest) in [("é", 0), ("€", 2), ("🦀", 0)] {
            for before in 0..4 {
                let text = "x".repeat(before) + &character.repeat(MAX_TEXT);
                let cut = truncated(text.as_bytes());
                let cut = std::str::from_utf8(cut).unwrap();
                assert!(cut.len() <= MAX_TEXT && cut.len() + character.len() > MAX_TEXT, "{character}");
            }
            let cut = truncated(character.repeat(MAX_TEXT).as_bytes()).len();
            assert_eq!(cut, MAX_TEXT - rest, "{character}");
        }
        assert_eq!(truncated(&[0x80; MAX_TEXT + 1]).len(), MAX_TEXT, "the text is no UTF-8");
        assert_eq!([host_name(""), host_name("a b")], ["-", "-"]);
    }
}
