//! Target of a request, and its host (RFC 9112, section 3.2).

use std::ops::Range;

use crate::Malformed;
use crate::field_syntax::decimal;

/// Positions of the parts of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TargetParts {
    /// Authority of an absolute URI.
    pub(super) authority: Option<Range<usize>>,
    /// Path from its slash on.
    pub(super) path: Range<usize>,
    /// End of the query.
    pub(super) end: usize,
}

impl TargetParts {
    /// Moves the ranges by `start`, the offset of the target in the head.
    pub(super) fn at(self, start: usize) -> TargetParts {
        let moved = |range: Range<usize>| range.start + start..range.end + start;
        TargetParts { authority: self.authority.map(moved), path: moved(self.path), end: self.end + start }
    }
}

/// Parses a target, and compares its host with the field `Host`.
pub(super) fn read(method: &[u8], target: &[u8], host: Option<&[u8]>) -> Result<TargetParts, Malformed> {
    if method == b"CONNECT" {
        return Err(Malformed::Connect);
    }
    if host.is_some_and(|host| !is_authority(host)) {
        return Err(Malformed::Host);
    }
    if !target.iter().all(is_of_target) {
        return Err(Malformed::Target);
    }
    if target == b"*" {
        let whole = TargetParts { authority: None, path: 0..1, end: 1 };
        return if method == b"OPTIONS" { Ok(whole) } else { Err(Malformed::Target) };
    }
    let (authority, path) = match target.first() {
        Some(b'/') => (None, 0),
        _ => absolute(target, host)?,
    };
    let end_of_path =
        target[path..].iter().position(|byte| *byte == b'?').map_or(target.len(), |at| path + at);
    if path == end_of_path || !is_plain(&target[path..end_of_path]) {
        return Err(Malformed::Target);
    }
    Ok(TargetParts { authority, path: path..end_of_path, end: target.len() })
}

/// Parses an absolute URI, whose authority has to equal `Host` (RFC 9112, section 3.2.2). Returns
/// the range of the authority, and the offset of the path.
fn absolute(target: &[u8], host: Option<&[u8]>) -> Result<(Option<Range<usize>>, usize), Malformed> {
    let scheme = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme)));
    let start = scheme.ok_or(Malformed::Target)?.len();
    let slash = target[start..].iter().position(|byte| *byte == b'/');
    let path = start + slash.ok_or(Malformed::Target)?;
    let authority = &target[start..path];
    if authority.is_empty() || !is_authority(authority) {
        return Err(Malformed::Target);
    }
    let port = if start == "https://".len() { &b":443"[..] } else { b":80" };
    let without_port =
        |authority: &'_ [u8]| -> usize { authority.strip_suffix(port).unwrap_or(authority).len() };
    let is_same =
        |host: &[u8]| host[..without_port(host)].eq_ignore_ascii_case(&authority[..without_port(authority)]);
    if host.is_some_and(|host| !is_same(host)) {
        return Err(Malformed::Target);
    }
    Ok((Some(start..path), path))
}

/// Whether a text is a host, with or without a port: a name, an address, or an IPv6 address in
/// brackets. An empty text is a host, too.
pub(crate) fn is_authority(text: &[u8]) -> bool {
    let rest = match text.strip_prefix(b"[") {
        Some(rest) => {
            let end = rest.iter().take_while(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte)).count();
            match rest[end..].split_first() {
                Some((b']', rest)) if end > 0 => rest,
                _ => return false,
            }
        }
        None => &text[text.iter().take_while(|byte| is_of_name(byte)).count()..],
    };
    match rest.split_first() {
        None => true,
        Some((b':', port)) => decimal(port).is_some_and(|port| port <= u16::MAX.into()),
        Some(_) => false,
    }
}

/// Whether a byte is allowed in a host's name. URIs allow more characters, but host names do not
/// have them. A comma would look like two hosts.
fn is_of_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a byte is allowed in a target. Fragments (`#`) are not. Quotes, angle brackets and bytes
/// that are not ASCII are percent-encoded before this check.
fn is_of_target(byte: &u8) -> bool {
    matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'#' | b'<' | b'>')
}

/// Whether all servers interpret a path in the same way: it has no backslash, no backtick, no
/// broken percent encoding, and no segment `.` or `..`, encoded or not. The check for segments
/// takes into account that some servers cut a segment off at a semicolon, and that some end it at
/// an encoded slash or backslash.
pub(crate) fn is_plain(path: &[u8]) -> bool {
    !path.iter().any(|byte| b"\\`".contains(byte)) && path.split(|byte| *byte == b'/').all(is_plain_segment)
}

fn is_plain_segment(segment: &[u8]) -> bool {
    let (mut dots, mut others, mut is_cut) = (0, 0, false);
    let is_dot_segment = |dots, others| others == 0 && (dots == 1 || dots == 2);
    let mut rest = segment;
    while let Some((byte, after)) = rest.split_first() {
        let decoded;
        (decoded, rest) = match (byte, after) {
            (b'%', [high, low, after @ ..]) => match hex_pair(*high, *low) {
                Some(byte) if byte != 0 => (byte, after),
                _ => return false,
            },
            (b'%', _) => return false,
            (byte, after) => (*byte, after),
        };
        match decoded {
            b'/' | b'\\' if is_dot_segment(dots, others) => return false,
            b'/' | b'\\' => (dots, others, is_cut) = (0, 0, false),
            b';' => is_cut = true,
            _ if is_cut => {}
            b'.' => dots += 1,
            _ => others += 1,
        }
    }
    !is_dot_segment(dots, others)
}

/// Decodes the two digits of a percent encoding; `None`: a digit is not hexadecimal.
pub(crate) fn hex_pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}
