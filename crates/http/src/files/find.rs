//! Lookup of a request's file.

use std::sync::Arc;

use convey_files::FileName;
use convey_http_core::{AcceptedEncodings, ContentCoding};
use convey_model::FilesConfig;
use rustix::io::Errno;

use super::directory_page::{self, DirectoryPage};
use super::store::{self, FileUser, LoadedFile, Opened};

/// Content that answers a request.
pub(super) struct Found {
    pub(super) content: FoundContent,
    /// The operator's `Cache-Control` for the content.
    pub(super) cache_control: Option<Box<str>>,
    /// Content coding of the precompressed file that the client gets; `None` if the content is not
    /// precompressed.
    pub(super) form: Option<ContentCoding>,
    /// Whether the content depends on `Accept-Encoding`.
    pub(super) varies: bool,
    pub(super) content_type: &'static str,
}

/// A file, or a page of a directory, which convey makes.
pub(super) enum FoundContent {
    File(Arc<LoadedFile>),
    Page(DirectoryPage),
}

impl Found {
    /// Returns the file; `None` for a page of a directory.
    pub(super) fn file(&self) -> Option<&Arc<LoadedFile>> {
        match &self.content {
            FoundContent::File(file) => Some(file),
            FoundContent::Page(_) => None,
        }
    }
}

/// Reason why no file was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfound {
    /// The file does not exist, or is not served.
    NotFound,
    /// Permission was denied.
    Forbidden,
    /// The file could not be read, or no descriptor is left for it.
    Failed,
    /// The path is a directory, and has no trailing slash.
    IsDirectory,
}

impl From<Errno> for Unfound {
    fn from(error: Errno) -> Unfound {
        match error {
            // A path that leaves the root counts as not found.
            Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP | Errno::NAMETOOLONG | Errno::NXIO => {
                Unfound::NotFound
            }
            Errno::ACCESS | Errno::PERM => Unfound::Forbidden,
            _ => Unfound::Failed,
        }
    }
}

/// Finds the file with this name, or the index file or page of the directory with this name.
pub(super) async fn find(
    user: FileUser<'_>,
    files: &FilesConfig,
    name: &FileName,
    encodings: &AcceptedEncodings,
) -> Result<Found, Unfound> {
    if !name.is_directory() {
        return of_name(user, files, name.as_bytes(), encodings).await;
    }
    for index in &files.index {
        match of_name(user, files, &name.child(index), encodings).await {
            Err(Unfound::NotFound | Unfound::IsDirectory) => {}
            other => return other,
        }
    }
    Ok(Found {
        content: FoundContent::Page(directory_page::find(files, name.as_bytes()).await?),
        cache_control: None,
        form: None,
        varies: false,
        content_type: "text/html; charset=utf-8",
    })
}

/// Finds the file with this name.
pub(super) async fn of_name(
    user: FileUser<'_>,
    files: &FilesConfig,
    name: &[u8],
    encodings: &AcceptedEncodings,
) -> Result<Found, Unfound> {
    let file = match store::load(user, &files.root, name).await? {
        Opened::File(file) => file,
        Opened::Directory => return Err(Unfound::IsDirectory),
        Opened::Other => return Err(Unfound::NotFound),
    };
    let varies = files.precompressed && file.is_compressible;
    let content_type = file.content_type;
    let (mut found, mut form) = (file, None);
    if varies {
        for wanted in encodings.best_of(&ContentCoding::ALL) {
            if let Some(compressed) = compressed(user, files, name, wanted, &found).await {
                (found, form) = (compressed, Some(wanted));
                break;
            }
        }
    }
    Ok(Found {
        content: FoundContent::File(found),
        cache_control: cache_control(files, name),
        form,
        varies,
        content_type,
    })
}

fn cache_control(files: &FilesConfig, name: &[u8]) -> Option<Box<str>> {
    if files.cache_control.is_empty() {
        return None;
    }
    files.cache_control_of(&String::from_utf8_lossy(name)).map(Into::into)
}

/// Returns the precompressed form of a file. `None`: there is no such form, or it is older than the
/// file and thus outdated.
async fn compressed(
    user: FileUser<'_>,
    files: &FilesConfig,
    name: &[u8],
    form: ContentCoding,
    file: &LoadedFile,
) -> Option<Arc<LoadedFile>> {
    let name = [name, form.file_suffix().as_bytes()].concat();
    let Ok(Opened::File(found)) = store::load(user, &files.root, &name).await else { return None };
    is_as_new(found.stamp.modified, file.stamp.modified).then_some(found)
}

/// Whether a precompressed form with this modification time is up to date. Compression tools copy
/// the time of the file to the form, some of them only in whole seconds.
fn is_as_new(form: (i64, u32), file: (i64, u32)) -> bool {
    form >= file || form == (file.0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_is_older_than_its_file_is_of_another_state() {
        assert!(is_as_new((5, 7), (5, 7)) && is_as_new((6, 0), (5, 7)) && is_as_new((5, 0), (5, 7)));
        assert!(!is_as_new((5, 6), (5, 7)) && !is_as_new((4, 0), (5, 0)));
    }

    #[test]
    fn kernel_errors_map_to_not_found_forbidden_or_failed() {
        for (errno, expected) in [
            (Errno::NOENT, Unfound::NotFound),
            (Errno::XDEV, Unfound::NotFound),
            (Errno::LOOP, Unfound::NotFound),
            (Errno::ACCESS, Unfound::Forbidden),
            (Errno::IO, Unfound::Failed),
            (Errno::MFILE, Unfound::Failed),
        ] {
            assert_eq!(Unfound::from(errno), expected, "{errno}");
        }
    }
}
