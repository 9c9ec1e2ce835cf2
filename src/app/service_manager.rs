//! What convey tells a service manager such as systemd, if it runs under one: sd_notify(3). Without `$NOTIFY_SOCKET` nothing
//! is sent.

use std::cell::{Cell, RefCell};
use std::env;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::rc::Rc;
use std::time::Duration;

use convey_control::Supervisor;
use convey_snapshot::Snapshot;
use log::warn;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};
use sd_notify::NotifyState;

/// How long a message waits that may not be lost: the service manager would end or keep waiting for a convey that is well.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// What a stop takes beyond the time that connections have to finish.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// The name of what it keeps.
const STORE_NAME: &str = "FDNAME=convey";

/// Descriptors that go with one message at most. The kernel allows 253.
const MAX_DESCRIPTORS: usize = 128;

/// The service manager, if there is one.
#[derive(Clone, Default)]
pub(super) struct ServiceManager(Option<Rc<Manager>>);

struct Manager {
    socket: UnixDatagram,
    /// One whose messages wait until there is room.
    patient: UnixDatagram,
    addr: SocketAddr,
    /// Half the time after which it takes convey for hung, if it wants to know.
    heartbeat: Option<Duration>,
    /// What it was told last, or would have been.
    status: RefCell<String>,
    /// Whether it hears this process: it takes another one for the service until it is told.
    hears_us: Cell<bool>,
}

impl ServiceManager {
    /// The one that the environment names. Until this process is ready, it hears another one if this is a `successor`.
    pub(super) fn from_env(is_successor: bool) -> ServiceManager {
        let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return ServiceManager(None);
        };
        let manager = Manager::new(path.as_bytes(), !is_successor);
        let manager = manager.inspect_err(|error| {
            warn!("the service manager is told nothing: NOTIFY_SOCKET {}: {error}", path.display());
        });
        ServiceManager(manager.ok().map(Rc::new))
    }

    /// Clients are served.
    pub(super) fn is_ready(&self) {
        let Some(manager) = &self.0 else { return };
        let heard = manager.hears_us.replace(true);
        let status = manager.status.borrow();
        match heard {
            true => manager.tell_surely(&[NotifyState::Ready]),
            false => manager.tell_surely(&[NotifyState::Ready, NotifyState::Status(&status)]),
        }
    }

    /// It has given this process sockets, if `any`, and need not keep them any more: else they would be open when this process
    /// closes them.
    pub(super) fn has_given(&self, any: bool) {
        if any {
            self.tell_surely(&[NotifyState::Custom("FDSTOREREMOVE=1"), NotifyState::Custom(STORE_NAME)]);
        }
    }

    /// Has it keep these sockets for the next process.
    ///
    /// # Errors
    /// If there is no service manager, or it does not take them in time.
    pub(super) fn keeps(&self, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(manager) = &self.0 else { return Err(io::ErrorKind::NotConnected.into()) };
        sockets.chunks(MAX_DESCRIPTORS).try_for_each(|some| manager.keeps(some))
    }

    /// Another process is the service from now on: without it, the end of this one is the service's.
    pub(super) fn is_succeeded_by(&self, process: u32) {
        self.tell_surely(&[NotifyState::MainPid(process)]);
        if let Some(manager) = &self.0 {
            manager.hears_us.set(false);
        }
    }

    /// Clients are served for this long before it stops.
    pub(super) fn stops_in(&self, delay: Duration) {
        let status = format!("stopping in {delay:?}: clients are served until then");
        self.stops_within(delay, &status);
    }

    /// Open connections have `patience` to finish.
    pub(super) fn is_stopping(&self, open: u64, patience: Duration) {
        let status = format!("stopping: {open} open connections have {patience:?} to finish");
        self.stops_within(patience, &status);
    }

    fn stops_within(&self, time: Duration, status: &str) {
        // Else its own limit, which knows nothing of `timeouts`, would cut them.
        let limit = format!("EXTEND_TIMEOUT_USEC={}", (time + STOP_MARGIN).as_micros());
        self.tell_surely(&[NotifyState::Stopping, NotifyState::Status(status), NotifyState::Custom(&limit)]);
    }

    fn tell(&self, states: &[NotifyState]) {
        if let Some(manager) = &self.0 {
            manager.tell(states);
        }
    }

    fn tell_surely(&self, states: &[NotifyState]) {
        if let Some(manager) = &self.0 {
            manager.tell_surely(states);
        }
    }
}

impl Manager {
    fn new(path: &[u8], hears_us: bool) -> io::Result<Manager> {
        let addr = match path.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not stop us. (`sd_notify::notify` would wait for it.)
        socket.set_nonblocking(true)?;
        let patient = UnixDatagram::unbound()?;
        patient.set_write_timeout(Some(SEND_TIMEOUT))?;
        let heartbeat = watchdog_limit().map(|limit| limit / 2).filter(|half| !half.is_zero());
        Ok(Manager {
            socket,
            patient,
            addr,
            heartbeat,
            status: RefCell::default(),
            hears_us: Cell::new(hears_us),
        })
    }

    /// Sends once: a message that the service manager does not take now is lost.
    fn tell(&self, states: &[NotifyState]) {
        if self.hears_us.get() {
            let _ = self.socket.send_to_addr(message(states).as_bytes(), &self.addr);
        }
    }

    fn keeps(&self, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = format!("FDSTORE=1\n{STORE_NAME}\n");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(sockets));
        let addr = match self.addr.as_pathname() {
            Some(path) => SocketAddrUnix::new(path)?,
            None => SocketAddrUnix::new_abstract_name(self.addr.as_abstract_name().unwrap_or_default())?,
        };
        let bytes = [IoSlice::new(bytes.as_bytes())];
        sendmsg_addr(&self.patient, &addr, &bytes, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for room in its queue, for a second at most.
    fn tell_surely(&self, states: &[NotifyState]) {
        if !self.hears_us.get() {
            return;
        }
        let message = message(states);
        if let Err(error) = self.patient.send_to_addr(message.as_bytes(), &self.addr) {
            let first = message.lines().next().unwrap_or_default();
            warn!("the service manager has not taken {first} within {SEND_TIMEOUT:?}: {error}");
        }
    }
}

fn message(states: &[NotifyState]) -> String {
    states.iter().map(|state| format!("{state}\n")).collect()
}

/// sd_watchdog_enabled(3). The one of `sd_notify` wants a process id, which may be left out.
fn watchdog_limit() -> Option<Duration> {
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let is_ours =
        env::var_os("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(process::id().into());
    number("WATCHDOG_USEC").filter(|_| is_ours).map(Duration::from_micros)
}

impl Supervisor for ServiceManager {
    fn heartbeat(&self) -> Option<Duration> {
        self.0.as_ref()?.heartbeat
    }

    fn is_alive(&self) {
        self.tell(&[NotifyState::Watchdog]);
    }

    fn reload_begins(&self) {
        // systemd takes a READY=1 that is older than the reload for another one's.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.tell(&[NotifyState::Reloading, now]);
        }
    }

    fn reload_ends(&self) {
        convey_heap::note_peak();
        self.tell_surely(&[NotifyState::Ready]);
    }

    fn publishes(&self, snapshot: &Snapshot) {
        let Some(manager) = &self.0 else { return };
        let status = status(snapshot);
        if *manager.status.borrow() != status {
            manager.tell(&[NotifyState::Status(&status)]);
            manager.status.replace(status);
        }
    }
}

/// One line for `systemctl status`.
fn status(snapshot: &Snapshot) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let servers = snapshot.pools.iter().flat_map(|pool| &pool.servers);
    let up = servers.clone().filter(|server| server.health.up).count();
    let mut status = format!(
        "{}, {up} of {} up",
        count(snapshot.frontends.len(), "frontend"),
        count(servers.count(), "server")
    );
    let empty = |pool: &str| format!("; backend {pool} has no server, its clients are refused: see the log");
    let mut pools = snapshot.frontends.iter().flat_map(|frontend| frontend.pools());
    if let Some(pool) = pools.find(|pool| pool.eligible() == 0) {
        // A name may have any character, a message of the protocol ends with its line.
        status += &empty(&pool.config.name.replace('\n', " "));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_snapshot::fixture;

    #[test]
    fn the_status_names_a_backend_without_a_server() {
        let down = || fixture::down("connection refused", Duration::from_millis(500));
        let of = |healths: Vec<_>| {
            let addr = |n| format!("127.0.0.1:{n}");
            let servers = (1..).zip(healths).map(|(n, health)| (fixture::server("a", &addr(n)), health));
            let pool = fixture::pool("web", servers.collect());
            let frontend = fixture::frontend("web", &["127.0.0.1:80"], &pool);
            status(&fixture::snapshot(vec![frontend], vec![pool]))
        };
        assert_eq!(of(vec![fixture::up(), down()]), "1 frontend, 1 of 2 servers up");
        assert_eq!(
            of(vec![down()]),
            "1 frontend, 0 of 1 server up; backend web has no server, its clients are refused: see the log"
        );
    }
}
