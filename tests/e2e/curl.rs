//! curl, as users have it.

use std::process::Command;

/// Output of curl with these arguments.
pub(crate) fn curl(args: &[&str]) -> String {
    let ran = Command::new("curl").args(["-sS", "--max-time", "20"]).args(args).output().unwrap();
    assert!(ran.status.success(), "curl {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}
