//! HTTP/1 as messages: convey reads the same messages however the bytes arrive, hyper reads the
//! same messages as convey, and the forwarded messages are the received ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod encoded;
mod generate;
mod oracle;
mod received;
