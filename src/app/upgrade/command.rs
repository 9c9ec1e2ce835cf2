//! `convey upgrade`: asks a running process to hand over to a new one.

use std::fs;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use convey_cli::operator::{Client, Refused};
use convey_config::listed;
use convey_control::ConfigFile;
use convey_dataplane::net::unix_sockets;
use convey_doctor::balancer::RunningStatus;
use convey_doctor::statistics;
use convey_model::{Endpoint, one_line};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::Deserialize;

use super::control::{Asked, PREFIX};
use crate::app::{Failure, port_owner, print, runtime};

/// Timeout of an upgrade. It is longer than the time after which the old process gives up.
const UPGRADE: Duration = Duration::from_secs(120);

/// Timeout for the answer of a process that is stopping, which answers immediately.
const RELEASE: Duration = Duration::from_secs(5);

/// Maximum time in which this command tries again while convey serves its maximum of clients.
const BUSY: Duration = Duration::from_secs(5);

/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(50);

/// Maximum number of processes that an error lists.
const MAX_NAMED: usize = 8;

/// Maximum length of the answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// Running convey process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Running {
    /// Full name of its control socket for upgrades.
    name: String,
    /// Address of its statistics, as text.
    statistics: String,
}

/// Upgrades a running process. If `socket` is set, this is the process that answers at the socket.
/// If the command line names a file (`is_named`), it is the process that runs with the file.
/// Otherwise it is the only running process, or, if there are several, the process with the default
/// file.
pub(in crate::app) fn run(
    file: &ConfigFile,
    is_named: bool,
    socket: Option<&Path>,
) -> Result<ExitCode, Failure> {
    let running = running(geteuid().as_raw()).context("cannot list running convey processes")?;
    let socket = socket.filter(|path| !path.as_os_str().is_empty());
    let one = match (&running[..], socket) {
        (_, Some(socket)) => at_socket(&running, socket)?,
        ([], None) => return Err(anyhow!("no convey of this user runs in this network namespace").into()),
        (some, None) if is_named => of_file(some, file)?,
        ([one], None) => one,
        // The default file may be the file of one of the processes.
        (several, None) => match of_file(several, file) {
            Ok(one) => one,
            Err(_) => return Err(anyhow!("{}", choose(several)).into()),
        },
    };
    let done = send_request(one, Asked::Upgrade, UPGRADE)?;
    print(&format!("{done}\n"));
    Ok(ExitCode::SUCCESS)
}

/// The process that runs with this file, or that serves statistics at the address in the file.
fn of_file<'a>(running: &'a [Running], file: &ConfigFile) -> Result<&'a Running, Failure> {
    let path = file.absolute();
    let files: Vec<Option<PathBuf>> = running.iter().map(Running::config_file).collect();
    let is_it = |of: &Option<PathBuf>| of.as_ref().is_some_and(|of| is_same(of, &path));
    let mut those = running.iter().zip(&files).filter(|(_, of)| is_it(of)).map(|(one, _)| one);
    match (those.next(), those.next()) {
        (Some(one), None) => return Ok(one),
        (Some(_), Some(_)) => return Err(anyhow!("{}", choose(running)).into()),
        (None, _) => {}
    }
    // No process reported this file: its configuration may be in etcd, or this user cannot read its
    // statistics.
    if let ([one], [None]) = (running, &files[..]) {
        return Ok(one);
    }
    let statistics = file.load().map_err(Failure::Config)?.config.stats.listen.to_string();
    let mut those = running.iter().filter(|one| one.statistics == statistics);
    if let (Some(one), None) = (those.next(), those.next()) {
        return Ok(one);
    }
    let others = listed(running.iter().map(Running::described), MAX_NAMED);
    Err(anyhow!("no convey runs with {}; running: {others}", path.display()).into())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    one == other || real(one).is_some_and(|one| Some(one) == real(other))
}

/// The process that answers at this control socket.
fn at_socket<'a>(running: &'a [Running], socket: &Path) -> anyhow::Result<&'a Running> {
    #[derive(Deserialize)]
    struct Status {
        process: Option<u32>,
    }
    let process = runtime()?.block_on(async {
        let client = Client::find(&[socket.to_owned()]).await?;
        let Status { process } = client.get("/v1/status").await?;
        Ok::<_, Refused>(match process {
            Some(process) => Some(process),
            // An older version does not report its process id.
            None => client.process().await,
        })
    })?;
    let found = process.and_then(|process| running.iter().find(|one| one.process() == Some(process)));
    found.ok_or_else(|| {
        let at = socket.display();
        anyhow!(
            "the convey process at {at} cannot be upgraded from here: it belongs to another user, or runs in another network namespace"
        )
    })
}

/// Asks a stopping process to give up its statistics socket. Returns whether a process has done so.
pub(in crate::app) fn release(statistics: SocketAddr) -> bool {
    let Ok(running) = running(geteuid().as_raw()) else { return false };
    let here = running.iter().filter(|one| one.statistics == statistics.to_string());
    here.into_iter().any(|one| send_request(one, Asked::Release, RELEASE).is_ok())
}

fn choose(several: &[Running]) -> String {
    let all = listed(several.iter().map(Running::described), MAX_NAMED);
    format!(
        "several convey processes run ({all}): name the control socket of one with --socket, or its configuration with --config"
    )
}

/// Running processes whose socket names `user` can trust.
fn running(user: u32) -> io::Result<Vec<Running>> {
    let sockets = unix_sockets(format!("\0{PREFIX}").as_bytes())?.into_iter();
    let named = sockets.filter_map(|socket| Some((socket.uid, Running::named(&socket.name)?)));
    // Before Linux 5.3 the kernel does not list the owners of sockets. Then `send_request` checks
    // the user of the process that answers.
    let ours = named.filter(|(uid, one)| uid.is_none_or(|uid| one.may_be_of(uid, user)));
    let mut running: Vec<Running> = ours.map(|(_, one)| one).collect();
    // The list also contains accepted connections, which have the same name as their socket.
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

    /// Configuration file of the process. `None` if its statistics cannot be read.
    fn config_file(&self) -> Option<PathBuf> {
        let status: RunningStatus = statistics::read(self.statistics.parse().ok()?).ok()?;
        Some(status.config_file()?.path)
    }

    /// Description such as `/etc/convey/config.toml with statistics on 127.0.0.1:7000`. Without the
    /// file if it is unknown.
    fn described(&self) -> String {
        let file = self.config_file().map(|path| format!("{} with ", path.display()));
        format!("{}statistics on {}", file.unwrap_or_default(), self.statistics)
    }

    /// Id of the process that listens on the socket; `None` if no process listens.
    fn process(&self) -> Option<u32> {
        let address = unix::SocketAddr::from_abstract_name(&self.name).ok()?;
        let stream = unix::UnixStream::connect_addr(&address).ok()?;
        u32::try_from(socket_peercred(&stream).ok()?.pid.as_raw_nonzero().get()).ok()
    }

    /// Whether `user` can trust the name of a socket that belongs to `owner`. Any user may bind any
    /// name, so root trusts only itself and the user who serves the statistics at the address in
    /// the name.
    fn may_be_of(&self, owner: u32, user: u32) -> bool {
        let serves_statistics = || {
            let at = self.statistics.parse().map(Endpoint::tcp);
            at.is_ok_and(|at| port_owner::users(at).contains(&owner))
        };
        owner == 0 || owner == user || (user == 0 && serves_statistics())
    }
}

#[expect(clippy::disallowed_methods, reason = "a command: it goes by the clock of the host")]
fn send_request(one: &Running, what: Asked, patience: Duration) -> anyhow::Result<String> {
    let began = Instant::now();
    let stream = loop {
        match deliver(one, what, patience)? {
            Ok(stream) => break stream,
            // convey disconnects a client while it has its maximum of them.
            Err(_) if began.elapsed() < BUSY => thread::sleep(RETRY),
            Err(error) => return Err(error).context("convey disconnects this command"),
        }
    };
    let answer = read_until(&stream, began + patience).context("convey does not answer")?;
    // Clean the answer, because it is printed to a terminal.
    let answer = one_line(answer.trim_end());
    match answer.split_once(' ') {
        Some(("ok", done)) => Ok(done.to_owned()),
        Some(("error", why)) => bail!("not upgraded: {why}"),
        _ => bail!(
            "convey closed the connection without an answer: that process belongs to another user, or has just exited"
        ),
    }
}

/// Connects to a process, and sends a request. The inner error means that the process has
/// disconnected without reading the request.
fn deliver(one: &Running, what: Asked, patience: Duration) -> anyhow::Result<io::Result<unix::UnixStream>> {
    let address = unix::SocketAddr::from_abstract_name(&one.name)?;
    let mut stream = unix::UnixStream::connect_addr(&address).context("cannot reach convey")?;
    let owner = socket_peercred(&stream)?.uid.as_raw();
    if !one.may_be_of(owner, geteuid().as_raw()) {
        bail!(
            "a process of user {owner} has bound the upgrade socket of convey, but does not serve its statistics: this command does not trust that process"
        );
    }
    stream.set_write_timeout(Some(patience))?;
    match stream.write_all(format!("{}\n", what.name()).as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Err(error)),
        written => Ok(written.map(|()| Ok(stream))?),
    }
}

/// Reads until the end of the stream or the deadline, even if the data arrives slowly.
#[expect(clippy::disallowed_methods, reason = "a command: it goes by the clock of the host")]
fn read_until(mut stream: &unix::UnixStream, deadline: Instant) -> io::Result<String> {
    let (mut answer, mut buffer) = (Vec::new(), [0; 4 << 10]);
    while answer.len() < MAX_ANSWER {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => break,
            read => answer.extend_from_slice(&buffer[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn root_trusts_itself_and_who_serves_the_statistics() {
        // A separate address, because other tests could take the port.
        let listener = std::net::TcpListener::bind("127.0.93.7:0").unwrap();
        let statistics = listener.local_addr().unwrap().to_string();
        let one = Running { name: String::new(), statistics };
        let own = geteuid().as_raw();
        let (stranger, user) = (own + 4_321, 4_000);
        assert!(one.may_be_of(own, 0), "it serves them");
        assert!(!one.may_be_of(stranger, 0));
        assert!(one.may_be_of(0, user) && one.may_be_of(user, user) && !one.may_be_of(stranger, user));
        drop(listener);
        assert_eq!(one.may_be_of(own, 0), own == 0);
    }

    #[test]
    fn an_answer_that_trickles_in_has_no_more_time_than_another() {
        let (ours, mut theirs) = unix::UnixStream::pair().unwrap();
        let trickle = std::thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        #[expect(clippy::disallowed_methods, reason = "as above")]
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = read_until(&ours, deadline).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(ours);
        trickle.join().unwrap();
    }

    #[test]
    fn a_process_is_found_by_the_name_of_its_socket() {
        let running = Running::named(b"\0convey control [::1]:7000 #0123").unwrap();
        assert_eq!(running.statistics, "[::1]:7000");
        assert_eq!(running.name, "convey control [::1]:7000 #0123");
        assert_eq!(Running::named(b"\0convey 10.0.0.1:80 #12"), None);
    }

    #[test]
    fn ambiguous_upgrade_lists_how_to_choose_a_process() {
        let several =
            ["a #1", "b #2"].map(|name| Running::named(format!("\0{PREFIX}{name}").as_bytes()).unwrap());
        assert!(
            choose(&several).contains("(statistics on a, statistics on b): name the control socket"),
            "{}",
            choose(&several)
        );
    }
}
