//! How the files that a backend serves differ. Pure.

use super::{change, list_or, or};
use convey_model::FilesConfig;

/// What changes, as in the line of the backend.
pub(super) fn changes(old: Option<&FilesConfig>, new: Option<&FilesConfig>) -> Vec<String> {
    let root = |files: Option<&FilesConfig>| or(files.map(|files| files.root.display()), "none");
    let mut changes: Vec<String> = change("files", root(old), root(new)).into_iter().collect();
    let (Some(old), Some(new)) = (old, new) else { return changes };
    let FilesConfig { root: _, index, listing, dot_files, precompressed, not_found, cache_control } = old;
    changes.extend(change("index", list_or(index, "none"), list_or(&new.index, "none")));
    changes.extend(change("listing", *listing, new.listing));
    changes.extend(change("dot_files", *dot_files, new.dot_files));
    changes.extend(change("precompressed", *precompressed, new.precompressed));
    changes.extend(change(
        "not_found",
        or(not_found.as_deref(), "none"),
        or(new.not_found.as_deref(), "none"),
    ));
    if *cache_control != new.cache_control {
        changes.push("cache_control has other rules".to_owned());
    }
    changes
}
