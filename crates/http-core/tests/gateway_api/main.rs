//! Rules of HTTPRoute in the Gateway API v1.6, as the conformance tests of its implementations check
//! them: which route takes a request, and the changes of redirects, rewrites and header modifiers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod changes;
mod redirects;
mod routes;
