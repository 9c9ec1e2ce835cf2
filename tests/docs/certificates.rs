//! Files that the pages name and nobody has: certificates.

use std::fs;
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
    // With its key in the same file.
    let both = authority.issue(&["both.example"]);
    fs::create_dir(folder.path().join("certificates")).unwrap();
    both.save(&folder.path().join("certificates"), "both");
    folder
});

/// Where a file with this name is: `site.pem`, `site.key`, `other.pem`, `other.key`, `authority.pem`, `certificates`.
pub(crate) fn file(name: &str) -> String {
    let path: PathBuf = FOLDER.path().join(name);
    path.display().to_string()
}

/// Puts files that are there in the place of those that a table of TLS names.
pub(crate) fn put_in_place(tls: &mut Table) {
    let replaced = [
        ("certificate", "site.pem"),
        ("key", "site.key"),
        ("certificate_dir", "certificates"),
        ("client_ca", "authority.pem"),
        ("ca", "authority.pem"),
    ];
    for (key, name) in replaced {
        let Some(value) = tls.get_mut(key) else { continue };
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| *item = file(name).into()),
            other => *other = file(name).into(),
        }
    }
}
