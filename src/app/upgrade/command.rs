//! `convey upgrade`: asks a process that runs to hand over to a new one.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::process::geteuid;

use super::control::{Asked, PREFIX};
use crate::app::{Failure, print};
use crate::control::File;
use crate::net::unix_sockets;

/// Longer than an upgrade takes before the old process gives up.
const UPGRADE: Duration = Duration::from_secs(120);

/// A process that stops answers at once.
const RELEASE: Duration = Duration::from_secs(5);

/// The longest answer.
const MAX_ANSWER: u64 = 64 << 10;

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    /// The whole name of its socket.
    name: String,
    /// Where it serves statistics.
    statistics: String,
}

/// Has the process upgraded that serves the configuration, or the only one there is.
pub(in crate::app) fn run(file: &File) -> Result<ExitCode, Failure> {
    let running = running(geteuid().as_raw()).context("cannot ask the kernel which convey runs")?;
    let one = match &running[..] {
        [] => return Err(anyhow!("no convey of this user runs in this network namespace").into()),
        [one] => one,
        several => {
            let statistics = file.load().map_err(Failure::Config)?.config.stats.listen.to_string();
            let mut those = several.iter().filter(|one| one.statistics == statistics);
            match (those.next(), those.next()) {
                (Some(one), None) => one,
                _ => return Err(anyhow!("{}", choose(several)).into()),
            }
        }
    };
    let done = ask(&one.name, Asked::Upgrade, UPGRADE)?;
    print(&format!("{done}\n"));
    Ok(ExitCode::SUCCESS)
}

/// Asks a process that is stopping to give up its socket for statistics. Returns whether one has.
pub(in crate::app) fn release(statistics: SocketAddr) -> bool {
    let Ok(running) = running(geteuid().as_raw()) else { return false };
    let here = running.iter().filter(|one| one.statistics == statistics.to_string());
    here.into_iter().any(|one| ask(&one.name, Asked::Release, RELEASE).is_ok())
}

fn choose(several: &[Running]) -> String {
    let at: Vec<&str> = several.iter().map(|one| one.statistics.as_str()).collect();
    format!(
        "several convey processes run (statistics on {}): name the configuration of one with --config, or send it SIGUSR2",
        at.join(", ")
    )
}

/// Those of this user, or of any user for root.
fn running(user: u32) -> io::Result<Vec<Running>> {
    let sockets = unix_sockets(format!("\0{PREFIX}").as_bytes())?;
    let ours = sockets.into_iter().filter(|socket| user == 0 || [Some(user), Some(0)].contains(&socket.uid));
    let mut running: Vec<Running> = ours.filter_map(|socket| Running::named(&socket.name)).collect();
    // A connection has the name of its socket.
    running.sort_by(|one, other| one.name.cmp(&other.name));
    running.dedup();
    Ok(running)
}

impl Running {
    fn named(socket: &[u8]) -> Option<Running> {
        let name = std::str::from_utf8(socket.strip_prefix(b"\0")?).ok()?;
        let (statistics, _) = name.strip_prefix(PREFIX)?.split_once(" #")?;
        Some(Running { name: name.to_owned(), statistics: statistics.to_owned() })
    }
}

fn ask(name: &str, what: Asked, patience: Duration) -> anyhow::Result<String> {
    let address = unix::SocketAddr::from_abstract_name(name)?;
    let mut stream = unix::UnixStream::connect_addr(&address).context("cannot reach convey")?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(format!("{}\n", what.name()).as_bytes())?;
    let mut answer = String::new();
    let read = stream.take(MAX_ANSWER).read_to_string(&mut answer);
    read.context("convey does not answer")?;
    match answer.trim_end().split_once(' ') {
        Some(("ok", done)) => Ok(done.to_owned()),
        Some(("error", why)) => bail!("not upgraded: {why}"),
        _ => bail!("convey hung up: it runs as another user, or has just ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_the_name_of_its_socket() {
        let running = Running::named(b"\0convey control [::1]:7000 #0123").unwrap();
        assert_eq!(running.statistics, "[::1]:7000");
        assert_eq!(running.name, "convey control [::1]:7000 #0123");
        assert_eq!(Running::named(b"\0convey 10.0.0.1:80 #12"), None);
    }

    #[test]
    fn who_has_several_is_told_how_to_name_one() {
        let several =
            ["a #1", "b #2"].map(|name| Running::named(format!("\0{PREFIX}{name}").as_bytes()).unwrap());
        assert!(
            choose(&several).contains("statistics on a, b): name the configuration"),
            "{}",
            choose(&several)
        );
    }
}
