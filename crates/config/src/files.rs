//! Safe reading of files: the path may lead to a FIFO without a writer, an endless device, or a
//! disk that does not answer.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Error, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::OFlags;
use tokio::sync::oneshot;

use crate::rights::{explained, with_rights};

/// Maximum size of a file in bytes. A configuration with 100,000 servers is about this long; most
/// configurations are a thousand times shorter.
pub(crate) const MAX_SIZE: u64 = 16 << 20;

/// Maximum number of names read from a directory.
const MAX_ENTRIES: usize = 100_000;

/// End of the first line of a private key (RFC 7468), encrypted or not.
const KEY: &[u8] = b"PRIVATE KEY-----";

/// A file named by the configuration, with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Content of the file; `None` if it could not be read.
    pub content: Option<Vec<u8>>,
    /// Whether the file is an access list, with a network on each line.
    pub is_access_list: bool,
    /// Whether the file was read as a certificate or a key. convey uses its right to read files of
    /// other users only for these.
    pub is_secret: bool,
}

/// All files read during a load of a configuration.
#[derive(Debug, Clone, Default)]
pub struct ReadFiles {
    /// The configuration file and the files that it includes, with their contents.
    pub texts: Vec<(PathBuf, Vec<u8>)>,
    /// Other files that the configuration names, such as certificates and access lists.
    pub named: Vec<ReadFile>,
}

/// Reads a file to its end, if it is a regular file within the size limit. Never waits for a writer
/// of a FIFO.
///
/// # Errors
/// The file cannot be read or is not allowed. The error text has the reason.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_checked(path, check)
}

/// Reads a file of certificates. Uses the right to read files of other users, if convey has that
/// right.
///
/// # Errors
/// The kernel refuses to open the file, or the file is not regular or too long.
pub(crate) fn read_certificates(path: &Path) -> io::Result<Vec<u8>> {
    with_rights(|| read(path))
}

/// Reads a file with a secret, which other users must neither read nor write. Uses the right to
/// read files of other users, if convey has that right.
///
/// # Errors
/// The file cannot be read or is not allowed. The error text has the reason.
pub(crate) fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
    let check = |found: &Metadata| {
        check(found)?;
        check_mode(found.permissions().mode() & 0o7777)
    };
    with_rights(|| read_checked(path, check))
}

/// Reads a private key like [`read_secret`]. A file that contains no key may be readable by other
/// users: it is not a secret, and the caller reports the missing key.
///
/// # Errors
/// Those of [`read_secret`].
pub(crate) fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let has_key = |bytes: &[u8]| bytes.windows(KEY.len()).any(|part| part == KEY);
    read_secret(path).or_else(|refused| match read_certificates(path) {
        Ok(bytes) if !has_key(&bytes) => Ok(bytes),
        _ => Err(refused),
    })
}

/// Lists the names in a directory of certificates: sorted, one name per line, without names that
/// are not UTF-8.
///
/// # Errors
/// The directory cannot be read, or the path is not a directory.
pub(crate) fn list(path: &Path) -> io::Result<Vec<u8>> {
    with_rights(|| list_plainly(path))
}

fn list_plainly(path: &Path) -> io::Result<Vec<u8>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| explained(path, error))?.take(MAX_ENTRIES) {
        names.extend(entry?.file_name().into_string().ok().filter(|name| !name.contains('\n')));
    }
    names.sort();
    Ok(names.join("\n").into_bytes())
}

fn read_checked(path: &Path, check: impl Fn(&Metadata) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let explained = |error| explained(path, error);
    // The check comes before the open: opening a FIFO or a device may have side effects.
    check(&fs::metadata(path).map_err(explained)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(explained)?;
    // Another file may have replaced the checked one.
    check(&file.metadata()?)?;
    read_all(file)
}

/// Runs `work` in its own thread, because it may take long or never end. The async runtime
/// continues meanwhile, and the exit of the program does not wait for the thread. Returns `None` if
/// no thread can be started.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    begin_aside(work).await.ok()
}

/// Starts `work` in its own thread, and returns a channel that receives the result.
pub fn begin_aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    // If the thread cannot be started, the channel is closed.
    let _ = thread::Builder::new().name("files".to_owned()).spawn(move || done.send(work()));
    result
}

fn check_mode(mode: u32) -> io::Result<()> {
    let what = match mode & 0o006 {
        0 => return Ok(()),
        bits if bits & 0o004 != 0 => "read",
        _ => "write",
    };
    let message = format!("its mode is {mode:04o}, so all users can {what} it; `chmod 640` fixes it");
    Err(Error::new(ErrorKind::PermissionDenied, message))
}

fn check(found: &Metadata) -> io::Result<()> {
    if !found.is_file() {
        let message = format!("it is {}, not a regular file", kind(found.file_type()));
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    if found.len() > MAX_SIZE { Err(too_long()) } else { Ok(()) }
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Reads a file to its end, up to the size limit. The length in its metadata is not used: the file
/// may grow while it is read, or report a length of 0 like files of `/proc`.
fn read_all(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_SIZE { Err(too_long()) } else { Ok(content) }
}

fn too_long() -> Error {
    let message = format!("it is longer than {} MiB, the maximum", MAX_SIZE >> 20);
    Error::new(ErrorKind::FileTooLarge, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn said(path: &Path) -> String {
        read(path).unwrap_err().to_string()
    }

    #[test]
    fn special_files_are_refused_with_their_kind() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mkfifoat(CWD, at("fifo"), Mode::RUSR).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        symlink(at("fifo"), at("link")).unwrap();
        for (path, kind) in [
            (at("fifo"), "a FIFO"),
            (at("link"), "a FIFO"),
            (at("socket"), "a socket"),
            (directory.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "a device"),
        ] {
            assert_eq!(said(&path), format!("it is {kind}, not a regular file"));
        }
    }

    #[test]
    fn file_longer_than_the_limit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(MAX_SIZE).unwrap();
        assert_eq!(read(&path).unwrap().len() as u64, MAX_SIZE);
        file.set_len(MAX_SIZE + 1).unwrap();
        assert_eq!(said(&path), "it is longer than 16 MiB, the maximum");
        assert_eq!(read_all(File::open(&path).unwrap()).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_file_that_says_it_is_empty_is_read() {
        assert!(!read(Path::new("/proc/self/status")).unwrap().is_empty());
    }

    #[tokio::test]
    async fn work_that_never_ends_is_waited_for_by_nobody() {
        let (_hold, held) = std::sync::mpsc::channel::<()>();
        let endless = begin_aside(move || held.recv());
        assert_eq!(aside(|| 7).await, Some(7));
        drop(endless);
    }
}
