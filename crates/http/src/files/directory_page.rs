//! HTML page of a directory. convey makes each part when the client has room for it. Between two
//! parts, it keeps only the position within the page.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use convey_files::beneath::{self, DiskWait, FileStamp, FoundKind};
use convey_files::listing::{Listing, PagePosition};
use convey_files::{BoundedCache, CacheBounds};
use convey_model::FilesConfig;
use convey_snapshot::stats::Counter;
use rustix::io::Errno;

use super::date;
use super::disk::aside;
use super::find::Unfound;
use super::store::is_settled;

/// Size of a part in bytes: a part ends with the row that reaches this size. A page of one part has
/// a `Content-Length`.
pub(super) const PART: usize = 8 * 1024;

/// Bounds for the cache of listings, which all clients share.
const SHARED: CacheBounds = CacheBounds { entries: 256, bytes: 16 << 20 };

static LISTINGS: LazyLock<Mutex<BoundedCache<DirectoryName, SharedListing>>> =
    LazyLock::new(|| Mutex::new(BoundedCache::new(SHARED)));

/// Key of a cached listing: a directory, and whether its dot files are listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DirectoryName {
    root: PathBuf,
    name: Vec<u8>,
    with_dot_files: bool,
}

/// Cached listing of a directory. It is valid for the second in which it was made.
struct SharedListing {
    listing: Arc<Listing>,
    /// State of the directory; `None` if the directory may change later without a change of this
    /// state.
    stamp: Option<FileStamp>,
    made: u64,
}

/// Page of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DirectoryPage {
    Whole(Bytes),
    InParts(PageInParts),
}

/// Page that is sent in parts: its directory, and the position of the next part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageInParts {
    directory: DirectoryName,
    at: PagePosition,
}

/// Returns the page of the directory with this name; `Forbidden` if the backend does not list
/// directories.
pub(super) async fn find(files: &FilesConfig, name: &[u8]) -> Result<DirectoryPage, Unfound> {
    let with_dot_files = files.dot_files;
    let directory = DirectoryName { root: files.root.clone(), name: name.to_vec(), with_dot_files };
    let (of, is_listed) = (directory.clone(), files.listing);
    let found = aside(move || {
        let opened = beneath::open(&of.root, &of.name, DiskWait::Allowed)?;
        let (stamp, kind) = beneath::stamp(&opened)?;
        match kind {
            FoundKind::Directory if is_listed => {}
            FoundKind::Directory => return Ok(None),
            FoundKind::Regular | FoundKind::Other => return Err(Errno::NOTDIR),
        }
        let listing = match of.shared(Some(stamp)) {
            Some(listing) => listing,
            None => of.share(beneath::list(&opened, of.with_dot_files)?, stamp),
        };
        Ok(Some(listing.part(&of.name, &PagePosition::Start, PART)))
    });
    match found.await.ok_or(Unfound::Failed)??.ok_or(Unfound::Forbidden)? {
        (page, PagePosition::End) => Ok(DirectoryPage::Whole(page.into())),
        _ => Ok(DirectoryPage::InParts(PageInParts { directory, at: PagePosition::Start })),
    }
}

/// Drops listings of earlier seconds.
pub(super) fn sweep() {
    if let Ok(mut listings) = LISTINGS.try_lock() {
        let (now, _) = date::now();
        listings.expire(|shared| shared.made != now);
    }
}

impl PageInParts {
    /// Returns the next part of the page; `None` if the page is complete.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Counter> {
        if self.at == PagePosition::End {
            return Ok(None);
        }
        let PageInParts { directory, at } = self.clone();
        let made = aside(move || directory.listing().map(|listing| listing.part(&directory.name, &at, PART)));
        let (part, at) = made.await.and_then(Result::ok).ok_or(Counter::FileChanged)?;
        self.at = at;
        Ok(Some(part))
    }

    /// Whether the last part has been made.
    pub(super) fn is_complete(&self) -> bool {
        self.at == PagePosition::End
    }
}

impl DirectoryName {
    /// Returns the directory's listing of this second. The call may wait for a disk.
    fn listing(&self) -> rustix::io::Result<Arc<Listing>> {
        if let Some(listing) = self.shared(None) {
            return Ok(listing);
        }
        let opened = beneath::open(&self.root, &self.name, DiskWait::Allowed)?;
        let (stamp, _) = beneath::stamp(&opened)?;
        Ok(self.share(beneath::list(&opened, self.with_dot_files)?, stamp))
    }

    /// Returns the cached listing if it was made in the current second. If `stamp` is set, the
    /// directory must also have been in this state.
    fn shared(&self, stamp: Option<FileStamp>) -> Option<Arc<Listing>> {
        let (now, _) = date::now();
        let mut listings = listings();
        let shared = listings.get(self).filter(|shared| shared.made == now)?;
        (stamp.is_none() || shared.stamp == stamp).then(|| shared.listing.clone())
    }

    fn share(&self, listing: Listing, stamp: FileStamp) -> Arc<Listing> {
        let (now, listing) = (date::now(), Arc::new(listing));
        let bytes = listing.memory() + self.name.len() + self.root.as_os_str().len() + 512;
        let stamp = is_settled(stamp, now).then_some(stamp);
        listings().put(self.clone(), SharedListing { listing: listing.clone(), stamp, made: now.0 }, bytes);
        listing
    }
}

fn listings() -> MutexGuard<'static, BoundedCache<DirectoryName, SharedListing>> {
    LISTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}
