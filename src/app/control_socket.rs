//! The control socket: where it is, and who has it.
//!
//! It is bound before convey gives up the rights of root, so it may be in a folder of root's. At an upgrade the new process gets
//! it from the old one. A file that nobody answers at is replaced, and so is that of a convey that is stopping.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net as unix;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use log::{info, warn};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::serving::Serving;

/// Where root has it, and who else may write there.
const OF_HOST: &str = "/run/convey/control.sock";

/// Its user and its group may connect.
const MODE: u32 = 0o660;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 64;

/// How long the process that answers at a path may take to say whether it is stopping.
const PATIENCE: Duration = Duration::from_secs(1);

/// The places where it may be: the one that is named, else that of the host, then that of this user's session.
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

/// It is bound: clients that ask wait.
#[derive(Debug)]
pub(super) struct BoundSocket {
    listener: unix::UnixListener,
    file: SocketFile,
}

/// The name of a socket, and which file it was.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

impl BoundSocket {
    /// Binds it at the first place that this user may write to, for the user and the group `owner` if there is one. `None` if
    /// it is at none.
    ///
    /// # Errors
    /// Why there is none: words for an operator.
    pub(super) fn new(
        named: Option<&Path>,
        owner: Option<(u32, u32)>,
    ) -> Result<Option<BoundSocket>, String> {
        let mut failed = Vec::new();
        for path in places(named) {
            match bind(&path, owner) {
                Ok(listener) => {
                    let id = id(&path);
                    return Ok(Some(BoundSocket { listener, file: SocketFile { path, id } }));
                }
                Err(error) => failed.push(format!("{}: {error}", path.display())),
            }
        }
        if failed.is_empty() { Ok(None) } else { Err(failed.join("; ")) }
    }

    /// The one that another process has handed over.
    pub(super) fn handed(path: PathBuf, socket: OwnedFd) -> BoundSocket {
        let id = id(&path);
        BoundSocket { listener: socket.into(), file: SocketFile { path, id } }
    }

    /// Answers from now on. To be called in the runtime.
    ///
    /// # Errors
    /// If the runtime cannot have it.
    pub(super) fn serve(self, routes: Router) -> io::Result<ControlSocket> {
        self.listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(self.listener)?;
        Ok(ControlSocket { file: Some(self.file), serving: Serving::begin(listener, routes) })
    }
}

/// It answers. Its file goes with it.
pub(super) struct ControlSocket {
    /// `None` once another process has it.
    file: Option<SocketFile>,
    serving: Serving<UnixListener>,
}

impl ControlSocket {
    /// The socket once more, for another process.
    pub(super) fn socket(&self) -> Option<(PathBuf, OwnedFd)> {
        let file = self.file.as_ref()?;
        Some((file.path.clone(), self.serving.socket()?.ok()?))
    }

    /// Another process has it. Clients that have asked are still answered.
    pub(super) async fn give_up(&mut self) {
        self.file = None;
        self.serving.give_up().await;
    }

    /// Says where it is.
    pub(super) fn tell(&self) {
        if let Some(file) = &self.file {
            info!("control socket {}", file.path.display());
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Another process may have put its own there.
        if let Some(file) = self.file.take()
            && file.id.is_some()
            && id(&file.path) == file.id
        {
            // In a folder of root's it stays; then nobody answers at it.
            let _ = fs::remove_file(&file.path);
        }
    }
}

/// Says why there is none.
pub(super) fn tell_of_none(why: &str) {
    warn!("no control socket, so commands such as `convey status` do not reach this process: {why}");
}

fn bind(path: &Path, owner: Option<(u32, u32)>) -> io::Result<unix::UnixListener> {
    make_folder(path)?;
    make_room(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Nobody is heard before the next step but one.
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    if let Some((user, group)) = owner {
        chown(path, Some(user), Some(group))?;
    }
    socket.listen(BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}

/// Makes the folder if it is one of ours.
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

/// Removes the file of a process that is gone, or is going.
fn make_room(path: &Path) -> io::Result<()> {
    match unix::UnixStream::connect(path) {
        Ok(stream) if is_stopping(&stream) => {}
        Ok(_) => {
            let message = "another convey answers there (another place: --socket)";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    fs::remove_file(path)
}

/// Whether the process that answers takes no new connections.
fn is_stopping(mut stream: &unix::UnixStream) -> bool {
    const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: convey\r\nConnection: close\r\n\r\n";
    let mut answer = || -> io::Result<String> {
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
    };
    answer().is_ok_and(|answer| answer.ends_with("\r\n\r\ndraining\n"))
}

/// Which file this is.
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
        BoundSocket::new(Some(path), None)
    }

    /// Who asks, after the question: its end would else be a reset.
    fn accept(socket: &BoundSocket) -> unix::UnixStream {
        let (mut client, _) = socket.listener.accept().unwrap();
        let mut question = [0; 1 << 10];
        assert!(client.read(&mut question).unwrap() > 0);
        client
    }

    #[test]
    fn a_socket_that_a_dead_process_left_is_replaced_and_that_of_a_living_one_is_not() {
        let (_folder, path) = folder();
        drop(bind_at(&path).unwrap().unwrap().listener);
        assert!(path.exists(), "a killed process leaves its file");
        let living = bind_at(&path).unwrap().unwrap();
        let answers = thread::spawn(move || {
            let mut client = accept(&living);
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\nok\n").unwrap();
        });
        let refused = bind_at(&path).unwrap_err();
        assert!(refused.contains("another convey answers there"), "{refused}");
        answers.join().unwrap();
    }

    #[test]
    fn who_is_stopping_gives_way() {
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
    fn an_empty_path_means_none_and_a_file_in_the_way_is_told() {
        assert!(BoundSocket::new(Some(Path::new("")), None).unwrap().is_none());
        let (_folder, path) = folder();
        let beyond = path.join("missing/control.sock");
        let why = bind_at(&beyond).unwrap_err();
        assert!(why.starts_with(&format!("{}: ", beyond.display())), "{why}");
    }
}
