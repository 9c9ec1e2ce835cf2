//! Any bytes as an answer of etcd's JSON gateway: all paths of a configuration are beneath its
//! folder, and no number wraps.

#![no_main]

use convey_etcd::{MAIN_FILE, read_answer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(revision) = read_answer(bytes) {
        assert!(revision.files.contains_key(MAIN_FILE));
        let is_beneath = |path: &String| !path.starts_with('/') && path.split('/').all(|name| name != "..");
        assert!(revision.files.keys().all(is_beneath));
    }
});
