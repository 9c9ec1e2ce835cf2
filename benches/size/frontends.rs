//! Frontends of mode proxy, as many as the limit of open files allows: each listens, with a socket
//! for each worker.

use std::thread::available_parallelism;

use rustix::process::{Resource, getrlimit};

use crate::site::Site;
use crate::{Size, Start, reload_of_one_server};

const MOST: usize = 10_000;

/// Lines of a table.
pub(crate) fn table(is_smoke: bool) -> String {
    let frontends = if is_smoke { 100 } else { MOST.min(allowed()) };
    let size = Size { mode: "proxy", frontends, backends: frontends / 10, servers: frontends };
    let site = Site::new();
    let Start { running, file, check, serves, .. } = Start::of(&site, size);
    let (memory, descriptors) = (running.memory_kb(), running.descriptors());
    let reload = reload_of_one_server(&running, &file);
    format!(
        "| frontends | servers | `check` s | serves after s | memory MB | a frontend, KB | descriptors | reload of one server, s |\n\
         |---|---|---|---|---|---|---|---|\n\
         | {frontends} | {} | {:.2} | {:.2} | {:.0} | {:.1} | {descriptors} | {:.2} |",
        size.servers,
        check.as_secs_f64(),
        serves.as_secs_f64(),
        memory as f64 / 1024.0,
        memory as f64 / frontends as f64,
        reload.as_secs_f64()
    )
}

/// convey uses at most half of the open files for listening.
fn allowed() -> usize {
    let workers = available_parallelism().map_or(1, usize::from);
    let open_files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
    open_files / 2 / workers
}
