//! The control socket: its path, its owner and its replacement.
//!
//! convey binds the socket before it drops the rights of root, so the folder may belong to root. At
//! an upgrade, the new process gets the socket from the old one. convey replaces a socket at which
//! no process answers, and the socket of a convey that is stopping. While another process holds the
//! socket, convey serves clients without it and tries again.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use axum::Router;
use log::{info, warn};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::serving::Serving;
use super::state_folder::FileOwner;
use super::upgrade::HandedControl;

/// Default path, for root and for other users with write access to the folder.
const OF_HOST: &str = "/run/convey/control.sock";

/// File mode of the socket: its owner and its group may connect.
const MODE: u32 = 0o660;

/// Length of the accept queue.
const BACKLOG: i32 = 64;

/// Upper bound for the wait for an answer of the process that listens at a path.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of pauses in which a start waits for a killed process to close its socket: two
/// seconds in total.
const PAUSES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

const TAKEN: &str = "another convey process uses this socket (--socket selects another path)";
const SILENT: &str = "a process that does not respond uses this socket (--socket selects another path)";
const NO_SOCKET: &str =
    "this file is not a socket, so convey does not replace it (--socket selects another path)";

/// Possible paths of the socket: only `named` if it is set, or none if `named` is empty. Without
/// `named`, the path of the host, followed by the path of this user's session.
pub(super) fn places(named: Option<&Path>) -> Vec<PathBuf> {
    match named {
        Some(path) if path.as_os_str().is_empty() => Vec::new(),
        Some(path) => vec![path.to_owned()],
        None => {
            let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            let session = session.filter(|folder| folder.is_absolute());
            let of_user = session.map(|folder| folder.join("convey/control.sock"));
            [PathBuf::from(OF_HOST)].into_iter().chain(of_user).collect()
        }
    }
}

/// Bound control socket. Clients can connect, but get no answer yet.
#[derive(Debug)]
pub(super) struct BoundSocket {
    listener: unix::UnixListener,
    file: SocketFile,
}

/// Path of a socket, with the device and inode of its file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

/// Reason why convey has no control socket.
#[derive(Debug)]
pub(super) struct NotBound {
    /// Operator-facing error message.
    pub(super) why: String,
    /// Whether another process holds the path, which may become free later.
    pub(super) is_taken: bool,
    /// Whether this process lacks the rights to bind at the path.
    pub(super) is_denied: bool,
}

impl BoundSocket {
    /// Binds the socket at the first path that this user may write to. `owner` becomes the owner of
    /// the file. Waits up to two seconds for a process that is ending. Returns `None` if [`places`]
    /// has no path.
    ///
    /// # Errors
    /// No path is free.
    pub(super) fn new(
        named: Option<&Path>,
        owner: Option<FileOwner>,
    ) -> Result<Option<BoundSocket>, NotBound> {
        BoundSocket::at_first(named, |path| {
            make_folder(path)?;
            make_room(path)?;
            bind(path, owner)
        })
    }

    /// Binds the socket at the first path where no process listens, without waiting.
    ///
    /// # Errors
    /// See [`BoundSocket::new`].
    pub(super) fn where_nobody_listens(named: Option<&Path>) -> Result<Option<BoundSocket>, NotBound> {
        BoundSocket::at_first(named, |path| match connect(path)? {
            Some(_) => Err(in_use(TAKEN)),
            None => {
                remove_socket(path)?;
                bind(path, None)
            }
        })
    }

    fn at_first(
        named: Option<&Path>,
        bind: impl Fn(&Path) -> io::Result<unix::UnixListener>,
    ) -> Result<Option<BoundSocket>, NotBound> {
        let (mut failed, mut is_taken, mut is_denied) = (Vec::new(), false, false);
        for path in places(named) {
            match bind(&path) {
                Ok(listener) => {
                    let id = id(&path);
                    return Ok(Some(BoundSocket { listener, file: SocketFile { path, id } }));
                }
                Err(error) => {
                    is_taken |= error.kind() == io::ErrorKind::AddrInUse;
                    is_denied |= error.kind() == io::ErrorKind::PermissionDenied;
                    failed.push(format!("{}: {error}", path.display()));
                }
            }
        }
        match failed.is_empty() {
            true => Ok(None),
            false => Err(NotBound { why: failed.join("; "), is_taken, is_denied }),
        }
    }

    /// Wraps a socket that another process has handed over.
    pub(super) fn handed(path: PathBuf, socket: OwnedFd) -> BoundSocket {
        let id = id(&path);
        BoundSocket { listener: socket.into(), file: SocketFile { path, id } }
    }

    /// Begins to answer clients. Must be called within the runtime.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub(super) fn serve(self, routes: Router) -> io::Result<ControlSocket> {
        self.listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(self.listener)?;
        Ok(ControlSocket { file: Some(self.file), serving: Serving::begin(listener, routes) })
    }
}

/// Control socket that answers clients. Dropping it removes its file.
pub(super) struct ControlSocket {
    /// File of the socket; `None` once another process has taken over the socket.
    file: Option<SocketFile>,
    serving: Serving<UnixListener>,
}

impl ControlSocket {
    /// Duplicates the socket for another process. `None` if the socket is already handed over or
    /// cannot be duplicated.
    pub(super) fn socket(&self) -> Option<HandedControl> {
        let file = self.file.as_ref()?;
        Some(HandedControl { path: file.path.clone(), socket: self.serving.socket()?.ok()? })
    }

    /// Leaves the socket to another process. Clients that have already sent a request still get an
    /// answer.
    pub(super) async fn close(&mut self) {
        self.file = None;
        self.serving.close().await;
    }

    /// Logs the path of the socket.
    pub(super) fn log_path(&self) {
        if let Some(file) = &self.file {
            info!("control socket {}", file.path.display());
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Another process may have put its own socket there.
        if let Some(file) = self.file.take()
            && file.id.is_some()
            && id(&file.path) == file.id
        {
            // If the folder belongs to root, the file stays. No process answers there then.
            let _ = fs::remove_file(&file.path);
        }
    }
}

/// Logs why there is no control socket.
pub(super) fn log_missing(missing: &NotBound) {
    let then = if missing.is_taken { "; convey tries again until the socket is free" } else { "" };
    let why = &missing.why;
    warn!("no control socket, so commands such as `convey status` do not reach this process: {why}{then}");
}

fn bind(path: &Path, owner: Option<FileOwner>) -> io::Result<unix::UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Clients cannot connect before the last step, `listen`.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    if let Some(owner) = owner {
        chown(path, Some(owner.uid), Some(owner.gid))?;
    }
    socket.listen(BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}

/// Creates the folder of the socket if its name is `convey`.
fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| folder.file_name().is_some_and(|name| name == "convey"))
    else {
        return Ok(());
    };
    match DirBuilder::new().mode(0o711).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes the socket if its process is gone, is stopping, or ends during the wait.
fn make_room(path: &Path) -> io::Result<()> {
    for _ in 0..PAUSES {
        match Listener::at(path)? {
            Listener::Absent | Listener::Stopping => return remove_socket(path),
            Listener::Serving => return Err(in_use(TAKEN)),
            Listener::Silent => break,
            Listener::Ending => thread::sleep(PAUSE),
        }
    }
    Err(in_use(SILENT))
}

/// State of the process that listens at a path.
enum Listener {
    Absent,
    Serving,
    /// The process takes no new connections.
    Stopping,
    /// The connection was closed before an answer, as the kernel does when the process was killed.
    Ending,
    /// The process accepts the request but sends nothing.
    Silent,
}

impl Listener {
    fn at(path: &Path) -> io::Result<Listener> {
        let Some(stream) = connect(path)? else { return Ok(Listener::Absent) };
        Ok(match answer(&stream) {
            Ok(answer) if answer.is_empty() => Listener::Ending,
            Ok(answer) if answer.ends_with("\r\n\r\ndraining\n") => Listener::Stopping,
            Ok(_) => Listener::Serving,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Listener::Silent
            }
            Err(_) => Listener::Ending,
        })
    }
}

/// Connects to the socket. Returns `None` if no process listens there.
fn connect(path: &Path) -> io::Result<Option<unix::UnixStream>> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, NO_SOCKET));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A blocking connect would block convey while the backlog is full.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => {
            socket.set_nonblocking(false)?;
            Ok(Some(OwnedFd::from(socket).into()))
        }
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(None),
            io::ErrorKind::WouldBlock => Err(in_use(SILENT)),
            _ => Err(error),
        },
    }
}

fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn in_use(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, why)
}

/// Sends a health request. Returns the answer of the process.
fn answer(mut stream: &unix::UnixStream) -> io::Result<String> {
    const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: convey\r\nConnection: close\r\n\r\n";
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(ASK)?;
    let mut answer = [0; 1 << 10];
    let mut read = 0;
    while read < answer.len() {
        match stream.read(&mut answer[read..])? {
            0 => break,
            some => read += some,
        }
    }
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

/// Device and inode of the file. `None` if the file does not exist.
fn id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests")]
mod tests {
    use std::thread;

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        (folder, path)
    }

    fn bind_at(path: &Path) -> Result<Option<BoundSocket>, String> {
        BoundSocket::new(Some(path), None).map_err(|missing| missing.why)
    }

    /// Accepts a client after its request has arrived: an earlier close would reset the connection.
    fn accept(socket: &BoundSocket) -> unix::UnixStream {
        let (mut client, _) = socket.listener.accept().unwrap();
        let mut question = [0; 1 << 10];
        assert!(client.read(&mut question).unwrap() > 0);
        client
    }

    #[test]
    fn stale_control_socket_is_replaced_and_a_live_one_is_not() {
        let (_folder, path) = folder();
        drop(bind_at(&path).unwrap().unwrap().listener);
        assert!(path.exists(), "a killed process leaves its file");
        let living = bind_at(&path).unwrap().unwrap();
        let answers = thread::spawn(move || {
            let mut client = accept(&living);
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\nok\n").unwrap();
        });
        let refused = bind_at(&path).unwrap_err();
        assert!(refused.contains("another convey process uses this socket"), "{refused}");
        answers.join().unwrap();
    }

    #[test]
    fn stopping_process_gives_up_its_control_socket() {
        let (_folder, path) = folder();
        let stopping = bind_at(&path).unwrap().unwrap();
        let answers = thread::spawn(move || {
            let mut client = accept(&stopping);
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\ndraining\n").unwrap();
            (stopping, client)
        });
        thread::scope(|scope| {
            let next = scope.spawn(|| bind_at(&path).unwrap().unwrap());
            let (stopping, client) = answers.join().unwrap();
            drop(client);
            let next = next.join().unwrap();
            assert_ne!(next.file.id, stopping.file.id);
        });
    }

    #[test]
    fn its_user_and_group_may_connect_and_nobody_else() {
        let (_folder, path) = folder();
        let _bound = bind_at(&path).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
    }

    #[test]
    fn socket_of_an_ending_process_is_replaced_once_it_is_gone() {
        let (_folder, path) = folder();
        let ending = bind_at(&path).unwrap().unwrap();
        let ends = thread::spawn(move || {
            // The kernel closes the connections of a killed process.
            for _ in 0..2 {
                drop(accept(&ending));
            }
        });
        assert!(bind_at(&path).unwrap().is_some());
        ends.join().unwrap();
    }

    #[test]
    fn retry_takes_only_a_socket_where_nobody_listens() {
        let (_folder, path) = folder();
        let living = bind_at(&path).unwrap().unwrap();
        let refused = BoundSocket::where_nobody_listens(Some(&path)).unwrap_err();
        assert!(
            refused.is_taken && refused.why.contains("another convey process uses this socket"),
            "{refused:?}"
        );
        // No process accepts: the backlog is full.
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert!(waiting.len() <= BACKLOG as usize + 1);
        assert!(BoundSocket::where_nobody_listens(Some(&path)).unwrap_err().is_taken);
        drop(living.listener);
        assert!(BoundSocket::where_nobody_listens(Some(&path)).unwrap().is_some());
    }

    #[test]
    fn files_other_than_sockets_stay_as_they_are() {
        let (_folder, path) = folder();
        fs::write(&path, "a letter").unwrap();
        for missing in [BoundSocket::new(Some(&path), None), BoundSocket::where_nobody_listens(Some(&path))] {
            let missing = missing.unwrap_err();
            assert!(!missing.is_taken && missing.why.contains("not a socket"), "{missing:?}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    }

    #[test]
    fn control_socket_is_off_without_a_path_and_reports_errors() {
        assert!(bind_at(Path::new("")).unwrap().is_none());
        let (_folder, path) = folder();
        let beyond = path.join("missing/control.sock");
        let why = bind_at(&beyond).unwrap_err();
        assert!(why.starts_with(&format!("{}: ", beyond.display())), "{why}");
    }
}
