//! `[backends.NAME.servers.NAME]`: a server in the file.

use std::fmt;
use std::net::SocketAddr;

use super::quic;
use crate::describe::limit;
use crate::diff::{change, pair};
use crate::keys::keys;
use crate::problem::{Place, Placed};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{ServerAddress, boolean, integer, server_address};
use convey_model::{BackendConfig, NamedServer, ServerAddr, ServerConfig, ServerSettings, UnixSocket};
use convey_quic_cid::ServerId;

/// `[backends.NAME.servers.NAME]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[backends.NAME.servers.NAME]",
    docs: &[Docs::Part(ADDRESS_DOCS), Docs::Part(SettingKeys::DOCS), Docs::Part(QUIC_DOCS)],
};

const ADDRESS_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "addr",
    kind: "an address; in proxy mode also `name:port`, or a service (`_http._tcp.name`), whose records have the port. Without a port, clients keep the port that they asked for. Proxy TCP and http: also `unix:/path`, or `unix:@name` of an abstract socket",
    default: "required",
    sample: r##"
addr = "192.0.2.10:8080"                # or "app.internal:8080" (proxy, http): each address of the name is a server.
                                        # "_http._tcp.app.internal" (SRV): each target of the service, at its port. Without a
                                        # port ("10.0.0.5") convey keeps the port that the client connected to.
                                        # "unix:/run/app.sock" (proxy TCP, http): a unix socket; "unix:@app": an abstract one
"##,
    example: "'10.0.0.7:80'",
    ..KeyDoc::USUAL
})];

keys! {
    /// Keys that servers in the file and endpoints of a Service have in common.
    struct SettingKeys => ServerSettings, from (_unused: (), default);

    key "weight" => weight: u16 {
        read: integer(0..=u16::MAX),
        describe: |settings, _| format!("weight {}", settings.weight),
        kind: "0 to 65535; 0 takes the server out of rotation",
        default: "1",
        sample: "#weight = 1                             # share of new connections, 0 to 65535; 0 takes the server out of rotation",
        example: "7",
    };

    key "backup" => backup: bool {
        read: boolean,
        describe: |settings, _| if settings.backup { ", backup".to_owned() } else { String::new() },
        kind: "`true`: it serves only while no other server is up",
        default: "`false`",
        sample: "#backup = false                         # true: serves only while no other server is up",
        example: "true",
    };

    key "max_connections" => max_connections: u32 {
        read: integer(1..=u32::MAX),
        unset: "none",
        describe: |settings, _| limit(settings.max_connections),
        kind: "1 to 4294967295. Proxy: further connections wait or go elsewhere",
        default: "no limit",
        sample: r##"
#max_connections = 1000                 # example; at once. proxy, http: further ones wait or go elsewhere. passthrough, dsr:
                                        # convey refuses them
"##,
        example: "7",
    };
}

const QUIC_DOCS: &[Docs] = &[Docs::Key(KeyDoc {
    name: "quic_server_id",
    kind: r#"2 to 30 hexadecimal digits, two a byte; all servers have as many. For `hash = "quic_cid"`"#,
    default: "none",
    sample: r#"#quic_server_id = "c4605e"              # example; with hash = "quic_cid": this server's id in connection ids"#,
    example: "'02'",
    ..KeyDoc::USUAL
})];

/// Parsed `[backends.NAME.servers.NAME]`.
#[derive(Debug, Clone)]
pub(crate) struct ParsedServer {
    pub(crate) name: String,
    pub(crate) addr: Option<Placed<ServerAddress>>,
    pub(crate) settings: ServerSettings,
    pub(crate) quic_server_id: Option<Placed<ServerId>>,
}

impl ParsedServer {
    /// Reads `[backends.NAME.servers.NAME]`.
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

    /// Server from a list of servers. Its name is its address, and all other settings are defaults.
    pub(crate) fn listed(addr: Placed<ServerAddress>) -> ParsedServer {
        let (settings, quic_server_id) = Default::default();
        ParsedServer { name: addr.value.to_string(), addr: Some(addr), settings, quic_server_id }
    }

    /// Address of the server; `None` if the file has a host name or a unix socket instead.
    pub(crate) fn ip(&self) -> Option<Placed<SocketAddr>> {
        let Placed { value, place } = self.addr.as_ref()?;
        match value {
            ServerAddress::Ip(addr) => Some(Placed { value: *addr, place: place.clone() }),
            ServerAddress::Name(..) | ServerAddress::Unix(_) => None,
        }
    }

    /// Unix socket of the server; `None` if the server has an address or a host name.
    pub(crate) fn unix_socket(&self) -> Option<Placed<UnixSocket>> {
        let Placed { value, place } = self.addr.as_ref()?;
        match value {
            ServerAddress::Unix(socket) => Some(Placed { value: *socket, place: place.clone() }),
            ServerAddress::Ip(_) | ServerAddress::Name(..) => None,
        }
    }

    /// Place of the host name; `None` if the server has no host name.
    pub(crate) fn name_place(&self) -> Option<&Place> {
        let addr = self.addr.as_ref()?;
        matches!(addr.value, ServerAddress::Name(..)).then_some(&addr.place)
    }

    /// Model of a server with an address or a unix socket; `None` if it has a host name.
    pub(crate) fn model(&self) -> Option<ServerConfig> {
        let addr = match &self.addr.as_ref()?.value {
            ServerAddress::Ip(addr) => *addr,
            ServerAddress::Unix(socket) => socket.addr(),
            ServerAddress::Name(..) => return None,
        };
        Some(ServerConfig { name: self.name.clone(), addr, settings: self.settings })
    }

    /// Model of a server known by host name; `None` if it has none.
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

/// Reads the settings of a server, or of all endpoints of a Service.
pub(super) fn settings(table: &mut TomlTable<'_>) -> ServerSettings {
    SettingKeys::read(table).model((), ServerSettings::default())
}

/// Changes of a server's settings for the log of a reload.
pub(super) fn setting_changes(old: &ServerSettings, new: &ServerSettings) -> Vec<String> {
    SettingKeys::changes(old, new)
}

/// Texts of all servers of a backend, with their addresses as in the file.
pub(super) fn all(backend: &BackendConfig) -> Vec<String> {
    entries(backend).iter().map(ToString::to_string).collect()
}

/// Changes of servers for the log of a reload: servers that were added or removed, and changed
/// settings of servers that stay. A server of which only the name differs counts as renamed.
pub(super) fn changes(old: &BackendConfig, new: &BackendConfig) -> Vec<String> {
    let (old, new) = (entries(old), entries(new));
    let (mut added, mut removed, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    for (before, after) in pair(&old, &new, |a, b| a.name == b.name && a.addr == b.addr) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(about(before, after)),
            (None, Some(after)) => come.push(after),
            (Some(before), None) => gone.push(before),
            (None, None) => {}
        }
    }
    for (before, after) in pair(&gone, &come, |a, b| a.addr == b.addr) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(about(before, after)),
            (None, Some(after)) => added.push(after),
            (Some(before), None) => removed.push(before),
            (None, None) => {}
        }
    }
    let (mut new, mut lost) = (Vec::new(), Vec::new());
    for (before, after) in pair(&removed, &added, |a, b| a.name == b.name) {
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(about(before, after)),
            (None, Some(after)) => new.push(format!("+ {after}")),
            (Some(before), None) => lost.push(format!("- {before}")),
            (None, None) => {}
        }
    }
    [new, lost, changed].concat()
}

/// A server of the file, with an address or a host name, as shown in the log.
struct ServerLine<'a> {
    backend: &'a str,
    name: &'a str,
    addr: String,
    settings: &'a ServerSettings,
}

impl fmt::Display for ServerLine<'_> {
    /// Formats `web/a (10.0.0.2:80)`, as in every line of the log. The address is omitted if it is
    /// also the server's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerLine { backend, name, addr, .. } = self;
        if name == addr { write!(f, "{backend}/{name}") } else { write!(f, "{backend}/{name} ({addr})") }
    }
}

fn entries(backend: &BackendConfig) -> Vec<ServerLine<'_>> {
    let at_address = backend.servers.iter().map(|server| ServerLine {
        backend: &backend.name,
        name: &server.name,
        addr: ServerAddr(server.addr).to_string(),
        settings: &server.settings,
    });
    let named = backend.named.iter().map(|named| ServerLine {
        backend: &backend.name,
        name: &named.name,
        addr: named.to_string(),
        settings: &named.settings,
    });
    at_address.chain(named).collect()
}

fn about(old: &ServerLine<'_>, new: &ServerLine<'_>) -> Vec<String> {
    let name = |entry: &ServerLine<'_>| format!("{}/{}", entry.backend, entry.name);
    let settings = SettingKeys::shown(old.settings).into_iter().zip(SettingKeys::shown(new.settings));
    let settings =
        settings.filter_map(|((key, before), (_, after))| change(&format!("{key} of {old}"), before, after));
    let changes = [
        change(&format!("name of {old}"), old.name, new.name),
        change(&format!("address of {}", name(old)), &old.addr, &new.addr),
    ];
    changes.into_iter().flatten().chain(settings).collect()
}

/// Row of `convey check` for a server with an address.
pub(super) fn row(server: &ServerConfig) -> [String; 3] {
    let settings = describe_settings(&server.settings);
    [format!("  server {}", server.name), ServerAddr(server.addr).to_string(), settings]
}

/// Row of `convey check` for a server known by host name.
pub(super) fn named_row(named: &NamedServer) -> [String; 3] {
    let settings = describe_settings(&named.settings);
    [
        format!("  server {}", named.name),
        named.to_string(),
        format!("{settings}, for each address of the name"),
    ]
}

/// Settings of a server in `convey check`.
pub(super) fn describe_settings(settings: &ServerSettings) -> String {
    SettingKeys::describe(settings, &[])
}
