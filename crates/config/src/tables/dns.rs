//! `[dns]`: name servers that resolve host names of servers.

use std::net::SocketAddr;

use crate::diff::below;
use crate::keys::keys;
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{boolean, name_server};

/// Settings of `[dns]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsConfig {
    /// Name servers for host names of servers. If the list is empty, `/etc/resolv.conf` applies.
    pub name_servers: Vec<SocketAddr>,
    /// Whether convey accepts loopback and link-local addresses in replies of name servers.
    pub allow_local: bool,
}

/// `[dns]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[dns]", docs: DnsKeys::DOCS };

keys! {
    /// The keys of `[dns]`.
    pub(crate) struct DnsKeys => DnsConfig, from (_unused: (), default);

    list "nameservers" => name_servers: SocketAddr {
        read: name_server,
        unset: "the system's",
        kind: "addresses; port 53 unless set",
        default: "the name servers of `/etc/resolv.conf`",
        sample: r#"#nameservers = ["10.0.0.53", "10.0.0.54:5353"]  # example; by default those of /etc/resolv.conf"#,
        example: "'10.0.0.7'",
    };

    key "allow_local" => allow_local: bool {
        read: boolean,
        kind: "`true` accepts loopback and link-local addresses in replies",
        default: "`false`",
        sample: "#allow_local = false                    # true accepts loopback and link-local addresses in replies",
        example: "true",
    };
}

/// Reads `[dns]`.
pub(crate) fn read(mut table: TomlTable<'_>) -> DnsConfig {
    let keys = DnsKeys::read(&mut table);
    table.finish();
    keys.model((), DnsConfig::default())
}

/// Changes of `[dns]` for the log of a reload.
pub(crate) fn changes(old: &DnsConfig, new: &DnsConfig) -> Vec<String> {
    below("dns", DnsKeys::changes(old, new))
}
