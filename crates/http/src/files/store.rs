//! File cache of one worker: it keeps small files in memory, and other files open. Each request
//! checks by `stat` whether its file has changed. A changed file is read again.

use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use convey_files::beneath::{self, DiskWait, FileStamp, FoundKind};
use convey_files::{BoundedCache, CacheBounds, Validators, content_type, is_compressible};
use convey_snapshot::PoolLive;
use convey_snapshot::stats::Counter;
use rustix::io::Errno;

use super::disk::aside;
use super::{date, directory_page};

/// Files up to this many bytes are kept in memory. It is cheaper to send longer files from the page
/// cache.
pub(super) const MAX_SMALL: u64 = 32 * 1024;

/// Limits for the files that a worker keeps in memory.
const SMALL: CacheBounds = CacheBounds { entries: 4_096, bytes: 16 << 20 };

/// Limits for the files that a worker keeps open. A deleted file occupies disk space as long as it
/// is open.
const OPEN: CacheBounds = CacheBounds { entries: 128, bytes: usize::MAX };

/// Seconds after which a cached file is opened again. Only opening checks whether its path is still
/// beneath the root.
const KEPT: u64 = 1;

/// Memory of an entry in addition to its content, in bytes.
const OVERHEAD: usize = 512;

/// Minimum age of a file's last change in nanoseconds, before the file is cached: two changes in a
/// shorter time could have the same timestamp.
const SETTLED: u64 = 50_000_000;

/// File cache of one worker.
#[derive(Default)]
pub(crate) struct FileCache {
    files: Mutex<CachedFiles>,
    /// Seconds since the cache was created, counted by [`FileCache::sweep`].
    seconds: AtomicU64,
}

/// Files in the cache, by root and name.
struct CachedFiles {
    small: BoundedCache<CString, KeptFile>,
    open: BoundedCache<CString, KeptFile>,
}

struct KeptFile {
    file: Arc<LoadedFile>,
    /// Second in which the file was opened.
    opened: u64,
    _held: HeldBytes,
}

/// Context of a file's load: the worker's cache, and the backend and core whose counters count the
/// load.
#[derive(Clone, Copy)]
pub(super) struct FileUser<'a> {
    pub(super) cache: &'a FileCache,
    pub(super) live: &'a Arc<PoolLive>,
    pub(super) core: usize,
}

/// Memory of a cached file, counted for its backend until this value is dropped.
struct HeldBytes {
    of: Arc<PoolLive>,
    core: usize,
    bytes: u64,
}

/// A file in memory, or open.
#[derive(Debug)]
pub(super) struct LoadedFile {
    pub(super) stamp: FileStamp,
    pub(super) len: u64,
    pub(super) content: FileContent,
    pub(super) validators: Validators,
    pub(super) content_type: &'static str,
    /// Whether convey looks for a precompressed form of the file.
    pub(super) is_compressible: bool,
    /// Modification time in HTTP format.
    pub(super) last_modified: Box<str>,
    /// Whether the file may be cached.
    is_settled: bool,
    /// Second of the cache in which the whole file was in the page cache, counted from 1; 0:
    /// unknown.
    in_memory_at: AtomicU64,
}

/// Content of a file.
#[derive(Debug)]
pub(super) enum FileContent {
    Small(Bytes),
    Open(Arc<OwnedFd>),
}

/// Kind of file at a path.
#[derive(Debug)]
pub(super) enum Opened {
    File(Arc<LoadedFile>),
    Directory,
    /// Neither a file nor a directory, such as a device: it is not served.
    Other,
}

/// Returns the file with this name beneath the root, in its current state.
pub(super) async fn load(user: FileUser<'_>, root: &Path, name: &[u8]) -> Result<Opened, Errno> {
    // Roots and names contain no NUL. Two slashes separate the root from the name.
    let key = CString::new([root.as_os_str().as_bytes(), b"//", name].concat()).map_err(|_| Errno::NOENT)?;
    if let Some(file) = user.cache.fresh(&key) {
        user.count(Counter::FileCacheHits, 1);
        return Ok(Opened::File(file));
    }
    let opened = match open(root, name, DiskWait::Never) {
        Err(Errno::AGAIN) => {
            let (root, name) = (root.to_owned(), name.to_vec());
            aside(move || open(&root, &name, DiskWait::Allowed)).await.ok_or(Errno::NOMEM)??
        }
        opened => opened?,
    };
    if let Opened::File(file) = &opened {
        user.count(Counter::FileCacheMisses, 1);
        let evicted = user.cache.keep(key, file, user);
        user.count(Counter::FileCacheEvictions, evicted as u64);
    }
    Ok(opened)
}

impl FileCache {
    /// Drops cached files that were opened too long ago. Call this once a second.
    pub(crate) fn sweep(&self) {
        let now = self.seconds.fetch_add(1, Ordering::Relaxed) + 1;
        let mut files = self.lock();
        files.small.expire(|file| file.opened + KEPT < now);
        files.open.expire(|file| file.opened + KEPT < now);
        drop(files);
        directory_page::sweep();
    }

    /// Current second, counted from 1.
    fn second(&self) -> u64 {
        self.seconds() + 1
    }

    /// Returns the cached file of this key, if the file is unchanged.
    fn fresh(&self, key: &CStr) -> Option<Arc<LoadedFile>> {
        let now = self.seconds();
        let of = |cache: &mut BoundedCache<CString, KeptFile>| {
            cache.get(key).filter(|kept| kept.opened + KEPT >= now).map(|kept| kept.file.clone())
        };
        let mut files = self.lock();
        let file = of(&mut files.small).or_else(|| of(&mut files.open))?;
        if beneath::stamp_at(key).is_ok_and(|stamp| stamp == file.stamp) {
            return Some(file);
        }
        files.small.remove(key);
        files.open.remove(key);
        None
    }

    /// Caches a file. Returns the number of evicted files.
    fn keep(&self, key: CString, file: &Arc<LoadedFile>, user: FileUser<'_>) -> usize {
        if !file.is_settled {
            return 0;
        }
        let mut files = self.lock();
        let (content, cache) = match &file.content {
            FileContent::Small(content) => (content.len(), &mut files.small),
            FileContent::Open(_) => (0, &mut files.open),
        };
        let bytes = content + key.as_bytes().len() + OVERHEAD;
        let kept = KeptFile { file: file.clone(), opened: self.seconds(), _held: user.hold(bytes as u64) };
        cache.put(key, kept, bytes)
    }

    fn seconds(&self) -> u64 {
        self.seconds.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, CachedFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for CachedFiles {
    fn default() -> CachedFiles {
        CachedFiles { small: BoundedCache::new(SMALL), open: BoundedCache::new(OPEN) }
    }
}

impl FileUser<'_> {
    fn count(self, counter: Counter, n: u64) {
        self.live.traffic.add(self.core, counter, n);
    }

    fn hold(self, bytes: u64) -> HeldBytes {
        self.count(Counter::FileCacheBytesKept, bytes);
        HeldBytes { of: self.live.clone(), core: self.core, bytes }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.of.traffic.add(self.core, Counter::FileCacheBytesDropped, self.bytes);
    }
}

fn open(root: &Path, name: &[u8], wait: DiskWait) -> rustix::io::Result<Opened> {
    let opened = beneath::open(root, name, wait)?;
    let (stamp, kind) = beneath::stamp(&opened)?;
    match kind {
        FoundKind::Directory => return Ok(Opened::Directory),
        FoundKind::Other => return Ok(Opened::Other),
        FoundKind::Regular => {}
    }
    let file = match usize::try_from(stamp.len) {
        Ok(len) if stamp.len <= MAX_SMALL => match beneath::read_whole(&opened, len, wait) {
            // The file has grown since `stat`, so it is being written. It is sent with the content
            // that it has by then.
            Err(Errno::FBIG) => LoadedFile::new(stamp, name, FileContent::Open(Arc::new(opened)), false),
            content => {
                let is_same = beneath::stamp(&opened)?.0 == stamp;
                LoadedFile::new(stamp, name, FileContent::Small(content?.into()), is_same)
            }
        },
        _ => LoadedFile::new(stamp, name, FileContent::Open(Arc::new(opened)), true),
    };
    Ok(Opened::File(Arc::new(file)))
}

impl LoadedFile {
    fn new(stamp: FileStamp, name: &[u8], content: FileContent, is_whole: bool) -> LoadedFile {
        let len = match &content {
            FileContent::Small(content) => content.len() as u64,
            FileContent::Open(_) => stamp.len,
        };
        let form = match name.rsplit(|byte| *byte == b'.').next() {
            Some(b"gz") => "-gz",
            Some(b"br") => "-br",
            Some(b"zst") => "-zst",
            _ => "",
        };
        let validators = Validators::new(len, stamp.modified, form);
        let last_modified = date::of(validators.modified).into();
        let is_settled = is_whole && is_settled(stamp, date::now());
        let in_memory_at = AtomicU64::new(0);
        LoadedFile {
            stamp,
            len,
            content,
            validators,
            content_type: content_type(name),
            is_compressible: is_compressible(name),
            last_modified,
            is_settled,
            in_memory_at,
        }
    }

    /// Whether the file holds a descriptor.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.content, FileContent::Open(_))
    }

    /// Whether this part of the file was found in the page cache in the current second. Only a part
    /// that is the whole file is remembered; for other parts the result is `false`.
    pub(super) fn was_in_memory(&self, range: &Range<u64>, cache: &FileCache) -> bool {
        range.end - range.start == self.len && self.in_memory_at.load(Ordering::Relaxed) == cache.second()
    }

    /// Remembers that this part of the file is in the page cache now. Has no effect unless the part
    /// is the whole file.
    pub(super) fn is_in_memory(&self, range: &Range<u64>, cache: &FileCache) {
        if range.end - range.start == self.len {
            self.in_memory_at.store(cache.second(), Ordering::Relaxed);
        }
    }
}

/// Whether a file was last changed long enough ago that any further change alters its stamp.
pub(super) fn is_settled(stamp: FileStamp, (seconds, nanoseconds): (u64, u32)) -> bool {
    let nanos =
        |seconds: i64, nanos: u32| seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos));
    let changed = nanos(stamp.changed.0, stamp.changed.1);
    let now = nanos(i64::try_from(seconds).unwrap_or(i64::MAX), nanoseconds);
    now.saturating_sub(changed) >= SETTLED.cast_signed()
}
