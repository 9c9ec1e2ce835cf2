//! All files of a configuration at one revision of etcd. Pure.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::MAIN_FILE;

/// Maximum number of files of a configuration, including the files that it includes or names.
const MAX_FILES: usize = 1_024;

/// Maximum length of all files together, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Maximum length of the path of a file, in bytes.
const MAX_PATH: usize = 512;

/// Configuration at one revision of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// Revision of the last change of a key. It is the same on all nodes.
    pub number: i64,
    /// Contents of the files, by path below the prefix.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Reason why the keys are not a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RevisionFault {
    /// There is no configuration below the prefix.
    #[error("there is no key {prefix}{MAIN_FILE}")]
    Missing {
        /// The prefix.
        prefix: String,
    },
    /// A key is not the path of a file.
    #[error("the key {0} is not the path of a file")]
    NoPath(String),
    /// The keys cannot all be files: a file would have the name of a directory.
    #[error("the key {0} would be both a file and a directory")]
    FileAndFolder(String),
    /// There are too many keys, or their values are too long.
    #[error("the configuration below {prefix} is too large: at most {MAX_FILES} keys and {} MiB", MAX_BYTES >> 20)]
    TooMuch {
        /// The prefix.
        prefix: String,
    },
}

impl Revision {
    /// Builds a revision from the keys below `prefix`.
    ///
    /// # Errors
    /// The keys lack [`MAIN_FILE`], are too large, or are not paths of files.
    pub fn of(
        number: i64,
        prefix: &str,
        keys: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<Revision, RevisionFault> {
        let (mut files, mut bytes) = (BTreeMap::new(), 0);
        for (key, value) in keys {
            let shown = String::from_utf8_lossy(&key).into_owned();
            let path = shown.strip_prefix(prefix).filter(|path| shown.as_bytes() == key && is_path(path));
            let Some(path) = path.map(str::to_owned) else { return Err(RevisionFault::NoPath(shown)) };
            bytes += path.len() + value.len();
            files.insert(path, value);
            if files.len() > MAX_FILES || bytes > MAX_BYTES {
                return Err(RevisionFault::TooMuch { prefix: prefix.to_owned() });
            }
        }
        let is_folder = |path: &&String| {
            let below = format!("{path}/");
            files.range(below.clone()..).next().is_some_and(|(next, _)| next.starts_with(&below))
        };
        if let Some(both) = files.keys().find(is_folder) {
            return Err(RevisionFault::FileAndFolder(format!("{prefix}{both}")));
        }
        match files.contains_key(MAIN_FILE) {
            true => Ok(Revision { number, files }),
            false => Err(RevisionFault::Missing { prefix: prefix.to_owned() }),
        }
    }
}

/// Whether a path stays below its directory on every file system.
fn is_path(path: &str) -> bool {
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= 255;
    path.len() <= MAX_PATH && path.split('/').all(is_name) && !path.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: &[&str]) -> Result<Revision, RevisionFault> {
        Revision::of(7, "/edge/", keys.iter().map(|key| (key.as_bytes().to_vec(), b"text".to_vec())))
    }

    #[test]
    fn keys_below_the_prefix_are_files() {
        let revision = of(&["/edge/config.toml", "/edge/sites/a.toml", "/edge/sites.toml"]).unwrap();
        assert_eq!(revision.number, 7);
        assert_eq!(revision.files.keys().collect::<Vec<_>>(), ["config.toml", "sites.toml", "sites/a.toml"]);
    }

    #[test]
    fn key_that_leads_out_of_the_folder_is_refused() {
        for key in ["../x", "a/../../x", "/x", "a//b", "a/", "", ".", "a/./b", "a\nb", "a\0b"] {
            let key = format!("/edge/{key}");
            assert_eq!(of(&["/edge/config.toml", &key]), Err(RevisionFault::NoPath(key)));
        }
        let bytes = Revision::of(7, "/edge/", [(b"/edge/\xff".to_vec(), Vec::new())]);
        assert!(matches!(bytes, Err(RevisionFault::NoPath(_))));
        assert!(matches!(of(&["/other/config.toml"]), Err(RevisionFault::NoPath(_))));
        let long = format!("/edge/{}", "a".repeat(256));
        assert_eq!(of(&[&long]), Err(RevisionFault::NoPath(long.clone())));
    }

    #[test]
    fn invalid_revisions_are_refused_with_a_reason() {
        assert_eq!(of(&["/edge/a"]).unwrap_err().to_string(), "there is no key /edge/config.toml");
        let both = of(&["/edge/config.toml", "/edge/a", "/edge/a-b", "/edge/a/b"]).unwrap_err();
        assert_eq!(both, RevisionFault::FileAndFolder("/edge/a".to_owned()));
        let many = (0..=MAX_FILES).map(|n| (format!("/edge/{n}").into_bytes(), Vec::new()));
        assert!(matches!(Revision::of(1, "/edge/", many), Err(RevisionFault::TooMuch { .. })));
        let large = [(b"/edge/config.toml".to_vec(), vec![0; MAX_BYTES])];
        assert!(matches!(Revision::of(1, "/edge/", large), Err(RevisionFault::TooMuch { .. })));
    }
}
