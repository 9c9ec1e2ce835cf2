//! Custom error pages, in place of convey's own line of text. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Error pages of a frontend, by status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorPages(BTreeMap<u16, ErrorPage>);

/// Error page, as read from its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPage {
    /// Path of the file.
    pub path: PathBuf,
    /// Content of the page.
    pub body: Arc<[u8]>,
}

impl ErrorPages {
    /// Statuses of convey's local replies; each may have an error page.
    pub const STATUSES: [u16; 16] =
        [400, 403, 404, 405, 408, 412, 413, 416, 417, 429, 431, 500, 502, 503, 504, 505];

    /// Size limit of a page, in bytes.
    pub const MAX_SIZE: usize = 64 * 1024;

    /// Sets the page of a status.
    pub fn set(&mut self, status: u16, page: ErrorPage) {
        self.0.insert(status, page);
    }

    /// Error page for this status; `None` if the status has none.
    pub fn get(&self, status: u16) -> Option<&ErrorPage> {
        self.0.get(&status)
    }

    /// Statuses that have a page, in ascending order.
    pub fn statuses(&self) -> impl Iterator<Item = u16> {
        self.0.keys().copied()
    }
}

impl ErrorPage {
    /// `Content-Type` of the page, by the extension of its file name.
    pub fn content_type(&self) -> &'static str {
        ErrorPage::type_of(&self.path)
    }

    /// `Content-Type` of a page with this path, by the extension of its file name.
    pub fn type_of(path: &Path) -> &'static str {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("html" | "htm") => "text/html; charset=utf-8",
            Some("json") => "application/json",
            Some("txt") => "text/plain; charset=utf-8",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_the_name_says_what_a_page_is() {
        for (path, expected) in [
            ("/etc/convey/503.html", "text/html; charset=utf-8"),
            ("404.json", "application/json"),
            ("a.txt", "text/plain; charset=utf-8"),
            ("page", "application/octet-stream"),
        ] {
            let page = ErrorPage { path: path.into(), body: Arc::default() };
            assert_eq!(page.content_type(), expected, "{path}");
        }
    }
}
