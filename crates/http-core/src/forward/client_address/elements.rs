//! Elements of `X-Forwarded-For` and of `Forwarded`, from the last one, and the addresses in them.
//! Pure.

use std::net::{IpAddr, SocketAddr};

/// Elements of a line, from the last one, without empty elements.
///
/// The line is read backwards. So bytes before the last comma, which a client may have sent, never
/// change the extent of the elements behind it: not even a quotation mark without its counterpart.
pub(super) struct Elements<'a> {
    rest: Option<&'a [u8]>,
    /// Whether a comma within quotation marks belongs to the element.
    with_quotes: bool,
}

impl<'a> Elements<'a> {
    /// Elements of `X-Forwarded-For`.
    pub(super) fn unquoted(line: &'a [u8]) -> Elements<'a> {
        Elements { rest: Some(line), with_quotes: false }
    }

    /// Elements of `Forwarded`.
    pub(super) fn quoted(line: &'a [u8]) -> Elements<'a> {
        Elements { rest: Some(line), with_quotes: true }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let line = self.rest?;
            let comma = if self.with_quotes {
                last_comma_outside_quotes(line)
            } else {
                line.iter().rposition(|byte| *byte == b',')
            };
            self.rest = comma.map(|at| &line[..at]);
            let element = line[comma.map_or(0, |at| at + 1)..].trim_ascii();
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

/// Position of the last comma outside of quoted strings (RFC 9110, section 5.6.4). The line is read
/// backwards: a quotation mark after an odd number of backslashes is part of its string.
fn last_comma_outside_quotes(line: &[u8]) -> Option<usize> {
    let mut in_quotes = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' => {
                let escapes = line[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                if !in_quotes || escapes % 2 == 0 {
                    in_quotes = !in_quotes;
                }
            }
            b',' if !in_quotes => return Some(at),
            _ => {}
        }
    }
    None
}

/// Parses an address with or without a port, with or without brackets. The default port is 0. An
/// IPv4-mapped address is an IPv4 address.
pub(super) fn address(entry: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let addr = match bare.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, 0),
        Err(_) => text.parse().ok()?,
    };
    Some(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
}

/// Address in the `for` of an element of `Forwarded`. `None` if the element has no `for` or two of
/// them, or if its value is no address, such as `unknown` or `_hidden`.
pub(super) fn address_of_element(element: &[u8]) -> Option<SocketAddr> {
    let mut found = None;
    let (mut in_quotes, mut is_escaped) = (false, false);
    let ends_pair = |byte: &u8| {
        let was_escaped = is_escaped;
        is_escaped = in_quotes && !was_escaped && *byte == b'\\';
        in_quotes ^= *byte == b'"' && !was_escaped;
        *byte == b';' && !in_quotes
    };
    for pair in element.split(ends_pair) {
        let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { continue };
        if pair[..equals].trim_ascii().eq_ignore_ascii_case(b"for") {
            if found.is_some() {
                return None;
            }
            found = Some(pair[equals + 1..].trim_ascii());
        }
    }
    let value = found?;
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    address(without_hidden_port(inner))
}

/// Removes an obfuscated port (RFC 7239, section 6.3), such as `:_a1`. The address before it counts.
fn without_hidden_port(node: &[u8]) -> &[u8] {
    match node.windows(2).rposition(|pair| pair == b":_") {
        Some(at) => &node[..at],
        None => node,
    }
}
