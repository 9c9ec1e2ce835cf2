//! Stand-ins for certificates and keys that the pages name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use convey_testkit::TestAuthority;
use tempfile::TempDir;
use toml::{Table, Value};

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = TempDir::new().unwrap();
    let authority = TestAuthority::new("docs");
    for name in ["site", "other"] {
        authority.issue(&[&format!("{name}.example")]).save(folder.path(), name);
    }
    authority.save(folder.path());
    // Certificate and key in the same file.
    let both = authority.issue(&["both.example"]);
    fs::create_dir(folder.path().join("certificates")).unwrap();
    both.save(&folder.path().join("certificates"), "both");
    let secret = folder.path().join("quic.key");
    fs::write(&secret, "00".repeat(16)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    folder
});

/// Where a file with this name is: `site.pem`, `site.key`, `other.pem`, `other.key`,
/// `authority.pem`, `certificates`, `quic.key`.
pub(crate) fn file(name: &str) -> String {
    let path: PathBuf = FOLDER.path().join(name);
    path.display().to_string()
}

/// Replaces the file names in a table of TLS or of QUIC with existing files.
pub(crate) fn put_in_place(tls: &mut Table) {
    let replaced = [
        ("certificate", "site.pem"),
        ("key", "site.key"),
        ("certificate_dir", "certificates"),
        ("client_ca", "authority.pem"),
        ("ca", "authority.pem"),
        ("key_file", "quic.key"),
    ];
    for (key, name) in replaced {
        let Some(value) = tls.get_mut(key) else { continue };
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| *item = file(name).into()),
            other => *other = file(name).into(),
        }
    }
}
