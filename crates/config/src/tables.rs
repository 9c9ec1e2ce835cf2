//! The tables of the file: of each its keys, defaults, checks, differences and description.

pub(crate) mod backend;

pub(crate) use self::backend::{ParsedBackend, ParsedServer, authorities};
use crate::reference::TableDoc;

/// The tables whose keys are in lists, in the order of the reference.
pub(crate) const ALL: [TableDoc; 3] =
    [backend::DOC, backend::health_check::DOC, backend::outlier_detection::DOC];
