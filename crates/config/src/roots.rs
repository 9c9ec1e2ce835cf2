//! Checks the directories of backends that serve files. The check runs when a file is read, and not
//! when a text is parsed.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::Loaded;
use super::problem::{Placed, Problem, Report};
use super::rights::explained;

/// Opens each directory exactly as requests will.
///
/// # Errors
/// Problems of the directories that cannot be served.
pub(super) fn check(loaded: &Loaded) -> Result<(), Vec<Problem>> {
    let report = Report::new(&loaded.source.texts);
    for Placed { value: files, place } in
        loaded.source.file.backends.iter().filter_map(|backend| backend.files.as_ref())
    {
        if let Err(error) = open(&files.root) {
            let root = files.root.display();
            report.error(place, format!("cannot serve {root}: {error}"));
        }
    }
    report.finish().map(drop)
}

fn open(root: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(root);
    opened.map(drop).map_err(|error| explained(root, error))
}
