//! Debian's kernel for virtual machines, unpacked but not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::machine::{archive, output};

/// Package that depends on the newest kernel.
const PACKAGE: &str = "linux-image-cloud-amd64";

/// Modules for networking, as paths in the module tree.
const MODULES: [&str; 5] =
    ["kernel/net", "kernel/lib", "kernel/crypto", "kernel/arch", "kernel/drivers/net/veth.ko"];

/// A kernel that can boot machines.
pub(crate) struct Kernel {
    /// Kernel image to boot.
    pub(crate) image: PathBuf,
    /// Cpio archive with its modules, in the kernel's search path.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// Kernel of Debian 12, Linux 6.1. It is fetched once, and kept in cargo's target directory.
    ///
    /// # Errors
    /// The missing prerequisite.
    pub(crate) fn of_debian() -> Result<Kernel, String> {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGE);
        if !kept.exists() {
            // The folder is made aside and renamed, so that it is complete even if another process
            // makes it, too.
            let making = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
            fetch(making.path())?;
            if fs::rename(making.path(), &kept).is_ok() {
                let _ = making.keep();
            }
        }
        Ok(Kernel { image: kept.join("image"), modules: kept.join("modules.cpio") })
    }
}

fn fetch(folder: &Path) -> Result<(), String> {
    let at = |name: &str| folder.join(name);
    let unavailable = |error| format!("no {PACKAGE} from apt: {error}");
    let depends = output(Command::new("apt-cache").args(["depends", "--important", PACKAGE]));
    let depends = depends.map_err(unavailable)?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = package.ok_or_else(|| unavailable("unknown; apt-get update may help".to_owned()))?;
    let release = package.trim_start_matches("linux-image-");
    if !release.starts_with("6.1.") {
        return Err(format!("needs Debian 12, whose kernel is older than tcx; {PACKAGE} is {release} here"));
    }
    output(Command::new("apt-get").args(["download", "-q", package]).current_dir(folder))
        .map_err(unavailable)?;

    let system = |error: std::io::Error| format!("{}: {error}", folder.display());
    let deb = fs::read_dir(folder).map_err(system)?.flatten().next().map(|entry| entry.path());
    let deb = deb.ok_or_else(|| unavailable("nothing came".to_owned()))?;
    output(Command::new("dpkg-deb").arg("-x").args([&deb, &at("package")]))?;
    fs::rename(at("package/boot").join(format!("vmlinuz-{release}")), at("image")).map_err(system)?;

    let (all, some) =
        (Path::new("package/lib/modules").join(release), Path::new("lib/modules").join(release));
    for part in MODULES.into_iter().chain(["modules.builtin", "modules.order"]) {
        let to = folder.join("root").join(&some).join(part);
        fs::create_dir_all(to.parent().unwrap()).map_err(system)?;
        fs::rename(folder.join(&all).join(part), to).map_err(system)?;
    }
    output(Command::new("busybox").args(["depmod", "-b"]).arg(at("root")).arg(release))?;
    archive(&at("root"), &at("modules.cpio"))?;
    for rest in ["package", "root"] {
        fs::remove_dir_all(at(rest)).map_err(system)?;
    }
    fs::remove_file(deb).map_err(system)
}
