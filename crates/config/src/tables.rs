//! Tables of the file: keys, defaults, checks, differences and description of each.

pub(crate) mod access_log;
pub(crate) mod announce;
pub(crate) mod backend;
pub(crate) mod dns;
pub(crate) mod frontend;
pub(crate) mod log;
pub(crate) mod passthrough;
pub(crate) mod privileges;
pub(crate) mod timeouts;

pub(crate) use self::backend::{ParsedBackend, ParsedServer, authorities};
pub(crate) use self::frontend::ParsedFrontend;
use crate::reference::{Docs, KeyDoc, TableDoc};

/// Tables whose keys are in lists, in the order of the reference.
pub(crate) const ALL: &[TableDoc] = &[
    frontend::DOC,
    timeouts::OF_FRONTENDS,
    announce::DOC,
    backend::DOC,
    timeouts::OF_BACKENDS,
    backend::health_check::DOC,
    backend::outlier_detection::DOC,
    timeouts::DOC,
    dns::DOC,
    log::DOC,
    access_log::DOC,
    privileges::DOC,
    passthrough::DOC,
    passthrough::TIMEOUTS,
];

/// Reference row of a key that is a table.
const fn table(name: &'static str, kind: &'static str, default: &'static str) -> Docs {
    Docs::Key(KeyDoc { name, kind, default, ..KeyDoc::USUAL })
}
