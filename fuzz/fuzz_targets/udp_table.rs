//! Any calls of the table of UDP sessions of proxy mode: after each call, its lists agree with its
//! sessions. A full table evicts sessions without an answer before streams, and never a stream
//! whose server has just sent.

#![no_main]

use convey_proxy::exercise_session_table;
use libfuzzer_sys::fuzz_target;

// Three bytes a call: which one, a client, and a number.
fuzz_target!(|bytes: &[u8]| exercise_session_table(bytes));
