//! Any bytes as the state that the process before an upgrade has written: flows, and observations
//! of its flow cache. Each input is read once as it is, and once as rows of a table with the right
//! version and checksum.

#![no_main]

use std::fmt::Debug;

use convey_forward::{CacheEvent, KnownFlow, TableRow, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read::<KnownFlow>(bytes);
    read::<CacheEvent>(bytes);
});

fn read<R: TableRow + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(rows) = decode::<R>(bytes) {
        // Each row takes bytes of the input.
        assert!(rows.len() * R::LEN < bytes.len());
        assert_eq!(encode(&rows).len(), bytes.len());
    }
    let rows: Vec<R> = bytes.chunks_exact(R::LEN).filter_map(R::read).collect();
    assert_eq!(decode(&encode(&rows)).as_ref(), Ok(&rows));
}
