//! A server as the file has it.

use std::net::SocketAddr;

use super::{max_connections, quic};
use crate::problem::{Place, Placed};
use crate::reader::TomlTable;
use crate::values::{ServerAddress, boolean, integer, server_address};
use convey_model::{self as model, NamedServer, ServerSettings};
use convey_quic_cid::ServerId;

/// `[backends.NAME.servers.NAME]`
#[derive(Debug, Clone)]
pub(crate) struct ParsedServer {
    pub(crate) name: String,
    pub(crate) addr: Option<Placed<ServerAddress>>,
    pub(crate) settings: ServerSettings,
    pub(crate) quic_server_id: Option<Placed<ServerId>>,
}

impl ParsedServer {
    /// Reads one.
    pub(super) fn read(name: String, mut table: TomlTable<'_>) -> ParsedServer {
        let server = ParsedServer {
            name,
            addr: table.required("addr", server_address),
            settings: settings(&mut table),
            quic_server_id: table.optional("quic_server_id", quic::server_id),
        };
        table.finish();
        server
    }

    /// One that stands in a list: called by its address, the rest as where nothing is said.
    pub(super) fn listed(addr: Placed<ServerAddress>) -> ParsedServer {
        let (settings, quic_server_id) = Default::default();
        ParsedServer { name: addr.value.to_string(), addr: Some(addr), settings, quic_server_id }
    }

    /// Its address, if it has one of its own.
    pub(crate) fn ip(&self) -> Option<Placed<SocketAddr>> {
        let Placed { value, place } = self.addr.as_ref()?;
        match value {
            ServerAddress::Ip(addr) => Some(Placed { value: *addr, place: place.clone() }),
            ServerAddress::Name(..) => None,
        }
    }

    /// Where its address stands, if that is a name.
    pub(crate) fn name_place(&self) -> Option<&Place> {
        let addr = self.addr.as_ref()?;
        matches!(addr.value, ServerAddress::Name(..)).then_some(&addr.place)
    }

    pub(crate) fn model(&self) -> Option<model::ServerConfig> {
        Some(model::ServerConfig { name: self.name.clone(), addr: self.ip()?.value, settings: self.settings })
    }

    pub(crate) fn named(&self) -> Option<NamedServer> {
        let ServerAddress::Name(host, port) = &self.addr.as_ref()?.value else { return None };
        Some(NamedServer {
            name: self.name.clone(),
            host: host.clone(),
            port: *port,
            settings: self.settings,
        })
    }
}

pub(super) fn settings(table: &mut TomlTable<'_>) -> ServerSettings {
    let ServerSettings { weight, backup, max_connections: _ } = ServerSettings::default();
    ServerSettings {
        weight: table.or("weight", weight, integer(0..=u16::MAX)),
        backup: table.or("backup", backup, boolean),
        max_connections: max_connections(table),
    }
}
