//! This test has its own process, because it counts the threads of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;

use convey_resolver::connect;

#[tokio::test]
async fn connect_needs_no_blocking_thread_for_names_and_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(connect(host, port).await.unwrap().peer_addr().unwrap().port(), port, "{host}");
    }
    assert!(threads() <= before + 1, "the thread that reads /etc/hosts ends by itself");
}
