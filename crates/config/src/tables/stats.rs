//! `[stats]`: the statistics endpoint.

use std::net::{Ipv4Addr, SocketAddr};

use crate::diff::{change, or};
use crate::problem::Report;
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc, TakesEffect};
use crate::token::{self, AdminToken};
use crate::values::{ip, port};

/// Settings of the statistics endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Address of `/stats`, `/metrics` and `/healthz`.
    pub listen: SocketAddr,
    /// Token that a request needs to change something; `None` makes the endpoint read-only.
    pub token: Option<AdminToken>,
}

impl Default for Stats {
    fn default() -> Self {
        Stats { listen: (Ipv4Addr::LOCALHOST, 7000).into(), token: None }
    }
}

/// `[stats]` in the reference. The table has no list of keys and fields, because two keys set one
/// address, and the value of the third is read from a file.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[stats]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "listen_addr",
            kind: "an IP address",
            default: r#"`"127.0.0.1"`"#,
            change: TakesEffect::Restart,
            sample: r#"#listen_addr = "127.0.0.1"              # this machine only; 0.0.0.0 listens on all interfaces"#,
            example: "'127.0.0.7'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "port",
            kind: "1 to 65535",
            default: "7000",
            change: TakesEffect::Restart,
            sample: "#port = 7000",
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "token_file",
            kind: "path of a file with a token of 16 to 256 characters, which others may neither read nor write: [changes at the statistics address](../operate/steering.md#the-statistics-address)",
            default: "none: for reading",
            sample: r#"#token_file = "/etc/convey/token"        # example; clients with the token in this file may change things, and see clients"#,
            example: "'TOKEN'",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Reads `[stats]`.
pub(crate) fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> Stats {
    let default = Stats::default().listen;
    let ip = table.or("listen_addr", default.ip(), ip);
    let port = table.or("port", default.port(), port);
    let token = table.optional("token_file", token::path).and_then(|file| token::read(file, report));
    table.finish();
    Stats { listen: SocketAddr::new(ip, port), token }
}

/// Settings after a reload: the settings `wanted`, with the address of `running`. A new address
/// needs a restart.
pub(crate) fn reloaded(wanted: Stats, running: &Stats) -> Stats {
    Stats { listen: running.listen, ..wanted }
}

/// Changes of `[stats]` for the log of a reload.
pub(crate) fn changes(old: &Stats, new: &Stats) -> Vec<String> {
    let Stats { listen, token } = old;
    let path = |token: &Option<AdminToken>| token.as_ref().map(|token| token.path.display().to_string());
    let (before, after) = (path(token), path(&new.token));
    let address = change("stats address", *listen, new.listen);
    let file = change("stats.token_file", or(before.clone(), "none"), or(after.clone(), "none"));
    let is_another = before == after && *token != new.token;
    let secret = is_another.then(|| "stats.token_file: token changed".to_owned());
    [address, file, secret].into_iter().flatten().collect()
}

/// Lines of `convey check` about the statistics endpoint.
pub(crate) fn describe(stats: &Stats) -> String {
    let address = format!("statistics http://{}/stats (also /metrics, /healthz, /readyz)\n", stats.listen);
    let token = stats.token.as_ref();
    let token =
        token.map(|token| format!("statistics accept changes with the token in {}\n", token.path.display()));
    address + &token.unwrap_or_default()
}
