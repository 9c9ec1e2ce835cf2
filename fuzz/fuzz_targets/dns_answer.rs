//! Any bytes as an answer of a name server, or as a hosts file: servers get only addresses of
//! single machines.

#![no_main]

use convey_resolver::read_answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(records) = read_answer(bytes) {
        for address in records.into_addresses() {
            assert!(!address.ip().is_unspecified() && !address.ip().is_multicast());
        }
    }
});
