//! `[frontends.NAME.error_pages]`: files in place of convey's built-in responses.

use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::values::string;
use convey_model::{ErrorPage, ErrorPages};

/// Reads `[frontends.NAME.error_pages]` and the files that it names.
pub(super) fn read(table: TomlTable<'_>, report: &Report<'_>) -> ErrorPages {
    let mut pages = ErrorPages::default();
    for (Placed { value: name, place }, path) in table.values(string) {
        let status = name.parse().ok().filter(|status| ErrorPages::STATUSES.contains(status));
        let Some(status) = status else {
            let allowed = ErrorPages::STATUSES.map(|status| status.to_string()).join(", ");
            report
                .error(&place, format!("convey sends no response with status {name:?}; allowed: {allowed}"));
            continue;
        };
        let Some(Placed { value: path, place }) = path else { continue };
        let Some((path, body)) = report.read_bytes(&place, &path) else { continue };
        if body.len() > ErrorPages::MAX_SIZE {
            let (path, len, most) = (path.display(), body.len(), ErrorPages::MAX_SIZE);
            report.error(&place, format!("{path} has {len} bytes; an error page has {most} at most"));
            continue;
        }
        pages.set(status, ErrorPage { path, body: body.into() });
    }
    pages
}
