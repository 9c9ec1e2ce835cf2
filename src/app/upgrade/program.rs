//! Program that an upgrade runs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Command line of this process. If the file of the program was replaced after the start, an
/// upgrade runs the new file.
#[derive(Debug, Clone)]
pub(in crate::app) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

impl Program {
    /// Returns the command line of this process. Must be called at the start, because the path of
    /// the running file may be lost later.
    pub(in crate::app) fn of_this_process() -> io::Result<Program> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().map(PathBuf::from);
        // Keep symbolic links in the path: they may point to a new version later.
        let path = match name.filter(|name| name.components().count() > 1) {
            Some(name) => std::path::absolute(name)?,
            None => std::env::current_exe()?,
        };
        Ok(Program { path, arguments: arguments.collect() })
    }
}

/// Returns the program file or its folder if every user may replace it, because code of another
/// user could then run as this user. Otherwise `None`.
pub(super) fn open_to_all(program: &Path) -> Option<PathBuf> {
    let real = program.canonicalize().ok()?;
    let mode = fs::metadata(&real).ok()?.permissions().mode();
    let folder = real.parent().and_then(convey_acme::open_to_all).map(Path::to_owned);
    if mode & 0o002 != 0 { Some(real) } else { folder }
}
