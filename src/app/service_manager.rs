//! Notifications to a service manager such as systemd, by sd_notify(3). Without `$NOTIFY_SOCKET`,
//! convey sends nothing.

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

/// Upper bound for sending an essential message. If such a message were lost, the service manager
/// would end a healthy convey, or keep waiting for it.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Extra time for a stop, beyond the time that connections have to finish.
const STOP_MARGIN: Duration = Duration::from_secs(15);

/// Name of the stored descriptors.
const STORE_NAME: &str = "FDNAME=convey";

/// Maximum number of descriptors per message. The kernel allows 253.
const MAX_DESCRIPTORS: usize = 128;

/// The service manager. Empty if there is none.
#[derive(Clone, Default)]
pub(super) struct ServiceManager(Option<Rc<Manager>>);

struct Manager {
    socket: UnixDatagram,
    /// Blocking socket for essential messages: a send waits for room in the queue.
    patient: UnixDatagram,
    addr: SocketAddr,
    /// Half of the watchdog timeout, if the service manager has a watchdog.
    heartbeat: Option<Duration>,
    /// Last status text, even if it was not sent.
    status: RefCell<String>,
    /// Whether the service manager accepts messages of this process. It accepts only those of the
    /// main process, and a new process becomes the main process only when its predecessor names it.
    accepts_messages: Cell<bool>,
}

impl ServiceManager {
    /// Reads the service manager from the environment. A successor in an upgrade (`is_successor`)
    /// sends nothing until it is ready.
    pub(super) fn from_env(is_successor: bool) -> ServiceManager {
        let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return ServiceManager(None);
        };
        let manager = Manager::new(path.as_bytes(), !is_successor);
        let manager = manager.inspect_err(|error| {
            warn!("cannot notify the service manager: NOTIFY_SOCKET {}: {error}", path.display());
        });
        ServiceManager(manager.ok().map(Rc::new))
    }

    /// Notifies the service manager that clients are served.
    pub(super) fn is_ready(&self) {
        let Some(manager) = &self.0 else { return };
        let heard = manager.accepts_messages.replace(true);
        let status = manager.status.borrow();
        match heard {
            true => manager.send_reliably(&[NotifyState::Ready]),
            false => manager.send_reliably(&[NotifyState::Ready, NotifyState::Status(&status)]),
        }
    }

    /// If `any` sockets came from the service manager, asks it to drop its copies of them.
    /// Otherwise these sockets would stay open after this process closes them.
    pub(super) fn release_stored(&self, any: bool) {
        if any {
            self.send_reliably(&[NotifyState::Custom("FDSTOREREMOVE=1"), NotifyState::Custom(STORE_NAME)]);
        }
    }

    /// Asks the service manager to store these sockets for the next process.
    ///
    /// # Errors
    /// There is no service manager, or it does not accept the sockets in time.
    pub(super) fn store_sockets(&self, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(manager) = &self.0 else { return Err(io::ErrorKind::NotConnected.into()) };
        sockets.chunks(MAX_DESCRIPTORS).try_for_each(|some| manager.store_sockets(some))
    }

    /// Names another process as the service's main process. Otherwise the service would end with
    /// this process.
    pub(super) fn is_succeeded_by(&self, process: u32) {
        self.send_reliably(&[NotifyState::MainPid(process)]);
        if let Some(manager) = &self.0 {
            manager.accepts_messages.set(false);
        }
    }

    /// Reports that this process stops after `delay`. Clients are served until then.
    pub(super) fn stops_in(&self, delay: Duration) {
        let status = format!("stopping in {delay:?}: clients are served until then");
        self.stops_within(delay, &status);
    }

    /// Reports that open connections have `patience` to finish.
    pub(super) fn is_stopping(&self, open: u64, patience: Duration) {
        let status = format!("stopping: {open} open connections have {patience:?} to finish");
        self.stops_within(patience, &status);
    }

    fn stops_within(&self, time: Duration, status: &str) {
        // Otherwise the service manager's own timeout, which ignores `timeouts`, would end this
        // process and cut connections.
        let limit = format!("EXTEND_TIMEOUT_USEC={}", (time + STOP_MARGIN).as_micros());
        self.send_reliably(&[
            NotifyState::Stopping,
            NotifyState::Status(status),
            NotifyState::Custom(&limit),
        ]);
    }

    fn send(&self, states: &[NotifyState]) {
        if let Some(manager) = &self.0 {
            manager.send(states);
        }
    }

    fn send_reliably(&self, states: &[NotifyState]) {
        if let Some(manager) = &self.0 {
            manager.send_reliably(states);
        }
    }
}

impl Manager {
    fn new(path: &[u8], accepts_messages: bool) -> io::Result<Manager> {
        let addr = match path.strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not block convey. `sd_notify::notify` would
        // wait for it.
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
            accepts_messages: Cell::new(accepts_messages),
        })
    }

    /// Sends a message without waiting. The message is lost if the service manager's queue is full.
    fn send(&self, states: &[NotifyState]) {
        if self.accepts_messages.get() {
            let _ = self.socket.send_to_addr(message(states).as_bytes(), &self.addr);
        }
    }

    fn store_sockets(&self, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
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

    /// Sends a message, and waits at most one second for room in the queue.
    fn send_reliably(&self, states: &[NotifyState]) {
        if !self.accepts_messages.get() {
            return;
        }
        let message = message(states);
        if let Err(error) = self.patient.send_to_addr(message.as_bytes(), &self.addr) {
            let first = message.lines().next().unwrap_or_default();
            warn!("the service manager has not accepted {first} within {SEND_TIMEOUT:?}: {error}");
        }
    }
}

fn message(states: &[NotifyState]) -> String {
    states.iter().map(|state| format!("{state}\n")).collect()
}

/// Watchdog timeout by the rules of sd_watchdog_enabled(3). `sd_notify` has a function for this,
/// but it requires `WATCHDOG_PID`, which is optional. `None` if there is no watchdog for this
/// process.
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
        self.send(&[NotifyState::Watchdog]);
    }

    fn reload_begins(&self) {
        // systemd would assign a READY=1 with an earlier time to a previous reload.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            self.send(&[NotifyState::Reloading, now]);
        }
    }

    fn reload_ends(&self) {
        convey_heap::note_peak();
        self.send_reliably(&[NotifyState::Ready]);
    }

    fn publishes(&self, snapshot: &Snapshot) {
        let Some(manager) = &self.0 else { return };
        let status = status(snapshot);
        if *manager.status.borrow() != status {
            manager.send(&[NotifyState::Status(&status)]);
            manager.status.replace(status);
        }
    }
}

/// Status line for `systemctl status`.
fn status(snapshot: &Snapshot) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let servers = snapshot.pools.iter().flat_map(|pool| &pool.servers);
    let up = servers.clone().filter(|server| server.health.up).count();
    let mut status = format!(
        "{}, {up} of {} up",
        count(snapshot.frontends.len(), "frontend"),
        count(servers.count(), "server")
    );
    let empty = |pool: &str| {
        format!("; backend {pool} has no usable server, so its clients are refused: see the log")
    };
    let mut pools = snapshot.frontends.iter().flat_map(|frontend| frontend.pools());
    if let Some(pool) = pools.find(|pool| pool.eligible() == 0) {
        // A name may contain any character, but a newline would end this field of the message.
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
            "1 frontend, 0 of 1 server up; backend web has no usable server, so its clients are refused: see the log"
        );
    }
}
