//! Tables of the file: keys, defaults, checks, differences and descriptions.

pub(crate) mod access_log;
pub(crate) mod acme;
pub(crate) mod announce;
pub(crate) mod backend;
pub(crate) mod dns;
pub(crate) mod frontend;
pub(crate) mod logs;
pub(crate) mod passthrough;
pub(crate) mod privileges;
pub(crate) mod stats;
pub(crate) mod syslog;
pub(crate) mod timeouts;
pub(crate) mod total_rate;

pub(crate) use self::backend::{ParsedBackend, ParsedServer, affinity, authorities};
pub(crate) use self::frontend::{ParsedFrontend, retry};
use crate::keys::OnlyIn;
use crate::reference::{Docs, KeyDoc, TableDoc};

/// Tables whose keys are in lists, in the order of the reference.
pub(crate) const ALL: &[TableDoc] = &[
    frontend::DOC,
    frontend::cors::DOC,
    frontend::retry::DOC,
    frontend::routes::DOC,
    frontend::routes::REDIRECT,
    frontend::routes::RESPOND,
    frontend::compression::DOC,
    frontend::headers::DOC,
    frontend::headers::RULES,
    frontend::headers::WHEN,
    timeouts::OF_FRONTENDS,
    frontend::access::DOC,
    frontend::limits::DOC,
    frontend::http_limits::DOC,
    frontend::tls::DOC,
    acme::DOC,
    announce::DOC,
    backend::DOC,
    backend::affinity::DOC,
    backend::quic::DOC,
    backend::tls::DOC,
    backend::files::OPTIONS,
    backend::files::RULES,
    timeouts::OF_BACKENDS,
    backend::health_check::DOC,
    backend::outlier_detection::DOC,
    backend::server::DOC,
    backend::kubernetes::DOC,
    timeouts::DOC,
    dns::DOC,
    logs::DOC,
    access_log::DOC,
    privileges::DOC,
    stats::DOC,
    passthrough::DOC,
    passthrough::TIMEOUTS,
];

/// Row in the reference for a key that is a table.
const fn table(name: &'static str, kind: &'static str, default: &'static str) -> Docs {
    Docs::Key(KeyDoc { name, kind, default, ..KeyDoc::USUAL })
}

/// Row in the reference for a key that is a table and has an effect only in some modes.
const fn table_in(only_in: OnlyIn, name: &'static str, kind: &'static str, default: &'static str) -> Docs {
    Docs::Key(KeyDoc { name, kind, default, only_in: Some(only_in), ..KeyDoc::USUAL })
}
