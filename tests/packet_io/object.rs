//! The committed kernel programs match the build of their sources.

use std::path::Path;
use std::process::Command;

use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![committed_kernel_programs_are_what_their_sources_build]
}

const README: &str = include_str!("../../bpf/README.md");

/// Why they cannot be built here.
pub(crate) fn missing() -> Option<String> {
    let wanted = version_in(README).expect("bpf/README.md names the version of clang");
    let Ok(output) = Command::new("clang").arg("--version").output() else {
        return Some("clang is not installed (Debian package clang)".into());
    };
    match version_in(&String::from_utf8_lossy(&output.stdout).replace("version ", "")) {
        _ if Command::new("llvm-strip").arg("--version").output().is_err() => {
            Some("llvm-strip is not installed (Debian package llvm)".into())
        }
        Some(found) if found == wanted => None,
        found => Some(format!("built with clang {wanted}, and here is {found:?}")),
    }
}

/// First number after "clang ".
fn version_in(text: &str) -> Option<u32> {
    let number = |after: &str| after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    text.split("clang ").skip(1).find_map(number)
}

fn committed_kernel_programs_are_what_their_sources_build() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let built = tempfile::tempdir().unwrap();
    let status = Command::new(committed.join("build.sh")).arg(built.path()).status().unwrap();
    assert!(status.success());
    let objects: Vec<_> = built.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!objects.is_empty());
    for name in objects {
        let same =
            std::fs::read(built.path().join(&name)).unwrap() == std::fs::read(committed.join(&name)).unwrap();
        assert!(same, "{name:?} is not what bpf/build.sh makes of its source: run it, and commit the object");
    }
}
