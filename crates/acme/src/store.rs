//! Store for the account, certificates, pending orders and failures of an authority. Files are
//! written under another name and then renamed, so that after a crash a file has either the old or
//! the new content. Several nodes may share the directory.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use convey_model::AcmeConfig;
use convey_tls::{AcmeProof, Certificate, Validity};
use rustls::crypto::ring;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::OrderFailure;
use crate::proof::SharedProof;

/// Maximum length of a file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Directory with the state for one authority, identified by its directory URL.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// A pending order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingOrder {
    /// URL of the order at the authority.
    pub url: String,
    /// Private key of the certificate, in PEM.
    pub key: String,
}

impl Store {
    /// Refers to the store in this directory, without creating it.
    pub fn new(folder: &Path) -> Store {
        Store { folder: folder.to_owned() }
    }

    /// Creates the missing directories. Only the current user may enter them.
    ///
    /// # Errors
    /// A directory cannot be created or written to. The message names the directory.
    pub fn prepare(&self) -> io::Result<()> {
        for folder in [self.folder.clone(), self.certificates(), self.orders(), self.proofs_folder()] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|error| told("cannot create", &folder, &error))?;
        }
        if let Some(open) = open_to_all(&self.folder) {
            let error = io::Error::new(
                ErrorKind::PermissionDenied,
                "all users can write to this directory and replace the keys; `chmod o-w` fixes it",
            );
            return Err(told("cannot keep keys in", open, &error));
        }
        if let Some((of_others, owner)) = of_other_users(&self.folder) {
            let why = format!("user {owner} owns this directory and can replace the keys; `chown` fixes it");
            let error = io::Error::new(ErrorKind::PermissionDenied, why);
            return Err(told("cannot keep keys in", of_others, &error));
        }
        // The name is random, because nodes that share the directory may test it at the same time.
        let probe =
            self.folder.join(format!(".write-test-{:016x}", RandomState::new().build_hasher().finish()));
        self.write(&probe, b"").map_err(|error| told("cannot write in", &self.folder, &error))?;
        fs::remove_file(probe)
    }

    /// Path of the lock file.
    pub fn lock_path(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Period of validity of the certificate for a name; `None` if there is no usable certificate.
    pub fn certificate(&self, name: &str) -> Option<Validity> {
        let pem = read(&self.certificate_path(name)).ok()?;
        let certificate = Certificate::from_pem(&pem, &pem, &ring::default_provider()).ok()?;
        certificate.names.iter().any(|other| other == name).then_some(certificate.validity)
    }

    /// Saves a certificate and its key in one file, so that they always match.
    ///
    /// # Errors
    /// The file cannot be written, or the chain is invalid.
    pub fn save_certificate(&self, name: &str, chain: &str, key: &str) -> io::Result<Validity> {
        let pem = format!("{}\n{chain}", key.trim_end());
        let unusable = |fault| {
            let why = format!("the authority's certificate cannot be used: {fault}");
            io::Error::new(ErrorKind::InvalidData, why)
        };
        let certificate = Certificate::from_pem(pem.as_bytes(), pem.as_bytes(), &ring::default_provider())
            .map_err(unusable)?;
        let path = self.certificate_path(name);
        self.write(&path, pem.as_bytes()).map_err(|error| told("cannot write", &path, &error))?;
        Ok(certificate.validity)
    }

    /// Reads the saved account; `None` if there is none.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    pub fn account<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        read_json(&self.account_path())
    }

    /// Saves the account.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_account(&self, account: &impl Serialize) -> io::Result<()> {
        self.write_json(&self.account_path(), account)
    }

    /// Removes the account from the store, after the authority has lost or removed it.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget_account(&self) -> io::Result<()> {
        remove(&self.account_path())
    }

    /// Pending order of a name; `None` if there is no order, or if it cannot be read.
    pub fn order(&self, name: &str) -> Option<PendingOrder> {
        read_json(&self.order_path(name)).ok().flatten()
    }

    /// Saves a pending order.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_order(&self, name: &str, order: &PendingOrder) -> io::Result<()> {
        self.write_json(&self.order_path(name), order)
    }

    /// Removes a pending order.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget_order(&self, name: &str) -> io::Result<()> {
        remove(&self.order_path(name))
    }

    /// Last failures of all names. A file that cannot be read counts as empty.
    pub fn failures(&self) -> BTreeMap<String, OrderFailure> {
        read_json(&self.failures_path()).ok().flatten().unwrap_or_default()
    }

    /// Saves the failure of a name; `None` removes the saved failure.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_failure(&self, name: &str, failure: Option<OrderFailure>) -> io::Result<()> {
        let mut all = self.failures();
        match failure {
            Some(failure) => _ = all.insert(name.to_owned(), failure),
            None if all.remove(name).is_none() => return Ok(()),
            None => {}
        }
        self.write_json(&self.failures_path(), &all)
    }

    /// Removes the failures of all names, because their causes may no longer exist.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget_failures(&self) -> io::Result<()> {
        remove(&self.failures_path())
    }

    /// Proofs of all pending orders, also of orders by other nodes.
    pub fn proofs(&self) -> Vec<AcmeProof> {
        let Ok(entries) = fs::read_dir(self.proofs_folder()) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let files = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
        let shared = files.filter_map(|path| read_json::<SharedProof>(&path).ok().flatten());
        shared.filter_map(|proof| proof.proof().ok()).collect()
    }

    /// Shares a proof, so that all nodes present it.
    pub(crate) fn share_proof(&self, name: &str, proof: &SharedProof) -> io::Result<()> {
        self.write_json(&self.proofs_folder().join(format!("{name}.json")), proof)
    }

    /// Removes all proofs, so that no node presents them any more.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn forget_proofs(&self) -> io::Result<()> {
        let folder = self.proofs_folder();
        let entries = fs::read_dir(&folder).map_err(|error| told("cannot read", &folder, &error))?;
        for entry in entries {
            remove(&entry?.path())?;
        }
        Ok(())
    }

    fn write_json(&self, path: &Path, value: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec_pretty(value)?;
        self.write(path, &json).map_err(|error| told("cannot write", path, &error))
    }

    /// Writes a file that only the current user may read. The file is synced to disk before it
    /// replaces the old one. Until then it has another name, in a directory that is not watched.
    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ErrorKind::InvalidInput.into());
        };
        // Only one node writes at a time: the node that holds the lock.
        let new = self.folder.join(format!(".{}.new", name.to_string_lossy()));
        remove(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()
    }

    fn certificates(&self) -> PathBuf {
        self.folder.join(AcmeConfig::CERTIFICATES)
    }

    fn orders(&self) -> PathBuf {
        self.folder.join("orders")
    }

    fn proofs_folder(&self) -> PathBuf {
        self.folder.join("challenges")
    }

    fn certificate_path(&self, name: &str) -> PathBuf {
        self.certificates().join(format!("{name}.pem"))
    }

    fn order_path(&self, name: &str) -> PathBuf {
        self.orders().join(format!("{name}.json"))
    }

    fn account_path(&self) -> PathBuf {
        self.folder.join("account.json")
    }

    fn failures_path(&self) -> PathBuf {
        self.folder.join("failures.json")
    }
}

/// First of `folder` and its parent directories in which any user may rename entries; `None` if
/// there is no such directory. Directories like `/tmp`, where users may rename only their own
/// entries, are not returned.
pub fn open_to_all(folder: &Path) -> Option<&Path> {
    const BY_OTHERS: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    folder.ancestors().find(|folder| {
        let mode = fs::metadata(folder).map_or(0, |found| found.permissions().mode());
        mode & BY_OTHERS != 0 && mode & STICKY == 0
    })
}

/// First of `folder` and its parent directories that belongs neither to root nor to the current
/// user, with the id of its owner; `None` if there is no such directory.
fn of_other_users(folder: &Path) -> Option<(&Path, u32)> {
    /// User id that stands for users without a mapping in a user namespace.
    const OVERFLOW: u32 = 65_534;
    let ours = [0, rustix::process::geteuid().as_raw(), OVERFLOW];
    let owned = folder.ancestors().filter_map(|folder| Some((folder, fs::metadata(folder).ok()?.uid())));
    owned.into_iter().find(|(_, owner)| !ours.contains(owner))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > MAX_FILE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    fs::read(path)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match read(path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(told("cannot read", path, &error.into())),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(told("cannot read", path, &error)),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(told("cannot remove", path, &error)),
        _ => Ok(()),
    }
}

fn told(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(&folder.path().join("a/b"));
        store.prepare().unwrap();
        (folder, store)
    }

    #[test]
    fn store_is_readable_by_its_owner_only() {
        let (_folder, store) = store();
        store.save_order("a.example", &PendingOrder { url: String::new(), key: String::new() }).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for folder in [&store.folder, &store.certificates(), &store.orders(), &store.proofs_folder()] {
            assert_eq!(mode(folder), 0o700, "{}", folder.display());
        }
        assert_eq!(mode(&store.order_path("a.example")), 0o600);
    }

    #[test]
    fn world_writable_folder_without_sticky_bit_is_refused() {
        let (folder, store) = store();
        for (mode, is_refused) in
            [(0o777, true), (0o1777, false), (0o775, false), (0o702, true), (0o700, false)]
        {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let prepared = store.prepare().map_err(|error| error.to_string());
            assert_eq!(prepared.is_err(), is_refused, "{mode:o}: {prepared:?}");
            assert!(prepared.is_ok() || prepared.unwrap_err().contains(folder.path().to_str().unwrap()));
        }
    }

    #[test]
    fn folder_of_another_user_is_refused() {
        let (folder, store) = store();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(4_321), None).unwrap();
            let why = store.prepare().unwrap_err().to_string();
            assert!(
                why.contains("user 4321 owns this directory")
                    && why.contains(folder.path().to_str().unwrap()),
                "{why}"
            );
        }
    }

    #[test]
    fn nodes_that_share_the_folder_try_it_at_once() {
        let (_folder, store) = store();
        let prepare = || (0..50).try_for_each(|_| store.prepare());
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let nodes: Vec<_> = (0..4).map(|_| scope.spawn(prepare)).collect();
            nodes.into_iter().map(|node| node.join().unwrap().map_err(|error| error.to_string())).collect()
        });
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(
            fs::read_dir(&store.folder).unwrap().all(|entry| entry.unwrap().file_type().unwrap().is_dir())
        );
    }

    #[test]
    fn certificate_is_stored_with_its_key_only_if_they_match() {
        let (_folder, store) = store();
        let issue = || rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (one, other) = (issue(), issue());
        let wrong = store.save_certificate("a.example", &one.cert.pem(), &other.signing_key.serialize_pem());
        assert!(wrong.unwrap_err().to_string().contains("does not match"));
        assert_eq!(store.certificate("a.example"), None);
        let key = one.signing_key.serialize_pem();
        let validity = store.save_certificate("a.example", &one.cert.pem(), &key).unwrap();
        assert_eq!(store.certificate("a.example"), Some(validity));
        fs::copy(store.certificate_path("a.example"), store.certificate_path("b.example")).unwrap();
        assert_eq!(store.certificate("b.example"), None, "it is for another name");
        fs::write(store.certificate_path("a.example"), "nothing").unwrap();
        assert_eq!(store.certificate("a.example"), None);
    }

    #[test]
    fn orders_and_failures_are_restored_and_a_broken_account_is_an_error() {
        let (_folder, store) = store();
        let order = PendingOrder { url: "https://a/1".to_owned(), key: "k".to_owned() };
        store.save_order("a", &order).unwrap();
        assert_eq!((store.order("a"), store.order("b")), (Some(order), None));
        store.forget_order("a").unwrap();
        store.forget_order("a").unwrap();
        assert_eq!(store.order("a"), None);
        let failure = OrderFailure { count: 2, next: 7, error: "no".to_owned() };
        store.save_failure("a", Some(failure.clone())).unwrap();
        assert_eq!(store.failures(), BTreeMap::from([("a".to_owned(), failure)]));
        store.save_failure("a", None).unwrap();
        assert!(store.failures().is_empty());
        fs::write(store.failures_path(), "{").unwrap();
        assert!(store.failures().is_empty());
        fs::write(store.account_path(), "{").unwrap();
        assert!(store.account::<String>().unwrap_err().to_string().contains("account.json"));
    }
}
