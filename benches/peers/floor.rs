//! The floor: the relay in `benches/floor`, which does no more than it must, and its variants: one
//! for bytes, and others with one more part of a load balancer each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Part of a load balancer that the floor has: a flag of its command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// No part, and no HTTP either: the floor of mode proxy.
    Bytes,
    /// No part.
    Plain,
    Route,
    Strict,
    Counters,
    Deadlines,
    Drain,
    Touch1,
    Touch2,
    Touch4,
    Touch8,
    /// All parts, with 2 KiB touched.
    All,
}

impl Variant {
    /// Name of the floor with this part in the table.
    pub(crate) fn peer_name(self) -> &'static str {
        match self {
            Variant::Bytes | Variant::Plain => "floor",
            Variant::Route => "floor, 100 routes",
            Variant::Strict => "floor, strict heads",
            Variant::Counters => "floor, counters",
            Variant::Deadlines => "floor, deadlines",
            Variant::Drain => "floor, drain",
            Variant::Touch1 => "floor, 1 KiB touched",
            Variant::Touch2 => "floor, 2 KiB touched",
            Variant::Touch4 => "floor, 4 KiB touched",
            Variant::Touch8 => "floor, 8 KiB touched",
            Variant::All => "floor, all of it",
        }
    }

    /// Arguments of the program.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Variant::Bytes => &["--tcp"],
            Variant::Plain => &[],
            Variant::Route => &["--route"],
            Variant::Strict => &["--strict"],
            Variant::Counters => &["--counters"],
            Variant::Deadlines => &["--deadlines"],
            Variant::Drain => &["--drain"],
            Variant::Touch1 => &["--touch", "1024"],
            Variant::Touch2 => &["--touch", "2048"],
            Variant::Touch4 => &["--touch", "4096"],
            Variant::Touch8 => &["--touch", "8192"],
            Variant::All => &["--all"],
        }
    }
}

/// Builds the floor below cargo's target folder. Returns its program.
///
/// # Errors
/// Cargo cannot build it: for example, its dependencies are not here and there is no network.
pub(crate) fn build() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/floor/Cargo.toml");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("floor");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--release", "--locked"]);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(&target);
    // The program has to be in the folder of the host.
    let output =
        cargo.env_remove("CARGO_BUILD_TARGET").stdin(Stdio::null()).output().context("starting cargo")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", output.status, said.trim_end());
    }
    Ok(target.join("release/floor-peer"))
}
