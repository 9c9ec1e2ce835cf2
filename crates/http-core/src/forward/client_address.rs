//! Client of a request that came through trusted proxies: the first address that is not a trusted
//! proxy, from the end of the field in which the proxies name clients. Pure.

mod elements;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use smallvec::SmallVec;

use self::elements::{Elements, address, address_of_element};
use super::rules::is_reserved;
use crate::field_syntax::is_name;
use crate::head::{KnownField, RequestHead};

/// Origin of the client's address: the field in which trusted proxies name the client of each
/// request, or the connection itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ClientAddress {
    /// `X-Forwarded-For`: each proxy appends the address of its peer.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239): each proxy appends an element, whose `for` is the address of its
    /// peer.
    Forwarded,
    /// Field with this name, whose value is one address.
    Field(Box<str>),
    /// The peer of the connection, or the client in its PROXY header.
    Connection,
}

/// Client that the proxy which sent a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedClient {
    /// The request has no such field, so it is the proxy's own.
    Missing,
    /// The proxy names a client, but not by an address, as in `unknown`.
    NotAnAddress,
    /// Address of the client; the port is 0 if the proxy does not name one.
    Address(SocketAddr),
}

impl NamedClient {
    /// Address of the client, if the proxy names it by one.
    pub fn address(self) -> Option<SocketAddr> {
        match self {
            NamedClient::Address(address) => Some(address),
            NamedClient::Missing | NamedClient::NotAnAddress => None,
        }
    }
}

impl ClientAddress {
    /// Returns the client that trusted proxies name. Call it for a request that a trusted proxy has
    /// sent.
    ///
    /// In a list, a client can forge only the entries before its own address, because each proxy
    /// appends the address of its peer. So the search begins at the last entry. The client is the
    /// first address that `is_trusted` refuses; if all addresses are trusted, the client is the
    /// last address that the search has read. An entry that is no address ends the search.
    pub fn client_of(&self, head: &RequestHead, is_trusted: impl Fn(IpAddr) -> bool) -> NamedClient {
        match self {
            ClientAddress::XForwardedFor => {
                walk(head, KnownField::XForwardedFor, Elements::unquoted, address, is_trusted)
            }
            ClientAddress::Forwarded => {
                walk(head, KnownField::Forwarded, Elements::quoted, address_of_element, is_trusted)
            }
            ClientAddress::Field(name) => only_address(head, name),
            ClientAddress::Connection => NamedClient::Missing,
        }
    }

    /// Whether trusted proxies name the client.
    pub fn is_named_by_proxies(&self) -> bool {
        *self != ClientAddress::Connection
    }

    /// Name of the field in which trusted proxies name clients; `None`: they name none.
    pub fn field_name(&self) -> Option<&str> {
        match self {
            ClientAddress::XForwardedFor => Some("X-Forwarded-For"),
            ClientAddress::Forwarded => Some("Forwarded"),
            ClientAddress::Field(name) => Some(name),
            ClientAddress::Connection => None,
        }
    }

    /// Field of these requests that servers must not get from other peers than trusted proxies.
    /// `None`: convey replaces the field for all servers anyway.
    pub fn own_field(&self) -> Option<&str> {
        match self {
            ClientAddress::Field(name) => Some(name),
            _ => None,
        }
    }
}

/// Walks the lines of a list from its last entry.
fn walk<'a>(
    head: &'a RequestHead,
    field: KnownField,
    elements: fn(&'a [u8]) -> Elements<'a>,
    address: fn(&[u8]) -> Option<SocketAddr>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> NamedClient {
    let lines: SmallVec<[&[u8]; 4]> = head.known(field).collect();
    let mut client = NamedClient::Missing;
    for element in lines.iter().rev().flat_map(|line| elements(line)) {
        let Some(addr) = address(element) else {
            return if client == NamedClient::Missing { NamedClient::NotAnAddress } else { client };
        };
        client = NamedClient::Address(addr);
        if !is_trusted(addr.ip()) {
            break;
        }
    }
    client
}

/// Address in the only line of a field. Several lines name no client: the first may be the
/// client's own, and which one servers read differs.
fn only_address(head: &RequestHead, name: &str) -> NamedClient {
    let mut lines = head.fields().filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes()));
    match (lines.next(), lines.next()) {
        (None, _) => NamedClient::Missing,
        (Some(line), None) => {
            address(line.value.trim_ascii()).map_or(NamedClient::NotAnAddress, NamedClient::Address)
        }
        (Some(_), Some(_)) => NamedClient::NotAnAddress,
    }
}

impl FromStr for ClientAddress {
    type Err = ();

    /// Parses a value of `client_address`, such as `header:CF-Connecting-IP`. Fields that are lists
    /// have words of their own.
    fn from_str(text: &str) -> Result<ClientAddress, ()> {
        match text {
            "x-forwarded-for" => Ok(ClientAddress::XForwardedFor),
            "forwarded" => Ok(ClientAddress::Forwarded),
            "connection" => Ok(ClientAddress::Connection),
            _ => {
                let name = text.strip_prefix("header:").ok_or(())?;
                let lists = ["x-forwarded-for", "forwarded"];
                let is_list = lists.iter().any(|list| list.eq_ignore_ascii_case(name));
                let is_allowed = is_name(name.as_bytes()) && !is_reserved(name) && !is_list;
                is_allowed.then(|| ClientAddress::Field(name.into())).ok_or(())
            }
        }
    }
}

/// Formats as in the configuration.
impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::XForwardedFor => f.write_str("x-forwarded-for"),
            ClientAddress::Forwarded => f.write_str("forwarded"),
            ClientAddress::Field(name) => write!(f, "header:{name}"),
            ClientAddress::Connection => f.write_str("connection"),
        }
    }
}
