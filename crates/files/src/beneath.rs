//! Opens files beneath a root. The system call `openat2` (Linux 5.6) follows no name and no
//! symbolic link that leads out of the root.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, fstat, openat, openat2, stat,
    statat,
};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use crate::file_name;
use crate::listing::{ListedFile, Listing, MAX_LISTED};

/// Whether a call may wait for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskWait {
    /// The call may wait for a disk, so it must run in a thread for blocking calls.
    Allowed,
    /// The call must not wait. Content that is not in memory causes the error `EAGAIN`.
    Never,
}

/// Identity and state of a file. If the file is replaced or modified, its stamp changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// Device number and inode number.
    pub id: (u64, u64),
    /// Length in bytes.
    pub len: u64,
    /// Modification time of the content: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Change time of the inode: seconds and nanoseconds since 1970. No program can set this time.
    pub changed: (i64, u32),
}

/// Kind of file at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Device, FIFO or socket. These are never served.
    Other,
}

/// Opens a file or a directory for reading. `name` has no leading slash, like
/// [`FileName`](crate::FileName); an empty name is the root itself. The root may be a symbolic
/// link.
///
/// # Errors
/// Errors of the kernel: `EXDEV` if the name leads out of the root, `EAGAIN` if the call would have
/// to wait.
pub fn open(root: &Path, name: &[u8], wait: DiskWait) -> rustix::io::Result<OwnedFd> {
    let root = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let name = if name.is_empty() { b"." } else { name };
    // Opening a FIFO must not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let how = match wait {
        DiskWait::Allowed => how,
        DiskWait::Never => how | ResolveFlags::CACHED,
    };
    loop {
        match openat2(&root, name, flags, Mode::empty(), how) {
            // Linux before 5.12 cannot restrict the lookup to names in memory.
            Err(Errno::INVAL) if wait == DiskWait::Never => return Err(Errno::AGAIN),
            // Because of a concurrent rename, the kernel could not check that the name stays
            // beneath the root. The loop tries again.
            Err(Errno::AGAIN) if wait == DiskWait::Allowed => {}
            other => return other,
        }
    }
}

/// Returns the stamp and the kind of an open file.
///
/// # Errors
/// Errors of the kernel.
pub fn stamp(file: impl AsFd) -> rustix::io::Result<(FileStamp, FoundKind)> {
    fstat(file).map(|found| of_stat(&found))
}

/// Returns the stamp of the file at a path. The path may lead out of the root, so the stamp may be
/// used only to check whether a file has changed.
///
/// # Errors
/// Errors of the kernel.
pub fn stamp_at(path: &CStr) -> rustix::io::Result<FileStamp> {
    stat(path).map(|found| of_stat(&found).0)
}

/// Reads a part of a file into a buffer. Returns the number of bytes read; 0 at the end of the
/// file.
///
/// # Errors
/// Errors of the kernel; `EAGAIN` if the call would or might have to wait.
pub fn read_at(file: impl AsFd, buffer: &mut [u8], at: u64, wait: DiskWait) -> rustix::io::Result<usize> {
    match wait {
        DiskWait::Allowed => pread(file, buffer, at),
        DiskWait::Never => {
            let mut into = [io::IoSliceMut::new(buffer)];
            match preadv2(file, &mut into, at, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(Errno::AGAIN),
                read => read,
            }
        }
    }
}

/// Reads a whole file of at most `len` bytes.
///
/// # Errors
/// Errors of the kernel; `EFBIG` if the file is longer than `len` bytes.
pub fn read_whole(file: impl AsFd, len: usize, wait: DiskWait) -> rustix::io::Result<Vec<u8>> {
    // The buffer has one more byte, to detect that the file is longer than `len`.
    let (mut content, mut filled) = (vec![0; len + 1], 0);
    while filled < content.len() {
        match read_at(file.as_fd(), &mut content[filled..], filled as u64, wait)? {
            0 => {
                content.truncate(filled);
                return Ok(content);
            }
            read => filled += read,
        }
    }
    Err(Errno::FBIG)
}

/// Lists a directory. `with_dot_files`: whether dot files are listed. Devices, FIFOs, sockets, and
/// links that lead out of the directory are never listed. The call may wait for a disk.
///
/// # Errors
/// Errors of the kernel.
pub fn list(directory: &OwnedFd, with_dot_files: bool) -> rustix::io::Result<Listing> {
    let mut files = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if file_name::check(name, with_dot_files).is_err() {
            continue;
        }
        if files.len() == MAX_LISTED {
            return Ok(Listing::new(files, true));
        }
        let found = match entry.file_type() {
            FileType::RegularFile | FileType::Directory => {
                statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            }
            // Links that lead out of the directory are not listed, because it is not known here
            // whether they stay beneath the root.
            _ => {
                let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let opened = openat2(directory, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how);
                opened.and_then(fstat)
            }
        };
        let Ok((stamp, kind)) = found.map(|found| of_stat(&found)) else { continue };
        if kind != FoundKind::Other {
            files.push(ListedFile {
                name: name.to_vec(),
                is_directory: kind == FoundKind::Directory,
                len: stamp.len,
            });
        }
    }
    Ok(Listing::new(files, false))
}

fn of_stat(found: &Stat) -> (FileStamp, FoundKind) {
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_sign_loss,
        reason = "their types differ between processors"
    )]
    let stamp = FileStamp {
        id: (found.st_dev as u64, found.st_ino as u64),
        len: u64::try_from(found.st_size).unwrap_or(0),
        modified: (found.st_mtime as i64, found.st_mtime_nsec as u32),
        changed: (found.st_ctime as i64, found.st_ctime_nsec as u32),
    };
    let kind = match FileType::from_raw_mode(found.st_mode as RawMode) {
        FileType::RegularFile => FoundKind::Regular,
        FileType::Directory => FoundKind::Directory,
        _ => FoundKind::Other,
    };
    (stamp, kind)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::listing::PagePosition;

    fn text(root: &Path, name: &str) -> Result<String, Errno> {
        let file = open(root, name.as_bytes(), DiskWait::Allowed)?;
        let (stamp, _) = stamp(&file)?;
        Ok(String::from_utf8(read_whole(&file, stamp.len as usize, DiskWait::Allowed)?).unwrap())
    }

    #[test]
    fn symlinks_and_paths_never_lead_out_of_the_root() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("root/sub")).unwrap();
        fs::write(at("secret"), "secret").unwrap();
        fs::write(at("root/a"), "a").unwrap();
        symlink(at("secret"), at("root/out")).unwrap();
        symlink("../../secret", at("root/sub/up")).unwrap();
        symlink("../a", at("root/sub/in")).unwrap();
        symlink("/proc/self/root/etc/hostname", at("root/magic")).unwrap();
        symlink("..", at("root/sub/parent")).unwrap();
        symlink("root", at("link")).unwrap();
        let root = at("root");
        assert_eq!(text(&root, "a").as_deref(), Ok("a"));
        assert_eq!(text(&root, "sub/in").as_deref(), Ok("a"));
        assert_eq!(text(&at("link"), "a").as_deref(), Ok("a"), "the root itself may be a link");
        for name in [
            "out",
            "sub/up",
            "magic",
            "../secret",
            "sub/../../secret",
            "/etc/hostname",
            "sub/parent/../secret",
        ] {
            assert_eq!(text(&root, name), Err(Errno::XDEV), "{name}");
        }
        assert_eq!(text(&root, "none"), Err(Errno::NOENT));
        assert_eq!(text(&root, "a/"), Err(Errno::NOTDIR));
        assert_eq!(stamp(open(&root, b"", DiskWait::Allowed).unwrap()).unwrap().1, FoundKind::Directory);
    }

    #[test]
    fn a_file_that_was_written_to_or_replaced_has_another_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        fs::write(&path, "one").unwrap();
        let first = stamp_at(&c_path).unwrap();
        assert_eq!(first, stamp(open(directory.path(), b"a", DiskWait::Allowed).unwrap()).unwrap().0);
        fs::write(directory.path().join("b"), "two").unwrap();
        fs::rename(directory.path().join("b"), &path).unwrap();
        let second = stamp_at(&c_path).unwrap();
        assert_ne!(first, second);
        fs::write(&path, "three").unwrap();
        assert_ne!(stamp_at(&c_path).unwrap(), second);
    }

    #[test]
    fn a_file_that_grows_while_it_is_read_is_told() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), "12345").unwrap();
        let file = open(directory.path(), b"a", DiskWait::Allowed).unwrap();
        assert_eq!(read_whole(&file, 5, DiskWait::Allowed).unwrap(), b"12345");
        assert_eq!(read_whole(&file, 9, DiskWait::Allowed).unwrap(), b"12345");
        assert_eq!(read_whole(&file, 4, DiskWait::Allowed), Err(Errno::FBIG));
    }

    #[test]
    fn a_directory_is_listed_without_dot_files_devices_and_ways_out() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("a"), "12345").unwrap();
        fs::write(at(".hidden"), "").unwrap();
        symlink("/etc/hostname", at("out")).unwrap();
        symlink("a", at("link")).unwrap();
        rustix::fs::mkfifoat(CWD, at("fifo"), Mode::RUSR).unwrap();
        let names = |with_dot_files| {
            let opened = open(directory.path(), b"", DiskWait::Allowed).unwrap();
            let (page, _) =
                list(&opened, with_dot_files).unwrap().part(b"", &PagePosition::Start, usize::MAX);
            let rows = page.lines().filter(|line| line.starts_with("<tr>"));
            rows.filter_map(|row| row.split('"').nth(1)).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["./sub/", "./a", "./link"]);
        assert_eq!(names(true), ["./sub/", "./.hidden", "./a", "./link"]);
    }
}
