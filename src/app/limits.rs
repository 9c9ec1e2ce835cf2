//! What the operating system lets us have.

use log::{debug, warn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to the most we may have: each connection takes two. Returns the limit.
pub(super) fn raise_file_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => debug!("open files: limit raised from {current:?} to {maximum:?}"),
        Err(error) => warn!("open files: limit stays {current:?}: {error}"),
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
