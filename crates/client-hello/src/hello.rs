//! Parser of the fields of a ClientHello (RFC 8446 4.1.2).

use super::{ClientHello, HelloFault, name};

/// Number of the extension with the server name.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

/// First byte of the version in a ClientHello, equal in all versions of TLS.
const TLS: u8 = 3;

/// Length of the version and the random bytes together, in bytes.
const VERSION_AND_RANDOM: usize = 34;

/// Upper bound of a session id, in bytes.
const MAX_SESSION_ID: usize = 32;

/// Parses a complete ClientHello without its message header.
pub(super) fn read(message: &[u8]) -> Result<ClientHello, HelloFault> {
    let mut fields = Fields(message);
    if fields.take(VERSION_AND_RANDOM)?.first() != Some(&TLS) {
        return Err(HelloFault::Version);
    }
    let session = fields.short()?;
    let suites = fields.long()?;
    let compressions = fields.short()?;
    if session.len() > MAX_SESSION_ID || suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty()
    {
        return Err(HelloFault::Length);
    }
    // Extensions are optional in TLS 1.2 and older.
    let extensions = if fields.0.is_empty() { &[] } else { fields.long()? };
    fields.end()?;
    read_extensions(extensions)
}

fn read_extensions(extensions: &[u8]) -> Result<ClientHello, HelloFault> {
    let (mut fields, mut numbers, mut hello) = (Fields(extensions), Vec::new(), ClientHello::default());
    while !fields.0.is_empty() {
        let (number, data) = (fields.number()?, fields.long()?);
        numbers.push(number);
        match number {
            SERVER_NAME => hello.server_name = server_name(data)?,
            ALPN => hello.alpn = protocols(data)?.into(),
            _ => {}
        }
    }
    numbers.sort_unstable();
    let has_double = numbers.windows(2).any(|pair| pair[0] == pair[1]);
    if has_double { Err(HelloFault::DoubleExtension) } else { Ok(hello) }
}

/// Returns the host name of a server_name list; `None` if the host name is an IP address, or if the
/// list has no host name.
///
/// Names of other types also begin with a length (RFC 6066 3). Some servers do not know that, and
/// may stop reading the list at such a name. So if the length of such a name exceeds the rest of
/// the list, the whole list is invalid.
fn server_name(data: &[u8]) -> Result<Option<Box<str>>, HelloFault> {
    let mut fields = Fields(data);
    let mut names = Fields(fields.long()?);
    fields.end()?;
    if names.0.is_empty() {
        return Err(HelloFault::Length);
    }
    let mut host = None;
    while !names.0.is_empty() {
        let kind = names.take(1)?;
        let found = names.long().map_err(|fault| if kind == [0] { fault } else { HelloFault::ServerName })?;
        if kind == [0] && host.replace(name::host(found)?).is_some() {
            return Err(HelloFault::ServerName);
        }
    }
    Ok(host.flatten())
}

/// Checks a list of protocols (ALPN), and returns it in wire format.
fn protocols(data: &[u8]) -> Result<&[u8], HelloFault> {
    let mut fields = Fields(data);
    let list = fields.long()?;
    fields.end()?;
    let mut names = Fields(list);
    while !names.0.is_empty() {
        if names.short()?.is_empty() {
            return Err(HelloFault::Length);
        }
    }
    if list.is_empty() { Err(HelloFault::Length) } else { Ok(list) }
}

/// Bytes that have not been parsed yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], HelloFault> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(HelloFault::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes a number of two bytes (big-endian).
    fn number(&mut self) -> Result<u16, HelloFault> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Takes a field that begins with its length in one byte.
    fn short(&mut self) -> Result<&'a [u8], HelloFault> {
        let len = self.take(1)?[0];
        self.take(len.into())
    }

    /// Takes a field that begins with its length in two bytes.
    fn long(&mut self) -> Result<&'a [u8], HelloFault> {
        let len = self.number()?;
        self.take(len.into())
    }

    /// Returns an error if bytes are left.
    fn end(&self) -> Result<(), HelloFault> {
        if self.0.is_empty() { Ok(()) } else { Err(HelloFault::Length) }
    }
}
